"""The curves of many trials as they travel: point by point, or as counts of how many pass through each cell of a chart.

docs/rest.md describes both formats. `curves_block`, `curve_keys` and `density_block` are run where heavy reads are.
"""

import gzip
import json
import math
import sqlite3
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Literal

from proctor.manager.api.columnar import UNSIGNED, from_bytes, to_bytes
from proctor.manager.errors import BadRequest
from proctor.manager.store.tables import curves
from proctor.manager.store.tables.curves import Curve
from proctor.manager.store.tables.trials import TrialStart, TrialStarts

CURVES_MEDIA_TYPE = "application/vnd.proctor.curves"
DENSITY_MEDIA_TYPE = "application/vnd.proctor.density"
CURVES_VERSION = 2
DENSITY_VERSION = 1
MAX_POINTS = 10_000_000
"""Of one answer: 80 MB."""
_CURVES_MAGIC = b"PCRV"
_DENSITY_MAGIC = b"PDEN"
_LEFT_OUT = 0.005
"""Of the values at either end, where they are far from the others."""
_NEAR = 0.25
"""How far from the others, as a part of their span, is not far."""
_SAMPLED_VALUES = 100_000
"""From which the span of the values is estimated."""

XAxis = Literal["step", "seconds", "time"]


@dataclass(frozen=True)
class CurveQuery:
    """Which curves: of these trials, in this order; those without points too where they were named."""

    trials: TrialStarts
    are_named: bool
    member: int
    key: str | None
    x: XAxis


@dataclass(frozen=True)
class Grid:
    """The cells of a chart."""

    width: int
    height: int
    log_x: bool
    log_y: bool


def curves_block(connection: sqlite3.Connection, wanted: CurveQuery) -> bytes:
    """The curves as `application/vnd.proctor.curves`. Raises BadRequest for too many points."""
    found = _read(connection, wanted)
    base = _base(wanted, found)
    counts = [curve.points for _, curve in found]
    begins = [0, *accumulate(counts)][: len(counts)]
    numbers = [trial.sequence_id for trial, _ in found]
    head = to_bytes("I", [CURVES_VERSION, len(counts), sum(counts)]) + to_bytes("d", [base])
    return b"".join(
        [
            _CURVES_MAGIC,
            head,
            to_bytes("I", [*numbers, *counts, *begins]),
            *(_abscissas(wanted.x, trial, curve, base) for trial, curve in found),
            *(curve.values for _, curve in found),
        ]
    )


def curve_keys(connection: sqlite3.Connection, member: int) -> list[str]:
    """What the curves of a member can be drawn of, besides its number."""
    return curves.keys(connection, member=member)


def _read(connection: sqlite3.Connection, wanted: CurveQuery) -> list[tuple[TrialStart, Curve]]:
    member, key = wanted.member, wanted.key
    if wanted.are_named:
        return [(trial, curves.read_one(connection, trial.id, member=member, key=key)) for trial in wanted.trials]
    points = curves.count_points(connection, member=member)
    if points > MAX_POINTS:
        raise BadRequest(
            f"the trials have up to {points:,} points; expected at most {MAX_POINTS:,}: name some by `ids`"
        )
    by_id = {curve.trial_id: curve for curve in curves.read_all(connection, member=member, key=key)}
    return [(trial, curve) for trial in wanted.trials if (curve := by_id.get(trial.id)) is not None and curve.points]


def _base(wanted: CurveQuery, found: Sequence[tuple[TrialStart, Curve]]) -> float:
    """What is to be added to each x, so that a float32 can hold the rest."""
    if wanted.x != "time":
        return 0.0
    return float(math.floor(min((curve.first_time for _, curve in found if curve.points), default=0.0)))


def _abscissas(x: XAxis, trial: TrialStart, curve: Curve, base: float) -> bytes:
    """The x of each point, without the base."""
    if x == "step":
        return curve.steps
    origin = base if x == "time" else math.nan if trial.started_at is None else trial.started_at
    offset = curve.first_time - origin
    return to_bytes("f", [seconds + offset for seconds in from_bytes("f", curve.seconds)])


def density_block(connection: sqlite3.Connection, wanted: CurveQuery, grid: Grid) -> tuple[bytes, bytes]:
    """The density of the curves as `application/vnd.proctor.density`, compressed: to be sent while it is current, and
    afterwards. Raises BadRequest for too many points."""
    found = _read(connection, wanted)
    base = _base(wanted, found)
    lines = []
    for trial, curve in found:
        xs = from_bytes("f", _abscissas(wanted.x, trial, curve, base))
        ys = from_bytes("f", curve.values)
        lines.append((_scaled(xs, grid.log_x), _scaled(ys, grid.log_y)))
    x, y = _x_axis(lines), _y_axis(lines)
    counted, counts = (0, [0] * (grid.width * grid.height)) if x is None or y is None else _count(lines, x, y, grid)
    most = max(counts)
    name, code, _ = next(each for each in UNSIGNED if most < each[2])
    header: dict[str, Any] = {
        "version": DENSITY_VERSION,
        "width": grid.width,
        "height": grid.height,
        "encoding": name,
        "curves": counted,
        "most": most,
        "x": _described(x, log=grid.log_x, base=base),
        "y": _described(y, log=grid.log_y, base=0.0),
    }
    block = to_bytes(code, counts)
    current, older = (_body({**header, "is_current": is_current}, block) for is_current in (True, False))
    return current, older


def _body(header: dict[str, Any], block: bytes) -> bytes:
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-(8 + len(text)) % 8)
    return gzip.compress(_DENSITY_MAGIC + to_bytes("I", [len(text)]) + text + block, compresslevel=1, mtime=0)


# ---- counting: coordinates are scaled to the axes, logarithms on logarithmic ones; NaN: not on them --------


@dataclass(frozen=True)
class _Axis:
    begin: float
    end: float
    least: float
    greatest: float


_Lines = Sequence[tuple[Sequence[float], Sequence[float]]]


def _scaled(values: Sequence[float], log: bool) -> Sequence[float]:
    return [math.log10(value) if value > 0 else math.nan for value in values] if log else values


def _x_axis(lines: _Lines) -> _Axis | None:
    """From the least to the greatest."""
    ends = [(min(known), max(known)) for xs, _ in lines if (known := [x for x in xs if x == x])]
    if not ends:
        return None
    least, greatest = min(low for low, _ in ends), max(high for _, high in ends)
    return _Axis(least, greatest, least, greatest)


def _y_axis(lines: _Lines) -> _Axis | None:
    """The span of nearly all values, and of those that are not far from them."""
    values = [y for _, ys in lines for y in ys if y == y]
    if not values:
        return None
    least, greatest = min(values), max(values)
    sample = sorted(values[:: 1 + len(values) // _SAMPLED_VALUES])
    out = int(len(sample) * _LEFT_OUT)
    low, high = sample[out], sample[len(sample) - 1 - out]
    near = _NEAR * (high - low)
    return _Axis(max(least, low - near), min(greatest, high + near), least, greatest)


def _described(axis: _Axis | None, *, log: bool, base: float) -> dict[str, Any]:
    ends = (None,) * 4 if axis is None else (axis.begin, axis.end, axis.least, axis.greatest)
    numbers = [None if end is None else (10.0**end if log else end) + base for end in ends]
    return {**dict(zip(("from", "to", "least", "greatest"), numbers, strict=True)), "log": log}


def _count(lines: _Lines, x: _Axis, y: _Axis, grid: Grid) -> tuple[int, list[int]]:
    """How many curves there are, and how many pass through each cell, row by row, the greatest values first."""
    width, height = grid.width, grid.height
    counts = [0] * (width * height)
    runs = [0] * ((width + 1) * height)  # where runs of cells in a row begin and end: +1 and -1
    counted = 0
    for xs, ys in lines:
        columns, rows = _cells(xs, x, width), _cells(ys, y, height * (1 - 1e-9))
        points = [point for point in zip(columns, rows, strict=True) if point[0] == point[0] and point[1] == point[1]]
        if not points:
            continue
        counted += 1
        if not _draw(columns, rows, grid, counts, runs):
            column, row = int(points[0][0]), math.floor(points[0][1])
            if 0 <= row < height:
                counts[row * width + min(column, width - 1)] += 1
    ordered: list[int] = []
    for row in range(height - 1, -1, -1):
        begin = row * (width + 1)
        sums = accumulate(runs[begin : begin + width])
        ordered += [run + single for run, single in zip(sums, counts[row * width : (row + 1) * width], strict=True)]
    return counted, ordered


def _cells(values: Sequence[float], axis: _Axis, cells: float) -> list[float]:
    """Where values are on an axis, in cells."""
    if axis.end <= axis.begin:
        return [cells / 2 if value == value else value for value in values]
    scale, begin = cells / (axis.end - axis.begin), axis.begin
    return [(value - begin) * scale for value in values]


def _draw(columns: list[float], rows: list[float], grid: Grid, counts: list[int], runs: list[int]) -> bool:
    """Count a curve once in each column whose middle it passes; whether there is one."""
    width, height = grid.width, grid.height
    reached = 0  # the first column that it does not count in yet: it may go back
    for begin, end, low, high in _segments(columns, rows):
        first, stop = max(int(begin + 0.5), reached), int(end + 0.5)
        if first >= stop:
            continue
        reached = stop
        slope = (high - low) / (end - begin)
        row = low + slope * (first + 0.5 - begin)
        last = row + slope * (stop - 1 - first)
        if row // 1 == last // 1:
            if 0 <= row < height:
                place = int(row) * (width + 1)
                runs[place + first] += 1
                runs[place + stop] -= 1
            continue
        for column in range(first, stop):
            if 0 <= row < height:
                counts[int(row) * width + column] += 1
            row += slope
    return reached > 0


def _segments(columns: list[float], rows: list[float]) -> Iterator[tuple[float, float, float, float]]:
    """From where to where each line between two points goes; none where one of them is not known."""
    for begin, end, low, high in zip(columns, columns[1:], rows, rows[1:]):  # noqa: B905 - as many as there are pairs
        if end > begin and low == low and high == high:
            yield begin, end, low, high

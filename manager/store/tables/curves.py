"""The visible curves of many trials, for charts: packed into blobs when trials end, else from the rows.

`read_all` and `read_one` give the same whether a curve was packed or not: both are packed by `pack`. A packed curve is
used only while the journals of its trial are what they were when it was packed.
"""

import math
import sqlite3
import sys
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from proctor.manager.store.rows import MetricRow
from proctor.manager.store.statements import query
from proctor.manager.store.tables import metrics
from proctor.manager.store.tables.journals import finite_number
from proctor.manager.store.tables.metrics import VisiblePoint
from proctor.sdk.client.flattening import flatten

MOST_KEYS = 64
"""That are packed of a curve; the others are read from the rows."""
FEWEST_POINTS = 8
"""That are worth a blob: fewer are read from the rows as fast."""
MOST_READ_FOR_KEYS = 200
"""Of the curves that are not packed, for `keys`."""
REPORTS_READ_FOR_KEYS = 20
"""Of each of them, the first."""
_LARGEST_SINGLE = 3.4028234663852886e38
_NOT_A_NUMBER = array("f", [math.nan])


@dataclass(frozen=True, slots=True)
class Curve:
    """The points of a trial. `steps`, `seconds` (after `first_time`, Unix time) and `values` are little-endian
    float32; a value that is missing, not finite or too large is NaN."""

    trial_id: str
    first_time: float
    steps: bytes
    seconds: bytes
    values: bytes

    @property
    def points(self) -> int:
        """How many there are."""
        return len(self.steps) // 4


@dataclass(frozen=True, slots=True)
class PackedCurve:
    """A curve to be stored: that of a trial's number, and the values of its keys. `state`: of the journals that it is
    made of."""

    curve: Curve
    state: tuple[int, int]
    has_all_keys: bool
    keys: dict[str, bytes] = field(default_factory=dict)


def read_all(connection: sqlite3.Connection, *, member: int, key: str | None = None) -> Iterator[Curve]:
    """The visible curves of a member of all trials in which it has reported an intermediate metric.

    :param key: of what was reported, nested ones with dots; None: its number.
    """
    yield from _read(connection, "curves.all", {}, member, key)


def read_one(connection: sqlite3.Connection, trial_id: str, *, member: int, key: str | None = None) -> Curve:
    """The visible curve of one trial; it may have no points."""
    found = _read(connection, "curves.of_trial", {"trial_id": trial_id}, member, key)
    return next(found, Curve(trial_id, 0.0, b"", b"", b""))


def column_values(
    connection: sqlite3.Connection, steps: Mapping[str, int | None], member: int, maximize: bool
) -> dict[str, dict[str, float]]:
    """What columns of the table show of the visible curves, by trial id: the value at a step, or the best one (None).

    The value at a step is that of the last point up to it. Trials whose curve does not reach the step are left out, as
    are values that are not finite.
    """
    found: dict[str, dict[str, float]] = {name: {} for name in steps}
    best = max if maximize else min
    for curve in read_all(connection, member=member):
        values = _from_bytes(curve.values)
        for name, step in steps.items():
            if step is None:
                value = best((each for each in values if not math.isnan(each)), default=math.nan)
            else:
                value = _value_at(step, _from_bytes(curve.steps), values)
            if not math.isnan(value):
                found[name][curve.trial_id] = value
    return found


def _value_at(step: int, steps: "array[float]", values: "array[float]") -> float:
    if max(steps, default=-1) < step:
        return math.nan
    place = max((place for place, each in enumerate(steps) if each <= step), default=None)
    return math.nan if place is None else values[place]


def count_points(connection: sqlite3.Connection, *, member: int) -> int:
    """At least as many points as all visible curves have."""
    return int(connection.execute(query("curves.count_points"), {"member": member}).fetchone()[0])


def keys(connection: sqlite3.Connection, *, member: int) -> list[str]:
    """The keys by name, nested ones with dots, under which visible curves have numbers, without `default`, which is
    the number itself. Of curves that are not packed, the first reports of the first `MOST_READ_FOR_KEYS` are read."""
    found = {row[0] for row in connection.execute(query("curves.keys"), {"member": member})}
    for trial_id in unpacked(connection, member=member, fewest=1)[:MOST_READ_FOR_KEYS]:
        values = {"trial_id": trial_id, "member": member, "limit": REPORTS_READ_FOR_KEYS}
        for row in map(MetricRow.from_row, connection.execute(query("curves.first_reports"), values)):
            if isinstance(row.data, dict):
                found.update(name for name, value in flatten(row.data).items() if finite_number(value) is not None)
    return sorted(found - {"default"})


def unpacked(connection: sqlite3.Connection, *, member: int, fewest: int = FEWEST_POINTS) -> list[str]:
    """The trials of which curves with `fewest` points are not packed as they are now."""
    values = {"member": member, "fewest": fewest}
    return [row[0] for row in connection.execute(query("curves.unpacked"), values)]


def pack_stored(connection: sqlite3.Connection, trial_id: str, *, member: int) -> PackedCurve | None:
    """What `store` is to store of a trial; None where that is not worth it, or it is there."""
    row = connection.execute(query("curves.state"), {"trial_id": trial_id, "member": member}).fetchone()
    journals, size, points, is_packed = row
    if is_packed or points < FEWEST_POINTS:
        return None
    rows = metrics.curve(connection, trial_id, member=member)
    names: dict[str, None] = {}
    flats: list[dict[str, Any]] = [flatten(row.data) if isinstance(row.data, dict) else {} for row in rows]
    for flat in flats:
        names.update(dict.fromkeys(name for name, value in flat.items() if finite_number(value) is not None))
    kept = list(names)[:MOST_KEYS]
    keys = {name: _singles([finite_number(flat.get(name)) for flat in flats]) for name in kept}
    curve = pack(trial_id, [_point(row, row.value) for row in rows])
    return PackedCurve(curve, (journals, size), len(kept) == len(names), keys)


def pack_some(connection: sqlite3.Connection, trial_ids: Sequence[str], *, member: int) -> list[PackedCurve]:
    """What `store` is to store of these trials."""
    found = (pack_stored(connection, trial_id, member=member) for trial_id in trial_ids)
    return [packed for packed in found if packed is not None]


def store(connection: sqlite3.Connection, packed: PackedCurve, *, member: int) -> None:
    """Store a packed curve in place of an earlier one. One that is out of date is never read."""
    curve = packed.curve
    connection.execute(query("curves.delete"), {"trial_id": curve.trial_id, "member": member})
    row = {
        "trial_id": curve.trial_id,
        "member": member,
        "journals": packed.state[0],
        "journal_bytes": packed.state[1],
        "has_all_keys": int(packed.has_all_keys),
        "first_time": curve.first_time,
        "steps": curve.steps,
        "seconds": curve.seconds,
        "values": curve.values,
    }
    identifier = connection.execute(query("curves.insert"), row).lastrowid
    connection.executemany(
        query("curves.insert_key"), [{"curve": identifier, "key": key, "values": v} for key, v in packed.keys.items()]
    )


def pack(trial_id: str, points: Sequence[VisiblePoint]) -> Curve:
    """The points of a visible curve as blobs."""
    first = points[0].time if points else 0.0
    return Curve(
        trial_id,
        first,
        _singles([point.step for point in points]),
        _singles([point.time - first for point in points]),
        _singles([point.value for point in points]),
    )


def _pack_key(connection: sqlite3.Connection, trial_id: str, member: int, key: str) -> Curve:
    """The visible curve of a key, from the rows."""
    rows = metrics.curve(connection, trial_id, member=member)
    values = [finite_number(flatten(row.data).get(key)) if isinstance(row.data, dict) else None for row in rows]
    return pack(trial_id, [_point(row, value) for row, value in zip(rows, values, strict=True)])


def _point(row: MetricRow, value: float | None) -> VisiblePoint:
    return VisiblePoint(row.sequence if row.step is None else row.step, value, row.time)


def _read(
    connection: sqlite3.Connection, name: str, of: dict[str, str], member: int, key: str | None
) -> Iterator[Curve]:
    rows = connection.execute(query(name), {**of, "member": member, "key": key})
    for trial_id, has_all_keys, first_time, steps, seconds, own, of_key in rows:
        values = own if key is None else of_key
        if steps is None or (values is None and not has_all_keys):
            if key is None:
                yield pack(trial_id, metrics.points(connection, trial_id, member=member))
            else:
                yield _pack_key(connection, trial_id, member, key)
        else:
            missing = _NOT_A_NUMBER * (len(steps) // 4)
            yield Curve(trial_id, first_time, steps, seconds, _to_bytes(missing) if values is None else values)


def _singles(numbers: Sequence[float | None]) -> bytes:
    """Numbers as float32; NaN for one that is missing or does not fit."""
    fitting = [math.nan if each is None or not abs(each) <= _LARGEST_SINGLE else each for each in numbers]
    return _to_bytes(array("f", fitting))


def _from_bytes(data: bytes) -> "array[float]":
    """The numbers of a blob."""
    numbers = array("f", data)
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers


def _to_bytes(numbers: "array[float]") -> bytes:
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers.tobytes()

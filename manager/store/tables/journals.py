"""Storing chunks of journals: what was not stored yet becomes rows, and the offset moves in the same transaction.

The lines are those of `proctor.sdk.protocol`. Nothing that a trial writes makes this fail: a line that is no record is
stored as unreadable.
"""

import json
import math
import re
import sqlite3
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain, takewhile
from typing import Any

from proctor.manager.store.connections import refusal_of
from proctor.manager.store.errors import OffsetGap
from proctor.manager.store.rows import CheckpointRow
from proctor.manager.store.statements import encode, query, to_words
from proctor.sdk.json_input import LATEST_TIME, RefusedValue, clean_text, clean_value
from proctor.sdk.protocol import KIND_CHECKPOINT, KIND_FINAL, KIND_INTERMEDIATE, KIND_LOST, KIND_UNJUDGED

KIND_UNREADABLE = "unreadable"
_KEPT_CHARACTERS = 1_000  # of a line that could not be read

_scan = json.JSONDecoder().scan_once  # type: ignore[attr-defined]
_NOT_JSON = (StopIteration, ValueError, RecursionError)
_SHA_256 = re.compile(r"[0-9a-f]{64}")
_LARGEST_INTEGER = 2**53  # as in archives: what is counted on from it stays an integer for SQLite


def read_lines(data: bytes) -> Iterator[tuple[int, Any]]:
    """(byte offset in `data`, record) of every line; the record is None for a line that is not one JSON object.

    `data` ends with a newline. Empty lines are left out.
    """
    if not data.isascii():
        yield from _read_one_by_one(data)
        return
    # In ASCII text characters are bytes, so the scanner's own positions are the offsets.
    text = data.decode("ascii")
    position, size = 0, len(text)
    while position < size:
        try:
            record, end = _scan(text, position)
        except _NOT_JSON:
            record, end = None, -1
        if record.__class__ is dict and text[end] == "\n":
            yield position, record
        else:
            end = text.index("\n", position)
            line = text[position:end]
            if line.strip():
                yield position, parse_line(line)
        position = end + 1


def parse_line(line: str) -> dict[str, Any] | None:
    """The JSON object in one line, or None."""
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return record if isinstance(record, dict) else None


def split_value(reported: Any) -> tuple[float | None, str | None, Any]:
    """What is stored of a reported value: (value, data, as it will be read again).

    `value` is the finite number that stands for it; `data` its JSON text, unless it is just that number. Raises
    RefusedValue for something that cannot be kept.
    """
    number = metric_number(reported)
    if number is not None and not isinstance(reported, dict):
        return number, None, number
    kept = to_words(clean_value(reported))
    return number, encode(kept), kept


def metric_number(reported: Any) -> float | None:
    """The number that stands for a metric: itself, or its "default"; None when that is not a finite number."""
    return finite_number(reported.get("default") if isinstance(reported, dict) else reported)


def finite_number(value: Any) -> float | None:
    """A number as a float; None for anything else, NaN and infinities included."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


def whole_number(value: Any) -> int | None:
    """An integer that SQLite can hold; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, int) or not -_LARGEST_INTEGER <= value < _LARGEST_INTEGER:
        return None
    return value


def _read_one_by_one(data: bytes) -> Iterator[tuple[int, Any]]:
    position = 0
    for line in data.split(b"\n")[:-1]:
        if line.strip():
            yield position, parse_line(line.decode("utf-8", "replace"))
        position += len(line) + 1


@dataclass(frozen=True, slots=True)
class StoredChunk:
    """What was new in a chunk of a member's journal. `end_offset` is how far the journal is stored now.

    `intermediates` are (id, place in the trial's curve, what was reported, step, how long the trial had run, in
    seconds); `finals` (finite number or
    None, what was reported), where "what was reported" is exactly what `MetricRow.reported` will say. `lost` counts
    reports that the trial could not write, `unreadable` lines that are no records; `uncounted` says of other losses
    what was lost. `damaged` is the path of a checkpoint that the job was handed and found to be damaged. `unjudged` are
    the milestones that the trial has passed without a verdict, with the seconds that it had waited there.
    `by_wall_clock`: for some of the intermediates the times of their records are all that says how long the trial had
    run; a clock that was set meanwhile falsifies it, within [0, ∞).
    """

    end_offset: int
    intermediates: list[tuple[int, int, Any, int | None, float | None]] = field(default_factory=list)
    finals: list[tuple[float | None, Any]] = field(default_factory=list)
    checkpoints: list[CheckpointRow] = field(default_factory=list)
    lost: int = 0
    unreadable: int = 0
    uncounted: list[str] = field(default_factory=list)
    member: int = 0
    by_wall_clock: bool = False
    damaged: str = ""
    run_seconds: float = 0.0
    """How long the job had run at the newest of the intermediates; 0: not known."""
    unjudged: list[tuple[int, float]] = field(default_factory=list)


def store_chunk(
    connection: sqlite3.Connection,
    *,
    trial_id: str,
    job: int,
    member: int,
    offset: int,
    data: bytes,
    first_sequence: int = 0,
    resumed_from: int | None = None,
    started_at: float | None = None,
    time: float = 0.0,
    after_loss: bool = False,
) -> StoredChunk:
    """Store the lines of `data`, which begins at byte `offset` of a member's journal.

    Bytes that are stored already are skipped; a last line without its newline is left for the next chunk. With
    `after_loss` bytes that are missing before `offset` will not come: a record of the loss stands in their place.
    `first_sequence` is the point of the trial's curve at which this job resumed, `resumed_from` the number of the job
    whose part it continues, `started_at` the Unix time at which its process began (None: with its first record); they
    count with the journal's first chunk. `time` stands in for records that have none. Raises OffsetGap when bytes
    before `offset` are missing, and not lost.
    """
    journal = _StoredJournal(connection, trial_id, job, member, start=(first_sequence, resumed_from, started_at))
    if offset > journal.offset and not after_loss:
        raise OffsetGap(
            f"The journal of member {member} of trial job {trial_id}.{job} is stored up to byte {journal.offset}; a "
            f"chunk that begins at {offset} leaves a gap. Send it again from byte {journal.offset}.",
            journal.offset,
        )
    begin = max(offset, journal.offset)
    fresh = data[begin - offset : data.rfind(b"\n") + 1]
    if not fresh:
        return StoredChunk(journal.offset, member=member)
    return journal.store(begin, fresh, time)


def store_lines(connection: sqlite3.Connection, *, offset: int, data: bytes, **where: Any) -> tuple[StoredChunk, str]:
    """As `store_chunk`, with a record that reports were lost in place of every line of which SQLite refuses a value.
    Also returns why it refuses the first one, as a clause; "" if it refuses none. Raises OffsetGap."""
    whole, refused = StoredChunk(offset), ""
    for line in (text + b"\n" for text in data.split(b"\n")[:-1]):
        connection.execute("SAVEPOINT line")
        try:
            stored = store_chunk(connection, offset=offset, data=line, **where)
        except (sqlite3.Error, OverflowError, UnicodeEncodeError, RecursionError) as error:
            why = refusal_of(error)
            if not why:
                raise
            connection.execute("ROLLBACK TO line")
            refused = refused or why
            stored = store_chunk(connection, offset=offset, data=_lost_line(why, len(line)), **where)
        connection.execute("RELEASE line")
        whole = _join(whole, stored)
        offset += len(line)
    return whole, refused


def _lost_line(why: str, size: int) -> bytes:
    """A journal's line of this size that says what was lost, or nothing if there is no room for that."""
    record = encode({"kind": KIND_LOST, "why": f"a report that cannot be stored: {why}"}).encode()
    return (record if len(record) < size else b"").ljust(size - 1) + b"\n"


def _join(first: StoredChunk, second: StoredChunk) -> StoredChunk:
    return StoredChunk(
        second.end_offset,
        first.intermediates + second.intermediates,
        first.finals + second.finals,
        first.checkpoints + second.checkpoints,
        first.lost + second.lost,
        first.unreadable + second.unreadable,
        first.uncounted + second.uncounted,
        second.member,
        first.by_wall_clock or second.by_wall_clock,
        second.damaged or first.damaged,
        max(first.run_seconds, second.run_seconds),
        first.unjudged + second.unjudged,
    )


def seconds_before(
    connection: sqlite3.Connection, key: Mapping[str, Any], first: int, resumed_from: int | None
) -> float:
    """How long a trial had run at the point `first` of its curve from which a job continues."""
    point = {**key, "sequence": first - 1, "resumed_from": resumed_from}
    found = connection.execute(query("metrics.seconds_at"), point).fetchone() if first else None
    return 0.0 if found is None or found[0] is None else float(found[0])


class _StoredJournal:
    """One member's journal while a chunk of it is stored."""

    def __init__(
        self,
        connection: sqlite3.Connection,
        trial_id: str,
        job: int,
        member: int,
        *,
        start: tuple[int, int | None, float | None],
    ) -> None:
        self._connection = connection
        self._key: dict[str, Any] = {"trial_id": trial_id, "job": job, "member": member}
        row = connection.execute(query("journals.get"), self._key).fetchone()
        self._is_new = row is None
        first, resumed_from, started_at = start
        known: tuple[Any, ...] = row or (0, first, resumed_from, 0, 0, 0, 0, started_at, None)
        self.offset, self._first, self._resumed_from, self._intermediates, *others = known
        self._finals, self._losses, self._unreadables, *times = others
        self._started_at, self._first_seconds = times
        self._next_id = 0
        self._rows: list[tuple[Any, ...]] = []
        self._news = _NewRecords()

    def store(self, begin: int, data: bytes, arrived: float) -> StoredChunk:
        """Rows for every line of `data`, which begins at byte `begin`; what is missing before that is lost."""
        last = self._connection.execute(query("metrics.last_id")).fetchone()
        self._next_id = 1 + (last[0] if last else 0)
        if begin > self.offset:
            why = f"reports are lost: {begin - self.offset} bytes of its journal did not arrive"
            self._take_lost(self.offset, None, why, arrived)
            self.offset = begin
        self._read(data, arrived)
        if self._is_new:
            self._set_beginning(arrived)
        self._connection.executemany(query("metrics.insert"), self._rows)
        end = self.offset + len(data)
        counts = {
            "offset": end,
            "first_sequence": self._first,
            "resumed_from": self._resumed_from,
            "intermediates": self._intermediates,
            "finals": self._finals,
            "losses": self._losses,
            "unreadables": self._unreadables,
            "started_at": self._started_at,
            "first_seconds": self._first_seconds,
            "damaged": self._news.damaged or None,
        }
        self._connection.execute(query("journals.advance"), self._key | counts)
        news = self._news
        return StoredChunk(
            end,
            [(*point, self._trial_seconds(time, ran)) for *point, time, ran in news.intermediates],
            news.finals,
            news.checkpoints,
            news.lost,
            news.unreadable,
            news.uncounted,
            self._key["member"],
            any(ran is None for *_, ran in news.intermediates),
            news.damaged,
            max((ran for *_, ran in news.intermediates if ran is not None), default=0.0),
            news.unjudged,
        )

    def _trial_seconds(self, time: float, ran: float | None) -> float | None:
        """How long the trial had run at a record, as the queries have it; None in journals of earlier versions."""
        if self._started_at is None or self._first_seconds is None:
            return None
        seconds: float = self._first_seconds + (time - self._started_at if ran is None else ran)
        return max(0.0, seconds)

    def _set_beginning(self, arrived: float) -> None:
        """When the job's process began, and how long the trial had run at the point where it resumed."""
        if self._started_at is None:
            checkpoints = self._news.checkpoints
            self._started_at = self._rows[0][10] if self._rows else checkpoints[0].time if checkpoints else arrived
        self._first_seconds = seconds_before(self._connection, self._key, self._first, self._resumed_from)

    def _read(self, data: bytes, arrived: float) -> None:
        """One pass over the lines. Plain numbers, which are nearly all of them, are handled right here."""
        trial_id, job, member = self._key.values()
        append_row, append_news, isfinite = self._rows.append, self._news.intermediates.append, math.isfinite
        for position, record in read_lines(data):
            if record is not None and record.get("kind") == KIND_INTERMEDIATE and "step" not in record:
                value, time, ran = record.get("value"), record.get("time"), record.get("seconds", 0.0)
                is_plain = value.__class__ is float and time.__class__ is float and ran.__class__ is float
                if is_plain and isfinite(value) and 0.0 <= time < LATEST_TIME and 0.0 <= ran < LATEST_TIME:
                    place, sequence, row_id = self.offset + position, self._first + self._intermediates, self._next_id
                    known = ran if "seconds" in record else None
                    where = (row_id, trial_id, job, member, place)
                    append_row((*where, KIND_INTERMEDIATE, sequence, None, value, None, time, known))
                    append_news((row_id, sequence, value, None, time, known))
                    self._intermediates += 1
                    self._next_id += 1
                    continue
            self._take(position, record, data, arrived)

    def _take(self, position: int, record: dict[str, Any] | None, data: bytes, arrived: float) -> None:
        """One line, whatever it is."""
        place = self.offset + position
        if record is None or not self._take_record(place, record, arrived):
            line = data[position : data.index(b"\n", position)].decode("utf-8", "replace")
            self._add(place, KIND_UNREADABLE, self._unreadables, data=encode(line[:_KEPT_CHARACTERS]), time=arrived)
            self._unreadables += 1
            self._news.unreadable += 1

    def _take_record(self, place: int, record: dict[str, Any], arrived: float) -> bool:
        """Whether the record was one of those that the protocol knows."""
        kind, step = record.get("kind"), whole_number(record.get("step"))
        given = finite_number(record.get("time"))
        time = arrived if given is None or not 0.0 <= given < LATEST_TIME else given
        ran = finite_number(record.get("seconds"))
        ran = None if ran is None or not 0.0 <= ran < LATEST_TIME else ran
        if kind in (KIND_INTERMEDIATE, KIND_FINAL) and "value" in record:
            return self._take_value(place, kind, record["value"], step, time, ran)
        if kind == KIND_CHECKPOINT:
            return self._take_checkpoint(place, record, step, time)
        if kind == KIND_LOST:
            if isinstance(damaged := record.get("damaged"), str):
                self._news.damaged = damaged
            return self._take_lost(place, whole_number(record.get("count")), record.get("why"), time)
        waited = finite_number(record.get("waited"))
        if kind == KIND_UNJUDGED and step is not None and waited is not None:
            self._news.unjudged.append((step, waited))
            return True
        return False

    def _take_value(
        self, place: int, kind: str, reported: Any, step: int | None, time: float, ran: float | None
    ) -> bool:
        try:
            value, text, kept = split_value(reported)
        except RefusedValue:
            return False
        if kind == KIND_FINAL:
            self._add(place, kind, self._finals, step=step, value=value, data=text, time=time, ran=ran)
            self._finals += 1
            self._news.finals.append((value, kept))
            return True
        sequence = self._first + self._intermediates
        self._news.intermediates.append((self._next_id, sequence, kept, step, time, ran))
        self._add(place, kind, sequence, step=step, value=value, data=text, time=time, ran=ran)
        self._intermediates += 1
        return True

    def _take_checkpoint(self, place: int, record: dict[str, Any], step: int | None, time: float) -> bool:
        path, with_metric = record.get("path"), record.get("with_metric")
        size, manifest = whole_number(record.get("bytes")), record.get("manifest")
        if not isinstance(path, str) or not path or not path.isprintable():
            return False
        sequence = self._first + self._intermediates
        if step is not None and with_metric is not True:
            sequence = self._points_up_to(step)
        values: dict[str, Any] = {
            "offset": place,
            "step": step,
            "path": path,
            "sequence": sequence,
            "time": time,
            "with_metric": int(with_metric) if isinstance(with_metric, bool) else None,
            "bytes": size if size is not None and size >= 0 else None,
            "manifest": manifest if isinstance(manifest, str) and _SHA_256.fullmatch(manifest) else None,
            "value": self._value_before(sequence),
        }
        [row] = self._connection.execute(query("checkpoints.insert"), self._key | values).fetchall()
        self._news.checkpoints.append(CheckpointRow.from_row(row))
        return True

    def _points_up_to(self, step: int) -> int:
        """How many points the curve had at a step. One that is stored beside the training, as the trainer does it, is
        registered when later steps have been reported: they are not part of it."""
        pending = ((row[6], row[7]) for row in reversed(self._rows) if row[5] == KIND_INTERMEDIATE)
        stored = self._connection.execute(query("metrics.points_backwards"), self._key)
        later = takewhile(lambda point: point[1] is not None and point[1] > step, chain(pending, stored))
        places: list[int] = [place for place, _ in later]
        return min(places, default=self._first + self._intermediates)

    def _value_before(self, sequence: int) -> float | None:
        """The number of the member's last intermediate metric before a point; of any member's where it has none."""
        points = (row for row in reversed(self._rows) if row[5] == KIND_INTERMEDIATE)
        found = next((row for row in points if row[6] < sequence), None)
        if found is not None:
            return found[8]  # type: ignore[no-any-return]
        key = {name: self._key[name] for name in ("trial_id", "member")}
        values = {**key, "sequence": sequence}
        stored = self._connection.execute(query("metrics.value_before"), values).fetchone()
        if stored is None and self._first + self._intermediates == 0:
            stored = self._connection.execute(query("metrics.latest_value"), key).fetchone()
        return None if stored is None else stored[0]

    def _take_lost(self, place: int, count: int | None, why: Any, time: float) -> bool:
        """A number of reports, or a sentence about losses that could not be counted."""
        if count is not None and count >= 1:
            self._add(place, KIND_LOST, self._losses, value=float(count), time=time)
            self._news.lost += count
        elif isinstance(why, str):
            why = clean_text(why[:_KEPT_CHARACTERS])
            self._add(place, KIND_LOST, self._losses, data=encode(why), time=time)
            self._news.uncounted.append(why)
        else:
            return False
        self._losses += 1
        return True

    def _add(
        self,
        place: int,
        kind: str,
        sequence: int,
        *,
        step: int | None = None,
        value: float | None = None,
        data: str | None = None,
        time: float,
        ran: float | None = None,
    ) -> None:
        self._rows.append((self._next_id, *self._key.values(), place, kind, sequence, step, value, data, time, ran))
        self._next_id += 1


@dataclass(slots=True)
class _NewRecords:
    """A StoredChunk in the making."""

    intermediates: list[tuple[int, int, Any, int | None, float, float | None]] = field(default_factory=list)
    finals: list[tuple[float | None, Any]] = field(default_factory=list)
    checkpoints: list[CheckpointRow] = field(default_factory=list)
    lost: int = 0
    unreadable: int = 0
    uncounted: list[str] = field(default_factory=list)
    damaged: str = ""
    unjudged: list[tuple[int, float]] = field(default_factory=list)

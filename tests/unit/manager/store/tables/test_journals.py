"""Storing journals: each record once and in order, whatever the chunks and whatever a trial writes."""

import json
import math
import sqlite3
import tempfile
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proctor.manager.store.connections import open_writer
from proctor.manager.store.errors import OffsetGap
from proctor.manager.store.rows import MetricRow
from proctor.manager.store.tables import metrics
from proctor.manager.store.tables.journals import StoredChunk, store_chunk


def _line(**record: Any) -> bytes:
    return json.dumps(record).encode() + b"\n"


def _store(connection: sqlite3.Connection, data: bytes, offset: int = 0, **names: Any) -> StoredChunk:
    fixed: dict[str, Any] = {"trial_id": "trial000", "job": 1, "member": 0, "time": 99.0}
    return store_chunk(connection, **(fixed | names), offset=offset, data=data)


def _rows(connection: sqlite3.Connection) -> list[MetricRow]:
    return metrics.page(connection, "trial000", limit=1000)


def test_plain_numbers_become_rows(metrics_database: sqlite3.Connection) -> None:
    data = _line(kind="intermediate", value=0.5, time=1.5) + _line(kind="intermediate", value=7, time=2.5, step=40)
    chunk = _store(metrics_database, data)
    assert chunk == StoredChunk(len(data), [(1, 0, 0.5, None, 0.0), (2, 1, 7.0, 40, 1.0)], by_wall_clock=True)
    first, second = _rows(metrics_database)
    assert first == MetricRow(1, "trial000", 1, 0, 0, "intermediate", 0, None, 0.5, None, 1.5)
    assert (second.offset, second.step, second.value, second.data) == (data.index(b"\n") + 1, 40, 7.0, None)


def test_how_long_a_trial_had_run_is_what_its_records_say_whatever_their_times(
    metrics_database: sqlite3.Connection,
) -> None:
    first = _line(kind="intermediate", value=0.5, time=1.5, seconds=2.0)
    first += _line(kind="intermediate", value=0.6, time=3601.5, seconds=3.0, step=2)
    chunk = _store(metrics_database, first, started_at=0.0)
    assert ([point[-1] for point in chunk.intermediates], chunk.by_wall_clock) == ([2.0, 3.0], False)
    second = _line(kind="intermediate", value=0.7, time=9.0, seconds=4.0)
    resumed = _store(metrics_database, second, job=2, first_sequence=1, resumed_from=1, started_at=8.0)
    assert [point[-1] for point in resumed.intermediates] == [6.0], "it continues from the first point"
    stored = metrics.intermediates_between(metrics_database, 1, 3, member=0)
    assert [(row.seconds, seconds) for row, seconds in stored] == [(2.0, 2.0), (3.0, 3.0), (4.0, 6.0)]


@pytest.mark.parametrize("seconds", [-1.0, 1e300, "soon", True, None, "NaN"])
def test_seconds_that_make_no_sense_are_not_believed(metrics_database: sqlite3.Connection, seconds: Any) -> None:
    data = _line(kind="intermediate", value=0.5, time=11.5, seconds=seconds)
    chunk = _store(metrics_database, data + _line(kind="intermediate", value=0.5, time=1.0), started_at=10.0)
    assert [point[-1] for point in chunk.intermediates] == [1.5, 0.0]
    assert chunk.by_wall_clock
    assert [row.seconds for row in _rows(metrics_database)] == [None, None]


@pytest.mark.parametrize(
    ("reported", "value", "kept"),
    [
        ({"default": 0.5, "loss": 1.25}, 0.5, {"default": 0.5, "loss": 1.25}),
        ({"default": "NaN", "loss": 1}, None, {"default": "NaN", "loss": 1}),
        ("NaN", None, "NaN"),
        ("-Infinity", None, "-Infinity"),
        (math.nan, None, "NaN"),
        ({"default": 1.0, "worst": math.inf}, 1.0, {"default": 1.0, "worst": "Infinity"}),
        (True, None, True),
        ([1, 2], None, [1, 2]),
        ("text", None, "text"),
        (2**70, float(2**70), float(2**70)),
        ({"loss": 1.0}, None, {"loss": 1.0}),
    ],
)
@pytest.mark.parametrize("kind", ["intermediate", "final"])
def test_whatever_was_reported_is_kept_and_its_number_is_found(
    metrics_database: sqlite3.Connection, kind: str, reported: Any, value: float | None, kept: Any
) -> None:
    chunk = _store(metrics_database, _line(kind=kind, value=reported, time=1.0))
    shown = chunk.finals if kind == "final" else [(value, shown) for _, _, shown, _, _ in chunk.intermediates]
    assert shown == [(value, kept)]
    [row] = _rows(metrics_database)
    assert (row.value, row.reported) == (value, kept)


@pytest.mark.parametrize(
    "value",
    ["9" * 400, '{"default":1,"size":' + "9" * 400 + "}", "[" * 150 + "]" * 150, '{"a":' * 150 + "1" + "}" * 150],
    ids=["integer", "integer inside", "lists", "objects"],
)
def test_a_value_that_cannot_be_kept_is_an_unreadable_record(metrics_database: sqlite3.Connection, value: str) -> None:
    line = f'{{"kind":"final","value":{value},"time":1.0}}\n'.encode()
    chunk = _store(metrics_database, line + _line(kind="final", value=0.5, time=1.0))
    assert (chunk.unreadable, chunk.finals) == (1, [(0.5, 0.5)])


def test_text_that_is_not_utf_8_is_stored_with_its_escape(metrics_database: sqlite3.Connection) -> None:
    line = b'{"kind":"final","value":{"default":1.0,"caf\\udce9":"\\ud800"},"time":1.0}\n'
    chunk = _store(metrics_database, line)
    assert chunk.finals == [(1.0, {"default": 1.0, "caf\\udce9": "\\ud800"})]


def test_a_record_without_a_time_gets_that_of_its_arrival(metrics_database: sqlite3.Connection) -> None:
    _store(metrics_database, _line(kind="final", value=1.0) + _line(kind="final", value=1.0, time="NaN"))
    assert [row.time for row in _rows(metrics_database)] == [99.0, 99.0]


@pytest.mark.parametrize("time", ["1e18", "-1.0", "NaN", "253402128000.0", "253402128000", "true", '"noon"'])
@pytest.mark.parametrize("record", ['"kind":"intermediate","value":1.0', '"kind":"lost","count":1'])
def test_a_record_with_a_time_that_no_calendar_has_gets_that_of_its_arrival(
    metrics_database: sqlite3.Connection, record: str, time: str
) -> None:
    _store(metrics_database, f'{{{record},"time":{time}}}\n'.encode())
    assert [row.time for row in _rows(metrics_database)] == [99.0]


def test_a_checkpoint_that_was_found_to_be_damaged_is_told(metrics_database: sqlite3.Connection) -> None:
    chunk = _store(metrics_database, _line(kind="lost", why="model is damaged", damaged="s3://b/3", time=1.0))
    assert (chunk.damaged, chunk.uncounted, chunk.lost) == ("s3://b/3", ["model is damaged"], 0)
    other = _line(kind="lost", why="x", damaged=3, time=1.0)
    assert _store(metrics_database, other, offset=chunk.end_offset).damaged == ""


def test_a_milestone_that_was_passed_without_a_verdict_is_told_and_is_no_metric(
    metrics_database: sqlite3.Connection,
) -> None:
    chunk = _store(metrics_database, _line(kind="unjudged", step=27, waited=600.0, time=1.0))
    assert (chunk.unjudged, chunk.unreadable, chunk.lost) == ([(27, 600.0)], 0, 0)
    assert _rows(metrics_database) == []
    other = _line(kind="unjudged", step="27", waited=600.0, time=1.0)
    assert _store(metrics_database, other, offset=chunk.end_offset).unreadable == 1


def test_kinds_are_counted_each_for_itself(metrics_database: sqlite3.Connection) -> None:
    data = b"".join(
        [
            _line(kind="intermediate", value=0.1, time=1.0),
            _line(kind="lost", count=7, time=2.0),
            b"nonsense\n",
            _line(kind="final", value=0.2, time=3.0),
            _line(kind="intermediate", value=0.3, time=4.0),
            _line(kind="final", value=0.4, time=5.0),
        ]
    )
    chunk = _store(metrics_database, data)
    assert (chunk.lost, chunk.unreadable) == (7, 1)
    assert chunk.finals == [(0.2, 0.2), (0.4, 0.4)]
    found = [(row.kind, row.sequence, row.reported) for row in _rows(metrics_database)]
    assert found == [
        ("intermediate", 0, 0.1),
        ("lost", 0, 7.0),
        ("unreadable", 0, "nonsense"),
        ("final", 0, 0.2),
        ("intermediate", 1, 0.3),
        ("final", 1, 0.4),
    ]


@pytest.mark.parametrize(
    "line",
    [
        b"{",
        b'{"kind":"intermediate","value":1.0,"time":1.0} trailing',
        b"[1,2]",
        b"null",
        b'{"kind":"unheard-of","value":1}',
        b'{"kind":"intermediate","time":1.0}',
        b'{"kind":"lost","count":"many"}',
        b'{"kind":"lost","count":-1}',
        b'{"kind":"checkpoint","path":5}',
        b'{"kind":"checkpoint","path":"\\ud800"}',
        b'{"kind":"checkpoint","path":"a\\u0000b"}',
        b'{"kind":["intermediate"],"value":1.0}',
        b'{"kind":"final","value":' + b"9" * 5000 + b"}",
        b'{"kind":"final","value":' + b"[" * 5000 + b"]" * 5000 + b"}",
        b'{"kind":"final","value":"' + b"\xff\xfe" + b"x" * 5000,
        b"\x00\x01\x02",
    ],
)
def test_a_line_that_is_no_record_is_kept_counted_and_harms_nobody(
    metrics_database: sqlite3.Connection, line: bytes
) -> None:
    around = _line(kind="intermediate", value=0.5, time=1.0)
    chunk = _store(metrics_database, around + line + b"\n" + around)
    assert (chunk.unreadable, len(chunk.intermediates)) == (1, 2)
    assert chunk.end_offset == 2 * len(around) + len(line) + 1
    [row] = metrics.page(metrics_database, "trial000", kind="unreadable", limit=10)
    assert line.decode("utf-8", "replace").startswith(row.data)
    assert row.offset == len(around)
    assert row.time == 99.0


def test_text_beyond_ascii_keeps_byte_offsets(metrics_database: sqlite3.Connection) -> None:
    first = '{"kind":"final","value":{"default":1.0,"name":"Zürich ☃"},"time":1.0}\n'.encode()
    _store(metrics_database, first + b"\n" + _line(kind="intermediate", value=2.0, time=2.0))
    one, two = _rows(metrics_database)
    assert one.reported == {"default": 1.0, "name": "Zürich ☃"}
    assert (one.offset, two.offset) == (0, len(first) + 1)


def test_a_line_without_its_end_waits_for_the_next_chunk(metrics_database: sqlite3.Connection) -> None:
    line = _line(kind="intermediate", value=0.5, time=1.0)
    assert _store(metrics_database, line + line[:10]).end_offset == len(line)
    assert _store(metrics_database, line[:10], offset=len(line)) == StoredChunk(len(line))
    assert _store(metrics_database, line, offset=len(line)).end_offset == 2 * len(line)
    assert metrics.offset_of(metrics_database, "trial000", 1) == 2 * len(line)


def test_a_gap_is_refused_and_says_where_to_begin(metrics_database: sqlite3.Connection) -> None:
    line = _line(kind="intermediate", value=0.5, time=1.0)
    _store(metrics_database, line)
    with pytest.raises(OffsetGap, match=f"Send it again from byte {len(line)}") as caught:
        _store(metrics_database, line, offset=len(line) + 1)
    assert caught.value.expected == len(line)


def test_what_is_missing_before_a_chunk_that_follows_a_loss_is_on_record(metrics_database: sqlite3.Connection) -> None:
    line, final = _line(kind="intermediate", value=0.5, time=1.0), _line(kind="final", value=0.9, time=2.0)
    _store(metrics_database, line)
    at = 3 * len(line)
    stored = _store(metrics_database, final, offset=at, after_loss=True)
    why = f"reports are lost: {2 * len(line)} bytes of its journal did not arrive"
    assert (stored.end_offset, stored.uncounted, stored.finals) == (at + len(final), [why], [(0.9, 0.9)])
    again = _store(metrics_database, final, offset=at, after_loss=True)
    assert (again.end_offset, again.uncounted, again.finals) == (at + len(final), [], [])


def test_checkpoints_know_their_place_in_the_curve(metrics_database: sqlite3.Connection) -> None:
    data = _line(kind="intermediate", value=0.5, time=1.0) * 3
    data += _line(kind="checkpoint", path="output/checkpoints/3", step=30, time=4.0)
    [checkpoint] = _store(metrics_database, data).checkpoints
    assert (checkpoint.path, checkpoint.step, checkpoint.sequence, checkpoint.job) == ("output/checkpoints/3", 30, 3, 1)
    assert metrics.latest_checkpoint(metrics_database, "trial000") == checkpoint


def test_a_checkpoint_has_the_size_and_the_manifest_of_its_record(metrics_database: sqlite3.Connection) -> None:
    known: dict[str, Any] = {"kind": "checkpoint", "path": "output/checkpoints/1", "time": 4.0}
    data = _line(**known, bytes=10_485_760, manifest="0f" * 32) + _line(**known)
    data += _line(**known, bytes=-1, manifest="no hash") + _line(**known, bytes="many", manifest=5)
    found = _store(metrics_database, data).checkpoints
    assert [(row.bytes, row.manifest) for row in found] == [(10_485_760, "0f" * 32), *[(None, None)] * 3]
    assert metrics.checkpoints(metrics_database, "trial000", limit=10) == found


def test_jobs_and_members_have_journals_of_their_own(metrics_database: sqlite3.Connection) -> None:
    line = _line(kind="intermediate", value=0.5, time=1.0)
    _store(metrics_database, line * 2)
    _store(metrics_database, line, member=1)
    _store(metrics_database, line, job=2)
    _store(metrics_database, line, trial_id="trial001")
    assert metrics.offsets(metrics_database, "trial000", 1) == {0: 2 * len(line), 1: len(line)}
    assert metrics.offset_of(metrics_database, "trial000", 2) == len(line)
    assert metrics.offset_of(metrics_database, "trial000", 3) == 0
    assert [row.sequence for row in _rows(metrics_database)] == [0, 1, 0, 0]


_RECORDS = st.lists(
    st.one_of(
        st.floats().map(lambda value: _line(kind="intermediate", value=value, time=1.0)),
        st.floats().map(lambda value: _line(kind="intermediate", value={"default": value}, time=1.0, step=3)),
        st.floats(allow_nan=False).map(lambda value: _line(kind="final", value=value, time=1.0)),
        st.just(_line(kind="checkpoint", path="output/checkpoints/1", step=1, time=1.0)),
        st.just(_line(kind="lost", count=2, time=1.0)),
        st.binary(max_size=8).map(lambda junk: junk.replace(b"\n", b"") + b"\n"),
    ),
    max_size=12,
)


@pytest.mark.slow
@given(records=_RECORDS, cuts=st.lists(st.tuples(st.integers(0, 600), st.integers(0, 600)), max_size=8))
def test_however_it_is_cut_and_repeated_a_journal_is_stored_once(
    records: list[bytes], cuts: list[tuple[int, int]]
) -> None:
    journal = b"".join(records)
    with tempfile.TemporaryDirectory() as folder:
        whole = open_writer(f"{folder}/whole.db", "metrics")
        pieces = open_writer(f"{folder}/pieces.db", "metrics")
        expected = [_store(whole, journal)] if journal else []
        chunks = [
            _store(pieces, journal[start : start + length], offset=start)
            for start, length in cuts
            if start <= metrics.offset_of(pieces, "trial000", 1)
        ]
        end = metrics.offset_of(pieces, "trial000", 1)
        chunks.append(_store(pieces, journal[end:], offset=end))
        assert _rows(pieces) == _rows(whole)
        replays = [metrics.intermediates_between(one, 1, 10**6) for one in (pieces, whole)]
        assert replays[0] == replays[1]
        for name in ("intermediates", "finals", "checkpoints"):
            shown = [item for chunk in chunks for item in getattr(chunk, name)]
            assert shown == [item for chunk in expected for item in getattr(chunk, name)]
        assert chunks[-1].end_offset == len(journal)
        whole.close()
        pieces.close()


def test_losses_that_nobody_could_count_are_told_with_their_reason(metrics_database: sqlite3.Connection) -> None:
    line = b'{"kind":"lost","why":"\\ud800","time":7.0}\n'
    assert _store(metrics_database, line, member=1).uncounted == ["\\ud800"]
    metrics_database.execute("DELETE FROM metrics")
    why = "the trial cut its journal back"
    line = json.dumps({"kind": "lost", "why": why, "time": 7.0}).encode() + b"\n"
    stored = metrics.store_chunk(metrics_database, trial_id="t", job=1, member=0, offset=0, data=line)
    assert (stored.uncounted, stored.lost, stored.unreadable) == ([why], 0, 0)
    [row] = metrics.page(metrics_database, "t", kind="lost", limit=9)
    assert (row.value, row.reported, row.time) == (None, why, 7.0)

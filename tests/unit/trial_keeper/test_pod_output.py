"""What the keeper of a pod writes into log and termination message is what a manager reads there."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proctor.trial_keeper.pod_output import (
    MOST_TERMINATION_BYTES,
    FinalMetric,
    TerminationMessage,
    add_finals,
    find_final,
    format_records,
    format_termination,
    format_whole,
    read_log,
    read_termination,
)
from proctor.trial_keeper.protocol import Chunk, End, EndReason, Exit, ReportHeader, Start, to_json

JOB, TOKEN = "T.1", "a secret"
END = Exit(EndReason.EXITED_ERROR, 3, None, 1764000000.5, 1764000010.0, "exit code 3: no such “file”", cpu_seconds=0.5)


def written(content: bytes, member: str = "0", offset: int = 0) -> list[bytes]:
    """The log of a job that has reported this and ended."""
    chunk = Chunk(JOB, TOKEN, member, offset, len(content))
    header = ReportHeader("", [chunk], [Start(JOB, TOKEN, 17, 1764000000.5)], [End(JOB, TOKEN, END)])
    lines = list(format_records(header, [content]))
    return [line.encode() + b"\n" for line in [*lines, format_whole(len(lines))]]


@given(content=st.binary(max_size=20_000), offset=st.integers(0, 2**40))
def test_every_byte_comes_back_at_its_offset(content: bytes, offset: int) -> None:
    found = read_log(written(content, offset=offset), job_id=JOB, token=TOKEN)
    assert (found.body, found.is_whole) == (content, True)
    assert found.header.chunks == ([Chunk(JOB, TOKEN, "0", offset, len(content))] if content else [])
    assert found.header.starts == [Start(JOB, TOKEN, 17, 1764000000.5)]
    assert found.header.ends == [End(JOB, TOKEN, END)]


def test_lines_are_short_and_name_no_token() -> None:
    lines = written("ß\n".encode() * 50_000)
    assert max(map(len, lines)) < 32 * 1024
    assert TOKEN.encode() not in b"".join(lines)


def test_records_are_found_among_other_lines_and_behind_times() -> None:
    lines = written(b"1\n2\n")
    mixed = [b"2026-11-23T21:00:00.1Z " + line for line in lines]
    noise = [b"\n", b"\xff\xfe\n", b"INFO proctor-record of something\n", b"proctor-record {\n", b"proctor-record []\n"]
    mixed = [each for line in mixed for each in (*noise, line)]
    assert read_log(mixed, job_id=JOB, token=TOKEN) == read_log(lines, job_id=JOB, token=TOKEN)


@pytest.mark.parametrize("number", range(4))
def test_a_log_that_lacks_a_record_is_not_whole(number: int) -> None:
    lines = written(b"1\n2\n")
    assert len(lines) == 4
    assert not read_log(lines[:number] + lines[number + 1 :], job_id=JOB, token=TOKEN).is_whole
    lines[number] = lines[number][:40]
    assert not read_log(lines, job_id=JOB, token=TOKEN).is_whole


@pytest.mark.parametrize(
    "record",
    [
        {"kind": "journal", "job_id": JOB, "member": "0", "offset": "none", "text": ""},
        {"kind": "journal", "job_id": JOB},
        {"kind": "end", "job_id": JOB, "exit": {"reason": "BORED"}},
        {"kind": "start", "job_id": JOB, "pid": 1.5},
        {"kind": "whole", "records": "many"},
        {"kind": "of a later version", "job_id": JOB},
        {"kind": "end", "job_id": "another", "exit": {}},
        {},
    ],
)
def test_what_is_no_record_of_the_job_is_passed_over(record: object) -> None:
    lines = written(b"1\n")
    more = b"proctor-record " + json.dumps(record).encode() + b"\n"
    assert read_log([more, *lines], job_id=JOB, token=TOKEN) == read_log(lines, job_id=JOB, token=TOKEN)


FINAL = b'{"kind": "final", "value": {"default": 0.5, "loss": 1.2}, "time": 1764000000.0}'


def test_the_termination_message_comes_back() -> None:
    message = TerminationMessage(JOB, END, {"0": FinalMetric(120, FINAL), "3": FinalMetric(0, FINAL)})
    data = format_termination(message)
    assert read_termination(data.decode(), job_id=JOB) == message
    assert read_termination(data.decode(), job_id="another") is None


@pytest.mark.slow
@given(detail=st.text(max_size=9000), finals=st.dictionaries(st.sampled_from("0123"), st.text(max_size=3000)))
def test_it_never_takes_more_than_the_platform_stores(detail: str, finals: dict[str, str]) -> None:
    end = Exit(EndReason.SIGNALED, None, 9, 0.0, 1.0, detail, lost_finals=list(range(1000)) if detail else [])
    message = TerminationMessage(JOB, end, {member: FinalMetric(7, text.encode()) for member, text in finals.items()})
    data = format_termination(message)
    assert len(data) <= MOST_TERMINATION_BYTES
    found = read_termination(data.decode(), job_id=JOB)
    assert found is not None
    assert (found.exit.reason, found.exit.signal) == (EndReason.SIGNALED, 9)
    assert found.finals.items() <= message.finals.items()


def test_a_long_detail_is_cut_before_a_final_metric_is_left_out() -> None:
    end = Exit(EndReason.EXITED_OK, 0, None, 0.0, 1.0, "x" * 5000)
    found = read_termination(
        format_termination(TerminationMessage(JOB, end, {"0": FinalMetric(1, FINAL)})).decode(), job_id=JOB
    )
    assert found is not None
    assert found.finals == {"0": FinalMetric(1, FINAL)}
    assert found.exit.detail.endswith("x…")


@pytest.mark.parametrize("text", ["", "{", "[]", "killed", '{"proctor": 2}', '{"proctor": 1, "job_id": "T.1"}'])
def test_another_termination_message_is_none_of_ours(text: str) -> None:
    assert read_termination(text, job_id=JOB) is None


def test_the_first_final_metric_counts() -> None:
    other = b'{"kind": "intermediate", "value": "\\"final\\""}\n'
    before = [other, b"\xff final\n", b'"final"\n']
    found = find_final([*before, FINAL + b"\n", FINAL.replace(b"1.2", b"3")], offset=100)
    assert found == FinalMetric(100 + len(b"".join(before)), FINAL)
    assert find_final([other], offset=0) is None


def test_a_final_metric_that_only_the_message_has_is_added_where_it_stood() -> None:
    left = read_log(written(b"1\n", offset=50), job_id=JOB, token=TOKEN)
    message = TerminationMessage(JOB, END, {"0": FinalMetric(80, FINAL), "1": FinalMetric(0, FINAL)})
    added = add_finals(left, message, token=TOKEN)
    assert added.header.chunks == [
        *left.header.chunks,
        Chunk(JOB, TOKEN, "0", 80, len(FINAL) + 1),
        Chunk(JOB, TOKEN, "1", 0, len(FINAL) + 1),
    ]
    assert added.body == left.body + 2 * (FINAL + b"\n")
    again = read_log(written(b"1\n" + FINAL + b"\n", offset=78), job_id=JOB, token=TOKEN)
    assert add_finals(again, TerminationMessage(JOB, END, {"0": FinalMetric(80, FINAL)}), token=TOKEN) == again
    early = add_finals(again, TerminationMessage(JOB, END, {"0": FinalMetric(5, FINAL)}), token=TOKEN)
    assert [chunk.offset for chunk in early.header.chunks] == [5, 78]
    assert early.body == FINAL + b"\n" + again.body


def test_the_end_of_a_message_of_an_earlier_keeper_is_read() -> None:
    body = {"proctor": 1, "job_id": JOB, "exit": to_json(END), "finals": {"0": FINAL.decode()}}
    assert read_termination(json.dumps(body), job_id=JOB) == TerminationMessage(JOB, END)

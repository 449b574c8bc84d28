"""What a job that has ended could not write down is reported after its journals: all of it, once, always the same."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from proctor.sdk.disk_reserve import RESERVE_BYTES, Reserve, read_content
from proctor.trial_keeper.jobs.job import Job
from proctor.trial_keeper.jobs.lost_reports import find_losses, is_reserve_used
from proctor.trial_keeper.jobs.records import JobRecord
from proctor.trial_keeper.protocol import EndReason, Exit, Launch

END = Exit(EndReason.EXITED_OK, 0, None, 1.0, 2.0)


class Ended:
    """The directory of a job, written to as its trial would."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.reported: dict[str, bytes] = {}
        (folder / "journal").touch()
        (folder / "reserve").write_bytes(bytes(RESERVE_BYTES))

    def reserve(self, member: str = "0") -> Reserve:
        return Reserve(str(self.folder / "reserve"), member)

    def write(self, *lines: str, member: str = "0") -> None:
        with (self.folder / ("journal" if member == "0" else f"journal.{member}")).open("a") as file:
            file.write("".join(lines))

    def keeper(self, end: Exit = END) -> Job:
        """A keeper that has just noticed the end; what is stored it hears from the manager."""
        launch = Launch("T.1", "token", "E", "T", 0, str(self.folder), "true", "/", "{}", None)
        job = Job(JobRecord(launch, "boot"))
        job.find_journals()
        job.end(end, find_losses(str(self.folder), memory=end.memory, ended_at=end.ended_at))
        job.acknowledge({member: len(data) for member, data in self.reported.items()})
        return job

    def report(self, job: Job) -> None:
        """One report; the manager stores all of it."""
        for member, tail in job.tails.items():
            assert tail.acknowledged == len(self.reported.get(member, b""))
            data = tail.read(final=True)
            assert tail.is_complete(after=len(data))
            self.reported[member] = self.reported.get(member, b"") + data
            tail.acknowledged = len(self.reported[member])
            assert not tail.needs_report
        job.close()

    def told(self, end: Exit = END) -> Exit:
        """The end, once a keeper has reported everything."""
        job = self.keeper(end)
        self.report(job)
        assert job.exit is not None
        return job.exit

    def records(self, member: str = "0") -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.reported[member].splitlines() if line.startswith(b"{")]


@pytest.fixture
def ended(tmp_path: Path) -> Ended:
    return Ended(tmp_path)


def value(number: int) -> str:
    return f'{{"kind":"intermediate","value":{number},"time":1.000000}}\n'


def final(number: int) -> str:
    return f'{{"kind":"final","value":{number},"time":1764000000.{number:06d}}}\n'


def lost(count: int) -> str:
    return f'{{"kind":"lost","count":{count},"time":1.000000}}\n'


def test_a_job_that_has_lost_nothing_tells_nothing(ended: Ended) -> None:
    ended.write(value(1), final(2))
    assert not is_reserve_used(str(ended.folder))
    assert ended.told() == END
    assert ended.reported == {"0": (value(1) + final(2)).encode()}


def test_losses_that_the_journal_does_not_tell_of_are_told_behind_it(ended: Ended) -> None:
    ended.write(value(1), lost(3), value(2))
    assert ended.reserve().count(10)
    told = ended.told()
    assert [record.get("count") for record in ended.records()] == [None, 3, None, 7]
    assert (told.lost, told.lost_finals) == (10, [])
    assert told.detail == "10 reports were lost: its disk was full"


def test_losses_that_the_journal_tells_of_are_not_told_twice(ended: Ended) -> None:
    ended.write(value(1), lost(3))
    assert ended.reserve().count(3)
    ended.told()
    assert ended.reported["0"] == (value(1) + lost(3)).encode()


def test_a_kept_final_follows_the_journal_even_if_that_is_torn(ended: Ended) -> None:
    ended.write(value(1), value(2)[:9])
    assert ended.reserve().keep(final(3).encode())
    ended.told()
    assert ended.reported["0"].decode() == value(1) + value(2)[:9] + "\n" + final(3)


@pytest.mark.parametrize("end", ["\n", ""])
def test_a_kept_final_that_stands_in_the_journal_is_told_once(ended: Ended, end: str) -> None:
    assert ended.reserve().keep(final(3).encode())
    ended.write(value(1), final(3).rstrip("\n") + end)
    told = ended.told()
    assert ended.reported["0"].decode() == value(1) + final(3).rstrip("\n") + end
    assert not told.lost


def test_members_have_their_own_endings_also_without_a_journal(ended: Ended) -> None:
    """Without inodes the journal of a rank cannot be made."""
    ended.write(value(1))
    assert ended.reserve("0").count(1)
    assert ended.reserve("1").count(2)
    assert ended.reserve("1").keep(final(3).encode())
    told = ended.told()
    assert [record["kind"] for record in ended.records("0")] == ["intermediate", "lost"]
    assert [record["kind"] for record in ended.records("1")] == ["final", "lost"]
    assert told.lost == 3


def too_long() -> bytes:
    return b'{"kind":"final","value":"' + b"x" * RESERVE_BYTES + b'","time":1764000000.500000}\n'


def test_a_final_that_waited_in_vain_is_lost_and_one_that_was_written_is_not(ended: Ended) -> None:
    assert ended.reserve().keep(too_long()) is False
    told = ended.told()
    assert (told.lost, told.lost_finals) == (1, [0])
    assert [record["count"] for record in ended.records()] == [1]
    ended.reported.clear()
    ended.write(too_long().decode())
    job = ended.keeper()
    assert job.exit is not None
    assert (job.exit.lost, job.exit.lost_finals, job.losses) == (0, [], None)
    job.close()


def test_what_the_reaper_had_in_memory_counts_too_and_a_final_there_is_saved(ended: Ended, tmp_path: Path) -> None:
    memory = tmp_path / "memory"
    memory.write_bytes(bytes(RESERVE_BYTES))
    in_memory = Reserve(str(memory), "0")
    assert in_memory.count(5)
    assert in_memory.keep(final(3).encode())
    assert ended.reserve().count(2)
    with memory.open("rb") as file:
        text = read_content(file.fileno()).decode()
    told = ended.told(replace(END, memory=text))
    assert [record["kind"] for record in ended.records()] == ["final", "lost"]
    assert (told.lost, told.memory) == (7, "")


@pytest.mark.parametrize("stored", [0, 1, 30, 90, 150])
def test_another_keeper_goes_on_wherever_the_first_was_killed(ended: Ended, stored: int) -> None:
    ended.write(value(1))
    assert ended.reserve().keep(final(3).encode())
    assert ended.reserve().count(2)
    ended.told()
    whole = dict(ended.reported)
    ended.reported = {"0": whole["0"][:stored]}
    ended.told()
    assert ended.reported == whole
    ended.told()
    assert ended.reported == whole


def test_a_journal_that_its_trial_has_cut_back_has_its_ending_all_the_same(ended: Ended) -> None:
    ended.write(value(1), value(2))
    job = ended.keeper()
    ended.report(job)
    (ended.folder / "journal").write_text(value(1))
    assert ended.reserve().count(2)
    job.end(END, find_losses(str(ended.folder)))
    ended.report(job)
    assert [record["kind"] for record in ended.records()] == ["intermediate", "intermediate", "lost", "lost"]
    assert "cut its journal back" in ended.records()[2]["why"]
    assert ended.records()[3]["count"] == 2


def test_a_journal_without_an_end_is_not_read_without_end(ended: Ended) -> None:
    (ended.folder / "journal").unlink()
    (ended.folder / "journal").symlink_to("/dev/zero")
    assert ended.reserve().keep(final(3).encode())
    assert find_losses(str(ended.folder)).endings == {"0": final(3).encode()}


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.just("0"),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["member", "lost", "x"]), inner),
    max_leaves=5,
)
ENTRIES = st.fixed_dictionaries(
    {"member": st.sampled_from(["0", "1", "01", "99999999999999999999", "\u0663", ""]) | JSON},
    optional={"lost": JSON, "record": JSON, "waiting": JSON, "kind": st.sampled_from(["lost", "final"]), "count": JSON},
)


@pytest.mark.slow
@settings(
    max_examples=2 * settings().max_examples,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(st.lists(ENTRIES.map(json.dumps) | st.just("[" * 5000) | st.text(max_size=9), max_size=6))
def test_whatever_a_trial_writes_its_losses_can_be_told(ended: Ended, lines: list[str]) -> None:
    data = "".join(f"{line}\n" for line in lines).encode()
    (ended.folder / "reserve").write_bytes(data)
    (ended.folder / "journal").write_bytes(data)
    losses = find_losses(str(ended.folder))
    assert set(losses.endings) <= {"0", "1"}
    assert 0 <= losses.lost < 2**63

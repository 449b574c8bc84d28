"""A trial that cuts back, rewrites or replaces its journal: what stands there then is reported once, after a mark."""

import json
import os
from pathlib import Path

import pytest

from proctor.sdk.journal import Journal
from proctor.trial_keeper.journal_tail import JournalTail, read_anchor


class Told:
    """What a manager has stored of one journal, and the keeper's end of it."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "journal"
        self.folder = folder
        self.data = b""
        self.tail = JournalTail(str(folder), "0")

    def receive(self, *, final: bool = False, is_stored: bool = True) -> None:
        """One report; stored and acknowledged or not."""
        assert self.tail.acknowledged == len(self.data)
        data = self.tail.read(final=final)
        assert self.tail.is_complete(after=len(data)) or not final
        if is_stored:
            self.data += data
            self.tail.acknowledged = len(self.data)

    def restart(self) -> None:
        """The keeper is killed; a new one receives what is stored."""
        self.tail.close()
        self.tail = JournalTail(str(self.folder), "0", len(self.data))

    def write(self, *lines: str, name: str = "journal") -> None:
        """The trial writes lines, which are not reported yet."""
        with (self.folder / name).open("a") as file:
            file.write("".join(f"{line}\n" for line in lines))

    def write_and_receive(self, *lines: str, **how: bool) -> None:
        """The trial writes lines, and they are reported."""
        self.write(*lines)
        self.receive(**how)

    @property
    def lines(self) -> list[str]:
        """Every line; of a mark only its first words."""
        found = self.data.decode().splitlines()
        return [json.loads(line)["why"].partition(" after")[0] if "why" in line else line for line in found]


@pytest.fixture
def reported(tmp_path: Path) -> Told:
    return Told(tmp_path)


ANEW, CUT = "the trial rewrote its journal", "the trial cut its journal back to 4 bytes"


REWRITTEN = {
    "emptied": ("", [ANEW]),
    "emptied and written": ("3\n", [ANEW, "3"]),
    "cut back": ("one\n", [CUT]),
    "grown past what was read": ("3\n4\n5\n6\n7\n", [ANEW, "3", "4", "5", "6", "7"]),
}
"""What stands there in place of two lines, and what is reported of it."""


KEEPERS = {"the same": REWRITTEN, "one without an anchor": REWRITTEN, "a new one": ("emptied", "emptied and written")}
"""What each keeper can notice."""


@pytest.mark.parametrize(
    ("keeper", "change"), [(keeper, each) for keeper, changes in KEEPERS.items() for each in changes]
)
def test_a_rewritten_journal_goes_on_behind_a_mark(reported: Told, keeper: str, change: str) -> None:
    text, told = REWRITTEN[change]
    if keeper == "one without an anchor":
        (reported.folder / "journal-anchor.0.new").mkdir()  # it cannot be written
    reported.write_and_receive("one", "two")
    reported.path.write_text(text)
    assert reported.tail.needs_report
    if keeper == "a new one":
        reported.restart()
    reported.receive(final=True)
    assert not reported.tail.needs_report
    reported.write_and_receive("last", final=True)
    assert reported.lines == ["one", "two", *told, "last"]
    assert told == [CUT] or "8 bytes had been read" in reported.data.decode()


def test_what_a_replaced_journal_held_is_read_first(reported: Told) -> None:
    reported.write_and_receive("one")
    reported.write("two")
    with reported.path.open("a") as file:
        file.write("to")
    (reported.folder / "other").write_text("3\n4\n5\n")
    os.replace(reported.folder / "other", reported.path)
    assert reported.tail.needs_report
    reported.receive()
    assert reported.data == b"one\ntwo\nto"
    assert reported.tail.needs_report
    reported.receive(final=True)
    assert reported.data.startswith(b'one\ntwo\nto{"kind": "lost"')
    assert reported.data.endswith(b"\n3\n4\n5\n")


def test_a_copy_in_place_of_a_journal_is_no_loss(reported: Told) -> None:
    reported.write_and_receive("one", "two")
    (reported.folder / "copy").write_bytes(reported.path.read_bytes())
    os.replace(reported.folder / "copy", reported.path)
    reported.write_and_receive("3", final=True)
    assert reported.lines == ["one", "two", "3"]


@pytest.mark.parametrize("is_stored", [True, False])
def test_a_new_keeper_tells_nothing_twice(reported: Told, is_stored: bool) -> None:
    reported.write_and_receive("one", "two")
    os.truncate(reported.path, 0)
    reported.write_and_receive("3", is_stored=is_stored)
    reported.restart()
    reported.write_and_receive("4")
    reported.restart()
    reported.receive(final=True)
    assert reported.lines == ["one", "two", ANEW, "3", "4"]


def test_a_journal_may_be_emptied_again_and_again(reported: Told) -> None:
    for number in range(3):
        reported.write_and_receive(f"first {number}", "second")
        os.truncate(reported.path, 0)
    reported.receive(final=True)
    parts = [[f"first {number}", "second", ANEW] for number in range(3)]
    assert reported.lines == [line for part in parts for line in part]


def test_a_journal_that_only_grows_has_no_anchor(reported: Told) -> None:
    reported.write_and_receive("one")
    reported.write_and_receive("two", final=True)
    assert reported.lines == ["one", "two"]
    assert read_anchor(str(reported.folder), "0").shift == 0
    assert os.listdir(reported.folder) == ["journal"]


def test_a_trial_whose_journal_was_replaced_writes_to_the_one_that_is_read(reported: Told) -> None:
    journal = Journal(str(reported.path), wait_seconds=0)
    assert journal.append("one\n")
    reported.receive()
    (reported.folder / "other").write_text("3\n")
    os.replace(reported.folder / "other", reported.path)
    assert journal.append("4\n")
    reported.receive(final=True)
    assert reported.lines == ["one", ANEW, "3", "4"]


def test_a_trial_whose_folder_was_removed_writes_to_what_the_keeper_has_open(reported: Told) -> None:
    journal = Journal(str(reported.path), wait_seconds=0)
    assert journal.append("one\n")
    reported.receive()
    reported.path.unlink()
    reported.folder.rmdir()
    assert journal.append("two\n")
    reported.receive(final=True)
    assert reported.lines == ["one", "two"]


GONE, RENAMED = "the trial removed or renamed its journal", "the trial renamed its journal and kept writing to it"


def test_what_is_written_to_a_renamed_journal_after_another_has_its_name_is_lost_with_a_record(reported: Told) -> None:
    reported.write_and_receive("one")
    reported.path.rename(reported.folder / "mine")
    reported.write("two", name="mine")
    reported.receive()
    reported.write_and_receive("3")
    reported.write("never read", name="mine")
    reported.write_and_receive("4", final=True)
    found = [line.partition(":")[0] for line in reported.lines]
    assert found == ["one", "two", ANEW, "3", RENAMED, "4"]


@pytest.mark.parametrize("is_stored", [True, False])
def test_a_journal_that_was_renamed_while_no_keeper_looked_is_lost_with_one_record(
    reported: Told, is_stored: bool
) -> None:
    reported.write_and_receive("one")
    reported.path.rename(reported.folder / "mine")
    reported.restart()
    reported.tail.end(b"", must_exist=True)
    reported.receive(final=True, is_stored=is_stored)
    reported.restart()
    reported.tail.end(b"ending\n", must_exist=True)
    reported.receive(final=True)
    assert [line.partition(":")[0] for line in reported.lines] == ["one", GONE, "ending"]
    assert reported.tail.is_complete(after=0)


def test_a_journal_that_never_was_is_no_loss(reported: Told) -> None:
    reported.tail.end(b"")
    reported.receive(final=True)
    assert reported.data == b""


def test_a_journal_without_a_name_stays_open_until_its_job_is_forgotten(reported: Told) -> None:
    reported.write_and_receive("one")
    reported.tail.rest()
    reported.write_and_receive("two")
    reported.path.rename(reported.folder / "mine")
    reported.write("3", name="mine")
    reported.tail.rest()
    reported.receive(final=True)
    assert reported.lines == ["one", "two", "3"]
    reported.tail.close()

"""A trial that cuts back, rewrites or replaces its journal: what stands there then is told once, behind a mark."""

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

    def hear(self, *, final: bool = False, is_stored: bool = True) -> None:
        """One report; stored and acknowledged or not."""
        assert self.tail.acknowledged == len(self.data)
        data = self.tail.read(final=final)
        assert self.tail.is_complete(after=len(data)) or not final
        if is_stored:
            self.data += data
            self.tail.acknowledged = len(self.data)

    def restart(self) -> None:
        """The keeper is killed; a new one is told what is stored."""
        self.tail.close()
        self.tail = JournalTail(str(self.folder), "0", len(self.data))

    @property
    def lines(self) -> list[str]:
        """Every line; of a mark only its first words."""
        found = self.data.decode().splitlines()
        return [json.loads(line)["why"].partition(" after")[0] if "why" in line else line for line in found]


@pytest.fixture
def told(tmp_path: Path) -> Told:
    return Told(tmp_path)


def append(path: Path, *lines: str) -> None:
    with path.open("a") as file:
        file.write("".join(f"{line}\n" for line in lines))


ANEW, CUT = "the trial wrote its journal anew", "the trial cut its journal back to 4 bytes"


def test_an_emptied_journal_goes_on_behind_a_mark(told: Told) -> None:
    append(told.path, "one", "two")
    told.hear()
    os.truncate(told.path, 0)
    append(told.path, "3")
    assert told.tail.is_behind
    told.hear(final=True)
    assert told.lines == ["one", "two", ANEW, "3"]
    assert not told.tail.is_behind
    assert "8 bytes had been read" in told.data.decode()


def test_an_emptied_journal_is_told_even_when_nothing_follows(told: Told) -> None:
    append(told.path, "one", "two")
    told.hear()
    os.truncate(told.path, 0)
    assert told.tail.is_behind
    assert not told.tail.is_complete(after=0) or told.tail.read(final=True)
    told.hear(final=True)
    assert told.lines == ["one", "two", ANEW]
    assert not told.tail.is_behind


def test_a_journal_that_was_cut_back_is_not_told_twice(told: Told) -> None:
    append(told.path, "one", "two")
    told.hear()
    os.truncate(told.path, 4)
    told.hear()
    append(told.path, "3")
    told.hear()
    assert told.lines == ["one", "two", CUT, "3"]


def test_a_journal_that_has_grown_past_what_was_read_is_noticed_by_what_stands_there(told: Told) -> None:
    append(told.path, "one", "two")
    told.hear()
    told.path.write_text("3\n4\n5\n6\n7\n")
    told.hear()
    assert told.lines == ["one", "two", ANEW, "3", "4", "5", "6", "7"]


def test_what_a_replaced_journal_held_is_read_first(told: Told) -> None:
    append(told.path, "one")
    told.hear()
    append(told.path, "two")
    with told.path.open("a") as file:
        file.write("to")
    (told.folder / "other").write_text("3\n4\n5\n")
    os.replace(told.folder / "other", told.path)
    assert told.tail.is_behind
    told.hear()
    assert told.data == b"one\ntwo\nto"
    assert told.tail.is_behind
    told.hear(final=True)
    assert told.data.startswith(b'one\ntwo\nto{"kind": "lost"')
    assert told.data.endswith(b"\n3\n4\n5\n")


def test_a_copy_in_place_of_a_journal_is_no_loss(told: Told) -> None:
    append(told.path, "one", "two")
    told.hear()
    (told.folder / "copy").write_bytes(told.path.read_bytes())
    os.replace(told.folder / "copy", told.path)
    append(told.path, "3")
    told.hear(final=True)
    assert told.lines == ["one", "two", "3"]


@pytest.mark.parametrize("is_stored", [True, False])
def test_a_new_keeper_tells_nothing_twice(told: Told, is_stored: bool) -> None:
    append(told.path, "one", "two")
    told.hear()
    os.truncate(told.path, 0)
    append(told.path, "3")
    told.hear(is_stored=is_stored)
    told.restart()
    append(told.path, "4")
    told.hear()
    told.restart()
    told.hear(final=True)
    assert told.lines == ["one", "two", ANEW, "3", "4"]


def test_a_journal_may_be_emptied_again_and_again(told: Told) -> None:
    for number in range(3):
        append(told.path, f"first {number}", "second")
        told.hear()
        os.truncate(told.path, 0)
    told.hear(final=True)
    parts = [[f"first {number}", "second", ANEW] for number in range(3)]
    assert told.lines == [line for part in parts for line in part]


def test_a_new_keeper_notices_that_a_journal_became_shorter_while_none_looked(told: Told) -> None:
    append(told.path, "one", "two")
    told.hear()
    os.truncate(told.path, 0)
    append(told.path, "3")
    told.restart()
    told.hear(final=True)
    assert told.lines == ["one", "two", ANEW, "3"]


def test_a_journal_goes_on_though_its_anchor_cannot_be_written(told: Told) -> None:
    (told.folder / "journal-anchor.0.new").mkdir()
    append(told.path, "one", "two")
    told.hear()
    os.truncate(told.path, 0)
    append(told.path, "3")
    told.hear()
    assert told.lines == ["one", "two", ANEW, "3"]


def test_a_journal_that_only_grows_has_no_anchor(told: Told) -> None:
    append(told.path, "one")
    told.hear()
    append(told.path, "two")
    told.hear(final=True)
    assert told.lines == ["one", "two"]
    assert read_anchor(str(told.folder), "0").shift == 0
    assert os.listdir(told.folder) == ["journal"]


def test_a_trial_whose_journal_was_replaced_writes_to_the_one_that_is_read(told: Told) -> None:
    journal = Journal(str(told.path), wait_seconds=0)
    assert journal.append("one\n")
    told.hear()
    (told.folder / "other").write_text("3\n")
    os.replace(told.folder / "other", told.path)
    assert journal.append("4\n")
    told.hear(final=True)
    assert told.lines == ["one", ANEW, "3", "4"]


def test_a_trial_whose_folder_was_removed_writes_to_what_the_keeper_has_open(told: Told) -> None:
    journal = Journal(str(told.path), wait_seconds=0)
    assert journal.append("one\n")
    told.hear()
    told.path.unlink()
    told.folder.rmdir()
    assert journal.append("two\n")
    told.hear(final=True)
    assert told.lines == ["one", "two"]


GONE, RENAMED = "the trial removed or renamed its journal", "the trial renamed its journal and wrote on to it"


def test_what_is_written_to_a_renamed_journal_after_another_has_its_name_is_lost_with_a_record(told: Told) -> None:
    append(told.path, "one")
    told.hear()
    told.path.rename(told.folder / "mine")
    append(told.folder / "mine", "two")
    told.hear()
    append(told.path, "3")
    told.hear()
    append(told.folder / "mine", "never read")
    append(told.path, "4")
    told.hear(final=True)
    found = [line.partition(":")[0] for line in told.lines]
    assert found == ["one", "two", ANEW, "3", RENAMED, "4"]


@pytest.mark.parametrize("is_stored", [True, False])
def test_a_journal_that_was_renamed_while_no_keeper_looked_is_lost_with_one_record(told: Told, is_stored: bool) -> None:
    append(told.path, "one")
    told.hear()
    told.path.rename(told.folder / "mine")
    told.restart()
    told.tail.end(b"", must_exist=True)
    told.hear(final=True, is_stored=is_stored)
    told.restart()
    told.tail.end(b"ending\n", must_exist=True)
    told.hear(final=True)
    assert [line.partition(":")[0] for line in told.lines] == ["one", GONE, "ending"]
    assert told.tail.is_complete(after=0)


def test_a_journal_that_never_was_is_no_loss(told: Told) -> None:
    told.tail.end(b"")
    told.hear(final=True)
    assert told.data == b""


def test_a_journal_without_a_name_stays_open_until_its_job_is_forgotten(told: Told) -> None:
    append(told.path, "one")
    told.hear()
    told.tail.rest()
    append(told.path, "two")
    told.hear()
    told.path.rename(told.folder / "mine")
    append(told.folder / "mine", "3")
    told.tail.rest()
    told.hear(final=True)
    assert told.lines == ["one", "two", "3"]
    told.tail.close()

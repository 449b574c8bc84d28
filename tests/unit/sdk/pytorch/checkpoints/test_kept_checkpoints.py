"""Which checkpoints stay in the folder and which are removed from it (row C10)."""

import math
from pathlib import Path

import pytest
from fakes.checkpoint_writer import CheckpointWriter, numbers, write_run
from hypothesis import given, settings
from hypothesis import strategies as some

from proctor.sdk import pytorch
from proctor.sdk.pytorch.checkpoints.folder import CheckpointFolder
from proctor.sdk.pytorch.checkpoints.pointer import POINTER_FILE, Entry, Retention
from proctor.sdk.pytorch.errors import CheckpointWarning


def test_C10_the_newest_stay_and_the_others_go(tmp_path: Path) -> None:
    writer = write_run(tmp_path, range(5), retention=Retention(keep_last=2))
    assert numbers(writer.storage) == [4, 3]
    assert writer.names() == ["run_epoch_1_iter_3.pth", "run_epoch_1_iter_4.pth"]


def test_C10_the_best_stay_besides_the_newest(tmp_path: Path) -> None:
    scores = dict(enumerate([3.0, 1.0, 2.0, None, float("nan"), 5.0]))
    writer = write_run(tmp_path, scores, retention=Retention(keep_last=1, keep_best=2, best_mode="min"))
    assert numbers(writer.storage) == [5, 2, 1]
    best = writer.storage.load_best()
    assert best is not None
    assert best.entry.iteration == 1


def test_C10_a_pinned_checkpoint_stays_until_its_pin_is_removed(tmp_path: Path) -> None:
    writer = CheckpointWriter(tmp_path, retention=Retention(keep_last=1))
    pinned = writer.save(1)
    anyone = pytorch.CheckpointFolder(str(tmp_path), "run")
    anyone.pin(pinned.name)
    with pytest.raises(FileNotFoundError):
        anyone.pin("run_epoch_1_iter_2.pth")
    writer.save(2)
    writer.save(3)
    assert numbers(writer.storage) == [3, 1]
    pinned.with_name(f"{pinned.name}.pinned").unlink()
    writer.save(4)
    assert writer.names() == ["run_epoch_1_iter_4.pth"]


OF_THE_USER = ("run_epoch_best_iter_last.pth", "weights.pth")


def test_C10_a_run_that_is_started_anew_leaves_nothing_of_the_one_before_to_win(tmp_path: Path) -> None:
    before = CheckpointWriter(tmp_path)
    pinned, other = before.save(80), before.save(90)
    before.storage.pin(pinned.name)
    for name in OF_THE_USER:
        (pinned.parent / name).write_bytes(b"of the user's own")
    writer = before.start_again(anew=True)
    assert other.exists()
    newest = writer.save(1)
    assert writer.names() == sorted([newest.name, pinned.name, *OF_THE_USER])
    pinned.unlink()
    (newest.parent / OF_THE_USER[0]).unlink()
    (newest.parent / POINTER_FILE).unlink()
    with pytest.warns(CheckpointWarning, match="weights.pth"):
        assert writer.newest().path == newest


def test_C10_what_a_kill_after_the_pointer_left_is_removed_at_the_next_start(
    writer: CheckpointWriter, tmp_path: Path
) -> None:
    named = writer.save(2)
    for number in (1, 3):
        named.with_name(f"run_epoch_1_iter_{number}.pth").write_bytes(named.read_bytes())
    CheckpointFolder(tmp_path, "run").load_newest()  # one that only looks on, such as a test
    again = writer.start_again()
    assert len(again.names()) == 3
    again.storage.load_newest()
    assert again.names() == [named.name]


def test_C10_without_a_pointer_or_with_no_limit_nothing_is_cleared_away(
    writer: CheckpointWriter, tmp_path: Path
) -> None:
    path = writer.save(2)
    (path.parent / POINTER_FILE).unlink()
    writer.start_again().storage.close()
    assert path.exists()
    write_run(tmp_path, [1], retention=Retention(keep_last=None))
    assert path.exists()


SCORES = some.none() | some.integers(-3, 3).map(float) | some.sampled_from([float("nan"), float("inf"), float("-inf")])


def entries(scores: "list[float | None]") -> "list[Entry]":
    """Newest first; the last score is the newest."""
    found = [Entry(str(at), "", 0, at, at, score) for at, score in enumerate(scores)]
    return found[::-1]


@settings(deadline=None)
@given(some.lists(SCORES, max_size=12), some.integers(1, 4), some.integers(0, 4), some.sampled_from(["max", "min"]))
def test_C10_saving_one_by_one_keeps_the_newest_and_the_best_of_all(
    scores: "list[float | None]", last: int, best: int, mode: str
) -> None:
    retention = Retention(last, best, mode)
    kept: list[Entry] = []
    for entry in reversed(entries(scores)):
        kept = retention.choose([entry, *kept])
    everything = entries(scores)
    names = {entry.name for entry in kept}
    assert [entry.name for entry in kept] == [entry.name for entry in everything if entry.name in names]
    assert [entry.name for entry in kept[:last]] == [entry.name for entry in everything[:last]]
    judged = sorted((s for s in scores if s is not None and math.isfinite(s)), reverse=mode == "max")
    assert [entry.score for entry in retention.rank(kept)[:best]] == judged[:best]
    assert len(kept) <= last + best


@settings(deadline=None)
@given(some.lists(SCORES, max_size=8), some.integers(-4, 4).map(float), some.integers(0, 3))
def test_C10_what_is_called_among_the_best_is_kept_as_one(
    scores: "list[float | None]", score: float, best: int
) -> None:
    retention = Retention(1, best)
    stored = entries(scores)
    new = Entry("new", "", 0, 99, 99, score)
    later = [Entry("later", "", 0, 100, 100)]
    if retention.is_among_best(score, stored):
        assert new in retention.choose([*later, new, *stored])
    for endless in ("nan", "inf", "-inf"):
        assert not retention.is_among_best(float(endless), stored)


def test_C10_pinned_ones_stay_and_without_a_limit_all_do() -> None:
    stored = entries([None] * 5)
    assert [entry.name for entry in Retention(1).choose(stored, {"1"})] == ["4", "1"]
    assert Retention(None).choose(stored) == stored

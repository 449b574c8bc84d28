"""GPU leases: all or none, refused with the holder's name, usable by every user of the machine, gone when unused."""

import json
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from proctor.trial_keeper.gpus import read
from proctor.trial_keeper.reaper.leases import (
    GuardBusy,
    LeaseRefused,
    UnsafeFolder,
    acquire,
    guard,
    list_shares,
    release,
    remove_unused,
)

NOTE: dict[str, object] = {"holder": "ann home Ab3dE5f7 T", "job_id": "T.1", "pid": 7, "since": "2026-01-01T00:00:00Z"}


@pytest.fixture
def folder(tmp_path: Path) -> str:
    return str(tmp_path / "locks")


@pytest.fixture
def umask() -> Iterator[None]:
    before = os.umask(0o077)
    yield
    os.umask(before)


def take(folder: str, uuid: str, slot: int = 0, *, holder: str = "ann", max_trials: int = 1) -> list[int]:
    return acquire(folder, [(uuid, slot)], {**NOTE, "holder": holder}, max_trials=max_trials)


@contextmanager
def taken(folder: str, uuid: str = "GPU-a", slot: int = 0, **more: Any) -> Iterator[None]:
    """A lease that is held for as long as the block lasts."""
    held = take(folder, uuid, slot, **more)
    yield
    release(held)


def test_a_lease_is_refused_with_its_holders_note(folder: str) -> None:
    held = acquire(folder, [("GPU-a", 0)], NOTE)
    with pytest.raises(
        LeaseRefused, match=r"GPU-a \(share 0\) is held by ann home Ab3dE5f7 T \(job T.1, pid 7, since 2026"
    ):
        acquire(folder, [("GPU-a", 0)], {})
    release(acquire(folder, [("GPU-b", 0)], {}))
    release(held)
    release(acquire(folder, [("GPU-a", 0)], {}))


def test_all_leases_are_taken_or_none(folder: str) -> None:
    with taken(folder, "GPU-b"):
        with pytest.raises(LeaseRefused):
            acquire(folder, [("GPU-c", 0), ("GPU-a", 0), ("GPU-b", 0)], {})
        assert sorted(os.listdir(folder)) == ["GPU-b.0", "GPU-b.guard"]
        release(acquire(folder, [("GPU-a", 0), ("GPU-c", 0)], {}))


@pytest.mark.parametrize(("holder", "asker"), [(1, 2), (2, 1), (1, 1)])
def test_a_gpu_that_one_side_wants_for_itself_is_not_shared(folder: str, holder: int, asker: int) -> None:
    with (
        taken(folder, max_trials=holder),
        pytest.raises(LeaseRefused, match=r"held by ann \(job T.1, .*, and no more than 1 trial may have it"),
    ):
        take(folder, "GPU-a", 1, max_trials=asker)


def test_no_more_trials_share_a_gpu_than_the_strictest_of_them_allows(folder: str) -> None:
    ann = take(folder, "GPU-a", 0, holder="ann", max_trials=3)
    bob = take(folder, "GPU-a", 1, holder="bob", max_trials=2)
    with pytest.raises(LeaseRefused, match=r"held by ann .* and bob .*, and no more than 2 trials may have it"):
        take(folder, "GPU-a", 2, max_trials=3)
    release(bob)
    held = take(folder, "GPU-a", 2, max_trials=3)
    release([*ann, *held, *take(folder, "GPU-a", 1, max_trials=3)])


def test_a_share_is_refused_even_where_the_gpu_has_room(folder: str) -> None:
    with taken(folder, max_trials=2), pytest.raises(LeaseRefused, match=r"GPU-a \(share 0\) is held by ann"):
        take(folder, "GPU-a", 0, max_trials=2)


def test_the_locks_are_usable_by_all_users_whatever_the_umask(folder: str, umask: None) -> None:
    held = acquire(folder, [("GPU-a", 0)], NOTE, max_trials=2)
    assert stat.S_IMODE(os.stat(folder).st_mode) == 0o1777
    for name in ("GPU-a.0", "GPU-a.guard"):
        assert stat.S_IMODE(os.stat(os.path.join(folder, name)).st_mode) == 0o666
    assert json.loads((Path(folder) / "GPU-a.0").read_text()) == {**NOTE, "max_trials_per_gpu": 2}
    assert os.umask(0o077) == 0o077
    release(held)


@pytest.mark.parametrize("name", ["GPU-a.0", "GPU-a.guard"])
def test_a_lock_that_is_a_link_is_not_followed(tmp_path: Path, name: str) -> None:
    (tmp_path / "precious").write_text("data")
    (tmp_path / name).symlink_to(tmp_path / "precious")
    with pytest.raises(OSError):
        acquire(str(tmp_path), [("GPU-a", 0)], NOTE)
    assert (tmp_path / "precious").read_text() == "data"


@pytest.mark.parametrize("text", ["[", "[1]", "", '{"max_trials_per_gpu": "many"}', "[" * 4000])
def test_a_note_that_makes_no_sense_does_not_hide_the_refusal(folder: str, text: str) -> None:
    held = take(folder, "GPU-a")
    (Path(folder) / "GPU-a.0").write_text(text)
    with pytest.raises(LeaseRefused, match="is held by an unknown holder"):
        take(folder, "GPU-a", 0)
    with pytest.raises(LeaseRefused, match="no more than 1 trial"):
        take(folder, "GPU-a", 1, max_trials=2)
    release(held)


@pytest.mark.parametrize("parent", ["file", "missing"])
def test_a_directory_that_cannot_be_made_is_an_error(tmp_path: Path, parent: str) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError):
        take(str(tmp_path / parent / "locks"), "GPU-a")


def test_a_guard_that_is_not_given_back_is_not_waited_for_without_end(folder: str) -> None:
    with guard(folder, "GPU-a"):
        with (
            pytest.raises(GuardBusy, match=r"another process keeps it locked for more than 0\.01 s"),
            guard(folder, "GPU-a", seconds=0.01),
        ):
            raise AssertionError("two hold the guard")
        with guard(folder, "GPU-b"):
            pass


def test_several_may_look_at_the_same_time(folder: str) -> None:
    with guard(folder, "GPU-a", shared=True), guard(folder, "GPU-a", shared=True):
        pass


def test_unused_lock_files_are_removed_and_held_ones_stay(folder: str) -> None:
    held = take(folder, "GPU-a", 1, max_trials=2)
    release(take(folder, "GPU-a", 0, max_trials=2))
    release(take(folder, "GPU-b"))
    (Path(folder) / "notes.txt").write_text("not ours")
    remove_unused(folder, ["GPU-a"])
    assert sorted(os.listdir(folder)) == ["GPU-a.1", "GPU-a.guard", "GPU-b.0", "GPU-b.guard", "notes.txt"]
    release(held)
    remove_unused(folder)
    assert sorted(os.listdir(folder)) == ["notes.txt"]


def test_a_lease_that_a_living_process_still_holds_stays_after_its_taker_has_given_it_back(folder: str) -> None:
    held = take(folder, "GPU-a")
    inherited = [os.dup(descriptor) for descriptor in held]  # as a trial's processes have it
    release(held)
    remove_unused(folder)
    with pytest.raises(LeaseRefused, match="held by ann"):
        take(folder, "GPU-a")
    release(inherited)
    remove_unused(folder)
    assert os.listdir(folder) == []


@pytest.mark.parametrize(("mode", "stays"), [(0o1777, False), (0o755, True)])
def test_an_empty_directory_goes_only_where_anybody_could_make_it_again(tmp_path: Path, mode: int, stays: bool) -> None:
    parent = tmp_path / "parent"
    parent.mkdir()
    parent.chmod(mode)
    folder = parent / "locks"
    release(take(str(folder), "GPU-a"))
    remove_unused(str(folder), ["GPU-a"])
    assert folder.exists()
    remove_unused(str(folder))
    assert folder.exists() == stays
    release(take(str(folder), "GPU-a"))


def test_nothing_to_remove_is_no_error(folder: str) -> None:
    remove_unused(folder)
    remove_unused(folder, ["GPU-a"])
    assert not os.path.exists(folder)


HOSTILE_NOTES = [
    {
        "holder": "\x1b]0;owned\x07\x1b[2J",
        "job_id": "a\nb",
        "since": "\u202e",
        "pid": 10**30,
        "max_trials_per_gpu": 10**30,
    },
    {"holder": "x" * 4000, "job_id": ["T"], "since": {}, "pid": True, "max_trials_per_gpu": True},
    {"holder": "\ud800", "pid": -1, "max_trials_per_gpu": 0},
    {"holder": None, "pid": 1e300, "max_trials_per_gpu": "9"},
]


@pytest.mark.parametrize("note", HOSTILE_NOTES)
def test_a_note_says_nothing_that_could_not_be_shown_or_stored(folder: str, note: dict[str, object]) -> None:
    held = take(folder, "GPU-a")
    (Path(folder) / "GPU-a.0").write_text(json.dumps(note))
    with pytest.raises(LeaseRefused) as refused:
        take(folder, "GPU-a")
    assert str(refused.value).isprintable()
    assert len(str(refused.value)) < 2000
    [lease] = read(folder)["GPU-a"]
    assert "".join(filter(None, (lease.holder, lease.job_id, lease.since))).isprintable()
    assert len(lease.holder) <= 500
    assert lease.pid is None
    assert lease.max_trials_per_gpu == 1
    release(held)


def test_a_sentence_names_a_few_of_many_holders(folder: str) -> None:
    held = [take(folder, "GPU-a", share, holder=f"user{share}", max_trials=9) for share in range(9)]
    with pytest.raises(
        LeaseRefused, match=r"held by user0 .* and user1 .* and user2 .* and 6 more, and no more than 9"
    ):
        take(folder, "GPU-a", 9, max_trials=9)
    for descriptors in held:
        release(descriptors)


def test_files_whose_names_are_no_shares_are_none(folder: str) -> None:
    release(take(folder, "GPU-a"))
    for share in ("99999999999999999999", "01", "\u0663", "10000", "-1"):
        (Path(folder) / f"GPU-a.{share}").touch()
    assert list_shares(folder) == {"GPU-a": [0]}


SOMEBODY = 12345


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give folders to other users")
@pytest.mark.parametrize(
    ("owner", "mode", "parent_owner", "parent_mode", "said"),
    [
        (SOMEBODY, 0o777, 0, 0o755, "could remove locks .* sudo install -d -o root -g root -m 1777 .*locks"),
        (SOMEBODY, 0o755, 0, 0o755, "could remove locks"),
        (0, 0o777, 0, 0o755, "could remove locks"),
        (0, 0o1777, 0, 0o777, "could replace .* sudo chown root .* && sudo chmod go-w"),
        (0, 0o1777, SOMEBODY, 0o1777, "could replace"),
        (0, 0o1777, 0, 0o1777, ""),
        (SOMEBODY, 0o1777, 0, 0o1777, ""),
        (0, 0o755, 0, 0o775, ""),
    ],
)
def test_a_folder_in_which_others_could_remove_held_locks_is_refused(
    tmp_path: Path, owner: int, mode: int, parent_owner: int, parent_mode: int, said: str
) -> None:
    folder = tmp_path / "machine" / "locks"
    folder.mkdir(parents=True)
    for path, uid, bits in ((folder, owner, mode), (folder.parent, parent_owner, parent_mode)):
        os.chown(path, uid, -1)
        path.chmod(bits)
    if said:
        with pytest.raises(UnsafeFolder, match=said):
            take(str(folder), "GPU-a")
    else:
        release(take(str(folder), "GPU-a"))


def test_a_link_in_place_of_the_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "locks").symlink_to("real")
    with pytest.raises(UnsafeFolder, match="should be a folder"):
        take(str(tmp_path / "locks"), "GPU-a")

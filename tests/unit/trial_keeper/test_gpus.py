"""Who holds leases now, as every user of the machine can see."""

import fcntl
import os
from pathlib import Path

import pytest

from proctor.trial_keeper import gpus
from proctor.trial_keeper.protocol import Lease
from proctor.trial_keeper.reaper.leases import acquire, guard, release, remove_unused

NOTE: dict[str, object] = {"holder": "user ann", "job_id": "T.1", "pid": 7, "since": "2026-01-01T00:00:00Z"}


@pytest.fixture
def folder(tmp_path: Path) -> str:
    return str(tmp_path / "locks")


def test_a_directory_that_is_not_there_holds_nothing_and_is_not_made(folder: str) -> None:
    assert gpus.read(folder) == {}
    assert not os.path.exists(folder)


def test_every_held_share_is_shown_with_its_holder(folder: str) -> None:
    held = acquire(folder, [("GPU-a", 1), ("GPU-b", 0)], NOTE, max_trials=3)
    held += acquire(folder, [("GPU-a", 0)], {**NOTE, "job_id": "U.2", "pid": 8}, max_trials=2)
    release(acquire(folder, [("GPU-c", 0)], NOTE))
    ann = Lease(1, "user ann", "T.1", 7, "2026-01-01T00:00:00Z", 3)
    assert gpus.read(folder) == {
        "GPU-a": [Lease(0, "user ann", "U.2", 8, "2026-01-01T00:00:00Z", 2), ann],
        "GPU-b": [Lease(0, "user ann", "T.1", 7, "2026-01-01T00:00:00Z", 3)],
    }
    release(held)
    assert gpus.read(folder) == {}
    assert len(os.listdir(folder)) == 7  # looking removes nothing


def test_looking_leaves_nothing_behind(folder: str) -> None:
    release(acquire(folder, [("GPU-a", 0)], NOTE))
    remove_unused(folder)
    (Path(folder) / "GPU-a.0").touch()
    assert gpus.read(folder) == {}
    assert os.listdir(folder) == ["GPU-a.0"]


def test_a_note_that_cannot_be_read_shows_a_holder_without_a_name(folder: str) -> None:
    held = acquire(folder, [("GPU-a", 0)], NOTE)
    (Path(folder) / "GPU-a.0").write_text("{")
    assert gpus.read(folder) == {"GPU-a": [Lease(0, "", None, None, "")]}
    release(held)


def test_a_guard_that_is_kept_does_not_hide_the_holders(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpus, "_GUARD_SECONDS", 0.01)
    held = acquire(folder, [("GPU-a", 0)], NOTE)
    with guard(folder, "GPU-a"):
        assert [lease.job_id for lease in gpus.read(folder)["GPU-a"]] == ["T.1"]
    release(held)


def test_what_is_no_file_is_passed_over(folder: str) -> None:
    held = acquire(folder, [("GPU-a", 0)], NOTE)
    os.mkdir(os.path.join(folder, "GPU-a.1"))
    os.mkfifo(os.path.join(folder, "GPU-a.2"))
    os.symlink("/etc/passwd", os.path.join(folder, "GPU-a.3"))
    assert [lease.slot for lease in gpus.read(folder)["GPU-a"]] == [0]
    release(held)


def test_another_one_who_looks_is_not_taken_for_a_holder(folder: str) -> None:
    release(acquire(folder, [("GPU-a", 0)], NOTE))
    with open(os.path.join(folder, "GPU-a.0")) as file:
        fcntl.flock(file, fcntl.LOCK_SH)
        assert gpus.read(folder) == {}

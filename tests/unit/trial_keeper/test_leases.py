"""GPU leases: all or none, refused with the holder's name, usable by every user of the machine."""

import json
import os
from pathlib import Path

import pytest

from proctor.trial_keeper.leases import LeaseRefused, acquire, release

NOTE: dict[str, object] = {"holder": "ann home Ab3dE5f7 T", "job_id": "T.1", "pid": 7, "since": "2026-01-01T00:00:00Z"}


def test_a_lease_is_refused_with_its_holders_note(tmp_path: Path) -> None:
    folder = str(tmp_path / "locks")
    held = acquire(folder, [("GPU-a", 0)], NOTE)
    with pytest.raises(
        LeaseRefused, match=r"GPU-a \(share 0\) is held by ann home Ab3dE5f7 T \(job T.1, pid 7, since 2026"
    ):
        acquire(folder, [("GPU-a", 0)], {})
    release(acquire(folder, [("GPU-a", 1), ("GPU-b", 0)], {}))
    release(held)
    release(acquire(folder, [("GPU-a", 0)], {}))


def test_all_leases_are_taken_or_none(tmp_path: Path) -> None:
    folder = str(tmp_path / "locks")
    held = acquire(folder, [("GPU-b", 0)], NOTE)
    with pytest.raises(LeaseRefused):
        acquire(folder, [("GPU-c", 0), ("GPU-a", 0), ("GPU-b", 0)], {})
    release(acquire(folder, [("GPU-a", 0), ("GPU-c", 0)], {}))
    release(held)


def test_the_locks_are_usable_by_all_users_whatever_the_umask(tmp_path: Path) -> None:
    folder = tmp_path / "locks"
    before = os.umask(0o077)
    try:
        release(acquire(str(folder), [("GPU-a", 0)], NOTE))
    finally:
        os.umask(before)
    assert folder.stat().st_mode & 0o7777 == 0o1777
    assert (folder / "GPU-a.0").stat().st_mode & 0o777 == 0o666
    assert json.loads((folder / "GPU-a.0").read_text()) == NOTE


def test_a_lock_that_is_a_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("data")
    (tmp_path / "GPU-a.0").symlink_to(tmp_path / "precious")
    with pytest.raises(OSError):
        acquire(str(tmp_path), [("GPU-a", 0)], NOTE)
    assert (tmp_path / "precious").read_text() == "data"


def test_a_note_that_cannot_be_read_does_not_hide_the_refusal(tmp_path: Path) -> None:
    held = acquire(str(tmp_path), [("GPU-a", 0)], NOTE)
    (tmp_path / "GPU-a.0").write_text("[")
    with pytest.raises(LeaseRefused, match="left no note"):
        acquire(str(tmp_path), [("GPU-a", 0)], {})
    release(held)

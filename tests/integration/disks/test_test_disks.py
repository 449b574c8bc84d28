"""The disks that other tests use do what they say."""

import os
from pathlib import Path

from fakes.disks import Disk, mounted


def test_a_power_cut_keeps_what_was_synced_and_only_that(disk: Disk, tmp_path: Path) -> None:
    with open(disk.folder / "synced", "wb", buffering=0) as file:
        file.write(b"synced")
        os.fsync(file.fileno())
    folder = os.open(disk.folder, os.O_RDONLY)
    os.fsync(folder)
    os.close(folder)
    (disk.folder / "not synced").write_bytes(b"not synced")
    disk.cut_off(tmp_path / "cut.image")
    with mounted(tmp_path / "cut.image", tmp_path / "after") as after:
        assert (after.folder / "synced").read_bytes() == b"synced"
        lost = after.folder / "not synced"
        assert not lost.exists() or lost.read_bytes() == b""

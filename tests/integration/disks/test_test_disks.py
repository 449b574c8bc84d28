"""The disks that other tests use do what they say."""

import errno
import os
from pathlib import Path

import pytest
from fakes.disks import Disk, mounted


def test_a_full_disk_takes_nothing_until_it_is_freed(disk: Disk) -> None:
    disk.fill()
    with pytest.raises(OSError) as caught:
        (disk.folder / "one").write_bytes(b"x" * 4096)
    assert caught.value.errno == errno.ENOSPC
    disk.free()
    (disk.folder / "two").write_bytes(b"x" * 4096)


def test_a_disk_without_inodes_has_room_in_files_that_are_there(disk: Disk) -> None:
    there = disk.folder / "there"
    there.write_bytes(b"")
    disk.fill_inodes()
    there.write_bytes(b"x" * 4096)
    with pytest.raises(OSError) as caught:
        (disk.folder / "new").touch()
    assert caught.value.errno == errno.ENOSPC
    disk.free()
    (disk.folder / "new").touch()


def test_a_read_only_disk_refuses_even_files_that_are_open(disk: Disk) -> None:
    with open(disk.folder / "open", "wb", buffering=0) as file:
        file.write(b"before")
        disk.make_read_only()
        with pytest.raises(OSError) as caught:
            file.write(b"after")
            os.fsync(file.fileno())
        assert caught.value.errno in {errno.EROFS, errno.EIO, errno.ESHUTDOWN}
        with pytest.raises(OSError) as caught:
            (disk.folder / "new").touch()
        assert caught.value.errno in {errno.EROFS, errno.EIO, errno.ESHUTDOWN}


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

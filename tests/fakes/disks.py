"""A small ext4 disk in an image file: filled, out of inodes, read-only, away, or cut off from its power.

Everything a test does to it happens to a real file system behind a loop device. The image is what the block device
holds: what the kernel has not written back yet is not in it, which is what makes a power cut of a copy.
"""

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

MEGABYTE = 1 << 20


class Disk:
    """A mounted image. `folder` is where it is mounted."""

    def __init__(self, image: Path, folder: Path, options: str = "") -> None:
        self.image = image
        self.folder = folder
        self._options = options
        self._ballast = folder / "ballast"
        self._crowd = folder / "crowd"

    def mount(self) -> None:
        """Mount the image; the journal of the file system is replayed if it was not unmounted."""
        self.folder.mkdir(exist_ok=True)
        _run("mount", "-o", f"loop{self._options and ','}{self._options}", str(self.image), str(self.folder))

    def unmount(self) -> None:
        """Detach it now; processes that have files of it open keep these. What was written is on the image once
        these are closed."""
        _run("umount", "--lazy", str(self.folder))

    def fill(self) -> None:
        """Take every byte that is left, the blocks reserved for root included."""
        with open(self._ballast, "ab", buffering=0) as file:
            for size in (65536, 4096, 1):
                with suppress(OSError):
                    while file.write(b"x" * size) == size:
                        pass
                os.fsync(file.fileno())

    def fill_inodes(self) -> None:
        """Take every inode that is left; there is room for bytes."""
        self._crowd.mkdir(exist_ok=True)
        number = 0
        with suppress(OSError):
            while True:
                os.close(os.open(self._crowd / str(number), os.O_CREAT | os.O_EXCL | os.O_WRONLY))
                number += 1

    def free(self) -> None:
        """Give back what `fill` and `fill_inodes` have taken."""
        self._ballast.unlink(missing_ok=True)
        shutil.rmtree(self._crowd, ignore_errors=True)

    def make_read_only(self) -> None:
        """As the kernel does with a disk that fails: every write is EROFS from now on, even to open files."""
        # An emergency remount of this one file system: an orderly one is refused while files are open for writing.
        _run("mount", "-o", "remount,abort", str(self.folder), ok=(0, 1, 32))

    def cut_off(self, image: Path) -> None:
        """Copy what the block device holds at this moment, as a power cut would leave it.

        Stop (SIGSTOP) whatever writes to it first, or the copy is of several moments.
        """
        shutil.copyfile(self.image, image)


@contextmanager
def ext4_disk(folder: Path, *, megabytes: int = 64, inodes: int | None = None, options: str = "") -> Iterator[Disk]:
    """A new disk, mounted at `folder`/disk. Skips the test where nothing can be mounted (in CI it can).

    :param options: for `mount`: with "commit=1" the kernel writes names and sizes back after one second, not five.
    """
    image = folder / "disk.image"
    with image.open("wb") as file:
        file.truncate(megabytes * MEGABYTE)
    count = [] if inodes is None else ["-N", str(inodes)]
    _run("mkfs.ext4", "-q", "-m", "0", "-E", "lazy_itable_init=0,lazy_journal_init=0", *count, str(image))
    with mounted(image, folder / "disk", options=options) as disk:
        yield disk


@contextmanager
def mounted(image: Path, folder: Path, *, options: str = "") -> Iterator[Disk]:
    """An image that there is already, mounted at `folder`; unmounted at the end."""
    disk = Disk(image, folder, options)
    try:
        disk.mount()
    except (OSError, subprocess.CalledProcessError) as error:
        printed = getattr(error, "stderr", "") or str(error)
        pytest.skip(f"a small file system cannot be mounted here: {printed.strip()}")
    try:
        yield disk
    finally:
        with suppress(subprocess.CalledProcessError):  # the test may have unmounted it
            disk.unmount()


def _run(*command: str, ok: tuple[int, ...] = (0,)) -> None:
    environment = {**os.environ, "PATH": os.environ.get("PATH", "") + ":/usr/sbin:/sbin"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    if done.returncode not in ok:
        raise subprocess.CalledProcessError(done.returncode, command, done.stdout, done.stderr)

"""A full disk and a full memory: said as what they are, and over when they are over."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from fakes.keeper_node import Node, eventually

from proctor.trial_keeper.protocol import EndReason

pytestmark = pytest.mark.anyio

MEMORY_CONTROLLER = Path("/sys/fs/cgroup/memory")


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 1 MiB where the trials' directories are."""
    folder = tmp_path / "node" / "trials"
    folder.mkdir(parents=True)
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "none", folder], capture_output=True)
    if mounted.returncode != 0:
        pytest.skip("file systems cannot be mounted here (not root, or no tmpfs)")
    yield folder
    subprocess.run(["umount", "--lazy", folder], check=True)


def fill(disk: Path) -> Path:
    ballast = disk / "ballast"
    with open(ballast, "wb", buffering=0) as file:
        for size in (4096, 1):
            try:
                while file.write(b"x" * size) == size:
                    pass
            except OSError:
                continue
    return ballast


async def test_jobs_that_find_their_own_disk_full_are_given_back_until_it_has_room(
    small_disk: Path, node: Node
) -> None:
    """Their directories lie on another disk than the keeper's, as with an `experimentWorkingDirectory`."""
    ballast = fill(small_disk)
    await node.manager.command(node.launch("T.1", "true"))
    end = await node.manager.end_of("T.1")
    assert end.reason == EndReason.NO_ROOM
    assert "its disk is full" in end.detail
    (place,) = node.manager.headers[-1].full
    assert str(node.job_directory("T.1")).startswith(place)
    ballast.unlink()
    await node.manager.until(lambda: node.manager.headers[-1].full == {})
    await node.manager.command(node.launch("T.2", "true"))
    assert (await node.manager.end_of("T.2")).reason == EndReason.EXITED_OK


async def test_an_end_on_a_full_disk_has_its_room(small_disk: Path, node: Node) -> None:
    fifo = node.directory / "go"
    os.mkfifo(fifo)
    await node.manager.command(node.launch("T.1", f"read line < {fifo}; exit 4"))
    await node.manager.start_of("T.1")
    fill(small_disk)
    fifo.write_text("go\n")
    end = await node.manager.end_of("T.1")
    assert (end.reason, end.code) == (EndReason.EXITED_ERROR, 4)


async def test_a_trial_killed_for_memory_is_told_as_that(node: Node) -> None:
    group = MEMORY_CONTROLLER / f"proctor-test-{os.getpid()}"
    try:
        group.mkdir()
        (group / "memory.limit_in_bytes").write_text(str(64 * 1024 * 1024))
    except OSError:
        pytest.skip("no memory controller (cgroup v1) can be used here")
    try:
        eat = f"{sys.executable} -c 'import time; x = bytearray(300_000_000); time.sleep(600)'"
        await node.manager.command(node.launch("T.1", f"echo $$ > {group}/cgroup.procs; {eat}"))
        assert (await node.manager.end_of("T.1")).reason == EndReason.OUT_OF_MEMORY
    finally:
        await eventually(lambda: not (group / "cgroup.procs").read_text())
        group.rmdir()

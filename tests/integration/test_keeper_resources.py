"""A full disk and a full memory: said as what they are, and over when they are over."""

import os
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from fakes.keeper_node import Node, eventually, open_node

from proctor.trial_keeper.processes import survey
from proctor.trial_keeper.protocol import EndReason

pytestmark = pytest.mark.anyio

MEMORY_CONTROLLER = Path("/sys/fs/cgroup/memory")


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    async with open_node(tmp_path / "node") as node:
        yield node


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 256 KiB where the trials' directories are."""
    folder = tmp_path / "node" / "trials"
    folder.mkdir(parents=True)
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "none", folder], capture_output=True)
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


async def test_a_full_disk_refuses_launches_and_recovers(small_disk: Path, node: Node) -> None:
    ballast = fill(small_disk)
    await node.manager.command(node.launch("T.1", "true"))
    end = await node.manager.end_of("T.1")
    assert end.reason == EndReason.INFRASTRUCTURE
    assert "No space left" in end.detail
    ballast.unlink()
    await node.manager.command(node.launch("T.2", "true"))
    assert (await node.manager.end_of("T.2")).reason == EndReason.EXITED_OK


async def test_an_end_on_a_full_disk_waits_for_space(small_disk: Path, node: Node) -> None:
    fifo = node.directory / "go"
    os.mkfifo(fifo)
    await node.manager.command(node.launch("T.1", f"read line < {fifo}; exit 4"))
    start = await node.manager.start_of("T.1")
    ballast = fill(small_disk)
    fifo.write_text("go\n")
    await eventually(lambda: start.pid not in survey())
    ballast.unlink()
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

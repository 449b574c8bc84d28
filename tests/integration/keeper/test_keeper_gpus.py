"""GPU facts through (fake) NVML, and GPU leases that hold across managers exactly as long as a job lives."""

import os
import re
from collections.abc import AsyncIterator
from datetime import datetime
from pathlib import Path

import pytest
from fakes.keeper_node import Node, eventually, kill_and_wait, open_node
from fakes.nvidia import FakeGpus, find_compiler, gpu

from proctor.trial_keeper.linux.processes import survey
from proctor.trial_keeper.protocol import Cancel, Device, EndReason, GpuSlot
from proctor.trial_keeper.reaper.leases import LeaseRefused, acquire, release

pytestmark = pytest.mark.anyio

SHARE = [GpuSlot("GPU-a", 0)]


@pytest.fixture
def gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeGpus:
    if find_compiler() is None:
        pytest.skip("no C compiler here to build the fake NVML library")
    (tmp_path / "nvml").mkdir()
    fake = FakeGpus(tmp_path / "nvml")
    for name, value in fake.environment.items():
        monkeypatch.setenv(name, value)
    return fake


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    async with open_node(tmp_path / "node", device_refresh_seconds=0.25) as node:
        yield node


def latest_devices(node: Node) -> list[Device]:
    reported = [header.devices for header in node.manager.headers if header.devices is not None]
    return reported[-1] if reported else node.manager.registrations[-1].devices


def owners(node: Node) -> dict[int, str | None]:
    """The processes on the first GPU, and whose they are."""
    return {process.pid: process.job_id for process in latest_devices(node)[0].processes}


async def test_no_driver_is_no_gpus_and_said_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    monkeypatch.delenv("FAKE_NVML_STATE", raising=False)
    (tmp_path / "libnvidia-ml.so.1").write_bytes(b"no library")
    async with open_node(tmp_path / "node") as node:
        await node.manager.until(lambda: node.manager.registrations and len(node.manager.headers) >= 2)
        assert node.manager.registrations[0].devices == []
        assert "driver" in node.manager.registrations[0].driver_note
        assert all(header.devices is None for header in node.manager.headers)


async def test_gpus_and_their_users_are_told(gpus: FakeGpus, tmp_path: Path) -> None:
    gpus.set([gpu("GPU-a"), gpu("GPU-b", used=500, load=80, processes={os.getpid(): 490})])
    async with open_node(tmp_path / "node", device_refresh_seconds=0.1) as node:
        await node.manager.until(lambda: node.manager.registrations)
        first, second = node.manager.registrations[0].devices
        assert (first.index, first.uuid, first.name, first.processes) == (0, "GPU-a", "Fake GPU 1000", [])
        assert (second.memory_total_mb, second.memory_used_mb, second.utilization) == (1000, 500, 80)
        assert [(process.pid, process.memory_mb, process.job_id) for process in second.processes] == [
            (os.getpid(), 490, None)
        ]


async def test_the_processes_of_a_trial_are_known_as_its_own(gpus: FakeGpus, node: Node) -> None:
    pid = (await node.begin("env -i sleep 600 & sleep 600")).pid
    hidden = await eventually(lambda: [process.pid for process in survey().values() if process.parent == pid])
    gpus.set([gpu("GPU-a", processes={pid: 5, hidden[0]: 6, os.getpid(): 7})])
    await node.stop()
    await node.start()
    expected = {pid: "T.1", hidden[0]: "T.1", os.getpid(): None}
    await node.manager.until(lambda: latest_devices(node) and owners(node) == expected)


async def test_a_lost_gpu_is_left_out_with_a_note(gpus: FakeGpus, tmp_path: Path) -> None:
    gpus.set([gpu("GPU-a"), gpu("GPU-b")])
    async with open_node(tmp_path / "node", device_refresh_seconds=0.1) as node:
        await node.manager.until(lambda: node.manager.registrations)
        gpus.set([gpu("GPU-a"), "lost"])
        await node.manager.until(lambda: node.manager.headers and node.manager.headers[-1].notes)
        assert "GPU 1 cannot be used" in node.manager.headers[-1].notes[0]
        await node.manager.until(lambda: [device.uuid for device in latest_devices(node)] == ["GPU-a"])
        gpus.set([gpu("GPU-a"), gpu("GPU-b")])
        await node.manager.until(lambda: not node.manager.headers[-1].notes)


async def test_a_gpu_is_refused_to_a_second_keeper_and_free_when_the_job_ends(tmp_path: Path) -> None:
    locks = str(tmp_path / "locks")
    async with open_node(tmp_path / "one", gpu_lock_directory=locks) as one:
        async with open_node(tmp_path / "two", gpu_lock_directory=locks) as two:
            await one.begin("sleep 600", gpus=SHARE, holder="ann's trial 3")
            refused = await two.run(two.launch("U.1", "true", gpus=[GpuSlot("GPU-b", 0), *SHARE]))
            assert refused.reason == EndReason.PREEMPTED
            assert re.search("GPU-a .* ann's trial 3", refused.detail)
            with pytest.raises(LeaseRefused, match="no more"):
                acquire(locks, [("GPU-a", 1)], {})
            release(acquire(locks, [("GPU-b", 0)], {}))
            await one.cancel()
            assert (await two.run(two.launch("U.2", f"ls {locks}", gpus=SHARE))).reason == EndReason.EXITED_OK
            assert "GPU-a.0" in two.output("U.2").split()
            assert "GPU-a.0" not in os.listdir(locks)


async def test_a_gpu_stays_leased_while_the_trial_lives_without_keeper_and_reaper(node: Node) -> None:
    locks = str(node.directory / "gpu-locks")
    await node.begin("sleep 600", gpus=SHARE)
    reaper = node.process("T.1").reaper.pid
    await node.kill()
    await kill_and_wait(reaper)
    with pytest.raises(LeaseRefused, match=r"T\.1"):
        acquire(locks, [("GPU-a", 0)], {})
    await node.start()
    assert (await node.manager.end_of("T.1")).reason == EndReason.EXIT_UNKNOWN
    release(acquire(locks, [("GPU-a", 0)], {}))


async def test_leases_of_all_managers_are_told_and_their_trials_are_no_strangers(
    gpus: FakeGpus, tmp_path: Path
) -> None:
    locks = str(tmp_path / "locks")
    gpus.set([gpu("GPU-a"), gpu("GPU-b")])
    async with open_node(tmp_path / "one", gpu_lock_directory=locks, device_refresh_seconds=0.25) as one:
        async with open_node(tmp_path / "two", gpu_lock_directory=locks, device_refresh_seconds=0.25) as two:
            launch = one.launch("T.1", "sleep 600", gpus=SHARE, holder="user ann, trial 3", max_trials_per_gpu=2)
            pid = (await one.begin(launch)).pid
            gpus.set([gpu("GPU-a", processes={pid: 5, os.getpid(): 6}), gpu("GPU-b")])
            for node in (one, two):
                await node.manager.until(lambda node=node: owners(node) == {pid: "T.1", os.getpid(): None})
                first, second = latest_devices(node)
                assert second.leases == []
                (lease,) = first.leases
                assert (lease.slot, lease.holder, lease.job_id) == (0, "user ann, trial 3", "T.1")
                assert (lease.pid, lease.max_trials_per_gpu) == (one.process("T.1").reaper.pid, 2)
                assert datetime.fromisoformat(lease.since).tzinfo is not None
            await one.manager.command(Cancel("T.1", "token of T.1"))
            await two.manager.until(lambda: latest_devices(two)[0].leases == [])


async def test_a_refusal_is_followed_by_news_of_the_leases(gpus: FakeGpus, tmp_path: Path) -> None:
    """Placement must not try the same GPU again and again until the next look at the devices."""
    gpus.set([gpu("GPU-a")])
    async with open_node(tmp_path / "node", device_refresh_seconds=3600.0) as node:
        await node.manager.until(lambda: node.manager.registrations)
        held = acquire(str(node.directory / "gpu-locks"), [("GPU-a", 0)], {"holder": "user bob"})
        try:
            assert (await node.run("true", gpus=SHARE)).reason == EndReason.PREEMPTED
            await node.manager.until(lambda: [lease.holder for lease in latest_devices(node)[0].leases] == ["user bob"])
        finally:
            release(held)

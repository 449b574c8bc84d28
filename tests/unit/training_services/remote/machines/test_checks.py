"""What `proctor doctor` and `proctor platform clean` find on machines, and that they leave nothing there."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from fakes.fake_connection import FakeMachine

from proctor.training_services.keepers.hub import KeeperHub
from proctor.training_services.nodes.pool import NodePool
from proctor.training_services.providers import CheckStep, CheckVerdict, ProviderContext
from proctor.training_services.remote.machines.provider import RemoteProvider
from proctor.training_services.ssh.errors import HostKeyRefused, Unreachable
from proctor.trial_keeper.protocol import Device, to_json

pytestmark = pytest.mark.anyio

OK, NOTE, FAIL, SKIPPED = CheckVerdict.OK, CheckVerdict.NOTE, CheckVerdict.FAIL, CheckVerdict.SKIPPED
GPU = to_json(Device(0, "GPU-0", "NVIDIA A100", memory_total_mb=80_000, memory_used_mb=0, utilization=0))
THERE = {"code": {"path_on_node": "/data/code"}}


@pytest.fixture
def machine() -> FakeMachine:
    return FakeMachine(NodePool(), "gpu-1", devices=[GPU, GPU])


@pytest.fixture
def provider(tmp_path: Path, machine: FakeMachine) -> RemoteProvider:
    (tmp_path / "socket").write_text("/run/manager.sock")
    pool = machine.pool
    context = ProviderContext("m1", tmp_path / "nodes", tmp_path / "socket", pool, KeeperHub(pool))
    return RemoteProvider(context, connect=machine.connect)


async def inspect(provider: RemoteProvider, *, gpus: int | None = None, **more: Any) -> Sequence[CheckStep]:
    settings = {"machine_list": [{"host": "gpu-1", "user": "bob"}], **more}
    return await provider.inspect(settings, {}, trial_gpu_number=gpus)


async def steps_of(provider: RemoteProvider, **more: Any) -> dict[str, CheckStep]:
    """The steps of a check by their names."""
    steps = await inspect(provider, **more)
    assert len({step.name for step in steps}) == len(steps)
    return {step.name: step for step in steps}


def failed(steps: dict[str, CheckStep]) -> list[str]:
    return [name for name, step in steps.items() if step.verdict is FAIL]


async def test_every_step_of_a_machine_that_is_well_is_ok(provider: RemoteProvider, machine: FakeMachine) -> None:
    steps = await steps_of(provider)
    assert {(step.machine, step.verdict) for step in steps.values()} == {("bob@gpu-1", OK)}
    assert steps["gpus"].found == "2 × NVIDIA A100"
    assert machine.commands == ["prepare", "probe", "remove"]
    assert not machine.exists


@pytest.mark.parametrize(
    ("changes", "more", "name", "verdict", "found"),
    [
        ({"lacks": ["bash"]}, {}, "python", FAIL, "lacks what a keeper needs: bash"),
        ({"clock_ahead": 1000.0}, {}, "clock", FAIL, "1000 s ahead"),
        ({"free_mb": 3}, {}, "disk", FAIL, "3 MiB are free"),
        ({"why_not_writable": "/home/bob: Permission denied"}, {}, "home", FAIL, "Permission denied"),
        (
            {},
            {"machine_list": [{"host": "gpu-1", "user": "bob", "python_path": "/opt/gone"}]},
            "python",
            FAIL,
            "/opt/gone has no Python",
        ),
        ({"damages": 1}, {}, "keeper", FAIL, "arrived damaged"),
        ({"forwards": False}, {}, "forwarding", NOTE, "a relay"),
        ({"devices": []}, {}, "gpus", NOTE, "no NVIDIA driver"),
        ({"lock_problem": "/var/lock may not be written"}, {}, "gpus", FAIL, "/var/lock may not be written"),
        (
            {},
            {"code": {"path_on_node": "/data/code"}},
            "code",
            FAIL,
            "/data/code should be a folder there, and is missing",
        ),
        (
            {"paths": {"/data/code": "folder"}},
            {"code": {"path_on_node": "/data/code"}},
            "code",
            OK,
            "/data/code exists",
        ),
        ({"left": ["/x could not be removed"]}, {}, "clean up", FAIL, "/x could not be removed"),
    ],
)
async def test_what_is_not_as_it_should_be_is_told_by_its_step(
    provider: RemoteProvider,
    machine: FakeMachine,
    changes: dict[str, Any],
    more: dict[str, Any],
    name: str,
    verdict: CheckVerdict,
    found: str,
) -> None:
    for key, value in changes.items():
        setattr(machine, key, value)
    steps = await steps_of(provider, **more)
    assert steps[name].verdict is verdict
    assert found in steps[name].found
    names = {
        "name",
        "login",
        "python",
        "clock",
        "disk",
        "home",
        "sftp",
        "forwarding",
        "keeper",
        "gpus",
        "trials",
        "code",
    }
    assert names <= set(steps)
    assert failed(steps) == ([name] if verdict is FAIL else [])


@pytest.mark.parametrize(
    ("devices", "indices", "gpus", "verdict", "found"),
    [
        (2, None, None, OK, "need no GPU"),
        (0, None, 0, OK, "need no GPU"),
        (2, None, 2, OK, "need 2 GPUs, may use 2"),
        (2, [1], 1, OK, "need 1 GPU, may use 1"),
        (2, None, 3, FAIL, "no trial can run there: trialGpuNumber is 3, it has 2 GPUs"),
        (0, None, 1, FAIL, "no trial can run there: trialGpuNumber is 1, it has no GPU"),
        (2, [1], 2, FAIL, "trialGpuNumber is 2, it has 2 GPUs, of which gpuIndices allows 1"),
        (2, [0, 7], 1, FAIL, "gpuIndices names GPU 7, it has GPUs 0, 1"),
        (0, [7], 1, FAIL, "gpuIndices names GPU 7, it has no GPU"),
        (2, [7, 8], None, NOTE, "gpuIndices names GPUs 7, 8, it has GPUs 0, 1"),
    ],
)
async def test_a_machine_that_could_never_run_a_trial_is_told(
    provider: RemoteProvider,
    machine: FakeMachine,
    devices: int,
    indices: list[int] | None,
    gpus: int | None,
    verdict: CheckVerdict,
    found: str,
) -> None:
    machine.devices = [{**GPU, "index": index, "uuid": f"GPU-{index}"} for index in range(devices)]
    steps = await steps_of(provider, machine_list=[{"host": "gpu-1", "gpu_indices": indices}], gpus=gpus)
    assert (steps["trials"].verdict, found in steps["trials"].found) == (verdict, True), steps["trials"]
    assert failed(steps) == (["trials"] if verdict is FAIL else [])


async def test_a_machine_that_cannot_run_a_trial_is_a_note_where_another_can(
    provider: RemoteProvider, machine: FakeMachine
) -> None:
    machine.devices = [{**GPU, "index": index, "uuid": f"GPU-{index}"} for index in range(2)]
    machines = [{"host": "gpu-1", "gpu_indices": [7]}, {"host": "gpu-2", "gpu_indices": [0]}]
    steps = await inspect(provider, machine_list=machines, gpus=1)
    assert [(step.machine, step.verdict) for step in steps if step.name == "trials"] == [("gpu-1", NOTE), ("gpu-2", OK)]


async def test_nothing_is_brought_to_a_machine_whose_disk_is_full(
    provider: RemoteProvider, machine: FakeMachine
) -> None:
    machine.free_inodes = 1
    steps = await steps_of(provider)
    assert {steps[name].verdict for name in ("sftp", "forwarding", "keeper", "gpus", "trials", "code")} == {SKIPPED}
    assert machine.uploads == []


async def test_what_has_arrived_damaged_is_taken_away_again(provider: RemoteProvider, machine: FakeMachine) -> None:
    machine.damages = 1
    assert failed(await steps_of(provider)) == ["keeper"]
    assert len(machine.uploads) == 1
    assert not machine.exists


async def test_a_wrong_clock_hides_nothing_else(provider: RemoteProvider, machine: FakeMachine) -> None:
    machine.clock_ahead = -4000.0
    assert (await steps_of(provider))["keeper"].verdict is OK


async def test_the_advice_of_a_failure_stands_by_itself(provider: RemoteProvider, machine: FakeMachine) -> None:
    machine.failure = Unreachable("its SSH server does not answer; check host and port")
    steps = await steps_of(provider)
    assert steps["name"].found == "its SSH server does not answer"
    assert steps["name"].advice == "check host and port"
    assert {step.verdict for step in steps.values()} == {FAIL, SKIPPED}


async def test_cleaning_tells_what_it_took_away_and_why_it_could_not(
    provider: RemoteProvider, machine: FakeMachine
) -> None:
    settings = {"machine_list": [{"host": "gpu-1"}]}
    [step] = await provider.clean(settings, {})
    assert (step.verdict, step.found) == (OK, "nothing of this manager was there")
    machine.exists = True
    [step] = await provider.clean(settings, {})
    assert (step.verdict, step.found) == (OK, "~/.proctor/nodes/m1-gpu-1 removed")
    machine.exists, machine.left = True, ["process 17 does not end"]
    [step] = await provider.clean(settings, {})
    assert step.verdict is FAIL
    assert "process 17 does not end" in step.found
    machine.failure = HostKeyRefused("its host key is not known; add this line")
    [step] = await provider.clean(settings, {})
    assert (step.verdict, step.advice) == (FAIL, "add this line")


async def test_a_machine_that_an_experiment_claims_is_not_cleaned(
    provider: RemoteProvider, machine: FakeMachine
) -> None:
    settings = {"machine_list": [{"host": "gpu-1"}]}
    provider.claim("E1", settings, {})
    machine.exists = True
    [step] = await provider.clean(settings, {})
    assert step.verdict is FAIL
    assert "E1" in step.found
    assert "proctor stop E1" in step.advice
    assert machine.exists

"""What an experiment says about places: nodes that get none of its trials are noticed."""

import asyncio
from functools import partial

import pytest
from fakes import small_experiments
from fakes.small_experiments import SMALL, MachineService, Scene, played, plays

from proctor.manager.engine.manager import Manager
from proctor.manager.lifecycle.states import TrialStatus
from proctor.training_services.capacity import GpuRules
from proctor.training_services.in_memory.scripts import Final

NOTICE = "node m1 gets no trials of this experiment: gpuIndices names GPU 7, node m1 has 2 GPUs"
RUNNING, WAITING = TrialStatus.RUNNING, TrialStatus.WAITING


class Machines(MachineService):
    """Two nodes; a GPU that `m1` does not have is asked for."""

    nodes = ("m1", "m2")

    def gpu_rules(self, node_id: str) -> GpuRules:
        return GpuRules(gpu_indices=(7,)) if node_id == "m1" else GpuRules()


class MachineScene(Scene):
    """Jobs run on `Machines`."""

    service = Machines
    config = SMALL | {
        "trialConcurrency": 2,
        "maxTrialNumber": 4,
        "trialGpuNumber": 1,
        "trainingService": {"platform": "local", "useActiveGpu": False},
    }


play = partial(small_experiments.play, kind=MachineScene, script=plays(Final(60.0, 1.0)))


@pytest.mark.parametrize("restarts", [1, 3])
@played(play)
async def test_a_node_that_can_never_run_the_trials_is_noticed_once(
    scene: MachineScene, manager: Manager, /, restarts: int
) -> None:
    await scene.create()
    scene.connect("m1")
    await asyncio.sleep(10)
    assert await scene.notices() == []  # whether m2 can run them is not known yet
    for _ in range(restarts):
        await scene.restart()
        scene.connect("m2", "m1")
        await asyncio.sleep(10)
        assert await scene.notices() == [NOTICE]
    await scene.until_ended()
    assert await scene.notices() == [NOTICE]
    assert set(await scene.statuses()) == {TrialStatus.SUCCEEDED}


@played(play)
async def test_all_waiting_trials_say_what_they_wait_for(scene: MachineScene, manager: Manager, /) -> None:
    manager.pool.add("m1", "remote", arriving=True)
    scene.connect("m2")
    await scene.create(trialConcurrency=4, seconds=10.0)
    first, *others = await scene.trials()
    assert (first.status, {(each.status, each.reason) for each in others}) == (
        RUNNING,
        {(WAITING, "waiting: node m1 is being connected")},
    )
    manager.pool.end_arrival("m1")
    await asyncio.sleep(10)
    assert await scene.statuses() == [RUNNING, RUNNING, WAITING, WAITING]
    (reason,) = {trial.reason for trial in (await scene.trials())[2:]}
    assert "held by trial 0 of experiment" in reason
    await scene.until_ended()

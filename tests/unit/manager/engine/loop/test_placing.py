"""What an experiment says about places: nodes that get none of its trials are noticed."""

import asyncio
from collections.abc import Iterable, Sequence
from pathlib import Path

import pytest
from fakes.small_experiments import SMALL

from proctor.manager.engine.manager import Manager
from proctor.manager.lifecycle.states import TrialStatus
from proctor.manager.settings import Home
from proctor.manager.simulation.simulation import Simulation
from proctor.manager.simulation.virtual_time import VirtualTimeLoop, run_virtual
from proctor.manager.store.tables import events, trials
from proctor.training_services.base import SupportsNodes, TrainingService, TrialJobForm
from proctor.training_services.capacity import GpuRules
from proctor.training_services.in_memory.scripts import Final, Step
from proctor.training_services.in_memory.service import InMemoryPlatform, InMemoryTrainingService
from proctor.training_services.registry import ServiceContext
from proctor.trial_keeper.protocol import Device

CONFIG = SMALL | {"trialConcurrency": 2, "maxTrialNumber": 4, "trialGpuNumber": 1}
NOTICE = "node m1 gets no trials of this experiment: gpuIndices names GPU 7, node m1 has 2 GPUs"


class Machines(InMemoryTrainingService, SupportsNodes):
    """Two nodes; a GPU that `m1` does not have is asked for."""

    def node_ids(self) -> tuple[str, ...]:
        return ("m1", "m2")

    def gpu_rules(self, node_id: str) -> GpuRules:
        return GpuRules(gpu_indices=(7,)) if node_id == "m1" else GpuRules()


class MachineSimulation(Simulation):
    """Jobs run on `Machines`."""

    def _create_service(self, platform: str, context: ServiceContext) -> TrainingService:
        memory = self.platforms.setdefault(context.experiment_id, InMemoryPlatform(self.clock.now))
        return Machines(self._script, platform=memory, now=self.clock.now)


def connect(manager: Manager, *node_ids: str) -> None:
    for node_id in node_ids:
        manager.pool.add(node_id, "remote")
        devices = [Device(index, f"GPU-{node_id}-{index}", "Fake", 80_000, 0, 0) for index in range(2)]
        manager.pool.connect(node_id, devices, driver_note="", hostname=node_id, version="0", seen_at=1.0)


async def notices(manager: Manager, experiment_id: str) -> Sequence[object]:
    found = await manager.control.read(lambda c: events.after(c, 0, experiment_id=experiment_id, limit=1000))
    given = [(event.trial_id, event.data["text"]) for event in found if event.kind == events.NOTICE]
    return [(trial_id, text) for trial_id, text in given if "gets no trials" in text]


def one_minute(form: TrialJobForm) -> Iterable[Step]:
    yield Final(60.0, 1.0)


@pytest.mark.parametrize("restarts", [0, 2])
def test_a_node_that_can_never_run_the_trials_is_noticed_once(tmp_path: Path, restarts: int) -> None:
    async def main(loop: VirtualTimeLoop) -> None:
        simulation = MachineSimulation(Home(tmp_path / "home"), loop, script=one_minute)
        async with simulation.manager() as manager:
            experiment_id = (await manager.create_experiment(config=CONFIG, directory=str(tmp_path))).id
            connect(manager, "m1")
            await asyncio.sleep(10)
            assert await notices(manager, experiment_id) == []  # whether m2 can run them is not known yet
        for _ in range(restarts):
            async with simulation.manager() as manager:
                connect(manager, "m2", "m1")
                await asyncio.sleep(10)
                assert await notices(manager, experiment_id) == [(None, NOTICE)]
        async with simulation.manager() as manager:
            connect(manager, "m1", "m2")
            await simulation.ended(manager, experiment_id)
            assert await notices(manager, experiment_id) == [(None, NOTICE)]
            page = await manager.control.read(lambda c: trials.page(c, experiment_id, limit=10))
            assert {trial.status for trial in page.items} == {TrialStatus.SUCCEEDED}

    run_virtual(main)


def test_all_waiting_trials_say_what_they_wait_for(tmp_path: Path) -> None:
    async def main(loop: VirtualTimeLoop) -> None:
        simulation = MachineSimulation(Home(tmp_path / "home"), loop, script=one_minute)
        async with simulation.manager() as manager:
            manager.pool.add("m1", "remote", arriving=True)
            connect(manager, "m2")
            config = CONFIG | {"trialConcurrency": 4}
            experiment_id = (await manager.create_experiment(config=config, directory=str(tmp_path))).id
            await asyncio.sleep(10)
            page = await manager.control.read(lambda c: trials.page(c, experiment_id, limit=10))
            assert [trial.status for trial in page.items] == [TrialStatus.RUNNING] + [TrialStatus.WAITING] * 3
            assert {trial.reason for trial in page.items[1:]} == {"waiting: node m1 is being connected"}
            manager.pool.end_arrival("m1")
            await asyncio.sleep(10)
            page = await manager.control.read(lambda c: trials.page(c, experiment_id, limit=10))
            assert [trial.status for trial in page.items] == [TrialStatus.RUNNING] * 2 + [TrialStatus.WAITING] * 2
            (reason,) = {trial.reason for trial in page.items[2:]}
            assert "held by trial 0 of experiment" in reason
            await simulation.ended(manager, experiment_id)

    run_virtual(main)

"""Trials that need many GPUs are not passed by smaller ones forever."""

import asyncio
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from fakes.settable_clock import SettableClock

from proctor.manager.engine.manager import Manager
from proctor.manager.lifecycle.states import ExperimentStatus, TrialStatus
from proctor.manager.placement import HOLD_AFTER_SECONDS
from proctor.manager.settings import Home
from proctor.manager.simulation.simulation import Simulation
from proctor.manager.simulation.virtual_time import VirtualTimeLoop, run_virtual
from proctor.manager.store.rows import TrialRow
from proctor.manager.store.tables import trials
from proctor.training_services.base import SupportsNodes, TrainingService, TrialJobForm
from proctor.training_services.in_memory.scripts import Final, Step
from proctor.training_services.in_memory.service import InMemoryPlatform, InMemoryTrainingService
from proctor.training_services.registry import ServiceContext
from proctor.trial_keeper.protocol import Device


class OneMachine(InMemoryTrainingService, SupportsNodes):
    """Jobs run on one node of the pool."""

    def node_ids(self) -> tuple[str, ...]:
        return ("m1",)


class OneMachineSimulation(Simulation):
    """Every experiment runs on `m1`."""

    def _create_service(self, platform: str, context: ServiceContext) -> TrainingService:
        memory = self.platforms.setdefault(context.experiment_id, InMemoryPlatform(self.clock.now))
        return OneMachine(self._script, platform=memory, now=self.clock.now)


def script(form: TrialJobForm) -> Iterable[Step]:
    """Trials of one GPU take ten seconds, and are not in step: the first one takes five."""
    yield Final(5.0 if form.gpu_number == 1 and form.sequence_id == 0 else 10.0, 1.0)


async def create(manager: Manager, tmp_path: Path, **changes: Any) -> str:
    config = {
        "searchSpace": {"x": {"_type": "uniform", "_value": [0, 1]}},
        "trialCommand": "python trial.py",
        "trialConcurrency": 2,
        "tuner": {"name": "Random"},
        "trainingService": {"platform": "local"},
        **changes,
    }
    return (await manager.create_experiment(config=config, directory=str(tmp_path))).id


async def all_trials(manager: Manager, experiment_id: str) -> list[TrialRow]:
    return list((await manager.control.read(lambda c: trials.page(c, experiment_id, limit=1000))).items)


def connect(manager: Manager) -> None:
    manager.pool.add("m1", "remote")
    devices = [Device(index, f"GPU-{index}", "Fake", 80_000, 0, 0) for index in range(2)]
    manager.pool.connect("m1", devices, driver_note="", hostname="m1", version="0", seen_at=1.0)


@pytest.mark.parametrize("wrong_by", [0.0, -3600.0], ids=["right", "set back"])
def test_gpus_are_held_for_a_trial_that_smaller_ones_have_passed_for_a_minute(tmp_path: Path, wrong_by: float) -> None:
    async def main(loop: VirtualTimeLoop) -> None:
        simulation = OneMachineSimulation(Home(tmp_path / "home"), loop, script=script)
        clock = simulation.clock = SettableClock()
        async with simulation.manager() as manager:
            connect(manager)
            small = await create(manager, tmp_path, trialGpuNumber=1, maxTrialNumber=100)
            await asyncio.sleep(1.0)
            large = await create(manager, tmp_path, trialGpuNumber=2, maxTrialNumber=2, trialConcurrency=1)
            await asyncio.sleep(HOLD_AFTER_SECONDS - 5.0)
            (waiting,) = await all_trials(manager, large)
            assert waiting.status is TrialStatus.WAITING
            passed = [trial for trial in await all_trials(manager, small) if trial.created_at > waiting.created_at]
            assert len(passed) > 5  # until then, smaller ones take what is free
            clock.wrong_by = wrong_by
            await asyncio.sleep(16.0)
            (running,) = await all_trials(manager, large)
            assert running.status is TrialStatus.RUNNING
            held = [trial for trial in await all_trials(manager, small) if trial.status is TrialStatus.WAITING]
            assert held
            await simulation.ended(manager, large)
            row = await manager.experiment(small)
            assert row.status is not ExperimentStatus.DONE
            await simulation.ended(manager, small)

    run_virtual(main)


def test_the_reason_of_a_waiting_trial_names_the_trial_for_which_gpus_are_held(tmp_path: Path) -> None:
    async def main(loop: VirtualTimeLoop) -> None:
        simulation = OneMachineSimulation(Home(tmp_path / "home"), loop, script=script)
        async with simulation.manager() as manager:
            connect(manager)
            small = await create(manager, tmp_path, trialGpuNumber=1, maxTrialNumber=100)
            await asyncio.sleep(1.0)
            large = await create(manager, tmp_path, trialGpuNumber=2, maxTrialNumber=1, trialConcurrency=1)
            reasons: set[str] = set()
            own: set[str] = set()
            for _ in range(int(HOLD_AFTER_SECONDS) + 20):
                await asyncio.sleep(1.0)
                reasons |= {trial.reason for trial in await all_trials(manager, small)}
                own |= {trial.reason for trial in await all_trials(manager, large)}
            (reported,) = {reason for reason in reasons if "held for" in reason}
            assert f"held for trial 0 of experiment {large}, which needs 2 GPUs and has waited since " in reported
            assert reported.startswith("waiting: needs 1 GPU, node m1 has 0 free (")
            held = f"; what becomes free on node m1 is held for trial 0 of experiment {large}"
            assert any(reason.endswith(held) for reason in own)
            await manager.stop_experiment(small)

    run_virtual(main)


def test_held_gpus_are_free_again_when_the_experiment_of_the_trial_is_stopped(tmp_path: Path) -> None:
    async def main(loop: VirtualTimeLoop) -> None:
        simulation = OneMachineSimulation(Home(tmp_path / "home"), loop, script=script)
        async with simulation.manager() as manager:
            connect(manager)
            small = await create(manager, tmp_path, trialGpuNumber=1, maxTrialNumber=1000)
            await asyncio.sleep(1.0)
            large = await create(manager, tmp_path, trialGpuNumber=2, maxTrialNumber=1, trialConcurrency=1)
            while not any("held for" in trial.reason for trial in await all_trials(manager, small)):  # noqa: ASYNC110
                await asyncio.sleep(0.5)
            await manager.stop_experiment(large)
            await asyncio.sleep(1.0)
            running = [trial for trial in await all_trials(manager, small) if trial.status is TrialStatus.RUNNING]
            assert len(running) == 2

    run_virtual(main)

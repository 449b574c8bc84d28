"""Training services that cannot find their jobs again after a restart of the manager."""

import asyncio
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import pytest
from fakes.forgetful_service import ForgetfulSimulation
from fakes.small_experiments import SMALL

from proctor.manager.errors import Conflict, Unavailable
from proctor.manager.lifecycle.states import ExperimentStatus, TrialStatus
from proctor.manager.settings import Home
from proctor.manager.simulation.virtual_time import VirtualTimeLoop, run_virtual
from proctor.manager.store.tables import jobs, trials
from proctor.manager.store.tables import metrics as metric_store
from proctor.training_services.base import EndReason, TrainingService, TrialJobForm
from proctor.training_services.errors import UnknownPlatform
from proctor.training_services.in_memory.scripts import Final, ScriptedReport, Step
from proctor.training_services.registry import ServiceContext

CONFIG = SMALL | {"trialConcurrency": 2, "maxTrialNumber": 2}
WHY = (
    "the job was submitted before the manager or the experiment was restarted, and platform local cannot find its jobs "
    "again"
)


class Script:
    """Ten reports, ten seconds apart; counts how often each job has begun."""

    def __init__(self) -> None:
        self.starts: Counter[str] = Counter()

    def __call__(self, form: TrialJobForm) -> Iterable[Step]:
        self.starts[form.job_id] += 1
        for value in range(10):
            yield ScriptedReport(10.0, value)
        yield Final(0.0, 1.0)


def test_a_job_of_the_previous_manager_ends_as_unknown_and_its_trial_gets_another_one(tmp_path: Path) -> None:
    script = Script()

    async def main(loop: VirtualTimeLoop) -> None:
        simulation = ForgetfulSimulation(Home(tmp_path / "home"), loop, script=script)
        async with simulation.manager() as manager:
            experiment_id = (await manager.create_experiment(config=CONFIG, directory=str(tmp_path))).id
            await asyncio.sleep(35.0)
        async with simulation.manager() as manager:
            row = await simulation.ended(manager, experiment_id)
            assert row.status is ExperimentStatus.DONE
            found = (await manager.control.read(lambda c: trials.page(c, experiment_id, limit=10))).items
            assert [(trial.status, trial.jobs) for trial in found] == [(TrialStatus.SUCCEEDED, 2)] * 2
            metrics = await manager.metrics(experiment_id)
            for trial in found:
                first, second = await manager.control.read(lambda c, key=trial.id: jobs.of_trial(c, key))
                assert (first.end_reason, first.detail) == (EndReason.EXIT_UNKNOWN, WHY)
                assert second.end_reason is EndReason.EXITED_OK
                curve = await metrics.read(lambda c, key=trial.id: metric_store.curve(c, key))
                assert [(point.job, point.value) for point in curve] == [(2, float(n)) for n in range(10)]
        assert script.starts == Counter({f"{trial.id}.{number}": 1 for trial in found for number in (1, 2)})
        assert sorted(simulation.services[1].canceled) == sorted(f"{trial.id}.1" for trial in found)

    run_virtual(main)


def test_a_job_that_was_to_be_stopped_before_the_restart_ends_as_it_was_asked_to(tmp_path: Path) -> None:
    script = Script()

    async def main(loop: VirtualTimeLoop) -> None:
        simulation = ForgetfulSimulation(Home(tmp_path / "home"), loop, script=script)
        async with simulation.manager() as manager:
            experiment_id = (await manager.create_experiment(config=CONFIG, directory=str(tmp_path))).id
            await asyncio.sleep(35.0)
            simulation.services[0].is_deaf = True
            await manager.stop_experiment(experiment_id)
        async with simulation.manager() as manager:
            assert (await simulation.ended(manager, experiment_id)).status is ExperimentStatus.STOPPED
            found = (await manager.control.read(lambda c: trials.page(c, experiment_id, limit=10))).items
            assert [(trial.status, trial.jobs) for trial in found] == [(TrialStatus.WAITING, 1)] * 2
        assert set(script.starts.values()) == {1}

    run_virtual(main)


class UninstallingSimulation(ForgetfulSimulation):
    """A platform whose package can be uninstalled while the manager runs."""

    is_installed = True

    def _create_service(self, platform: str, context: ServiceContext) -> TrainingService:
        if not self.is_installed:
            raise UnknownPlatform("no training service is registered for platform 'slurm'")
        return super()._create_service(platform, context)


def test_an_experiment_whose_plug_in_is_gone_cannot_be_resumed_and_says_why(tmp_path: Path) -> None:
    async def main(loop: VirtualTimeLoop) -> None:
        simulation = UninstallingSimulation(Home(tmp_path / "home"), loop, script=Script())
        async with simulation.manager() as manager:
            experiment_id = (await manager.create_experiment(config=CONFIG, directory=str(tmp_path))).id
            await asyncio.sleep(35.0)
            await manager.stop_experiment(experiment_id)
            await simulation.ended(manager, experiment_id)
            trial = (await manager.control.read(lambda c: trials.page(c, experiment_id, limit=1))).items[0]
            simulation.is_installed = False
            with pytest.raises(Conflict, match=r"cannot be resumed and stays STOPPED: no training service .* 'slurm'"):
                await manager.resume_experiment(experiment_id)
            assert (await manager.experiment(experiment_id)).status is ExperimentStatus.STOPPED
            with pytest.raises(Unavailable, match=r"no training service .* 'slurm'"):
                await manager.list_job_files(trial.id)
            simulation.is_installed = True
            await manager.resume_experiment(experiment_id)
            assert (await simulation.ended(manager, experiment_id)).status is ExperimentStatus.DONE

    run_virtual(main)

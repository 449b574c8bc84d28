"""Experiments that cannot be loaded keep their status and their trials, under virtual time."""

import asyncio
from functools import partial
from pathlib import Path

import pytest
from fakes import small_experiments
from fakes.small_experiments import SMALL, Scene, played, plays

from proctor.manager.engine.manager import Manager
from proctor.manager.engine.unloaded import FIRST_LASTING_SECONDS
from proctor.manager.errors import Conflict, NotFound, Unavailable
from proctor.manager.lifecycle.states import ExperimentStatus, TrialStatus
from proctor.manager.store.tables import jobs
from proctor.training_services.base import EndReason
from proctor.training_services.errors import BrokenPlatform
from proctor.training_services.in_memory.scripts import Final, ScriptedReport


class UnloadedScene(Scene):
    """The folder of its experiment can be taken away as a disk is."""

    config = SMALL | {"trialConcurrency": 2, "maxTrialNumber": 4, "seed": 7}

    async def restart_unmounted(self, seconds: float = 15.0) -> Manager:
        """A manager that has created the experiment ends after so long; when the next one starts, the disk is away."""
        await self.create(seconds=seconds)
        await self.end()
        self.unmount()
        return await self.start()

    def unmount(self) -> None:
        self._place.rename(self.folder / "unmounted")

    def mount(self) -> None:
        (self.folder / "unmounted").rename(self._place)

    @property
    def _place(self) -> Path:
        return self.home.experiment_directory("exp")


play = partial(
    small_experiments.play, kind=UnloadedScene, script=plays(*[ScriptedReport(10.0, 0.5)] * 3, Final(10.0, 1.0))
)


@played(play)
async def test_an_experiment_whose_disk_is_away_keeps_its_status_and_goes_on_when_the_disk_is_back(
    scene: UnloadedScene, manager: Manager, /
) -> None:
    manager = await scene.restart_unmounted()
    row = await scene.row()
    assert (row.status, row.reason) == (ExperimentStatus.RUNNING, "")
    why = manager.not_loaded(row)
    assert why.startswith("not loaded: the database ")
    assert "No such file or directory" in why
    assert why.endswith("; its trials keep running; tried again in 1 s")
    assert manager.problem == f"experiment {row.id} is {why}"
    with pytest.raises(Unavailable, match=r"is not loaded: .*No such file"):
        await manager.trials.add(row.id, {"x": 0.5})
    assert (await scene.run(id="other")).status is ExperimentStatus.DONE
    scene.mount()
    scene.id = "exp"
    row = await scene.until_ended()
    assert (row.status, row.reason) == (ExperimentStatus.DONE, "maxTrialNumber 4 is reached")
    assert (manager.not_loaded(row), manager.problem) == ("", "")
    found = await scene.trials()
    assert [(trial.jobs, trial.intermediate_count, trial.final_value) for trial in found] == [(1, 3, 1.0)] * 4


@played(play)
async def test_attempts_grow_rarer_and_a_resume_asks_for_one_at_once(scene: UnloadedScene, manager: Manager, /) -> None:
    manager = await scene.restart_unmounted()
    await asyncio.sleep(1000.0)
    assert int(manager.not_loaded(await scene.row()).rpartition(" in ")[2].split()[0]) > 15
    with pytest.raises(Unavailable, match=r"is not loaded: .*; tried again in 30 s"):
        await manager.resume_experiment("exp")
    assert (await scene.row()).status is ExperimentStatus.RUNNING
    scene.mount()
    await manager.resume_experiment("exp")
    assert manager.not_loaded(await scene.row()) == ""
    assert (await scene.until_ended()).status is ExperimentStatus.DONE


@played(play)
async def test_what_does_not_pass_by_itself_is_tried_less_often_and_kills_no_trial_either(
    scene: UnloadedScene, manager: Manager, /
) -> None:
    await scene.create(seconds=15.0)
    scene.broken = BrokenPlatform("its package is not installed")
    manager = await scene.restart()
    wanted = "not loaded: its package is not installed; its trials keep running; tried again in 60 s"
    assert manager.not_loaded(await scene.row()) == wanted
    scene.broken = None
    await asyncio.sleep(FIRST_LASTING_SECONDS - 1.0)
    assert manager.not_loaded(await scene.row()) != ""
    await asyncio.sleep(2.0)
    assert manager.not_loaded(await scene.row()) == ""
    await scene.until_ended()
    assert {(trial.status, trial.jobs) for trial in await scene.trials()} == {(TrialStatus.SUCCEEDED, 1)}


@played(play)
async def test_kills_stops_and_limits_are_written_down_and_hold_when_the_experiment_is_loaded(
    scene: UnloadedScene, manager: Manager, /
) -> None:
    manager = await scene.restart_unmounted()
    first, second = await scene.trials()
    await manager.trials.kill(first.id)
    row = await manager.update_experiment("exp", trial_concurrency=1, max_trial_number=3)
    assert (row.trial_concurrency, row.max_trial_number) == (1, 3)
    live = await manager.control.read(lambda c: jobs.live(c, "exp"))
    assert {job.trial_id: job.stop_reason for job in live} == {
        first.id: EndReason.USER_CANCELED,
        second.id: None,
    }
    await manager.stop_experiment("exp")
    row = await scene.row()
    assert row.status is ExperimentStatus.STOPPING
    assert "; its trials are being stopped; " in manager.not_loaded(row)
    await manager.stop_experiment("exp")
    manager = await scene.restart()
    assert "; its trials are being stopped; " in manager.not_loaded(await scene.row())
    scene.mount()
    assert (await scene.until_ended()).status is ExperimentStatus.STOPPED
    statuses = {trial.id: trial.status for trial in await scene.trials()}
    assert statuses == {first.id: TrialStatus.USER_CANCELED, second.id: TrialStatus.WAITING}
    await manager.resume_experiment("exp")
    await scene.until_ended()
    assert await scene.statuses() == [
        TrialStatus.USER_CANCELED,
        TrialStatus.SUCCEEDED,
        TrialStatus.SUCCEEDED,
    ]


@played(play)
async def test_an_experiment_that_can_never_be_loaded_can_be_stopped_and_deleted(
    scene: UnloadedScene, manager: Manager, /
) -> None:
    manager = await scene.restart_unmounted()
    with pytest.raises(Conflict, match="stop it before you delete it"):
        await manager.delete_experiment("exp")
    await manager.stop_experiment("exp")
    await manager.delete_experiment("exp")
    with pytest.raises(NotFound):
        await scene.row()
    await asyncio.sleep(1000.0)
    assert manager.problem == ""


@played(play)
async def test_an_experiment_without_jobs_that_is_not_loaded_is_stopped_at_once(
    scene: UnloadedScene, manager: Manager, /
) -> None:
    manager = await scene.restart_unmounted(1000.0)
    assert (await scene.row()).status is ExperimentStatus.DONE
    await manager.stop_experiment("exp")
    row = await scene.row()
    assert (row.status, manager.not_loaded(row)) == (ExperimentStatus.STOPPED, "")
    with pytest.raises(Unavailable, match=r"cannot be resumed and stays STOPPED: .*No such file"):
        await manager.resume_experiment("exp")
    assert (await scene.row()).status is ExperimentStatus.STOPPED
    scene.mount()
    await manager.resume_experiment("exp")
    assert (await scene.until_ended()).status is ExperimentStatus.DONE


@played(play)
async def test_an_engine_that_meets_what_may_pass_is_started_again_and_the_experiment_keeps_its_status(
    scene: UnloadedScene, manager: Manager, /
) -> None:
    scene.failures += [OSError(5, "Input/output error"), OSError(5, "Input/output error")]
    await scene.create(seconds=5.5)
    row = await scene.row()
    assert row.status is ExperimentStatus.RUNNING
    assert manager.not_loaded(row).startswith("not loaded: [Errno 5] Input/output error; ")
    await asyncio.sleep(6.0)  # loaded after 1 s, failed again after 5 s
    assert manager.not_loaded(await scene.row()).endswith("; tried again in 2 s")
    assert (await scene.until_ended()).status is ExperimentStatus.DONE
    assert {(trial.status, trial.jobs) for trial in await scene.trials()} == {(TrialStatus.SUCCEEDED, 1)}


@played(play)
async def test_an_engine_that_fails_for_another_reason_is_in_error_and_its_trials_still_end(
    scene: UnloadedScene, manager: Manager, /
) -> None:
    scene.failures += [RuntimeError("a fault of this program")]
    await scene.create(seconds=6.0)
    row = await scene.row()
    assert row.status is ExperimentStatus.ERROR
    why = manager.not_loaded(row)
    assert why.startswith(f"{row.reason}; not loaded: ")
    assert "a fault of this program" in why
    await asyncio.sleep(FIRST_LASTING_SECONDS)
    row = await scene.row()
    assert (row.status, manager.not_loaded(row)) == (ExperimentStatus.ERROR, "")
    assert {trial.status for trial in await scene.trials()} == {TrialStatus.SUCCEEDED}
    await manager.resume_experiment("exp")
    assert (await scene.until_ended()).status is ExperimentStatus.DONE


@played(play)
async def test_a_trial_of_a_failed_engine_can_be_killed_and_the_experiment_stopped(
    scene: UnloadedScene, manager: Manager, /
) -> None:
    scene.failures += [RuntimeError("a fault of this program")]
    await scene.create(seconds=6.0)
    first, second = await scene.trials()
    await manager.trials.kill(first.id)
    await manager.stop_experiment("exp")
    assert (await scene.until_ended()).status is ExperimentStatus.STOPPED
    live = await manager.control.read(lambda c: jobs.live(c, "exp"))
    assert live == []
    statuses = {trial.id: trial.status for trial in await scene.trials()}
    assert statuses == {first.id: TrialStatus.USER_CANCELED, second.id: TrialStatus.WAITING}

"""Trials that begin with another trial's checkpoint: clones with other parameters, and retries."""

import asyncio
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from fakes import small_experiments
from fakes.small_experiments import all_trials, attempts, curve, played, saved

from proctor.manager.engine.manager import Manager
from proctor.manager.errors import BadRequest, Conflict
from proctor.manager.lifecycle.states import TrialStatus
from proctor.manager.simulation.simulation import Simulation
from proctor.manager.store.rows import TrialRow
from proctor.manager.store.tables import dispatcher_inputs
from proctor.training_services.base import EndReason, TrialJobForm
from proctor.training_services.in_memory.scripts import Final, ScriptedExit, ScriptedReport, Step

STEPS = 4


def training(form: TrialJobForm) -> Iterable[Step]:
    """One step a minute, with a checkpoint after each. The first attempt of trial 1 fails before it has one."""
    begin = 0 if form.resume_checkpoint is None else int(Path(form.resume_checkpoint, "step").read_text())
    for step in range(begin, STEPS):
        yield ScriptedReport(60.0, step)
        if form.sequence_id == 1 and form.number == 1:
            yield ScriptedExit(0.0, EndReason.EXITED_ERROR, 1)
        yield saved(form, step + 1, step=step)
    yield Final(1.0, form.sequence_id)


play = partial(small_experiments.play, script=training)
CONFIG: dict[str, Any] = {
    "searchSpace": {"x": {"_type": "uniform", "_value": [0, 1]}, "n": {"_type": "choice", "_value": [1, 2]}},
    "trialConcurrency": 2,
    "maxTrialNumber": 1,
    "maxTrialRetries": 1,
    "objective": {"direction": "maximize"},
}
create = partial(small_experiments.create, seconds=150.0, **CONFIG)  # two checkpoints are registered


async def points(manager: Manager, row: TrialRow) -> list[tuple[int, Any]]:
    return [(point.sequence, point.reported) for point in await curve(manager, row)]


@played(play)
async def test_a_clone_begins_with_the_newest_checkpoint_of_a_running_trial(
    simulation: Simulation, manager: Manager, /, tmp_path: Path
) -> None:
    experiment_id = await create(manager, tmp_path)
    (donor, *_) = await all_trials(manager, experiment_id)
    clone = await manager.trials.clone(donor.id, {"x": 0.5})
    assert (clone.source, clone.origin_trial, clone.origin_job) == ("clone", donor.id, f"{donor.id}.1")
    assert clone.parameters == {**donor.parameters, "x": 0.5}
    await asyncio.sleep(3600.0)
    clone = await manager.trials.get(clone.id)
    assert clone.status is TrialStatus.SUCCEEDED
    first, second = await attempts(manager, clone)
    assert first.start_reason == second.start_reason == f"from checkpoint 2 of job 1 of trial {donor.id}"
    assert await points(manager, clone) == [(0, 2), (1, 3)]  # its own points, from 0
    assert [point for _, point in await points(manager, await manager.trials.get(donor.id))] == [0, 1, 2, 3]
    inputs = await manager.control.read(lambda c: dispatcher_inputs.after(c, experiment_id, 0, 100))
    (added,) = [one.payload for one in inputs if one.kind == "AddCustomizedTrial"]
    assert added == {"parameter_id": clone.parameter_id, "parameters": clone.parameters}


@played(play)
async def test_a_retry_starts_over_or_continues_from_the_checkpoint(
    simulation: Simulation, manager: Manager, /, tmp_path: Path
) -> None:
    experiment_id = await create(manager, tmp_path)
    await asyncio.sleep(3600.0)
    (donor, *_) = await all_trials(manager, experiment_id)
    continued = await manager.trials.retry(donor.id, from_checkpoint=True)
    anew = await manager.trials.retry(donor.id)
    await asyncio.sleep(3600.0)
    assert [row.origin_trial for row in (anew, continued)] == [donor.id] * 2
    assert [row.origin_job for row in (anew, continued)] == [None, f"{donor.id}.1"]
    assert [job.start_reason for job in await attempts(manager, anew)] == [""]
    (job, *_) = await attempts(manager, continued)
    assert job.start_reason == f"from checkpoint 4 of job 1 of trial {donor.id}"
    assert await points(manager, continued) == []


@played(play)
async def test_a_clone_whose_checkpoint_is_gone_says_so(
    simulation: Simulation, manager: Manager, /, tmp_path: Path
) -> None:
    experiment_id = await create(manager, tmp_path, trialConcurrency=1)
    (donor, *_) = await all_trials(manager, experiment_id)
    clone = await manager.trials.clone(donor.id, {})
    assert clone.origin_checkpoint is not None
    Path(clone.origin_checkpoint, "step").unlink()
    Path(clone.origin_checkpoint).rmdir()
    await asyncio.sleep(3600.0)
    (job, *_) = await attempts(manager, clone)
    name = f"checkpoint 2 of job 1 of trial {donor.id}"
    assert job.start_reason == f"from the start: {name} was passed over: its folder is gone"


@played(play)
async def test_what_cannot_be_cloned_is_refused_and_the_text_names_it(
    simulation: Simulation, manager: Manager, /, tmp_path: Path
) -> None:
    experiment_id = await create(manager, tmp_path)
    (donor, *_) = await all_trials(manager, experiment_id)
    with pytest.raises(BadRequest, match=r"has no parameter lr; its parameters are n, x"):
        await manager.trials.clone(donor.id, {"lr": 0.1})
    with pytest.raises(BadRequest, match="outside of the search space") as refused:
        await manager.trials.clone(donor.id, {"x": 7})
    assert "1" in str(refused.value)
    new = await manager.trials.add(experiment_id, {"x": 0.5, "n": 1})
    with pytest.raises(Conflict, match=f"trial {new.id} has registered no checkpoint to continue from"):
        await manager.trials.clone(new.id, {})

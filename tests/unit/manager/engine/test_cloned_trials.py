"""Trials that begin with another trial's checkpoint: clones with other parameters, and retries."""

import asyncio
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from fakes import small_experiments
from fakes.small_experiments import SMALL, Scene, played, saved

from proctor.manager.engine.manager import Manager
from proctor.manager.errors import BadRequest, Conflict
from proctor.manager.lifecycle.states import ExperimentStatus, TrialStatus
from proctor.manager.store.rows import TrialRow
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


def lose(checkpoint: Path) -> None:
    Path(checkpoint, "step").unlink()
    checkpoint.rmdir()


class DonorScene(Scene):
    """Its first trial is cloned."""

    config = SMALL | {
        "searchSpace": {"x": {"_type": "uniform", "_value": [0, 1]}, "n": {"_type": "choice", "_value": [1, 2]}},
        "trialConcurrency": 2,
        "maxTrialNumber": 1,
        "maxTrialRetries": 1,
    }

    async def create_donor(self, **changes: Any) -> TrialRow:
        """The trial, when two of its checkpoints are registered."""
        await self.create(seconds=150.0, **changes)
        return await self.trial()


play = partial(small_experiments.play, kind=DonorScene, script=training)


@played(play)
async def test_a_clone_begins_with_the_newest_checkpoint_of_a_running_trial(
    scene: DonorScene, manager: Manager, /
) -> None:
    donor = await scene.create_donor()
    clone = await manager.trials.clone(donor.id, {"x": 0.5})
    assert (clone.source, clone.origin_trial, clone.origin_job) == ("clone", donor.id, f"{donor.id}.1")
    assert clone.parameters == {**donor.parameters, "x": 0.5}
    await asyncio.sleep(3600.0)
    assert await scene.statuses() == [TrialStatus.SUCCEEDED] * 2
    assert [job.start_reason for job in await scene.jobs(1)] == [f"from checkpoint 2 of job 1 of trial {donor.id}"] * 2
    assert await scene.curve(1) == [(2, 0, 2), (2, 1, 3)]  # its own points, from 0
    assert await scene.curve() == [(1, place, place) for place in range(4)]
    added = {"parameter_id": clone.parameter_id, "parameters": clone.parameters}
    assert await scene.inputs("AddCustomizedTrial") == [added]


@played(play)
async def test_a_retry_starts_over_or_continues_from_the_checkpoint(scene: DonorScene, manager: Manager, /) -> None:
    donor = await scene.create_donor()
    await asyncio.sleep(3600.0)
    continued = await manager.trials.retry(donor.id, from_checkpoint=True)
    anew = await manager.trials.retry(donor.id)
    await asyncio.sleep(3600.0)
    assert [row.origin_trial for row in (anew, continued)] == [donor.id] * 2
    assert [row.origin_job for row in (anew, continued)] == [None, f"{donor.id}.1"]
    assert [job.start_reason for job in await scene.jobs(2)] == [""]
    (job, *_) = await scene.jobs(1)
    assert job.start_reason == f"from checkpoint 4 of job 1 of trial {donor.id}"
    assert await scene.curve(1) == []


@played(play)
async def test_a_clone_whose_checkpoint_is_gone_continues_from_the_one_before_it(
    scene: DonorScene, manager: Manager, /
) -> None:
    donor = await scene.create_donor(trialConcurrency=1, keepCheckpoints="all")
    clone = await manager.trials.clone(donor.id, {})
    assert clone.origin_checkpoint is not None
    lose(Path(clone.origin_checkpoint))
    await asyncio.sleep(3600.0)
    (job, *_) = await scene.jobs(1)
    name = f"checkpoint 1 of job 1 of trial {donor.id}"
    assert job.start_reason == f"from {name}; checkpoint 2 was passed over: its folder is gone"


@played(play)
async def test_a_clone_of_which_no_checkpoint_is_whole_fails_and_does_not_train_from_the_start(
    scene: DonorScene, manager: Manager, /
) -> None:
    donor = await scene.create_donor(trialConcurrency=1, keepCheckpoints="all")
    clone = await manager.trials.clone(donor.id, {})
    await asyncio.sleep(90.5)  # the donor has saved all
    assert clone.origin_checkpoint is not None
    for number in range(1, STEPS + 1):
        lose(Path(clone.origin_checkpoint).with_name(str(number)))
    await asyncio.sleep(3600.0)
    row = await scene.trial(1)
    assert (row.status, row.jobs) == (TrialStatus.FAILED, 0)
    name = f"job 1 of trial {donor.id} was passed over: its folder is gone"
    assert row.reason == (
        "it continues from another trial's checkpoint, and none of 4 checkpoints is whole; "
        f"checkpoint 2 of {name}; checkpoint 1 of {name}; checkpoint 3 of {name}; 1 more was passed over"
    )
    assert (await scene.row()).status is ExperimentStatus.DONE  # its place is free again


@played(play)
async def test_a_clone_that_failed_before_it_saved_is_retried_and_cloned_from_where_it_began(
    scene: DonorScene, manager: Manager, /
) -> None:
    donor = await scene.create_donor(maxTrialRetries=0)
    clone = await manager.trials.clone(donor.id, {})
    await asyncio.sleep(3600.0)
    assert (await scene.trial(1)).status is TrialStatus.FAILED
    retried = await manager.trials.retry(clone.id, from_checkpoint=True)
    cloned = await manager.trials.clone(clone.id, {"x": 0.5})
    assert [row.origin_trial for row in (retried, cloned)] == [clone.id] * 2
    await asyncio.sleep(3600.0)
    assert (await scene.statuses())[2:] == [TrialStatus.SUCCEEDED] * 2
    starts = [(await scene.jobs(number))[0].start_reason for number in (1, 2, 3)]
    # 2 was kept for the clone, and is deleted since that has ended
    assert starts == [f"from checkpoint {number} of job 1 of trial {donor.id}" for number in (2, 3, 3)]


@played(play)
async def test_what_cannot_be_cloned_is_refused_and_the_text_names_it(scene: DonorScene, manager: Manager, /) -> None:
    donor = await scene.create_donor()
    with pytest.raises(BadRequest, match=r"has no parameter lr; its parameters are n, x"):
        await manager.trials.clone(donor.id, {"lr": 0.1})
    with pytest.raises(BadRequest, match=r"outside of the search space"):
        await manager.trials.clone(donor.id, {"x": 7})
    new = await manager.trials.add("exp", {"x": 0.5, "n": 1})
    with pytest.raises(Conflict, match=f"trial {new.id} has registered no checkpoint to continue from"):
        await manager.trials.clone(new.id, {})


NESTED = {
    "x": {"_type": "uniform", "_value": [0, 1]},
    "model": {
        "_type": "choice",
        "_value": [
            {"_name": "mlp", "lr": {"_type": "uniform", "_value": [0, 1]}},
            {"_name": "cnn", "kernel": {"_type": "choice", "_value": [3, 5]}},
        ],
    },
}


@played(play)
async def test_a_clone_changes_what_is_in_a_nested_choice_as_tables_name_it(
    scene: DonorScene, manager: Manager, /
) -> None:
    await scene.create(searchSpace=NESTED, seconds=1.0)
    await scene.until_ended()
    added = await manager.trials.add("exp", {"x": 0.5, "model": {"_name": "mlp", "lr": 0.25}})
    await asyncio.sleep(3600.0)
    clone = await manager.trials.clone(added.id, {"model.lr": 0.75})
    assert clone.parameters == {"x": 0.5, "model": {"_name": "mlp", "lr": 0.75}}
    clone = await manager.trials.clone(added.id, {"model": "cnn", "model.kernel": 3})
    assert clone.parameters == {"x": 0.5, "model": {"_name": "cnn", "kernel": 3}}
    with pytest.raises(BadRequest, match=r"has no parameter model\.units; its parameters are model, model\.lr, x"):
        await manager.trials.clone(added.id, {"model.units": 3})
    with pytest.raises(BadRequest, match=r"outside of the search space .*kernel"):
        await manager.trials.clone(added.id, {"model": "cnn"})


@played(play)
async def test_after_a_change_of_the_space_retry_and_clone_say_the_same(scene: DonorScene, manager: Manager, /) -> None:
    donor = await scene.create_donor()
    await asyncio.sleep(3600.0)
    space = {"x": {"_type": "uniform", "_value": [2, 3]}, "n": {"_type": "choice", "_value": [1, 2]}}
    await manager.update_experiment("exp", search_space=space)
    retry = await manager.trials.retry(donor.id)
    clone = await manager.trials.clone(donor.id, {"n": 1})
    assert (retry.parameters, clone.parameters) == (donor.parameters, {**donor.parameters, "n": 1})
    said = [notice for notice in await scene.notices() if "search space" in notice]
    assert [notice.partition(" runs ")[0] for notice in said] == ["trial 1", "trial 2"]
    assert len({notice.partition(" runs ")[2] for notice in said}) == 1
    assert " with parameters outside of the search space: x: expected" in f" {said[0].partition(' runs ')[2]}"
    clone = await manager.trials.clone(donor.id, {"x": 2.5})
    assert clone.parameters == {**donor.parameters, "x": 2.5}
    with pytest.raises(BadRequest, match=r"outside of the search space of experiment exp: x: expected"):
        await manager.trials.clone(donor.id, {"x": 0.5})
    assert len([notice for notice in await scene.notices() if "search space" in notice]) == 2

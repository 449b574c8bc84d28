"""NNI's Hyperband and PBT propose a new trial for each rung or generation: its job begins with its parent's
checkpoint."""

import json
from collections.abc import Iterable
from typing import Any

import pytest
from fakes.small_experiments import CheckpointingScene, play, played, saved

from proctor.manager.engine.manager import Manager
from proctor.training_services.base import TrialJobForm
from proctor.training_services.in_memory.scripts import Final, ScriptedReport, Step

BOOKS: dict[str, dict[str, Any]] = {
    "Hyperband": {"name": "Hyperband", "classArgs": {"R": 4, "eta": 2}},
    "BOHB": {"name": "BOHB", "classArgs": {"min_budget": 1, "max_budget": 4, "eta": 2}},
    "PBT": {"name": "PBT", "classArgs": {"population_size": 3}},
}


def saving(form: TrialJobForm) -> Iterable[Step]:
    """A report and a checkpoint, then the end."""
    parameters = json.loads(form.parameter_file)["parameters"]
    yield ScriptedReport(1.0 + form.sequence_id / 100, parameters["x"])
    yield saved(form, 1)
    yield Final(0.5, parameters["x"])


@pytest.mark.parametrize("tuner", BOOKS)
@played(play, script=saving, kind=CheckpointingScene)
async def test_a_trial_begins_with_the_checkpoint_of_its_parent(
    scene: CheckpointingScene, manager: Manager, /, tuner: str
) -> None:
    await scene.create(tuner=BOOKS[tuner], maxTrialNumber=12, trialConcurrency=2, seed=3, seconds=100.0)
    trials = await scene.trials()
    by_id = {trial.id: trial for trial in trials}
    children = [trial for trial in trials if trial.origin_trial is not None]
    assert len(trials) == 12
    assert children
    for child in children:
        parent = by_id[child.origin_trial or ""]
        assert parent.sequence_id < child.sequence_id
        (first,) = await scene.jobs(child.sequence_id)
        assert first.resumed_from_job == f"{parent.id}.1"
        assert (first.resume_checkpoint or "").endswith(f"{parent.id}/jobs/1/output/checkpoints/1")
        if tuner != "PBT":
            assert child.parameters["x"] == parent.parameters["x"]
            assert child.parameters["TRIAL_BUDGET"] > parent.parameters["TRIAL_BUDGET"]

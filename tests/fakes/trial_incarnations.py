"""An incarnation inside a trial: its job's directory is laid out as by the keeper, and the trainer is told nothing."""

import os
from dataclasses import asdict
from pathlib import Path
from typing import Any

from fakes.incarnations import Incarnations, Kill, _make_watch

from proctor.sdk.protocol import trial_environment


def run_job(
    incarnations: Incarnations,
    recipe: Any,
    job: Path,
    *,
    kill: "Kill | None" = None,
    resume: "str | None" = None,
    **options: Any,
) -> "dict[str, Any]":
    """Run one attempt of a trial.

    :param resume: the checkpoint that the manager tells it to continue from.
    """
    (job / "output").mkdir(parents=True, exist_ok=True)
    environment = trial_environment(
        experiment_id="e",
        trial_id="t",
        job_id=job.name,
        sequence_id=0,
        job_directory=str(job),
        code_directory=str(job),
        platform="local",
        resume_checkpoint=resume,
    )
    order = {"recipe": asdict(recipe), "kill": kill, "options": options, "environment": environment}
    found: dict[str, Any] = incarnations.call(__name__, "train", order=order)
    return found


def train(order: "dict[str, Any]") -> "dict[str, Any]":
    """What the attempt does: nothing that a run outside a trial would not do."""
    from fakes.trained_models import DigitsData, DigitsModel, Recipe, hash_state

    from proctor.sdk.pytorch import Trainer
    from proctor.sdk.pytorch.serialising import load

    os.environ.update(order["environment"])
    recipe = Recipe(**order["recipe"])
    model = DigitsModel(recipe, _make_watch(order["kill"]))
    outcome = Trainer("run", **{**recipe.options(), **order["options"]}).fit(model, DigitsData(recipe))
    state = model.state_dict()
    assert outcome.checkpoint is not None
    return {
        "killed": False,
        "weights": hash_state(state["net"]),
        "optimizer": hash_state([state["optimizer"], state["scheduler"]]),
        "history": load(outcome.checkpoint)["history"],
        "batches": len(model.samples),
        "resumed": outcome.resumed_from is not None,
    }

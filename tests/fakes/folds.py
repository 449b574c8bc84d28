"""A trial that makes several runs, one after the other: the folds of a cross-validation with weights of their own."""

import os
from dataclasses import asdict
from pathlib import Path
from typing import Any

from fakes.incarnations import Incarnations, _make_watch

from proctor.sdk.protocol import trial_environment

FOLDS = ("fold0", "fold1", "fold2")


def run_folds(
    incarnations: Incarnations,
    recipe: Any,
    job: Path,
    *,
    kill: "tuple[str, int] | None" = None,
    resume: "str | None" = None,
) -> "dict[str, Any]":
    """Run one attempt of the trial and return what each fold came to.

    :param kill: the fold, and the batch of it at which the attempt dies.
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
    order = {"recipe": asdict(recipe), "kill": kill, "environment": environment}
    found: dict[str, Any] = incarnations.call(__name__, "train", order=order)
    return found


def train(order: "dict[str, Any]") -> "dict[str, Any]":
    """What the attempt does."""
    from fakes.trained_models import DigitsData, DigitsModel, Recipe, hash_state

    from proctor.sdk.pytorch import Trainer

    os.environ.update(order["environment"])
    recipe, kill = Recipe(**order["recipe"]), order["kill"]
    found: dict[str, Any] = {"killed": False}
    for seed, name in enumerate(FOLDS):
        model = DigitsModel(recipe, _make_watch(("batch", kill[1]) if kill and kill[0] == name else None))
        outcome = Trainer(name, **recipe.options(), random_seed=seed).fit(model, DigitsData(recipe))
        found[name] = {"weights": hash_state(model.state_dict()["net"]), "batches": len(model.samples)}
        found[name]["resumed"] = outcome.resumed_from is not None
    return found

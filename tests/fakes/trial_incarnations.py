"""An incarnation inside a trial: its job's directory is laid out as by the keeper, and the trainer gets no arguments.

A trial makes one run, or several one after the other: the folds of a cross-validation, with weights of their own.
"""

import os
from dataclasses import asdict
from pathlib import Path
from typing import Any

from fakes.attempts import make_environment
from fakes.incarnations import Incarnations
from fakes.watches import Kill

FOLDS = ("fold0", "fold1", "fold2")


def run_job(
    incarnations: Incarnations,
    recipe: Any,
    job: Path,
    *,
    names: "tuple[str, ...]" = ("run",),
    killed: str = "run",
    kill: "Kill | None" = None,
    resume: "str | None" = None,
    **options: Any,
) -> "dict[str, Any]":
    """Run one attempt of a trial, and return what each run came to, or that it was killed.

    :param names: the runs that the trial makes.
    :param killed: the one that is killed, if one is.
    :param kill: where; see `make_watch`.
    :param resume: the checkpoint that the manager tells it to continue from.
    """
    runs = [{"name": name, "kill": kill if name == killed else None} for name in names]
    environment = make_environment(job, resume=resume)
    arguments = {"recipe": asdict(recipe), "runs": runs, "options": options, "environment": environment}
    found: dict[str, Any] = incarnations.call(__name__, "train", **arguments)
    return found


def train(
    recipe: "dict[str, Any]",
    runs: "list[dict[str, Any]]",
    *,
    options: "dict[str, Any]",
    environment: "dict[str, str]",
) -> "dict[str, Any]":
    """What the attempt does: nothing that runs outside a trial would not do."""
    from fakes.trained_models import DigitsData, DigitsModel, Recipe
    from fakes.trained_runs import describe_rank
    from fakes.watches import make_watch

    from proctor.sdk.pytorch import Trainer
    from proctor.sdk.pytorch.checkpoints.serialization import load

    os.environ.update(environment)
    cell = Recipe(**recipe)
    found: dict[str, Any] = {"killed": False}
    for seed, run in enumerate(runs):
        model = DigitsModel(cell, make_watch(kill=run["kill"]))
        chosen = {**cell.options(), "random_seed": seed, **options}
        outcome = Trainer(run["name"], **chosen).fit(model, DigitsData(cell))
        assert outcome.checkpoint is not None
        found[run["name"]] = {
            **describe_rank(model),
            "history": load(outcome.checkpoint)["history"],
            "resumed": outcome.resumed_from is not None,
        }
    return found

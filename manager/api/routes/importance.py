"""How much each parameter matters for the value of the trials."""

from typing import Annotated

from fastapi import Query
from pydantic import Field

from proctor.manager.api import models
from proctor.manager.api.dependencies import Context
from proctor.manager.api.groups import Routes
from proctor.manager.api.resources import is_maximized
from proctor.manager.config.objective import Direction
from proctor.manager.engine.importance import ImportanceAnswer, ImportanceQuestion, ImportanceState

routes = Routes(prefix="/experiments/{experiment_id}", tags=["results"])


class ParameterImportance(models.Resource):
    """The part of one parameter."""

    name: str = Field(examples=["lr"])
    """As in the table: nested choices with dots."""
    importance: float = Field(examples=[0.62])
    """The sum over all parameters is 1."""


class Importance(models.Resource):
    """Which parameters matter for being among the best trials."""

    state: ImportanceState
    """Whether this is of the trials as they are: COMPUTING: ask again, what is here is an earlier answer; OUTDATED:
    trials have ended since, and a question after a pause computes it anew."""
    key: str | None = Field(examples=["loss"])
    quantile: float = Field(examples=[0.1])
    direction: Direction
    revision: int | None = Field(examples=[31337])
    """The experiment's newest event when it was computed; null: there is no answer yet."""
    trials: int = Field(examples=[412])
    """How many trials were compared: those that succeeded or were stopped early, with a finite value."""
    top: int = Field(examples=[42])
    """How many of them are the best."""
    outside: int = Field(examples=[0])
    """How many were left out because their parameters are outside of the search space."""
    parameters: list[ParameterImportance]
    """The greatest first."""
    reason: str | None = Field(
        examples=["too few trials: 4 trials that succeeded have a final metric, and at least 10 are needed"]
    )
    """Why there are none, or why they could not be computed anew."""


@routes.get("/importance", summary="How much each parameter matters")
async def get_importance(
    context: Context,
    experiment_id: str,
    key: Annotated[
        str | None,
        Query(
            max_length=1000,
            description="A key of the final metric, nested ones with dots; default: its number.",
            examples=["loss"],
        ),
    ] = None,
    quantile: Annotated[
        float, Query(gt=0, lt=1, description="The share of the trials that are the best.", examples=[0.1])
    ] = 0.1,
    direction: Annotated[
        Direction | None, Query(description="Which values are the best; default: the experiment's.")
    ] = None,
) -> Importance:
    """By PED-ANOVA, as Optuna has it, over the newest 20,000 trials. It is computed beside the manager, which takes
    seconds for thousands of trials: the answer is what is known now."""
    row = await context.manager.experiment(experiment_id)
    maximize = is_maximized(row) if direction is None else direction == "maximize"
    question = ImportanceQuestion(experiment_id, key, quantile, maximize)
    return _resource(question, await context.manager.importances.ask(question))


def _resource(question: ImportanceQuestion, answer: ImportanceAnswer) -> Importance:
    result = answer.result
    failure = None if answer.failure is None else f"cannot be computed: {answer.failure}"
    return Importance(
        state=answer.state,
        key=question.key,
        quantile=question.quantile,
        direction="maximize" if question.maximize else "minimize",
        revision=None if result is None else result.revision,
        trials=0 if result is None else result.trials,
        top=0 if result is None else result.top,
        outside=0 if result is None else result.outside,
        parameters=[
            ParameterImportance(name=name, importance=share) for name, share in (result.parameters if result else ())
        ],
        reason=failure or (result.reason if result else None),
    )

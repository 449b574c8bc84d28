"""By which causes the trials of an experiment have failed, and on which nodes."""

import sqlite3
from typing import Annotated

from fastapi import Query
from pydantic import Field

from proctor.manager.api import models
from proctor.manager.api.dependencies import Context
from proctor.manager.api.groups import Routes
from proctor.manager.lifecycle.experiment_failures import FailureCause, first_line, group_by_cause
from proctor.manager.store.tables import trials
from proctor.training_services.base import EndReason

routes = Routes(prefix="/experiments/{experiment_id}", tags=["results"])

MOST_TRIALS = 10_000
"""Of the newest failed trials. The cost does not grow beyond them."""


class NodeFailures(models.Resource):
    """How often a cause occurred on one node."""

    node_id: str | None = Field(examples=["gpu-3"])
    """Null: those trials never reached a node, or their platform did not name it."""
    trials: int = Field(examples=[12])


class FailedExample(models.Resource):
    """The newest trial that failed by a cause."""

    trial_id: str = Field(examples=["p3kV9xQa"])
    sequence_id: int = Field(examples=[17])
    reason: str = Field(examples=["exit code 1: RuntimeError: CUDA error: out of memory"])


class Cause(models.Resource):
    """Trials that failed alike: with one end reason, and first lines of their reasons that differ only in numbers and
    paths."""

    end_reason: EndReason | None = Field(examples=[EndReason.EXITED_ERROR])
    """How the last job of each of them ended; null: they had none."""
    detail: str = Field(examples=["exit code 1: RuntimeError: CUDA error: out of memory"])
    """The first line of the reason of the example."""
    trials: int = Field(examples=[14])
    nodes: list[NodeFailures]
    """Those with the most such trials first."""
    example: FailedExample


class Failures(models.Resource):
    """Why trials of an experiment have failed."""

    failed: int = Field(examples=[15])
    """How many trials have failed (FAILED or SYS_CANCELED)."""
    counted: int = Field(examples=[15])
    """How many of them, the newest, the causes below were taken from."""
    cause_count: int = Field(examples=[2])
    """How many causes they have."""
    causes: list[Cause]
    """The most frequent first."""


@routes.get("/failures", summary="Causes of failed trials, by node")
async def get_failures(
    context: Context,
    experiment_id: str,
    limit: Annotated[int, Query(ge=1, le=1000, description="How many causes at most.")] = 100,
) -> Failures:
    """The newest 10,000 trials that are FAILED or SYS_CANCELED, grouped by how the last job of each ended and by the
    first line of its reason. Lines that differ only in numbers and paths are one cause."""
    await context.manager.experiment(experiment_id)

    def read(connection: sqlite3.Connection) -> Failures:
        counts = trials.counts(connection, experiment_id)
        found = trials.failed(connection, experiment_id, limit=MOST_TRIALS)
        causes = group_by_cause(found)
        return Failures(
            failed=sum(number for status, number in counts.items() if status.has_failed),
            counted=len(found),
            cause_count=len(causes),
            causes=[_resource(cause) for cause in causes[:limit]],
        )

    return await context.manager.control.read(read)


def _resource(cause: FailureCause) -> Cause:
    example = cause.example
    return Cause(
        end_reason=None if example.end_reason is None else EndReason(example.end_reason),
        detail=first_line(example.reason),
        trials=cause.trials,
        nodes=[NodeFailures(node_id=node, trials=count) for node, count in cause.by_node.most_common()],
        example=FailedExample(trial_id=example.id, sequence_id=example.sequence_id, reason=example.reason),
    )

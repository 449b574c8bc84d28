"""Experiments: made, read, changed, stopped."""

import sqlite3
from typing import Annotated, Any, Literal

from fastapi import Query, Response

from proctor.manager.api import models
from proctor.manager.api.context import ApiContext
from proctor.manager.api.dependencies import Context, Cursor, Limit, RequestSender
from proctor.manager.api.groups import Routes
from proctor.manager.api.requests import CreateExperiment, LoadExperiment, UpdateExperiment
from proctor.manager.api.resources import experiment_resource
from proctor.manager.config.document import parse
from proctor.manager.config.errors import ConfigReport
from proctor.manager.config.tree import plain
from proctor.manager.engine.manager import UNLIMITED
from proctor.manager.errors import BadRequest
from proctor.manager.lifecycle.states import ExperimentStatus
from proctor.manager.store.rows import ExperimentRow
from proctor.manager.store.tables import experiments
from proctor.sdk.json_input import RefusedValue, clean_value

routes = Routes(prefix="/experiments", tags=["experiments"])

_LIMITS = {
    "trial_concurrency": "trial_concurrency",
    "max_trial_number": "max_trial_number",
    "max_experiment_duration_seconds": "max_experiment_seconds",
    "max_trial_duration_seconds": "max_trial_seconds",
    "max_gpu_hours": "max_gpu_hours",
    "priority": "priority",
    "search_space": "search_space",
}
_LABELS = {"tags", "archived"}
_ARCHIVED = {"false": False, "true": True, "all": None}


@routes.get("", summary="List experiments, newest first")
async def list_experiments(
    context: Context,
    status: Annotated[list[ExperimentStatus] | None, Query(description="Filter by status; may be repeated.")] = None,
    name: Annotated[str | None, Query(description="Filter by name.")] = None,
    tag: Annotated[list[str] | None, Query(description="Filter by tag; if repeated, those that have all.")] = None,
    archived: Annotated[
        Literal["false", "true", "all"],
        Query(description="false: without archived ones that have ended; true: only those."),
    ] = "false",
    id_prefix: Annotated[
        str | None, Query(description="Filter by id prefix, archived or not; returns at most 20, unpaged.")
    ] = None,
    cursor: Cursor = None,
    limit: Limit = 50,
) -> models.Page[models.Experiment]:
    """Experiments, newest first."""

    def read(connection: sqlite3.Connection) -> models.Page[models.Experiment]:
        if id_prefix is not None:
            found = experiments.find_by_prefix(connection, id_prefix)
            rows, following = [row for row in found if status is None or row.status in status], None
        else:
            page = experiments.page(
                connection,
                statuses=status,
                name=name,
                tags=tag or (),
                archived=_ARCHIVED[archived],
                cursor=cursor,
                limit=limit,
            )
            rows, following = page.items, page.next_cursor
        items = [experiment_resource(context, connection, row) for row in rows]
        return models.Page(items=items, next_cursor=following)

    return await context.manager.control.read(read)


@routes.post(
    "",
    status_code=201,
    summary="Create an experiment",
    response_model=models.Experiment,
    responses={200: {"model": models.Experiment, "description": "What a dry run would create; nothing was written."}},
)
async def create_experiment(context: Context, sender: RequestSender, body: CreateExperiment, response: Response) -> Any:
    """Check everything, write it down, start it. With `dry_run` only checked, and answered with status 200."""
    row = await context.manager.create_experiment(
        config=body.config,
        directory=body.directory,
        handover=body.handover,
        experiment_id=body.experiment_id,
        dry_run=body.dry_run,
        actor=sender.actor,
    )
    if body.dry_run:
        response.status_code = 200
    else:
        response.headers["Location"] = f"experiments/{row.id}"
    return await _resource(context, row)


@routes.post("/load", status_code=201, summary="Import a saved experiment")
async def load_experiment(context: Context, body: LoadExperiment, response: Response) -> models.Experiment:
    """It is STOPPED, with its trials, metrics and files; resuming it tells its tuner the results."""
    row = await context.manager.load_experiment(
        archive=body.archive,
        experiment_id=body.experiment_id,
        code_directory=body.code_directory,
        keep_storage=body.keep_storage,
        handover=body.handover,
    )
    response.headers["Location"] = f"{row.id}"
    return await _resource(context, row)


@routes.get("/{experiment_id}", summary="Read an experiment")
async def get_experiment(context: Context, experiment_id: str) -> models.Experiment:
    """One experiment."""
    return await _resource(context, await context.manager.experiment(experiment_id))


@routes.patch("/{experiment_id}", summary="Change limits, the search space, tags, or whether it is archived")
async def update_experiment(
    context: Context, sender: RequestSender, experiment_id: str, body: UpdateExperiment
) -> models.Experiment:
    """Omitted fields do not change; null removes a limit."""
    given = {name: getattr(body, name) for name in body.model_fields_set}
    if not given:
        raise BadRequest(f"nothing to change; expected one of {', '.join([*_LIMITS, *sorted(_LABELS)])}")
    if "search_space_text" in given:
        text = given.pop("search_space_text")
        if "search_space" in given:
            raise BadRequest("expected search_space or search_space_text, found both; leave one of them out")
        given["search_space"] = _read_space(text)
    labels = {name: given.pop(name) for name in _LABELS & given.keys()}
    changes: dict[str, Any] = {_LIMITS[name]: UNLIMITED if value is None else value for name, value in given.items()}
    if changes:
        await context.manager.update_experiment(experiment_id, **changes, actor=sender.actor)
    if labels:
        await context.manager.label_experiment(experiment_id, **labels, actor=sender.actor)
    return await _resource(context, await context.manager.experiment(experiment_id))


@routes.delete("/{experiment_id}", summary="Delete a stopped experiment")
async def delete_experiment(
    context: Context,
    sender: RequestSender,
    experiment_id: str,
    keep_checkpoints: Annotated[bool, Query(description="Leave what is in its checkpointStorage.")] = False,
) -> models.Deletion:
    """Removes its rows, its folder, and its checkpoints. Of a checkpointStorage only what is marked as its own."""
    left = await context.manager.delete_experiment(experiment_id, keep_checkpoints=keep_checkpoints, actor=sender.actor)
    return models.Deletion(left=left)


@routes.post("/{experiment_id}/stop", status_code=202, summary="Stop an experiment")
async def stop_experiment(context: Context, sender: RequestSender, experiment_id: str) -> models.Experiment:
    """The request is committed when this answers; the status says how far it is, the reason what it waits for. Trials
    that can save may do so first (`saveSeconds`); a second request while it is STOPPING ends them at once."""
    await context.manager.stop_experiment(experiment_id, actor=sender.actor)
    return await _resource(context, await context.manager.experiment(experiment_id))


@routes.post("/{experiment_id}/resume", status_code=202, summary="Resume a stopped, failed or paused experiment")
async def resume_experiment(
    context: Context,
    sender: RequestSender,
    experiment_id: str,
    trials: Annotated[
        bool, Query(description="Resume the trials that were paused with it, too, also of a running experiment.")
    ] = False,
) -> models.Experiment:
    """The request is committed when this answers; the status says how far it is."""
    await context.manager.resume_experiment(experiment_id, trials=trials, actor=sender.actor)
    return await _resource(context, await context.manager.experiment(experiment_id))


@routes.post("/{experiment_id}/pause", status_code=202, summary="Stop starting new trials of an experiment")
async def pause_experiment(
    context: Context,
    sender: RequestSender,
    experiment_id: str,
    trials: Annotated[bool, Query(description="Pause its trials, too; those that can save may do so first.")] = False,
) -> models.Experiment:
    """Running trials continue, unless `trials` is set."""
    await context.manager.pause_experiment(experiment_id, trials=trials, actor=sender.actor)
    return await _resource(context, await context.manager.experiment(experiment_id))


@routes.post("/{experiment_id}/view", status_code=202, summary="Open a stopped experiment for reading only")
async def view_experiment(context: Context, sender: RequestSender, experiment_id: str) -> models.Experiment:
    """It is not started."""
    await context.manager.view_experiment(experiment_id, actor=sender.actor)
    return await _resource(context, await context.manager.experiment(experiment_id))


def _read_space(text: str) -> Any:
    """A search space that was written as YAML or JSON. Raises BadRequest."""
    report = ConfigReport()
    tree = parse(text, None, report)
    if tree is None or report.problems:
        sentences = "; ".join(map(str, report.problems))
        raise BadRequest(f"the search space cannot be read: {sentences}", report.problems)
    try:
        space = clean_value(plain(tree), "the search space")
    except RefusedValue as error:
        raise BadRequest(str(error)) from error
    if space is None:
        raise BadRequest("a search space cannot be null; leave it out to keep it as it is")
    return space


async def _resource(context: ApiContext, row: ExperimentRow) -> models.Experiment:
    return await context.manager.control.read(lambda connection: experiment_resource(context, connection, row))

"""The machines on which trials run: shown, tried again, drained and resumed, files collected from them, forgotten.

Also those of a configuration, without an experiment: every hop to them tried, or cleaned.
"""

from collections.abc import AsyncIterator, Sequence
from typing import Annotated, Any

from fastapi import Query
from starlette.responses import StreamingResponse

from proctor.manager.api import models
from proctor.manager.api.context import ApiContext
from proctor.manager.api.dependencies import Context, RequestSender
from proctor.manager.api.groups import Routes
from proctor.manager.api.guard import Sender
from proctor.manager.api.requests import DrainNode, PlatformRequest, RenderRequest
from proctor.manager.api.resources import check_resource, collection_resource, node_resources
from proctor.manager.api.stream import wait_for_any
from proctor.training_services.providers import FileCollection

JSON_LINES = "application/x-ndjson"
PROGRESS_SECONDS = 5.0

routes = Routes(tags=["nodes"])
platforms = Routes(tags=["platforms"])


@routes.get("/nodes", summary="The machines on which trials run")
async def list_nodes(context: Context) -> models.Page[models.Node]:
    """As last reported by their keepers."""
    return models.Page(items=await node_resources(context, context.manager.pool.nodes()))


@routes.get("/nodes/{node_id}", summary="One machine")
async def get_node(context: Context, node_id: str) -> models.Node:
    """As last reported by its keeper."""
    [resource] = await node_resources(context, [context.manager.pool.node(node_id)])
    return resource


@routes.post("/nodes/{node_id}/check", status_code=202, summary="Try to reach a machine now")
async def check_node(context: Context, sender: RequestSender, node_id: str) -> models.Node:
    """Instead of at its next retry. Events of kind `node` report the result."""
    node = await context.manager.node_connections.check(node_id, actor=sender.actor)
    [resource] = await node_resources(context, [node])
    return resource


@routes.post("/nodes/{node_id}/drain", summary="Give a machine no new jobs")
async def drain_node(
    context: Context, sender: RequestSender, node_id: str, body: DrainNode | None = None
) -> models.Node:
    """Until it is resumed, also after a restart of the manager. What already runs there continues."""
    reason = " ".join(body.reason.split()) if body is not None else ""
    [resource] = await node_resources(context, [await context.manager.nodes.drain(node_id, reason, actor=sender.actor)])
    return resource


@routes.post("/nodes/{node_id}/resume", summary="Give a drained or quarantined machine jobs again")
async def resume_node(context: Context, sender: RequestSender, node_id: str) -> models.Node:
    """One that already gets them does not change."""
    [resource] = await node_resources(context, [await context.manager.nodes.resume(node_id, actor=sender.actor)])
    return resource


@routes.post(
    "/nodes/{node_id}/collect",
    summary="Collect the files that stopped experiments still have on a machine",
    response_class=StreamingResponse,
    responses={200: {"content": {JSON_LINES: {}}, "model": models.FileCollection, "description": "One per line."}},
)
async def collect_files(
    context: Context,
    sender: RequestSender,
    node_id: str,
    experiment_id: Annotated[str | None, Query(description="Only the files of this experiment.")] = None,
) -> StreamingResponse:
    """Because it was unreachable when they were stopped, or the files could not be stored. Connects the machine, copies
    the files to the folder of their experiment, and removes them from the machine. The answer is a line of JSON every
    few seconds until `is_finished`, for one experiment after the other; none if there is nothing to collect. It
    continues if the client disconnects; another request joins it. The answer, not the collection, ends when the token
    is revoked."""
    collections = await context.manager.node_connections.collect(node_id, experiment_id, actor=sender.actor)
    headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
    return StreamingResponse(_progress(context, sender, collections), media_type=JSON_LINES, headers=headers)


async def _progress(context: ApiContext, sender: Sender, collections: Sequence[FileCollection]) -> AsyncIterator[bytes]:
    endings = (context.closing,) if sender.revoked is None else (context.closing, sender.revoked)
    for collection in collections:
        is_over = False
        while not is_over:
            is_over = await wait_for_any(PROGRESS_SECONDS, collection.ended, *endings)
            if sender.revoked is not None and sender.revoked.is_set():
                return
            yield collection_resource(collection).model_dump_json().encode() + b"\n"


@routes.post("/nodes/{node_id}/forget", status_code=204, summary="Forget a machine that cannot be cleaned up")
async def forget_node(context: Context, sender: RequestSender, node_id: str) -> None:
    """For one that no experiment needs and that will not come back, or refuses every login. What is there stays
    there, and files that were not collected are lost."""
    await context.manager.node_connections.forget(node_id, actor=sender.actor)


@platforms.post("/platforms/check", summary="Try every hop to the machines of a configuration")
async def check_platform(context: Context, body: PlatformRequest) -> models.Page[models.CheckStep]:
    """Returns when every machine was tried. Nothing is left on them."""
    steps = await context.manager.platforms.check(
        body.config, body.directory, handover=body.handover, machine=body.machine
    )
    return models.Page(items=[check_resource(step) for step in steps])


@platforms.post("/platforms/render", summary="Show the Kubernetes objects of a configuration")
async def render_platform(context: Context, body: RenderRequest) -> models.Page[dict[str, Any]]:
    """The objects that would be created for an experiment and for one of its trials, as JSON, without secrets and long
    contents. No cluster is contacted."""
    found = await context.manager.platforms.render(body.config, body.directory)
    return models.Page(items=[dict(each) for each in found])


@platforms.post("/platforms/clean", summary="Remove everything of this manager from the machines of a configuration")
async def clean_platform(context: Context, body: PlatformRequest) -> models.Page[models.CheckStep]:
    """Its keepers, their jobs, its folders. A machine that an experiment uses is skipped, with a failed step that names
    the experiment. If the experiment is being stopped, or was stopped and is still releasing the machine, the request
    waits up to 10 s; then the failed step is called `leaving`: try again."""
    steps = await context.manager.platforms.clean(
        body.config, body.directory, handover=body.handover, machine=body.machine
    )
    return models.Page(items=[check_resource(step) for step in steps])

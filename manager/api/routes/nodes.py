"""The machines on which trials run: shown, tried again, drained and resumed, forgotten.

Also those of a configuration, without an experiment: every hop to them tried, or cleaned.
"""

from fastapi import APIRouter

from proctor.manager.api import models
from proctor.manager.api.dependencies import Context
from proctor.manager.api.resources import check_resource, node_resource

nodes = APIRouter(tags=["nodes"])
platforms = APIRouter(tags=["platforms"])


@nodes.get("/nodes", summary="The machines on which trials run")
async def list_nodes(context: Context) -> models.Page[models.Node]:
    """As their keepers have told last."""
    return models.Page(items=[node_resource(context, node) for node in context.manager.pool.nodes()])


@nodes.get("/nodes/{node_id}", summary="One machine")
async def get_node(context: Context, node_id: str) -> models.Node:
    """As its keeper has told last."""
    return node_resource(context, context.manager.pool.node(node_id))


@nodes.post("/nodes/{node_id}/check", status_code=202, summary="Try to reach a machine now")
async def check_node(context: Context, node_id: str) -> models.Node:
    """Rather than after its pause. Events of kind `node` show what comes of it."""
    return node_resource(context, context.manager.check_node(node_id))


@nodes.post("/nodes/{node_id}/drain", summary="Give a machine no new jobs")
async def drain_node(context: Context, node_id: str, body: models.DrainNode | None = None) -> models.Node:
    """Until it is resumed, also after a restart of the manager. What runs there goes on."""
    reason = " ".join(body.reason.split()) if body is not None else ""
    return node_resource(context, await context.manager.nodes.drain(node_id, reason))


@nodes.post("/nodes/{node_id}/resume", summary="Give a drained or quarantined machine jobs again")
async def resume_node(context: Context, node_id: str) -> models.Node:
    """One that gets them already stays as it is."""
    return node_resource(context, await context.manager.nodes.resume(node_id))


@nodes.post("/nodes/{node_id}/forget", status_code=204, summary="Give up a machine that cannot be left")
async def forget_node(context: Context, node_id: str) -> None:
    """For one that no experiment needs and that is gone for good, or refuses every login. What is there stays
    there, and files that were not collected are lost."""
    context.manager.forget_node(node_id)


@platforms.post("/platforms/check", summary="Try every hop to the machines of a configuration")
async def check_platform(context: Context, body: models.PlatformRequest) -> models.Page[models.CheckStep]:
    """Answers when every machine was tried. Nothing stays on them."""
    steps = await context.manager.platforms.check(
        body.config, body.directory, handover=body.handover, machine=body.machine
    )
    return models.Page(items=[check_resource(step) for step in steps])


@platforms.post("/platforms/clean", summary="Remove everything of this manager from the machines of a configuration")
async def clean_platform(context: Context, body: models.PlatformRequest) -> models.Page[models.CheckStep]:
    """Its keepers, their jobs, its folders. A machine that an experiment uses is left alone, with a failed step that
    names the experiment. One that is being stopped, or was stopped and is still leaving the machine, is waited for, up
    to 10 s; then the failed step is called `leaving`: ask again."""
    steps = await context.manager.platforms.clean(
        body.config, body.directory, handover=body.handover, machine=body.machine
    )
    return models.Page(items=[check_resource(step) for step in steps])


router = APIRouter()
router.include_router(nodes)
router.include_router(platforms)

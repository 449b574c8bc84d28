"""The machines on which trials run: looked at, tried again, drained and resumed, forgotten."""

from fastapi import APIRouter

from proctor.manager.api import requests, schemas
from proctor.manager.api.injection import Context
from proctor.manager.api.reading import node_resource

router = APIRouter(tags=["nodes"])


@router.get("/nodes", summary="The machines on which trials run")
async def list_nodes(context: Context) -> schemas.Page[schemas.Node]:
    """As their keepers have told last."""
    return schemas.Page(items=[node_resource(context, node) for node in context.manager.pool.nodes()])


@router.get("/nodes/{node_id}", summary="One machine")
async def get_node(context: Context, node_id: str) -> schemas.Node:
    """As its keeper has told last."""
    return node_resource(context, context.manager.pool.node(node_id))


@router.post("/nodes/{node_id}/check", status_code=202, summary="Try to reach a machine now")
async def check_node(context: Context, node_id: str) -> schemas.Node:
    """Rather than after its pause. What comes of it is told by events of kind `node`."""
    return node_resource(context, context.manager.check_node(node_id))


@router.post("/nodes/{node_id}/drain", summary="Give a machine no new jobs")
async def drain_node(context: Context, node_id: str, body: requests.DrainNode | None = None) -> schemas.Node:
    """Until it is resumed, also after a restart of the manager. What runs there goes on."""
    reason = " ".join(body.reason.split()) if body is not None else ""
    return node_resource(context, await context.manager.nodes.drain(node_id, reason))


@router.post("/nodes/{node_id}/resume", summary="Give a drained or quarantined machine jobs again")
async def resume_node(context: Context, node_id: str) -> schemas.Node:
    """One that gets them already stays as it is."""
    return node_resource(context, await context.manager.nodes.resume(node_id))


@router.post("/nodes/{node_id}/forget", status_code=204, summary="Give up a machine that cannot be left")
async def forget_node(context: Context, node_id: str) -> None:
    """For one that no experiment needs and that is gone for good, or lets nobody in. What is there stays there,
    and files that were not collected are given up."""
    context.manager.forget_node(node_id)

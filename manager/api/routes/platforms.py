"""The machines of a configuration, without an experiment: tried hop by hop, or cleaned."""

from fastapi import APIRouter

from proctor.manager.api import requests, schemas
from proctor.manager.api.injection import Context
from proctor.manager.api.reading import check_resource

router = APIRouter(tags=["platforms"])


@router.post("/platforms/check", summary="Try every hop to the machines of a configuration")
async def check_platform(context: Context, body: requests.Machines) -> schemas.Page[schemas.CheckStep]:
    """Answers when every machine was tried. Nothing stays on them."""
    steps = await context.manager.platforms.check(
        body.config, body.directory, handover=body.handover, machine=body.machine
    )
    return schemas.Page(items=[check_resource(step) for step in steps])


@router.post("/platforms/clean", summary="Remove everything of this manager from the machines of a configuration")
async def clean_platform(context: Context, body: requests.Machines) -> schemas.Page[schemas.CheckStep]:
    """Its keepers, their jobs, its folders. A machine that an experiment uses is left alone, with a failed step that
    names the experiment. One that is being stopped, or was stopped and is still leaving the machine, is waited for, up
    to 10 s; then the failed step is called `leaving`: ask again."""
    steps = await context.manager.platforms.clean(
        body.config, body.directory, handover=body.handover, machine=body.machine
    )
    return schemas.Page(items=[check_resource(step) for step in steps])

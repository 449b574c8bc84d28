"""The curves of several trials in one answer, for charts."""

import sqlite3
from typing import Annotated

from fastapi import APIRouter, Query
from starlette.requests import Request
from starlette.responses import Response

from proctor.manager.api import columnar
from proctor.manager.api.dependencies import Context
from proctor.manager.store.errors import QueryRefused
from proctor.manager.store.tables import events, metrics, trials

router = APIRouter(prefix="/experiments/{experiment_id}", tags=["results"])

MAX_TRIALS = 200


@router.get(
    "/curves",
    summary="The visible curves of several trials",
    response_class=Response,
    responses={
        200: {"content": {columnar.CURVES_MEDIA_TYPE: {}}, "description": "Binary; docs/rest.md describes it."},
        304: {"description": "Nothing has changed since the answer with this ETag."},
    },
)
async def get_curves(
    context: Context,
    request: Request,
    experiment_id: str,
    ids: Annotated[
        str,
        Query(
            max_length=10_000,
            description=f"Numbers or ids of at most {MAX_TRIALS} trials, with commas.",
            examples=["17,4,Xy7Zw3Qk"],
        ),
    ],
    key: Annotated[
        str | None,
        Query(
            max_length=1000,
            description="A key of what was reported, nested ones with dots; default: its number.",
            examples=["loss"],
        ),
    ] = None,
) -> Response:
    """Steps and values of each trial's visible curve, as `trials/{id}/curve` has it, in the order in which the trials
    were named."""
    experiment = await context.manager.experiment(experiment_id)
    database = await context.manager.metrics(experiment_id)
    words = list(dict.fromkeys(ids.split(",")))

    def find(connection: sqlite3.Connection) -> tuple[int, dict[str, int]]:
        return events.revision(connection, experiment_id), _find(connection, experiment_id, words)

    # Both are read before the curves, which may then only be newer than what the tag says.
    revision, wanted = await context.manager.control.read(find)
    tag = f'"{columnar.VERSION}-{revision}-{await database.read(metrics.last_id)}"'
    if tag in request.headers.get("if-none-match", ""):
        return Response(status_code=304, headers={"ETag": tag})

    def read(connection: sqlite3.Connection) -> bytes:
        return columnar.pack_curves(
            {
                number: metrics.numbers(connection, trial_id, member=experiment.report_from, key=key)
                for trial_id, number in wanted.items()
            }
        )

    return Response(await database.read(read), media_type=columnar.CURVES_MEDIA_TYPE, headers={"ETag": tag})


def _find(connection: sqlite3.Connection, experiment_id: str, words: list[str]) -> dict[str, int]:
    """The numbers of the trials that the words name, by their ids. Raises QueryRefused."""
    if len(words) > MAX_TRIALS:
        raise QueryRefused("ids", position=0, expected=f"at most {MAX_TRIALS} trials", found=str(len(words)))
    known = trials.named(connection, experiment_id, words)
    position = 0
    for word in words:
        if word not in known:
            expected = f"the number or id of a trial of experiment {experiment_id}"
            raise QueryRefused("ids", position=position, expected=expected, found=repr(word))
        position += len(word) + 1
    return dict(known[word] for word in words)

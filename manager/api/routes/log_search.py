"""Searching the output of the trials of an experiment."""

import asyncio
from typing import Annotated, Any

from fastapi import Query
from pydantic import Field

from proctor.manager.api import models
from proctor.manager.api.dependencies import Context, Cursor
from proctor.manager.api.groups import Routes
from proctor.manager.engine.log_search import JobFolder, LogSearch, SearchCursor, SearchResult, find_jobs
from proctor.manager.errors import BadRequest

routes = Routes(tags=["trials"])

SearchText = Annotated[str, Query(min_length=1, max_length=1000, description="Literal text on one line.")]
IgnoreCase = Annotated[bool, Query(description="Upper and lower case are alike (of ASCII).")]
MatchLimit = Annotated[int, Query(ge=1, le=1000, description="How many lines at most.")]


class SearchedJob(models.Resource):
    """A job whose output was to be searched."""

    trial_id: str = Field(examples=["p3kV9xQa"])
    sequence_id: int = Field(examples=[17])
    """The number of its trial."""
    job: int = Field(examples=[1])
    """Its number within the trial."""
    node_id: str | None = Field(examples=["gpu-3"])


class FoundLine(SearchedJob):
    """A line of its output that has the text."""

    stream: str = Field(examples=["stderr"])
    offset: int = Field(examples=[40211])
    """The byte at which the (first) match in this line is."""
    line: int = Field(examples=[612])
    """The number of the line, from 1."""
    line_offset: int = Field(examples=[40200])
    """The byte at which the line begins."""
    text: str = Field(examples=["RuntimeError: CUDA error: out of memory"])
    """The line; of a long one what is around the match, with … where it is cut."""


class LogSearchResult(models.Resource):
    """Lines that have a text, and how far was looked."""

    items: list[FoundLine]
    """The newest trial first, and its newest job; stderr before stdout."""
    searched_jobs: int = Field(examples=[120])
    """How many jobs were searched to their end."""
    searched_bytes: int = Field(examples=[48211034])
    not_here: list[SearchedJob]
    """Jobs of which nothing is on the manager's machine: they run on another one, have not started, or their files were
    not collected. At most 50."""
    not_here_count: int = Field(examples=[2])
    """How many there are."""
    next_cursor: str | None
    """Where to continue; null: all was searched."""


@routes.get("/experiments/{experiment_id}/logs/search", summary="Search the output of all trials")
async def search_logs(
    context: Context,
    experiment_id: str,
    q: SearchText,
    ignore_case: IgnoreCase = False,
    cursor: Cursor = None,
    limit: MatchLimit = 100,
) -> LogSearchResult:
    """Both streams of all jobs, as far as the files are on the manager's machine. A call takes about 2 seconds and
    reads 64 MiB at most; continue with `next_cursor`."""
    return await _search(context, experiment_id, None, q, ignore_case, cursor, limit)


@routes.get("/trials/{trial_id}/logs/search", summary="Search the output of a trial")
async def search_trial_logs(
    context: Context,
    trial_id: str,
    q: SearchText,
    ignore_case: IgnoreCase = False,
    cursor: Cursor = None,
    limit: MatchLimit = 100,
) -> LogSearchResult:
    """Both streams of all its jobs; else as for an experiment."""
    trial = await context.manager.trials.get(trial_id)
    return await _search(context, trial.experiment_id, trial_id, q, ignore_case, cursor, limit)


async def _search(
    context: Context,
    experiment_id: str,
    trial_id: str | None,
    text: str,
    ignore_case: bool,
    cursor: str | None,
    limit: int,
) -> LogSearchResult:
    if "\n" in text or "\r" in text:
        raise BadRequest("q: expected text on one line, found a line break; search for one of the lines")
    experiment = await context.manager.experiment(experiment_id)
    begin = None if cursor is None else SearchCursor.parse(cursor)
    jobs = await context.manager.control.read(
        lambda c: find_jobs(c, experiment_id, experiment.directory, trial_id=trial_id, cursor=begin)
    )
    async with context.searches:
        search = LogSearch(text, ignore_case=ignore_case, limit=limit)
        return _resource(await asyncio.to_thread(search.run, jobs, begin))


def _resource(found: SearchResult) -> LogSearchResult:
    return LogSearchResult(
        items=[
            FoundLine(
                **_job(match.job),
                stream=match.stream,
                offset=match.offset,
                line=match.line,
                line_offset=match.line_begin,
                text=match.text,
            )
            for match in found.matches
        ],
        searched_jobs=found.jobs,
        searched_bytes=found.bytes,
        not_here=[SearchedJob(**_job(job)) for job in found.not_here],
        not_here_count=found.not_here_count,
        next_cursor=None if found.cursor is None else str(found.cursor),
    )


def _job(job: JobFolder) -> dict[str, Any]:
    return {"trial_id": job.trial_id, "sequence_id": job.sequence_id, "job": job.job, "node_id": job.node_id}

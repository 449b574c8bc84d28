"""Who held which GPU of a node when, and how busy the node was."""

from datetime import datetime
from typing import Annotated

from fastapi import Query
from pydantic import Field

from proctor.manager.api import models
from proctor.manager.api.dependencies import Context
from proctor.manager.api.groups import Routes
from proctor.manager.api.json_types import Time, utc, utc_or_none
from proctor.manager.engine.nodes.history import PastHolding, thin_out
from proctor.manager.errors import BadRequest
from proctor.manager.store.tables.nodes import NodeSample
from proctor.training_services.errors import UnknownNode
from proctor.training_services.nodes.pool import Node

routes = Routes(tags=["nodes"])

DEFAULT_SECONDS = 3600.0
MOST_JOBS = 2000


class JobOnNode(models.Resource):
    """A job that ran on a node."""

    job_id: str = Field(examples=["p3kV9xQa.1"])
    trial_id: str = Field(examples=["p3kV9xQa"])
    sequence_id: int = Field(examples=[17])
    """The number of its trial."""
    experiment_id: str = Field(examples=["Ab3dE5f7"])
    gpus: list[str] | None = Field(examples=[["GPU-5b1c"]])
    """UUIDs of the GPUs that it held, whole or a share of each; null: its platform does not manage GPUs."""
    slot: int | None = Field(examples=[0])
    """Of a job without a GPU: a place that it shared with no other job at the time, from 0."""
    started_at: Time
    ended_at: Time | None
    """Null: it runs."""
    end_reason: str | None = Field(examples=["EXITED_OK"])


class GpuHistory(models.Resource):
    """How busy a GPU was, at each of the `times`; null where it is not known."""

    uuid: str = Field(examples=["GPU-5b1c"])
    index: int | None = Field(examples=[0])
    """Null for one that the node does not have any more."""
    name: str = Field(examples=["NVIDIA H100"])
    memory_total_mb: int | None = Field(examples=[81559])
    utilization: list[int | None] = Field(examples=[[98, 97]])
    """In percent."""
    memory_used_mb: list[int | None] = Field(examples=[[40211, 40211]])


class NodeOccupancy(models.Resource):
    """Who held what on a node in a stretch of time, and how busy it was."""

    node_id: str = Field(examples=["gpu-3"])
    since: Time
    until: Time
    jobs: list[JobOnNode]
    """Those that ran at any time of the stretch, by their starts."""
    complete_since: Time | None
    """There were more jobs than `limit`: those that ended before this time are left out. Null: none is."""
    times: list[Time]
    """When load and memory were sampled; means where there are more than `points` samples."""
    load: list[float | None] = Field(examples=[[12.5, 13.1]])
    """The load average of its machine over a minute."""
    memory_used_mb: list[int | None] = Field(examples=[[64211, 64530]])
    """Memory of its machine, without what the kernel would give back at once."""
    cpus: int | None = Field(examples=[64])
    memory_total_mb: int | None = Field(examples=[515612])
    gpus: list[GpuHistory]


@routes.get("/nodes/{node_id}/occupancy", summary="Who held which GPU when, and how busy a machine was")
async def get_occupancy(
    context: Context,
    node_id: str,
    since: Annotated[datetime | None, Query(description="RFC 3339; default: an hour before `until`.")] = None,
    until: Annotated[datetime | None, Query(description="RFC 3339; default: now.")] = None,
    limit: Annotated[int, Query(ge=1, le=MOST_JOBS, description="How many ended jobs at most, the newest.")] = 500,
    points: Annotated[int, Query(ge=1, le=2000, description="How many samples at most.")] = 360,
) -> NodeOccupancy:
    """Jobs as long as their experiments are there; load and memory of the last 24 hours, sampled every 10 seconds. The
    last minute of samples is lost when the manager ends."""
    end = context.manager.clock.now() if until is None else _seconds(until, "until")
    begin = end - DEFAULT_SECONDS if since is None else _seconds(since, "since")
    if begin >= end:
        raise BadRequest(
            f"since: expected a time before until ({utc(end).isoformat()}), found {utc(begin).isoformat()}"
        )
    found = await context.manager.node_history.read(node_id, since=begin, until=end, limit=limit)
    samples = thin_out(found.samples, points, since=begin, until=end)
    node = _node(context, node_id)
    system = None if node is None else node.system
    return NodeOccupancy(
        node_id=node_id,
        since=utc(begin),
        until=utc(end),
        jobs=[_job(each) for each in found.holdings],
        complete_since=utc_or_none(found.complete_since),
        times=[utc(sample.time) for sample in samples],
        load=[sample.load for sample in samples],
        memory_used_mb=[sample.memory_used_mb for sample in samples],
        cpus=None if system is None else system.cpus,
        memory_total_mb=None if system is None else system.memory_total_mb,
        gpus=_gpus(node, samples, found.holdings),
    )


def _seconds(time: datetime, name: str) -> float:
    if time.tzinfo is None:
        raise BadRequest(f"{name}: expected a time with its offset, such as 2026-01-31T12:00:00Z, found {time}")
    return time.timestamp()


def _node(context: Context, node_id: str) -> Node | None:
    """The node as it is now; None for one of the past."""
    try:
        return context.manager.pool.node(node_id)
    except UnknownNode:
        return None


def _job(each: PastHolding) -> JobOnNode:
    job = each.job
    assert job.started_at is not None
    return JobOnNode(
        job_id=job.id,
        trial_id=job.trial_id,
        sequence_id=each.sequence_id,
        experiment_id=job.experiment_id,
        gpus=None if each.gpus is None else list(each.gpus),
        slot=each.slot,
        started_at=utc(job.started_at),
        ended_at=utc_or_none(job.ended_at),
        end_reason=None if job.end_reason is None else job.end_reason.value,
    )


def _gpus(node: Node | None, samples: list[NodeSample], holdings: list[PastHolding]) -> list[GpuHistory]:
    """The GPUs that the node has, by index, and then those that it had."""
    devices = {device.uuid: device for device in (node.devices or () if node is not None else ())}
    sampled = [{gpu.uuid: gpu for gpu in sample.gpus} for sample in samples]
    past = [uuid for sample in sampled for uuid in sample] + [uuid for each in holdings for uuid in each.gpus or ()]
    found = []
    for uuid in dict.fromkeys([*devices, *past]):
        device = devices.get(uuid)
        each = [sample.get(uuid) for sample in sampled]
        history = GpuHistory(
            uuid=uuid,
            index=None if device is None else device.index,
            name="" if device is None else device.name,
            memory_total_mb=None if device is None else device.memory_total_mb,
            utilization=[None if gpu is None else gpu.utilization for gpu in each],
            memory_used_mb=[None if gpu is None else gpu.memory_used_mb for gpu in each],
        )
        found.append(history)
    return found

"""100 trials that do nothing, on Kubernetes, against as many bare Jobs and against platform local: what each costs in
time, processor time and requests to the API server."""

import asyncio
import resource
import sys
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, median
from typing import Any

from benchmarks import harness
from benchmarks.kubernetes.clusters import WATCHED, WRITES, Api, Bed, bed, cluster_manager, read_ends, read_time
from benchmarks.table import Row, spread

TRIALS = 100
NODES = 3
GPUS = 4
COMMAND = "true"
TARGET_SECONDS = 1.5
TARGET_PROCESSOR_SECONDS = 0.4
TARGET_MANAGER_RATIO = 2.5
TARGET_WRITES = 4.0


@dataclass(frozen=True)
class Cost:
    """What one trial, or one Job, has cost: seconds, the means over all of a round."""

    latency: float
    """From its request to its end being known."""
    pods: float
    """Processor time of all processes in its pod."""
    manager: float = 0.0
    """Processor time of the manager's process."""
    dispatcher: float = 0.0
    writes: float = 0.0
    lists: int = 0
    """In the whole round, of kinds that are watched, after the first one of each."""

    @property
    def processor(self) -> float:
        """Processor time of everything that is there for it."""
        return self.pods + self.manager + self.dispatcher


def run_bare_jobs(bed: Bed, jobs: int) -> Cost:
    """As many at a time as there are GPUs; the next one is created when the end of one is seen."""
    before = _children_seconds()
    seconds = asyncio.run(_create_jobs(bed, jobs, at_a_time=NODES * GPUS))
    cost = Cost(mean(seconds), (_children_seconds() - before) / jobs)
    bed.cluster.delete(bed.cluster.path("jobs"), {"propagationPolicy": "Background"})
    bed.wait_for_no_pods()
    return cost


async def _create_jobs(bed: Bed, jobs: int, *, at_a_time: int) -> list[float]:
    path, ended = bed.cluster.path("jobs"), {f"bare-{number}": asyncio.Event() for number in range(jobs)}
    seconds: list[float] = []
    turns = asyncio.Semaphore(at_a_time)
    async with Api(bed.cluster.access) as api:
        version = (await api.get(path))["metadata"]["resourceVersion"]

        async def follow() -> None:
            async for _, found in api.watch(path, version=version):
                if any(each["type"] == "Complete" for each in found.get("status", {}).get("conditions", ())):
                    ended[found["metadata"]["name"]].set()

        async def run(name: str) -> None:
            async with turns:
                started = time.monotonic()
                await api.create(path, _bare_job(name))
                await ended[name].wait()
                seconds.append(time.monotonic() - started)

        async with asyncio.TaskGroup() as group:
            following = group.create_task(follow(), name="watch")
            async with asyncio.TaskGroup() as running:
                for name in ended:
                    running.create_task(run(name), name=name)
            following.cancel()
    return seconds


def _bare_job(name: str) -> dict[str, Any]:
    container = {
        "name": "main",
        "image": "example/trial:1",
        "command": [COMMAND],
        "resources": {"limits": {"nvidia.com/gpu": "1"}},
    }
    pod = {"restartPolicy": "Never", "automountServiceAccountToken": False, "containers": [container]}
    return {"metadata": {"name": name}, "spec": {"backoffLimit": 0, "template": {"spec": pod}}}


def run_trials(running: harness.RunningManager, bed: Bed, trials: int, service: dict[str, Any]) -> Cost:
    """As many at a time as there are GPUs."""
    is_local = service["platform"] == "local"
    gpus: dict[str, Any] = {} if is_local else {"trialGpuNumber": 1}
    bed.take_requests()
    pods, manager = _children_seconds(), _processor_seconds(running)
    experiment = running.create(
        command=COMMAND,
        trialConcurrency=NODES * GPUS,
        maxTrialNumber=trials,
        trainingService=service,
        **gpus,
    )
    ended = running.finish(experiment, pause_seconds=0.5)
    if ended["trial_counts"] != {"SUCCEEDED": trials}:
        raise harness.BenchmarkError(f"expected {trials} trials SUCCEEDED, found {ended['trial_counts']}")
    if not is_local:
        bed.wait_for_no_pods()
    own = _processor_seconds(running)[0] - manager[0]
    requests = bed.take_requests()
    latency = mean(_latencies(running, experiment))
    running.stop(experiment)
    dispatchers = _processor_seconds(running)[1] - manager[1]
    listed = Counter(each["objectRef"]["resource"] for each in requests if each["verb"] == "list")
    return Cost(
        latency,
        (_children_seconds() - pods) / trials,
        own / trials,
        dispatchers / trials,
        sum(each["verb"] in WRITES for each in requests) / trials,
        sum(listed[kind] - 1 for kind in WATCHED if listed[kind]),
    )


def _latencies(running: harness.RunningManager, experiment: str) -> list[float]:
    jobs = [job for trial in running.client.trials(experiment) for job in running.client.jobs(trial["id"])]
    ends = read_ends(running, experiment, len(jobs))
    return [ends[job["id"]] - read_time(job["submitted_at"]) for job in jobs]


def _children_seconds() -> float:
    """Processor time of all pods that have ended: their processes are ours."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _processor_seconds(running: harness.RunningManager) -> tuple[float, float]:
    """Of the manager, and of its dispatchers that have ended."""
    fields = Path(f"/proc/{running.process.pid}/stat").read_text().rpartition(")")[2].split()
    own, ended = (sum(int(field) for field in fields[first : first + 2]) / 100 for first in (11, 13))
    return own, ended


def _say(number: int, name: str, cost: Cost) -> Cost:
    print(f"  round {number + 1}, {name}: {cost}", file=sys.stderr, flush=True)
    return cost


def measure(quick: bool) -> list[Row]:
    """Four rows. Bare Jobs, platform kubernetes and platform local take turns."""
    trials, repeats = (12, 1) if quick else (TRIALS, 2)
    rounds: list[tuple[Cost, Cost, Cost]] = []
    local = {"platform": "local"}
    with bed() as there, harness.temporary_folder() as folder, cluster_manager(folder / "home") as (running, url):
        for number in range(NODES):
            there.cluster.add_node(f"gpu-{number}", gpus=GPUS)
        service = there.service(managerUrl=url)
        run_bare_jobs(there, NODES)
        run_trials(running, there, NODES, service)
        run_trials(running, there, NODES, local)
        for number in range(repeats):
            bare = _say(number, "bare Jobs", run_bare_jobs(there, trials))
            ours = _say(number, "kubernetes", run_trials(running, there, trials, service))
            rounds.append((bare, ours, _say(number, "local", run_trials(running, there, trials, local))))
    return _rows(trials, rounds)


def _rows(trials: int, rounds: list[tuple[Cost, Cost, Cost]]) -> list[Row]:
    bare, ours, local = zip(*rounds, strict=True)
    latency = [theirs.latency - bare.latency for bare, theirs, _ in rounds]
    processor = [theirs.processor - bare.processor for bare, theirs, _ in rounds]
    manager = [theirs.manager / local.manager for _, theirs, local in rounds]
    writes, lists = max(each.writes for each in ours), max(each.lists for each in ours)
    return [
        Row(
            f"{trials} trials of `{COMMAND}` on {NODES} nodes with {GPUS} GPUs each: from being submitted to "
            "the end being known",
            "as many bare Jobs: " + spread([each.latency for each in bare], " s", 2),
            spread([each.latency for each in ours], " s", 2),
            f"+{median(latency):.2f} s",
            f"+ ≤ {TARGET_SECONDS:g} s",
            median(latency) <= TARGET_SECONDS,
        ),
        Row(
            "… processor time a trial, of its pod, manager and dispatcher",
            "bare Jobs: " + spread([each.processor for each in bare], " s", 2),
            spread([each.processor for each in ours], " s", 2),
            f"+{median(processor):.2f} s",
            f"+ ≤ {TARGET_PROCESSOR_SECONDS:g} s",
            median(processor) <= TARGET_PROCESSOR_SECONDS,
        ),
        Row(
            "… processor time a trial, of the manager alone",
            "platform local: " + spread([each.manager * 1000 for each in local], " ms"),
            spread([each.manager * 1000 for each in ours], " ms"),
            f"{median(manager):.2f}",
            f"≤ {TARGET_MANAGER_RATIO:g} ×",
            median(manager) <= TARGET_MANAGER_RATIO,
        ),
        Row(
            "… requests of the manager that change something, a trial; its lists of what it watches, after the first",
            "–",
            f"{writes:.2f}; {lists}",
            "–",
            f"≤ {TARGET_WRITES:g}; 0",
            writes <= TARGET_WRITES and lists == 0,
        ),
    ]

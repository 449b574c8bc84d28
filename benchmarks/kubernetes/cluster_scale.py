"""A namespace with many Jobs on Kubernetes: 5,000 that have ended beside those of an experiment, and 500 that run while
the manager is restarted. The pods are only played by their node."""

import asyncio
import os
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks import harness
from benchmarks.kubernetes.clusters import USER, Api, Bed, bed, cluster_manager, read_ends, read_time
from benchmarks.table import Row, spread
from proctor.manager.settings import Home
from proctor.training_services.kubernetes.client import Cluster, open_cluster
from proctor.training_services.kubernetes.manifests import (
    EXPERIMENT_ANNOTATION,
    JOB_ANNOTATION,
    MANAGER_LABEL,
    TOKEN_ANNOTATION,
    Names,
)

ENDED = 5_000
ENDS = 30
ROUNDS = 4
LIVE = 500
TARGET_END_RATIO = 1.2
TARGET_MEMORY_RATIO = 1.1
TARGET_ADOPTION_RATIO = 2.0
_AT_ONCE = 16


def end_milliseconds(bed: Bed, home: Path, ends: int) -> tuple[list[float], float]:
    """From a pod's end on its node to the end of the trial job in the manager; and the manager's memory, in MiB."""
    with cluster_manager(home) as (running, url):
        experiment = running.create(
            command="true", trialConcurrency=ends, maxTrialNumber=ends, trainingService=bed.service(managerUrl=url)
        )
        pods = harness.wait_for(lambda: _running_pods(bed, ends), "the pods to run", 120.0, pause_seconds=0.2)
        moments = {}
        for job_id, pod in pods.items():
            moments[job_id] = time.time()
            bed.cluster.node_of(pod).finish(pod, exit_code=1)
            time.sleep(0.1)

        ended = read_ends(running, experiment, len(moments))
        memory = _memory(running.process.pid)
        running.stop(experiment)
    return [(ended[job_id] - moment) * 1000 for job_id, moment in moments.items()], memory


def _running_pods(bed: Bed, number: int) -> dict[str, str] | None:
    """The names of pods by trial job, once so many run."""
    found = {
        pod["metadata"]["annotations"]["proctor/job-id"]: pod["metadata"]["name"]
        for pod in bed.cluster.list("pods")
        if pod["status"].get("phase") == "Running"
    }
    return found if len(found) >= number else None


def _memory(pid: int) -> float:
    """What is resident of a process, in MiB."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


async def _add_ended_jobs(bed: Bed, jobs: int, names: Names) -> None:
    """Those of a manager that has not deleted them yet, and has no record of their experiment."""
    path, turns = bed.cluster.path("jobs"), asyncio.Semaphore(_AT_ONCE)
    labels = {"app.kubernetes.io/managed-by": "proctor", MANAGER_LABEL: names.manager}
    container = {"name": "trial", "image": "example/trial:1"}
    template = {"metadata": {"labels": labels}, "spec": {"restartPolicy": "Never", "containers": [container]}}
    status = {"conditions": [{"type": "Complete", "status": "True"}], "succeeded": 1}
    async with Api(bed.cluster.access) as api, asyncio.TaskGroup() as group:

        async def add(number: int) -> None:
            async with turns:
                job_id = f"ended{number}.1"
                ids = {EXPERIMENT_ANNOTATION: "ended", JOB_ANNOTATION: job_id, TOKEN_ANNOTATION: "token"}
                metadata = {"name": names.job(job_id), "labels": labels, "annotations": ids}
                spec = {"parallelism": 0, "backoffLimit": 0, "template": template}
                await api.create(path, {"metadata": metadata, "spec": spec})
                await api.patch(f"{path}/{metadata['name']}/status", {"status": status})

        for number in range(jobs):
            group.create_task(add(number), name=f"ended {number}")


def _ends(bed: Bed, folder: Path, ends: int, ended: int, rounds: int) -> list[Row]:
    """Two managers in one namespace take turns, of which one has ended Jobs there."""
    homes = [folder / "alone" / "home", folder / "around" / "home"]
    for home in homes:
        Home(home).prepare()
    asyncio.run(_add_ended_jobs(bed, ended, Names(Home(homes[1]).manager_id())))
    _say(f"{ended} ended Jobs were added")
    milliseconds: list[list[float]] = [[], []]
    memory: list[list[float]] = [[], []]
    for number in range(rounds):
        for which in (0, 1) if number % 2 == 0 else (1, 0):
            seen, resident = end_milliseconds(bed, homes[which], ends)
            milliseconds[which] += seen
            memory[which].append(resident)
            own = f"{ended} ended Jobs" if which else "none"
            _say(f"round {number + 1}: ends are seen after {median(seen):.0f} ms, in {resident:.0f} MiB, with {own}")
    alone, around = milliseconds
    ratio, grown = median(around) / median(alone), median(memory[1]) / median(memory[0])
    return [
        Row(
            f"end of a pod → end of its trial being known, with {ended:,} ended Jobs of this manager in the namespace",
            "another manager there: " + spread(alone, " ms"),
            spread(around, " ms"),
            f"{ratio:.2f}",
            f"≤ {TARGET_END_RATIO:g} ×",
            ratio <= TARGET_END_RATIO,
        ),
        Row(
            "… resident memory of the manager",
            "another manager there: " + spread(memory[0], " MiB"),
            spread(memory[1], " MiB"),
            f"{grown:.2f}",
            f"≤ {TARGET_MEMORY_RATIO:g} ×",
            grown <= TARGET_MEMORY_RATIO,
        ),
    ]


def _adoption(bed: Bed, folder: Path, live: int) -> Row:
    """Jobs that no node takes are known to the manager as waiting; once it is killed they begin to run."""
    node, home = next(iter(bed.cluster.nodes.values())), folder / "home"
    node.cordon()
    with cluster_manager(home) as (running, url):
        experiment = running.create(
            command="true", trialConcurrency=live, maxTrialNumber=live, trainingService=bed.service(managerUrl=url)
        )
        harness.wait_for(
            lambda: len(bed.cluster.list("secrets", labelSelector="proctor/job")) >= live or None,
            "all Jobs to be there",
            240.0,
            pause_seconds=1.0,
        )
        _say(f"{live} Jobs wait")
        running.process.kill()
        running.process.wait()
    node.cordon(is_unschedulable=False)
    harness.wait_for(lambda: _running_pods(bed, live), "the pods to run", 240.0, pause_seconds=1.0)
    bed.take_requests()
    _say(f"{live} pods run; the manager is started again")
    started = time.time()
    with cluster_manager(home) as (running, url):
        adopted = _last_adoption(running, experiment, live, started)
        requests = bed.take_requests()
        first = min(read_time(each["requestReceivedTimestamp"]) for each in requests if each["verb"] == "list")
        _say(f"adopted {adopted - started:.2f} s after the manager was started, {first - started:.2f} s of that before")
        running.process.kill()
        running.process.wait()
    listed = [asyncio.run(_list(bed)) for _ in range(5)]
    bed.cluster.delete(bed.cluster.path("jobs"), {"propagationPolicy": "Background"})
    bed.wait_for_no_pods()
    seconds = adopted - first
    ratio = seconds / median(listed)
    return Row(
        f"restart with {live} live Jobs: from the first request to the cluster until all are adopted",
        "Jobs and pods listed once: " + spread(listed, " s", 2),
        f"{seconds:.2f} s",
        f"{ratio:.2f}",
        f"≤ {TARGET_ADOPTION_RATIO:g} ×",
        ratio <= TARGET_ADOPTION_RATIO,
    )


def _last_adoption(running: harness.RunningManager, experiment: str, live: int, since: float) -> float:
    """When the last Job was found to run, as the stream of changes says."""
    adopted: set[str] = set()
    for event in running.client.events(experiment_id=experiment, after=0):
        moment = read_time(event["time"])
        if moment > since and "was started" in event["data"].get("reason", ""):
            adopted.add(event["trial_id"])
            if len(adopted) == live:
                return moment
    raise harness.BenchmarkError("the stream of changes ended")


async def _list(bed: Bed) -> float:
    """Seconds for all Jobs and all pods, page by page, as the manager's user."""
    cluster: Cluster = await open_cluster(str(bed.cluster.kubeconfig), USER)
    try:
        query: dict[str, Any] = {"labelSelector": "proctor/job"}
        started = time.perf_counter()
        for plural in ("jobs", "pods"):
            async for _ in cluster.list(bed.cluster.path(plural), query):
                pass
        return time.perf_counter() - started
    finally:
        await cluster.close()


def _say(text: str) -> None:
    print(f"  {text}", file=sys.stderr, flush=True)


def measure(quick: bool) -> list[Row]:
    """Three rows."""
    ends, ended, live, rounds = (5, 200, 20, 1) if quick else (ENDS, ENDED, LIVE, ROUNDS)
    with bed() as there, harness.temporary_folder() as folder:
        there.cluster.add_node("node", plays=True, cpus=64, capacity={"pods": str(2 * live + ends)})
        adoption = _adoption(there, folder, live)
        return [*_ends(there, folder, ends, ended, rounds), adoption]

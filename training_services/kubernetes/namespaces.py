"""A live view of a manager's Jobs and pods in one namespace, and of the cluster's warnings about them, shared by the
experiments that run there.

Each kind is listed once, page by page, and watched from then on. A watch that ends continues from the last change; the
kind is listed again only if the server no longer has that version (410).
"""

import asyncio
import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from proctor.training_services.errors import ServiceUnavailable
from proctor.training_services.job_keeper_service import PlatformJob, PlatformStatus
from proctor.training_services.kubernetes.client import ApiRefused, Cluster, KubernetesObject, WatchExpired
from proctor.training_services.kubernetes.pods import ClusterJob, ClusterPod, describe, read_job, read_pod
from proctor.trial_keeper.linux.backoff import BackOff

__all__ = ["Changes", "NamespaceView"]

SYNC_SECONDS = 30.0
"""How long `list` waits for the first lists before it reports why there are none."""
OVERDUE_SECONDS = 120.0
"""How long after a pod was due to end its node counts as lost. Allows for clocks that differ."""
_STEADY_SECONDS = 5.0
_MOST_DELETED = 2000
_MOST_WARNINGS = 5000

log = logging.getLogger(__name__)


@dataclass
class _Kind:
    """One kind of objects, and how it is watched."""

    name: str  # jobs, pods, events
    path: str
    query: Mapping[str, str]
    loss: str  # what is lost without the right to list and watch them
    is_needed: bool = True
    problem: str = ""
    listed: asyncio.Event = field(default_factory=asyncio.Event)


class NamespaceView:
    """This manager's objects in one namespace of a cluster.

    :param selector: the label selector of the manager's objects.
    """

    def __init__(self, cluster: Cluster, namespace: str, selector: str) -> None:
        self.cluster = cluster
        self.namespace = namespace
        self._jobs: dict[str, ClusterJob] = {}  # by name
        self._names: dict[str, str] = {}  # of Jobs, by their uids and those of their pods
        self._pods: dict[str, dict[str, ClusterPod]] = {}  # by Job name, then by uid; in order of creation
        self._warnings: dict[str, str] = {}  # by the uid of the object; the oldest first
        self._deleted: dict[str, None] = {}  # the uids of Jobs; the oldest first
        self._listeners: set[Changes] = set()
        self.refusals: dict[str, str] = {}
        """What the user lacks the right to, by what is lost without it: the server's sentence."""
        labels = {"labelSelector": selector}
        self._kinds = (
            _Kind("jobs", self.jobs_path, labels, "trials are not followed"),
            _Kind("pods", self.pods_path, labels, "trials are not followed"),
            _Kind(
                "events",
                self.events_path,
                {"fieldSelector": "type=Warning"},
                "reasons such as a quota or a missing Secret are not shown",
                is_needed=False,
            ),
        )

    @property
    def jobs_path(self) -> str:
        """The API path of the Jobs."""
        return f"/apis/batch/v1/namespaces/{self.namespace}/jobs"

    @property
    def pods_path(self) -> str:
        """The API path of the pods."""
        return f"/api/v1/namespaces/{self.namespace}/pods"

    @property
    def events_path(self) -> str:
        """The API path of the events."""
        return f"/api/v1/namespaces/{self.namespace}/events"

    @property
    def place_name(self) -> str:
        """Its name in messages."""
        context = f" of {self.cluster.context}" if self.cluster.context else ""
        return f"namespace {self.namespace}{context}"

    # ---- reading

    async def list(self) -> list[PlatformJob]:
        """All Jobs. Waits for the first lists. Raises ServiceUnavailable, with the reason why there are none yet."""
        needed = [kind for kind in self._kinds if kind.is_needed]
        try:
            async with asyncio.timeout(SYNC_SECONDS):
                for kind in needed:
                    await kind.listed.wait()
        except TimeoutError:
            problem = next((kind.problem for kind in needed if kind.problem), "the API server is slow to answer")
            raise ServiceUnavailable(problem) from None
        return [self._describe(job) for job in self._jobs.values()]

    def listen(self) -> "Changes":
        """Collect changes from now on, until `end_listening`."""
        changes = Changes()
        self._listeners.add(changes)
        return changes

    def end_listening(self, changes: "Changes") -> None:
        """Stop collecting these changes. Idempotent."""
        self._listeners.discard(changes)

    def job(self, name: str) -> PlatformJob | None:
        """The current state of a Job, or None if there is none."""
        found = self._jobs.get(name)
        return None if found is None else self._describe(found)

    def uid(self, name: str) -> str:
        """The uid of a Job, "" if there is none."""
        return self._jobs[name].uid if name in self._jobs else ""

    def first_pod(self, name: str) -> ClusterPod | None:
        """The last known state of the first pod of a Job."""
        return next(iter(self._pods.get(name, {}).values()), None)

    def note_created(self, found: KubernetesObject) -> None:
        """Record a Job that was just created; the watch may be late."""
        if found["metadata"]["uid"] not in self._deleted:
            self._apply_job(found)

    def note_deleted(self, name: str) -> None:
        """Record that a Job was just deleted; the watch may be late."""
        if name in self._jobs:
            self._remove_job(self._jobs[name].uid)

    # ---- watches

    async def run(self) -> None:
        """Keep the view up to date until canceled."""
        async with asyncio.TaskGroup() as group:
            for kind in self._kinds:
                group.create_task(self._follow(kind), name=f"watch of {kind.name} in {self.place_name}")

    async def _follow(self, kind: _Kind) -> None:
        backoff, version = BackOff(first_seconds=0.25, longest_seconds=15.0), ""
        while True:
            started = time.monotonic()
            try:
                version = version or await self._list_kind(kind)
                async for change, found in self.cluster.watch(kind.path, kind.query, version):
                    self._note_success(kind)
                    version = found["metadata"]["resourceVersion"]
                    if change != "BOOKMARK":
                        self._apply(kind, found)
                    if change == "DELETED":
                        self._remove(kind, found["metadata"]["uid"])
            except WatchExpired:
                version = ""
            except ServiceUnavailable as error:
                self._note_problem(kind, str(error))
                self.note_refusal(kind.loss, error)
                if isinstance(error, ApiRefused) and error.status == 400:  # the cluster was restored from a backup
                    version = ""
            except (LookupError, TypeError, ValueError, AttributeError) as error:
                self._note_problem(kind, f"an object is malformed: {error!r}")
                version = ""
            if time.monotonic() - started > _STEADY_SECONDS:
                backoff.reset()
            await asyncio.sleep(backoff.take())

    def note_refusal(self, loss: str, error: ServiceUnavailable) -> None:
        """Record an error if it says that the user lacks a right.

        :param loss: what is lost without it, as a clause.
        """
        if isinstance(error, ApiRefused) and error.status == 403:
            self.refusals[loss] = str(error)

    def note_right(self, loss: str) -> None:
        """Record that the user has the right without which `loss` would be lost."""
        self.refusals.pop(loss, None)

    def _note_success(self, kind: _Kind) -> None:
        kind.problem = ""
        if not any(other.problem for other in self._kinds if other.loss == kind.loss):
            self.note_right(kind.loss)

    def _note_problem(self, kind: _Kind, problem: str) -> None:
        if problem != kind.problem:
            kind.problem = problem
            text = "%s of %s cannot be watched: %s"
            log.warning(text, kind.name, self.place_name, problem, extra={"action": "platform.watch"})

    async def _list_kind(self, kind: _Kind) -> str:
        """Update the view from a new list; returns the resource version to watch from."""
        missing, newest = self._known(kind), ""
        async for items, version in self.cluster.list(kind.path, kind.query):
            newest = version
            for found in items:
                missing.discard(found["metadata"]["uid"])
                self._apply(kind, found)
        for uid in missing:
            self._remove(kind, uid)
        self._note_success(kind)
        kind.listed.set()
        return newest

    # ---- objects

    def _known(self, kind: _Kind) -> set[str]:
        """The uids of all known objects of a kind."""
        if kind.name == "jobs":
            return {job.uid for job in self._jobs.values()}
        return {uid for pods in self._pods.values() for uid in pods} if kind.name == "pods" else set()

    def _apply(self, kind: _Kind, found: KubernetesObject) -> None:
        apply = {"jobs": self._apply_job, "pods": self._apply_pod, "events": self._apply_warning}[kind.name]
        apply(found)

    def _remove(self, kind: _Kind, uid: str) -> None:
        if kind.name == "jobs":
            self._remove_job(uid)
        elif kind.name == "pods":
            self._remove_pod(uid)

    def _apply_job(self, found: KubernetesObject) -> None:
        job = read_job(found)
        if job is not None and job.uid not in self._deleted:
            self._jobs[job.name] = job
            self._names[job.uid] = job.name
            self._notify(job.name)

    def _remove_job(self, uid: str) -> None:
        self._deleted[uid] = None
        if len(self._deleted) > _MOST_DELETED:
            del self._deleted[next(iter(self._deleted))]
        self._warnings.pop(uid, None)
        job = self._jobs.get(self._names.pop(uid, ""))
        if job is None or job.uid != uid:
            return
        gone = replace(self._describe(job), status=PlatformStatus.GONE)
        del self._jobs[job.name]
        for pod in self._pods.pop(job.name, {}):
            self._warnings.pop(pod, None)
            self._names.pop(pod, None)
        for listener in self._listeners:
            listener.put(job.name, gone)

    def _apply_pod(self, found: KubernetesObject) -> None:
        pod = read_pod(found)
        pods = self._pods.setdefault(pod.job_name, {})
        is_new = pod.uid not in pods
        pods[pod.uid] = pod
        if is_new:
            self._names[pod.uid] = pod.job_name
            in_order = sorted(pods.values(), key=lambda each: each.created_at)
            self._pods[pod.job_name] = {each.uid: each for each in in_order}
        if pod.is_going:
            left = max(0.0, pod.end_due - time.time()) + OVERDUE_SECONDS  # our clock may have been set
            asyncio.get_running_loop().call_later(left, self._note_overdue, pod)
        self._notify(pod.job_name)

    def _note_overdue(self, pod: ClusterPod) -> None:
        """Mark a pod as overdue if it has not changed since; `pod` is its last known state."""
        pods = self._pods.get(pod.job_name, {})
        if pods.get(pod.uid) is pod and pod.phase not in ("Succeeded", "Failed"):
            pods[pod.uid] = replace(pod, is_overdue=True)
            self._notify(pod.job_name)

    def _remove_pod(self, uid: str) -> None:
        """A deleted pod is remembered as long as its Job, so that its replacement counts as the second one."""
        name = self._names.get(uid, "")
        pod = self._pods.get(name, {}).get(uid)
        if pod is None:
            return
        if name not in self._jobs:
            del self._names[uid], self._pods[name][uid]
            if not self._pods[name]:
                del self._pods[name]
        elif pod.phase not in ("Succeeded", "Failed"):
            self._pods[name][uid] = replace(pod, phase="Failed", is_going=True)
            self._notify(name)

    def _apply_warning(self, found: KubernetesObject) -> None:
        """Keep the last warning about each object whose name is one of ours."""
        about = found["involvedObject"]
        if not str(about.get("name", "")).startswith("proctor-") or "uid" not in about:
            return
        reason, message = found.get("reason", ""), (found.get("message") or "").strip()
        self._warnings.pop(about["uid"], None)
        self._warnings[about["uid"]] = f"{reason}: {message}" if message else reason
        if len(self._warnings) > _MOST_WARNINGS:
            del self._warnings[next(iter(self._warnings))]
        name = about["name"] if about.get("kind") == "Job" else about["name"].rpartition("-")[0]
        if name in self._jobs:
            self._notify(name)

    def _describe(self, job: ClusterJob) -> PlatformJob:
        pods = tuple(self._pods.get(job.name, {}).values())
        about = [job.uid, *(pod.uid for pod in pods[:1])]
        return describe(job, pods, next((self._warnings[uid] for uid in reversed(about) if uid in self._warnings), ""))

    def _notify(self, name: str) -> None:
        if name in self._jobs:
            seen = self._describe(self._jobs[name])
            for listener in self._listeners:
                listener.put(name, seen)


class Changes:
    """The Jobs that have changed and were not taken yet, each in its last known state."""

    def __init__(self) -> None:
        self._changed: dict[str, PlatformJob] = {}
        self._has_changed = asyncio.Event()

    def put(self, name: str, seen: PlatformJob) -> None:
        """Record that a Job has changed."""
        self._changed[name] = seen
        self._has_changed.set()

    async def take(self) -> list[tuple[str, PlatformJob]]:
        """Wait for changes, and take all of them."""
        await self._has_changed.wait()
        self._has_changed.clear()
        taken, self._changed = self._changed, {}
        return list(taken.items())

"""The pod that `proctor doctor` starts: like a trial's, but it only connects to the manager."""

import asyncio
import logging
import secrets
from dataclasses import dataclass

from proctor.training_services.base import TrialJobForm
from proctor.training_services.errors import ServiceUnavailable
from proctor.training_services.job_keeper_service import PlatformJob, PlatformStatus
from proctor.training_services.keepers.hub import KeeperHub
from proctor.training_services.keepers.presence import KeeperPresence
from proctor.training_services.keepers.sessions import job_keeper_id
from proctor.training_services.kubernetes.client import Cluster
from proctor.training_services.kubernetes.manifests import JOB_LABEL
from proctor.training_services.kubernetes.namespaces import NamespaceView
from proctor.training_services.kubernetes.objects import ExperimentObjects
from proctor.training_services.kubernetes.pod_template import TRIAL_CONTAINER
from proctor.training_services.kubernetes.pods import ClusterPod
from proctor.training_services.kubernetes.relay import PodRelay
from proctor.trial_keeper.linux.tasks import TaskGroup
from proctor.trial_keeper.protocol import Registration, ReportHeader

__all__ = ["DEADLINE_SECONDS", "PATIENCE_SECONDS", "PodProbe", "ProbeOutcome", "make_form", "needs_change"]

PATIENCE_SECONDS = 90.0
"""How long the pod may take to start and to connect."""
DEADLINE_SECONDS = 180
"""When the cluster ends the pod by itself, should the manager be gone."""
_CLEANING_SECONDS = 10.0
_POLL_SECONDS = 0.5
_BLOCKED = (
    "ImagePullBackOff",  # it has failed twice by then
    "ErrImageNeverPull",
    "InvalidImageName",
    "CreateContainerConfigError",
    "CreateContainerError",
    "RunContainerError",
)
"""The kubelet's words about a container that cannot run as specified."""

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ProbeOutcome:
    """The result. `problem` is "" if the pod has connected; if it `is_waiting`, it may still start later."""

    node: str
    seconds: float
    problem: str = ""
    is_waiting: bool = False


class _ProbePresence(KeeperPresence):
    """Waits for one keeper."""

    def __init__(self) -> None:
        self.has_connected = asyncio.Event()

    def place(self, keeper_id: str) -> str:
        return "the probe"

    def connected(self, keeper_id: str, registration: Registration, now: float) -> None:
        self.has_connected.set()

    def heard(self, keeper_id: str, header: ReportHeader, now: float) -> None:
        self.has_connected.set()

    def silent(self, keeper_id: str, clause: str) -> None:
        """Nothing depends on it."""

    def absence(self, keeper_id: str) -> str:
        return "" if self.has_connected.is_set() else "it has not connected yet"


class PodProbe:
    """One probe.

    :param relay_python: the image's Python, if the manager has to connect to the pod; else None.
    :param socket: the path of the manager's socket.
    """

    def __init__(
        self, cluster: Cluster, namespace: str, hub: KeeperHub, *, relay_python: str | None, socket: str
    ) -> None:
        self._cluster = cluster
        self._namespace = namespace
        self._hub = hub
        self._relay_python = relay_python
        self._socket = socket
        self._problem = ""

    async def run(self, objects: ExperimentObjects, endpoint: str, form: TrialJobForm) -> ProbeOutcome:
        """Start the pod, wait for it, and delete it. Raises ServiceUnavailable, SubmissionRefused."""
        presence = _ProbePresence()
        secret = self._hub.add_job_keeper(form.job_id, form.token, presence)
        try:
            anchor = await objects.prepare(endpoint)
            job = await objects.create_job(form, keeper_id=job_keeper_id(form.job_id), secret=secret, anchor=anchor)
            name = job["metadata"]["name"]
            view = NamespaceView(self._cluster, self._namespace, f"{JOB_LABEL}={name}")
            view.note_created(job)
            async with TaskGroup() as group:
                group.start(view.run(), "watches of the probe")
                seconds = await self._wait(view, name, presence.has_connected, group)
                group.cancel()
            if presence.has_connected.is_set():
                return ProbeOutcome(_look(view, name).node, seconds)
            return await self._explain(view, name, seconds)
        finally:
            self._hub.remove_job_keeper(form.job_id)
            await self._clean(objects)

    async def _wait(self, view: NamespaceView, name: str, has_connected: asyncio.Event, group: TaskGroup) -> float:
        """Wait until it has connected or ended, can never run, or has taken too long. Returns the seconds."""
        loop, is_reached = asyncio.get_running_loop(), False
        started = loop.time()
        while loop.time() - started < PATIENCE_SECONDS and not has_connected.is_set():
            seen, pod = _look(view, name), view.first_pod(name)
            if seen.status is PlatformStatus.ENDED or (pod is not None and _is_blocked(pod.waiting)):
                break
            if seen.status is PlatformStatus.RUNNING and pod and self._relay_python and not is_reached:
                is_reached = True
                group.start(self._relay(pod), "relay of the probe")
            await asyncio.sleep(_POLL_SECONDS)
        return loop.time() - started

    async def _clean(self, objects: ExperimentObjects) -> None:
        """Delete what was created, within a short time limit because the check may have been canceled."""
        try:
            async with asyncio.timeout(_CLEANING_SECONDS):
                await objects.delete()
        except (ServiceUnavailable, TimeoutError) as error:
            log.warning(
                "what doctor has created in namespace %s could not be deleted (%s); the next check there deletes it",
                self._namespace,
                error or "the API server is slow to answer",
                extra={"action": "platform.clean"},
            )

    async def _relay(self, pod: ClusterPod) -> None:
        """Open the stream once; a failure is the result of the check."""
        try:
            await PodRelay(self._cluster, self._namespace, pod.name, self._relay_python or "", self._socket).run()
        except ServiceUnavailable as error:
            self._problem = str(error)

    async def _explain(self, view: NamespaceView, name: str, seconds: float) -> ProbeOutcome:
        """Find out why it has not connected."""
        seen, pod = _look(view, name), view.first_pod(name)
        if seen.status is PlatformStatus.PENDING:
            is_waiting = not needs_change(seen.detail)
            verb = "it still waits" if is_waiting else "it cannot run"
            detail = seen.detail or "the cluster does not say why"
            return ProbeOutcome(seen.node, seconds, f"{verb}: {detail}", is_waiting=is_waiting)
        text = b""
        if pod is not None:
            text = await self._cluster.read_log(self._namespace, pod.name, TRIAL_CONTAINER, tail_lines=3)
        said = self._problem or text.decode(errors="replace").strip() or seen.detail
        return ProbeOutcome(seen.node, seconds, f"it ran on {seen.node} and has not connected: {said}")


def needs_change(detail: str) -> bool:
    """Whether a pod waits for a change of the configuration or the cluster, and not for something that becomes free,
    such as GPUs or quota."""
    if detail.startswith("FailedCreate") and "exceeded quota" not in detail:
        return True
    return _is_blocked(detail) or "not found" in detail


def _is_blocked(detail: str) -> bool:
    return any(reason in detail for reason in _BLOCKED)


def _look(view: NamespaceView, name: str) -> PlatformJob:
    seen = view.job(name)
    if seen is None:
        raise ServiceUnavailable(f"Job {name} was deleted during the check")
    return seen


def make_form(experiment_id: str, gpu_number: int | None) -> TrialJobForm:
    """The form of a job that is never launched."""
    job_id = f"{experiment_id}.1"
    return TrialJobForm(
        job_id=job_id,
        token=secrets.token_hex(8),
        experiment_id=experiment_id,
        trial_id=experiment_id,
        sequence_id=0,
        number=1,
        parameter_id=0,
        parameter_file="{}",
        command="true",
        code_directory="",
        directory="",
        gpu_number=gpu_number,
    )

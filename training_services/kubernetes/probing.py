"""A pod as a trial's would be, which does nothing but connect to the manager: what `proctor doctor` sends."""

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
from proctor.training_services.kubernetes.objects import ExperimentObjects
from proctor.training_services.kubernetes.pod_template import TRIAL_CONTAINER
from proctor.training_services.kubernetes.pods import ClusterPod, describe, read_job, read_pod
from proctor.training_services.kubernetes.relay import PodRelay
from proctor.trial_keeper.linux.tasks import TaskGroup
from proctor.trial_keeper.protocol import Registration, ReportHeader

__all__ = ["DEADLINE_SECONDS", "PATIENCE_SECONDS", "PodProbe", "ProbeOutcome"]

PATIENCE_SECONDS = 90.0
"""How long the pod may take to run and to connect."""
DEADLINE_SECONDS = 180
"""When the cluster ends the pod, should its manager not be there to do it."""
_CLEANING_SECONDS = 10.0
_POLL_SECONDS = 0.5

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ProbeOutcome:
    """What became of the pod. `problem` is "" when it has connected; a pod that still waits may run later."""

    node: str
    seconds: float
    problem: str = ""
    is_waiting: bool = False


class _ProbePresence(KeeperPresence):
    """Of the one keeper that is waited for."""

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

    :param relay_python: the image's Python, where the manager has to come to the pod; else None.
    :param socket: the manager's.
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
        """Send the pod, and remove it again. Raises ServiceUnavailable, SubmissionRefused."""
        presence, loop = _ProbePresence(), asyncio.get_running_loop()
        secret = self._hub.add_job_keeper(form.job_id, form.token, presence)
        started, seen = loop.time(), None
        try:
            anchor = await objects.prepare(endpoint)
            job = await objects.create_job(form, keeper_id=job_keeper_id(form.job_id), secret=secret, anchor=anchor)
            async with TaskGroup() as group:
                is_reached = False
                while loop.time() - started < PATIENCE_SECONDS and not presence.has_connected.is_set():
                    seen, pod = await self._look(job["metadata"]["name"])
                    if seen.status is PlatformStatus.ENDED:
                        break
                    if seen.status is PlatformStatus.RUNNING and pod and self._relay_python and not is_reached:
                        is_reached = True
                        group.start(self._relay(pod), "relay of the probe")
                    await asyncio.sleep(_POLL_SECONDS)
                group.cancel()
            node, seconds = seen.node if seen is not None else "", loop.time() - started
            if presence.has_connected.is_set():
                return ProbeOutcome(node, seconds)
            return await self._explain(seen, job["metadata"]["name"], seconds)
        finally:
            self._hub.remove_job_keeper(form.job_id)
            await self._clean(objects)

    async def _clean(self, objects: ExperimentObjects) -> None:
        """Also when the check is canceled, and so not for long."""
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

    async def _look(self, name: str) -> tuple[PlatformJob, ClusterPod | None]:
        base = f"/apis/batch/v1/namespaces/{self._namespace}/jobs/{name}"
        job = read_job(await self._cluster.get(base))
        assert job is not None
        found = await self._cluster.get(
            f"/api/v1/namespaces/{self._namespace}/pods", {"labelSelector": f"{JOB_LABEL}={name}"}
        )
        pods = [read_pod(each) for each in found["items"]]
        return describe(job, pods, ""), pods[0] if pods else None

    async def _relay(self, pod: ClusterPod) -> None:
        """Once; a stream that cannot be opened is what is looked for."""
        try:
            await PodRelay(self._cluster, self._namespace, pod.name, self._relay_python or "", self._socket).run()
        except ServiceUnavailable as error:
            self._problem = str(error)

    async def _explain(self, seen: PlatformJob | None, name: str, seconds: float) -> ProbeOutcome:
        """Why it has not connected."""
        if seen is None or seen.status is PlatformStatus.PENDING:
            detail = seen.detail if seen is not None else ""
            return ProbeOutcome("", seconds, f"it still waits: {detail or 'its Job has no pod yet'}", is_waiting=True)
        _, pod = await self._look(name)
        text = (
            b""
            if pod is None
            else await self._cluster.read_log(self._namespace, pod.name, TRIAL_CONTAINER, tail_lines=3)
        )
        said = self._problem or text.decode(errors="replace").strip() or seen.detail
        return ProbeOutcome(seen.node, seconds, f"it ran on {seen.node} and has not connected: {said}")


def make_form(experiment_id: str, gpu_number: int | None) -> TrialJobForm:
    """A job that is never launched."""
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

"""A manager's end with one experiment on a cluster of the test-bed: the hub, its listener over TLS and its socket, the
provider and the service."""

import asyncio
import uuid
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Any

from fakes.keeper_listeners import listening, listening_over_tls
from fakes.kubernetes.cluster import Cluster

from proctor.manager.process.sockets import listen_for_keepers
from proctor.manager.settings import Home, ListenAddress
from proctor.training_services.base import EndReason, StatusChange, TrialJobForm, TrialJobStatus
from proctor.training_services.keepers.hub import KeeperHub
from proctor.training_services.kubernetes.provider import KubernetesProvider
from proctor.training_services.kubernetes.service import KubernetesTrainingService
from proctor.training_services.nodes.pool import NodePool
from proctor.training_services.providers import ProviderContext, Providers
from proctor.training_services.registry import ServiceContext
from proctor.training_services.testing import Behavior, Recorder, ServiceHarness

KEY = b"k" * 32
HOST = "127.0.0.1"


class KubernetesHarness(ServiceHarness):
    """:param is_direct: pods connect to the manager; else it connects to them through the API server."""

    metadata = ("pending_timeout_seconds", 600.0)

    def __init__(self, cluster: Cluster, directory: Path, *, is_direct: bool = True, **settings: Any) -> None:
        self.cluster = cluster
        self.directory = directory
        self.is_direct = is_direct
        self.settings = {"platform": "kubernetes", "image": "example/trial:1", "termination_grace_seconds": 4.0}
        self.settings |= {"kubeconfig": str(cluster.kubeconfig), **settings}
        self.experiment_id = f"_{uuid.uuid4().hex[:7]}"  # its own: processes in pods are found by it
        self.code_directory = directory / "code"
        self.code_directory.mkdir()
        self.home = Home(directory / "home")
        self.home.prepare()
        self._port = 0
        self._sockets = 0
        self._open = AsyncExitStack()

    @property
    def trials_directory(self) -> Path:
        return self.home.experiment_directory(self.experiment_id) / "trials"

    async def open(self) -> None:
        """Open a manager's end that knows nothing of what is on the cluster; keepers find it where the last one was."""
        self._open = AsyncExitStack()
        self.pool = NodePool()
        self.hub = KeeperHub(self.pool, key=KEY, heartbeat_seconds=0.5, reattach_patience_seconds=30.0)
        if self.is_direct:
            listener = listen_for_keepers(self.home, ListenAddress(HOST, self._port))
            self._port = listener.endpoint.port
            self.settings["manager_url"] = f"https://{HOST}:{self._port}"
            await self._open.enter_async_context(listening_over_tls(self.hub, listener))
        else:
            self._sockets += 1
            socket = self.directory / f"{self._sockets}.sock"
            self.home.socket_pointer.write_text(str(socket))
            await self._open.enter_async_context(listening(self.hub, socket))
        home = self.home
        around = ProviderContext(
            "manager", home.nodes_directory, home.socket_pointer, self.pool, self.hub, home.endpoint_pointer
        )
        providers = await self._open.enter_async_context(Providers(around).serve())
        self.provider = providers.get("kubernetes")
        assert isinstance(self.provider, KubernetesProvider)
        folder = self.trials_directory.parent
        context = ServiceContext(self.experiment_id, folder, self.pool, self.hub, self.settings, providers)
        self.service: KubernetesTrainingService = KubernetesTrainingService(context)

    async def close(self) -> None:
        """End it, as a manager that is killed: what runs on the cluster keeps running."""
        try:
            async with asyncio.timeout(60):
                await self._open.aclose()
        except TimeoutError:
            raise AssertionError("the manager's end has not closed within 60 s") from None

    def impossible_form(self) -> TrialJobForm:
        return self.form_of(" ")

    def job_name(self, form: TrialJobForm) -> str:
        """The name of its Job."""
        return self.provider.names.job(form.job_id)

    async def pod(self, form: TrialJobForm) -> str:
        """The name of its pod, once there is one that runs."""
        return str((await self.until(lambda: self._running_pods(form)))[0]["metadata"]["name"])

    def _running_pods(self, form: TrialJobForm) -> list[dict[str, Any]]:
        pods = self.cluster.pods_of(self.job_name(form))
        return [pod for pod in pods if pod["status"].get("phase") == "Running"]

    async def until(self, look: Any, *, seconds: float = 60.0) -> Any:
        """For what no event tells of."""
        async with asyncio.timeout(seconds):
            while not (found := await asyncio.to_thread(look)):  # noqa: ASYNC110 - the cluster is asked
                await asyncio.sleep(0.05)
        return found

    async def reattached(self) -> None:
        await self.hub.mark_reattached()

    async def block(self) -> KubernetesTrainingService:
        for node in self.cluster.nodes.values():
            await asyncio.to_thread(node.cordon)
        return self.service

    async def unblock(self) -> None:
        for node in self.cluster.nodes.values():
            await asyncio.to_thread(node.cordon, is_unschedulable=False)

    def find_leftovers(self) -> list[str]:
        """Processes, and what the cluster has of ours."""
        found = self.find_processes()
        for plural in ("jobs", "pods", "secrets", "configmaps"):
            found += [f"{plural}/{each['metadata']['name']}" for each in self.cluster.list(plural)]
        return [name for name in found if "/proctor-" in name]

    def find_processes(self) -> list[str]:
        """Every process that carries the tag of a job in its environment."""
        found = []
        for entry in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                environment = (entry / "environ").read_bytes()
                if f"PROCTOR_EXPERIMENT_ID={self.experiment_id}".encode() in environment:
                    found.append(f"/proctor-process {entry.name}")
        return found


class Scene:
    """A service that runs, and what it reports."""

    def __init__(self, harness: KubernetesHarness) -> None:
        self.harness = harness
        self.recorder = Recorder()
        self.recorder.listen(harness.service)

    async def submit(self, form: TrialJobForm) -> TrialJobForm:
        """Submit a job."""
        await self.harness.service.submit_trial_job(form)
        return form

    async def run(self, behavior: Behavior = Behavior.HANG, name: str = "first") -> TrialJobForm:
        """A job that runs and has reported."""
        form = await self.submit(self.harness.form(behavior, name))
        await self.recorder.start_of(form.job_id)
        await self.recorder.until(lambda: bool(self.recorder.journals.get(form.job_id)))
        return form

    async def waits(self, form: TrialJobForm, *words: str) -> None:
        """Wait until a job says that it waits, with these words."""

        def said() -> bool:
            return any(
                change.status is TrialJobStatus.SUBMITTED and all(word in change.detail for word in words)
                for change in self.recorder.of(form.job_id)
            )

        try:
            await self.recorder.until(said)
        except TimeoutError:
            details = [change.detail for change in self.recorder.of(form.job_id)]
            raise AssertionError(f"{words} not in {details}; {self.harness.cluster.describe()}") from None

    async def ends(self, form: TrialJobForm) -> tuple[EndReason, str]:
        """How a job ends."""
        end: StatusChange = await self.recorder.end_of(form.job_id)
        assert end.exit is not None
        return end.exit.reason, end.detail

"""A manager's end with one experiment on an API server in memory: the hub, the provider and the service."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from fakes.kubernetes.played_api import PlayedApi

from proctor.training_services.base import TrialJobForm
from proctor.training_services.keepers.archive import KeeperArchive
from proctor.training_services.keepers.hub import KeeperHub
from proctor.training_services.kubernetes.manifests import Names
from proctor.training_services.kubernetes.provider import KubernetesProvider
from proctor.training_services.kubernetes.service import KubernetesTrainingService
from proctor.training_services.nodes.pool import NodePool
from proctor.training_services.providers import ProviderContext, Providers
from proctor.training_services.registry import ServiceContext
from proctor.training_services.testing import Recorder, serving

PATIENCE_SECONDS = 60.0


class PlayedExperiment:
    """:param settings: keys of the section, in snake_case."""

    def __init__(self, api: PlayedApi, folder: Path, **settings: Any) -> None:
        self.api = api
        self.folder = folder
        self.settings = {"platform": "kubernetes", "image": "digits:3", **settings}
        self.settings["kubeconfig"] = str(folder / "kubeconfig")
        self.names = Names("manager")
        self.recorder = Recorder()

    @asynccontextmanager
    async def opened(self) -> AsyncIterator["PlayedExperiment"]:
        """Make the service; the manager reaches pods through the API server, which has none that answer."""
        pool = NodePool()
        hub = KeeperHub(pool, key=b"k" * 32)
        socket = self.folder / "socket"
        socket.write_text(str(self.folder / "manager.sock"))
        around = ProviderContext("manager", self.folder / "nodes", socket, pool, hub)
        archive = KeeperArchive(self.folder / "keeper.pyz", "0" * 64, "keeper.pyz")
        archive.path.write_bytes(b"keeper")
        async with Providers(around).serve() as providers:
            provider = providers.get("kubernetes")
            assert isinstance(provider, KubernetesProvider)
            provider._archives._built = archive  # the real one takes a second to build
            context = ServiceContext("E", self.folder / "E", pool, hub, self.settings, providers)
            self.service = KubernetesTrainingService(context)
            self.recorder.listen(self.service)
            yield self

    @asynccontextmanager
    async def serving(self) -> AsyncIterator["PlayedExperiment"]:
        """Make the service, and serve the experiment."""
        async with self.opened(), serving(self.service):
            yield self

    @property
    def keeper_file(self) -> str:
        """The name of the ConfigMap with the keeper's file."""
        (found,) = (each for each in self.api.all("configmaps") if "binaryData" in each)
        return str(found["metadata"]["name"])

    async def submit(self, trial: str, **options: Any) -> TrialJobForm:
        """Submit a job, which is not launched: no keeper runs."""
        code = self.folder / "code"
        code.mkdir(exist_ok=True)
        form = TrialJobForm(
            job_id=f"{trial}.1",
            token="token",
            experiment_id="E",
            trial_id=trial,
            sequence_id=0,
            number=1,
            parameter_id=0,
            parameter_file="{}",
            command="true",
            code_directory=str(code),
            directory=str(self.folder / "E" / "trials" / trial),
            **options,
        )
        await self.service.submit_trial_job(form)
        return form

    async def until(self, is_so: Callable[[], bool]) -> None:
        """Wait for a state of the cluster."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not is_so():  # noqa: ASYNC110 - no event tells of it
                await asyncio.sleep(0.01)

    async def until_running(self, number: int) -> None:
        """Wait until so many pods run."""
        pods = self.api.all
        await self.until(lambda: sum(pod["status"].get("phase") == "Running" for pod in pods("pods")) == number)

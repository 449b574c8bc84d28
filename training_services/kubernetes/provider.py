"""What a manager's experiments on Kubernetes share: connections to clusters, a watched view of each namespace, and the
keeper's file."""

import asyncio
from collections.abc import Collection, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from importlib.metadata import version
from secrets import token_hex
from typing import Any
from uuid import uuid4

from proctor.training_services.errors import ServiceUnavailable
from proctor.training_services.keepers.archive import ArchiveBuilder, KeeperArchive
from proctor.training_services.keepers.sessions import job_keeper_id
from proctor.training_services.kubernetes.checks import (
    PROBE_PREFIX,
    RIGHTS,
    RIGHTS_FOR_EXEC,
    ClusterChecks,
    clean_namespace,
    remove_left_probes,
)
from proctor.training_services.kubernetes.client import Cluster, KubernetesObject, open_cluster
from proctor.training_services.kubernetes.manifests import SOCKET, ExperimentManifests, Names, manager_selector
from proctor.training_services.kubernetes.namespaces import NamespaceView
from proctor.training_services.kubernetes.objects import ExperimentObjects
from proctor.training_services.kubernetes.probing import DEADLINE_SECONDS, PodProbe, make_form
from proctor.training_services.kubernetes.settings import KubernetesSettings
from proctor.training_services.providers import CheckStep, CheckVerdict, Provider, ProviderContext
from proctor.trial_keeper.uplink.pointer import read_pointer

PREVIEW_SECONDS = 15.0
"""How long `create` waits for the cluster."""


class KubernetesProvider(Provider):
    """The clusters of a manager, each opened when an experiment first needs it."""

    def __init__(self, context: ProviderContext) -> None:
        self._context = context
        self.names = Names(context.manager_id)
        self._archives = ArchiveBuilder(context.nodes_directory / ".pod-keeper", is_compiled=True)
        self._clusters: dict[tuple[str | None, str | None], Cluster] = {}
        self._watched: dict[tuple[str | None, str | None, str], _Watched] = {}
        self._opening: dict[tuple[str | None, str | None], asyncio.Lock] = {}
        self._users: set[str] = set()  # experiments
        self._group: asyncio.TaskGroup | None = None

    async def run(self) -> None:
        try:
            async with asyncio.TaskGroup() as group:
                self._group = group
                for watched in self._watched.values():
                    self._watch(watched)
                await asyncio.Event().wait()
        finally:
            self._group = None
            async with AsyncExitStack() as closing:
                for cluster in self._clusters.values():
                    closing.push_async_callback(cluster.close)

    async def view(self, settings: KubernetesSettings, experiment_id: str) -> NamespaceView:
        """The view of an experiment's namespace, which is watched until all experiments there have been forgotten.
        Raises ServiceUnavailable if the kubeconfig file cannot be used."""
        where = (settings.kubeconfig, settings.context)
        cluster = self._clusters.get(where) or await self._open(where)
        namespace = settings.namespace or cluster.namespace
        if (*where, namespace) not in self._watched:
            watched = _Watched(NamespaceView(cluster, namespace, manager_selector(self.names)))
            self._watched[*where, namespace] = watched
            self._watch(watched)
        watched = self._watched[*where, namespace]
        watched.experiments.add(experiment_id)
        return watched.view

    async def _open(self, where: tuple[str | None, str | None]) -> Cluster:
        """Open a cluster, once for all that wait for it. A login that hangs delays no other cluster."""
        async with self._opening.setdefault(where, asyncio.Lock()):
            if where not in self._clusters:
                self._clusters[where] = await open_cluster(*where)
            return self._clusters[where]

    async def archive(self) -> KeeperArchive:
        """The keeper's single file. Raises ArchiveNotBuilt."""
        return await self._archives.get()

    def is_direct(self, settings: KubernetesSettings, cluster: Cluster) -> bool:
        """Whether pods connect to the manager (it has a URL, or runs in the cluster), and not the manager to them."""
        return settings.manager_url is not None or self._context.has_keeper_url or not cluster.context

    def endpoint(self, settings: KubernetesSettings, cluster: Cluster) -> str:
        """The content of the pointer file by which keepers in pods find this manager. Raises ServiceUnavailable."""
        pointer = self._context.endpoint_pointer
        if not self.is_direct(settings, cluster):
            return f"{SOCKET}\n"
        try:
            ours = read_pointer(str(pointer or ""))
        except FileNotFoundError:
            raise ServiceUnavailable(
                "pods are to connect to this manager, and it does not listen for keepers; start it with "
                "--keeper-listen HOST:PORT"
            ) from None
        except (OSError, ValueError) as error:
            raise ServiceUnavailable(f"{pointer} cannot be read: {error}; restart the manager") from error
        url = settings.manager_url or str(ours)
        return f"{url}\nsha256:{ours.fingerprint}\n"

    def socket(self) -> str:
        """The path of the manager's socket. Raises OSError."""
        return self._context.socket_pointer.read_text(encoding="utf-8").strip()

    # ---- which experiments use it

    def is_held(self, experiment_id: str) -> bool:
        """Whether an experiment runs there or has not been cleaned up after."""
        return experiment_id in self._users

    def hold(self, experiment_id: str) -> None:
        self._users.add(experiment_id)

    async def forget(self, experiment_id: str, *, keep: Collection[str] = ()) -> None:
        self._users.discard(experiment_id)
        for where, watched in tuple(self._watched.items()):
            watched.experiments.discard(experiment_id)
            if not watched.experiments:
                del self._watched[where]
                if watched.task is not None:
                    watched.task.cancel()

    # ---- before the first trial, doctor and clean

    async def preview(
        self, settings: Mapping[str, Any], secrets: Mapping[str, str], *, trial_gpu_number: int | None = None
    ) -> Sequence[CheckStep]:
        chosen = KubernetesSettings.read(settings)
        checks = ClusterChecks(chosen.namespace or "cluster")
        problem = ""
        try:
            async with asyncio.timeout(PREVIEW_SECONDS):
                cluster = await open_cluster(chosen.kubeconfig, chosen.context)
                try:
                    namespace = chosen.namespace or cluster.namespace
                    checks.place = f"{cluster.context or 'this cluster'}/{namespace}"
                    await checks.check_objects(cluster, namespace, self._example(chosen, trial_gpu_number))
                finally:
                    await cluster.close()
        except ServiceUnavailable as error:
            problem = str(error)
        except TimeoutError:
            problem = f"the cluster has not answered within {PREVIEW_SECONDS:g} s"
        if problem:
            found = f"the objects of trials were not checked: {problem}"
            checks.add("objects", found, "trials wait for the cluster", CheckVerdict.NOTE)
        return checks.steps

    async def render(
        self, settings: Mapping[str, Any], *, trial_gpu_number: int | None = None
    ) -> Sequence[Mapping[str, Any]]:
        chosen, form = KubernetesSettings.read(settings), make_form("example", trial_gpu_number)
        manifests = ExperimentManifests(self.names, form.experiment_id, chosen, version("proctor"))
        sha256 = (await self.archive()).sha256
        anchor = _named(manifests.anchor(f"{chosen.manager_url or SOCKET}\n"), chosen)
        keeper_id = job_keeper_id(form.job_id)
        job = _named(manifests.job(form, keeper_id=keeper_id, keeper_sha256=sha256, owner=anchor), chosen)
        keeper, secret = manifests.keeper(sha256, b"(0.8 MB)", anchor), manifests.secret(form, "(a secret)", job)
        return [anchor, _named(keeper, chosen), job, _named(secret, chosen)]

    def _example(self, chosen: KubernetesSettings, trial_gpu_number: int | None) -> KubernetesObject:
        """The Job of a trial, of an experiment that there is not."""
        form = make_form(f"{PROBE_PREFIX}{token_hex(4)}", trial_gpu_number)
        manifests = ExperimentManifests(self.names, form.experiment_id, chosen, version("proctor"), DEADLINE_SECONDS)
        anchor = manifests.anchor("")
        anchor["metadata"]["uid"] = str(uuid4())
        return manifests.job(form, keeper_id=job_keeper_id(form.job_id), keeper_sha256="0" * 64, owner=anchor)

    async def inspect(
        self, settings: Mapping[str, Any], secrets: Mapping[str, str], *, trial_gpu_number: int | None = None
    ) -> Sequence[CheckStep]:
        chosen = KubernetesSettings.read(settings)
        checks = ClusterChecks(chosen.namespace or "cluster")
        with checks.step("cluster", "check kubeconfig and context"):
            cluster = await open_cluster(chosen.kubeconfig, chosen.context)
            try:
                await self._inspect(cluster, chosen, checks, trial_gpu_number)
            finally:
                await cluster.close()
        return checks.steps

    async def _inspect(
        self, cluster: Cluster, chosen: KubernetesSettings, checks: ClusterChecks, trial_gpu_number: int | None
    ) -> None:
        namespace = chosen.namespace or cluster.namespace
        checks.place = f"{cluster.context or 'this cluster'}/{namespace}"
        server = await cluster.get("/version")
        checks.add("cluster", f"Kubernetes {server.get('gitVersion', '')} at {cluster.url}")
        is_direct = self.is_direct(chosen, cluster)
        rights = RIGHTS if is_direct else (*RIGHTS, *RIGHTS_FOR_EXEC)
        await checks.check_rights(cluster, namespace, rights)
        with checks.step("manager"):
            url = self.endpoint(chosen, cluster).split()[0]
            how = f"pods connect to it at {url}" if is_direct else "it reaches the pods through the API server"
            checks.add("manager", how)
        with checks.step("objects"):
            await checks.check_objects(cluster, namespace, self._example(chosen, trial_gpu_number))
        if not any(step.verdict is CheckVerdict.FAIL for step in checks.steps):
            with checks.step("pod"):
                await self._probe(cluster, namespace, chosen, checks, trial_gpu_number)

    async def _probe(
        self,
        cluster: Cluster,
        namespace: str,
        chosen: KubernetesSettings,
        checks: ClusterChecks,
        trial_gpu_number: int | None,
    ) -> None:
        """Start a pod like a trial's, which connects to the manager."""
        form = make_form(f"{PROBE_PREFIX}{token_hex(4)}", trial_gpu_number)
        manifests = ExperimentManifests(self.names, form.experiment_id, chosen, version("proctor"), DEADLINE_SECONDS)
        objects = ExperimentObjects(cluster, namespace, manifests, await self.archive())
        python, socket = (None, "") if self.is_direct(chosen, cluster) else (chosen.python, self.socket())
        probe = PodProbe(cluster, namespace, self._context.hub, relay_python=python, socket=socket)
        self.hold(form.experiment_id)
        try:
            await remove_left_probes(cluster, namespace, self.names, is_in_use=self.is_held)
            outcome = await probe.run(objects, self.endpoint(chosen, cluster), form)
        finally:
            await self.forget(form.experiment_id)
        if not outcome.problem:
            checks.add("pod", f"a pod on node {outcome.node} has connected after {outcome.seconds:.1f} s")
        elif outcome.is_waiting:
            checks.add("pod", outcome.problem, "trials will wait for the same", CheckVerdict.NOTE)
        else:
            advice = "check image, python, mounts, managerUrl, and the cluster's network policies"
            checks.add("pod", outcome.problem, advice, CheckVerdict.FAIL)

    async def clean(self, settings: Mapping[str, Any], secrets: Mapping[str, str]) -> Sequence[CheckStep]:
        chosen = KubernetesSettings.read(settings)
        checks = ClusterChecks(chosen.namespace or "cluster")
        with checks.step("clean", "check kubeconfig and context"):
            cluster = await open_cluster(chosen.kubeconfig, chosen.context)
            try:
                namespace = chosen.namespace or cluster.namespace
                checks.place = f"{cluster.context or 'this cluster'}/{namespace}"
                removed, left = await clean_namespace(cluster, namespace, self.names, in_use=self._users)
            finally:
                await cluster.close()
            for experiment_id in left:
                found, advice = f"experiment {experiment_id} uses it", f"run `proctor stop {experiment_id}` first"
                if experiment_id.startswith(PROBE_PREFIX):
                    found, advice = "`proctor doctor` is using it", "wait until it has ended"
                checks.add("clean", found, advice, CheckVerdict.FAIL)
            if removed:
                checks.add("clean", f"removed what experiments {', '.join(removed)} had there")
            elif not left:
                checks.add("clean", "nothing was left there")
        return checks.steps

    def _watch(self, watched: "_Watched") -> None:
        if self._group is not None:
            name = f"watches of {watched.view.place_name}"
            watched.task = self._group.create_task(watched.view.run(), name=name)


def _named(body: KubernetesObject, chosen: KubernetesSettings) -> KubernetesObject:
    """An object with what the cluster adds to it and others refer to."""
    where = {} if chosen.namespace is None else {"namespace": chosen.namespace}
    return {**body, "metadata": {**body["metadata"], **where, "uid": f"(that of this {body['kind']})"}}


@dataclass
class _Watched:
    """A watched namespace, and the experiments that use it."""

    view: NamespaceView
    experiments: set[str] = field(default_factory=set)
    task: asyncio.Task[None] | None = None

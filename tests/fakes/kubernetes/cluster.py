"""The cluster of one test: a namespace of the shared control plane, and nodes that no other test's pods are put on."""

import asyncio
import json
import secrets
import shutil
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from fakes.gate import Gate
from fakes.kubernetes.api import Api, ApiError, Object
from fakes.kubernetes.container import Container
from fakes.kubernetes.control_plane import Access, is_healthy
from fakes.kubernetes.kubelet_server import TLS_END_SECONDS
from fakes.kubernetes.node_agent import GPU, Images, NodeAgent
from fakes.kubernetes.pod_runner import PodRunner

from proctor.manager.process.certificate import open_certificate
from proctor.manager.settings import Home

PATIENCE_SECONDS = 60.0
OWNER_LABEL = "proctor-test/cluster"
"""Which nodes belong to a test."""
_failed: list[Access] = []
_GROUPS = {
    "jobs": "apis/batch/v1",
    "roles": "apis/rbac.authorization.k8s.io/v1",
    "rolebindings": "apis/rbac.authorization.k8s.io/v1",
    "poddisruptionbudgets": "apis/policy/v1beta1",
}


class Node:
    """One node of a cluster, and what can happen to it."""

    def __init__(self, cluster: "Cluster", agent: NodeAgent) -> None:
        self._cluster = cluster
        self.agent = agent
        self.name = agent.name

    def cut_off(self) -> None:
        """Nothing reaches it, and it reaches nothing; its processes continue."""
        self._cluster.call(self.agent.cut_off())

    def power_off(self) -> None:
        """It is gone, with its processes."""
        self.cut_off()
        self._cluster.soon(self.agent.power_off)

    def cordon(self, *, is_unschedulable: bool = True) -> None:
        """No new pod is put on it."""
        self._cluster.patch(f"/api/v1/nodes/{self.name}", {"spec": {"unschedulable": is_unschedulable}})

    def drain(self) -> None:
        """Ask all of its pods to leave, and let no other come."""
        self.cordon()
        for runner in list(self.agent.runners.values()):
            with suppress(ApiError):
                self._cluster.evict(runner.name)

    def run_out(self, pod: str, message: str = "The node was low on resource: memory. ") -> None:
        """The node ends a pod because it has run out of something."""
        runner = self.runner(pod)
        self._cluster.soon(lambda: runner.evict(message))

    def oom_kill(self, pod: str, container: str = "") -> None:
        """End a container as the kernel does when its memory is used up."""
        runner = self.runner(pod)
        self._cluster.soon(lambda: runner.oom_kill(container or next(iter(runner.containers))))

    def container(self, pod: str, name: str = "") -> Container:
        """A container that has been started, the first one if it is not named."""
        containers = self.runner(pod).containers
        return containers[name or next(iter(containers))]

    def runner(self, pod: str) -> PodRunner:
        """What runs a pod here."""
        runner = self.agent.find(self._cluster.namespace, pod)
        assert runner is not None, f"{self.name} does not have pod {pod}"
        return runner


class Cluster:
    """What a test uses. Its methods block for some milliseconds and can be called from coroutines, too."""

    def __init__(self, access: Access, folder: Path) -> None:
        self.access = access
        self.folder = folder
        self.namespace = f"test-{secrets.token_hex(4)}"
        self.nodes: dict[str, Node] = {}
        """By the name that the test has given them."""
        self.gate = Gate(access.port, "127.0.0.1")
        """Through it the kubeconfig file leads; the nodes have another way."""
        self._images = Images()
        self._loop: asyncio.AbstractEventLoop
        self._group: asyncio.TaskGroup
        self._closing: asyncio.Event
        self._is_ready = threading.Event()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name=self.namespace, daemon=True)

    @property
    def kubeconfig(self) -> Path:
        """A file with the contexts `admin` (current) and `person`, in the namespace."""
        return self.folder / "kubeconfig"

    def start(self) -> None:
        """Make the namespace, and wait until pods can be made in it."""
        self._thread.start()
        assert self._is_ready.wait(PATIENCE_SECONDS), "the loop of the nodes has not started"
        self.check()
        selector = {"scheduler.alpha.kubernetes.io/node-selector": f"{OWNER_LABEL}={self.namespace}"}
        self.create("/api/v1/namespaces", {"metadata": {"name": self.namespace, "annotations": selector}})
        self.gate.open()
        config = self.access.kubeconfig(namespace=self.namespace, port=self.gate.port)
        self.kubeconfig.write_text(json.dumps(config))
        self.kubeconfig.chmod(0o600)
        self.until(self._has_account)

    def close(self) -> None:
        """End every process and delete everything. Raises what has failed in between."""
        self.gate.close()
        if self._is_ready.is_set() and self._failure is None:
            try:
                with suppress(ApiError, RuntimeError):  # where a node has failed, nothing can be asked any more
                    self.call(self._remove_objects())
            finally:
                with suppress(RuntimeError):
                    self._loop.call_soon_threadsafe(self._closing.set)
        self._thread.join(PATIENCE_SECONDS)
        self.check()
        assert not self._thread.is_alive(), f"the nodes of {self.namespace} have not ended"

    async def _remove_objects(self) -> None:
        await self._api.delete(f"/api/v1/namespaces/{self.namespace}")
        await self._api.delete(self.path("pods"), {"gracePeriodSeconds": 0})
        for node in self.nodes.values():
            await self._api.delete(f"/api/v1/nodes/{node.name}")
        await self._api.delete("/api/v1/persistentvolumes", labelSelector=f"{OWNER_LABEL}={self.namespace}")

    def check(self) -> None:
        """Raise what has failed in a node, if anything has."""
        if self._failure is not None:
            raise self._failure

    def add_node(self, name: str, *, gpus: int = 0) -> Node:
        """A node that is ready.

        :param name: unique in this test; in the cluster, the namespace is added to it.
        """
        capacity = {"cpu": "64", "memory": "64Gi", "ephemeral-storage": "100Gi"}
        agent = NodeAgent(
            f"{name}-{self.namespace}",
            api=self._api,
            folder=self.folder / name,
            images=self._images,
            labels={OWNER_LABEL: self.namespace},
            capacity={**capacity, **({GPU: str(gpus)} if gpus else {})},
            tls=self._tls,
        )
        port = str(self.access.port)
        agent.service_environment = {"KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": port}
        self.call(agent.register())
        self.soon(lambda: self._group.create_task(agent.run(), name=agent.name))
        node = self.nodes[name] = Node(self, agent)
        return node

    def node_of(self, pod: str) -> Node:
        """The node that a pod was bound to."""
        bound = self.get(self.path("pods", pod))["spec"]["nodeName"]
        return next(node for node in self.nodes.values() if node.name == bound)

    # What is in the namespace

    def path(self, plural: str, name: str = "") -> str:
        """Where the objects of a kind are, or one of them."""
        folder = f"/{_GROUPS.get(plural, 'api/v1')}/namespaces/{self.namespace}/{plural}"
        return f"{folder}/{name}" if name else folder

    def list(self, plural: str, **parameters: str) -> "list[Object]":
        """The objects of a kind, such as `jobs`, `pods`, `events`, `configmaps`."""
        found: list[Object] = self.get(self.path(plural), **parameters)["items"]
        return found

    def pods_of(self, job: str) -> "list[Object]":
        """The pods of a Job."""
        return self.list("pods", labelSelector=f"job-name={job}")

    def log(self, pod: str, **parameters: str) -> str:
        """What a pod has written, by way of the API server."""
        return self.call(self._api.read(f"{self.path('pods', pod)}/log", **parameters))

    def get(self, path: str, **parameters: str) -> Object:
        """An object, or a list of them. Raises ApiError, as the following do."""
        return self.call(self._api.get(path, **parameters))

    def create(self, path: str, body: Object) -> Object:
        """Add an object to the list at `path`."""
        return self.call(self._api.create(path, body))

    def patch(self, path: str, body: Object) -> Object:
        """Change a part of an object."""
        return self.call(self._api.patch(path, body))

    def delete(self, path: str, body: Object | None = None, **parameters: str) -> Object:
        """Delete an object, or those of a list. `body` holds DeleteOptions."""
        return self.call(self._api.delete(path, body, **parameters))

    def kubectl(self, *words: str, user: str = "admin", text: str = "") -> str:
        """Run kubectl as a user, with `text` as its input, and return what it writes; it must succeed."""
        command = ["kubectl", f"--kubeconfig={self.kubeconfig}", f"--context={user}", *words]
        ran = subprocess.run(command, input=text, capture_output=True, text=True, check=False, timeout=PATIENCE_SECONDS)
        assert ran.returncode == 0, ran.stderr
        return ran.stdout

    def until(self, condition: Callable[[], Any]) -> Any:
        """Look until something is true. Blocks: in a coroutine, use `eventually`."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not (found := condition()):
            self.check()
            assert time.monotonic() < deadline, self.describe()
            time.sleep(0.02)
        return found

    def describe(self) -> str:
        """Everything that may say why something does not happen."""
        try:
            return self.kubectl("get", "nodes,jobs,pods,events", "-o", "wide")
        except (AssertionError, subprocess.TimeoutExpired) as error:
            return f"the cluster does not say what it has: {error}"

    # What can happen

    def grant(self, user: str, rules: "list[Object]") -> None:
        """Give a user rights in the namespace, instead of those that it had. Blocks until they hold.

        :param rules: of a Role; the first verb, group and resource of the first rule is tried.
        """
        group = "rbac.authorization.k8s.io"
        role = {"metadata": {"name": user}, "rules": rules}
        subjects = [{"kind": "User", "name": user, "apiGroup": group}]
        binding = {
            "metadata": {"name": user},
            "roleRef": {"kind": "Role", "name": user, "apiGroup": group},
            "subjects": subjects,
        }
        with suppress(ApiError):
            self.delete(self.path("roles", user))
        self.create(self.path("roles"), role)
        with suppress(ApiError):
            self.create(self.path("rolebindings"), binding)
        if rules:
            self.until(lambda: self.is_allowed(user, rules[0]["verbs"][0], rules[0]["resources"][0]))

    def is_allowed(self, user: str, verb: str, resource: str) -> bool:
        """Whether a user may do something in the namespace. `resource` may name a sub-resource: `pods/log`."""
        plural, _, part = resource.partition("/")
        group = _GROUPS.get(plural, "").removeprefix("apis").strip("/").rpartition("/")[0]
        attributes = {
            "namespace": self.namespace,
            "verb": verb,
            "group": group,
            "resource": plural,
            "subresource": part,
        }
        spec = {"user": user, "resourceAttributes": attributes}
        answer = self.create("/apis/authorization.k8s.io/v1/subjectaccessreviews", {"spec": spec})
        return bool(answer["status"]["allowed"])

    def add_claim(self, name: str, *, size: str = "1Gi") -> Path:
        """A bound claim, and the folder that it stands for."""
        volume, folder = f"{name}-{self.namespace}", self.folder / "claims" / name
        folder.mkdir(parents=True)
        spec = {"capacity": {"storage": size}, "accessModes": ["ReadWriteMany"], "storageClassName": ""}
        claimed = {"namespace": self.namespace, "name": name}
        labels = {OWNER_LABEL: self.namespace}
        self.create(
            "/api/v1/persistentvolumes",
            {
                "metadata": {"name": volume, "labels": labels},
                "spec": {**spec, "hostPath": {"path": str(folder)}, "claimRef": claimed},
            },
        )
        wanted = {"accessModes": ["ReadWriteMany"], "storageClassName": "", "volumeName": volume}
        body = {"metadata": {"name": name}, "spec": {**wanted, "resources": {"requests": {"storage": size}}}}
        self.create(self.path("persistentvolumeclaims"), body)
        claim = self.path("persistentvolumeclaims", name)
        self.until(lambda: self.get(claim)["status"].get("phase") == "Bound")
        return folder

    def set_quota(self, **hard: str) -> None:
        """Limit what the namespace may use: `**{"requests.nvidia.com/gpu": "2"}`. Blocks until it holds."""
        self.create(self.path("resourcequotas"), {"metadata": {"name": "quota"}, "spec": {"hard": hard}})
        quota = self.path("resourcequotas", "quota")
        self.until(lambda: self.get(quota)["status"].get("hard") == hard)

    def lose_image(self, image: str, why: str = "not found") -> None:
        """No node can pull an image any more."""
        self._images.missing[image] = why

    def find_image(self, image: str) -> None:
        """An image that was lost can be pulled."""
        self._images.missing.pop(image, None)

    def evict(self, pod: str) -> None:
        """Ask a pod to leave, as `kubectl drain` does."""
        body = {"apiVersion": "policy/v1beta1", "kind": "Eviction", "metadata": {"name": pod}}
        self.create(f"{self.path('pods', pod)}/eviction", body)

    def add_second_pod(self, job: str) -> None:
        """Cut off the node of a Job's pod and delete that: the Job gets another one while the first keeps running."""
        (pod,) = (each["metadata"]["name"] for each in self.pods_of(job))
        node = self.node_of(pod)
        node.cut_off()
        node.cordon()
        self.delete(self.path("pods", pod))

    # How it runs

    def call(self, work: Coroutine[Any, Any, Any]) -> Any:
        """Run something in the loop of the nodes, and wait for it."""
        name = work.__qualname__
        try:
            future = asyncio.run_coroutine_threadsafe(work, self._loop)
            return future.result(PATIENCE_SECONDS)
        except TimeoutError:
            future.cancel()
            raise AssertionError(f"{name} has not ended after {PATIENCE_SECONDS:g} s") from None
        except RuntimeError:  # the loop is closed
            work.close()
            self.check()
            raise

    def soon(self, act: Callable[[], Any]) -> None:
        """Do something in the loop of the nodes, and wait for it."""

        async def do() -> None:
            act()

        self.call(do())

    def _has_account(self) -> bool:
        try:
            return bool(self.get(self.path("serviceaccounts", "default")).get("secrets"))
        except ApiError:
            return False

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except BaseException as error:
            self._failure = error
        finally:
            self._is_ready.set()

    async def _serve(self) -> None:
        self._loop, self._closing = asyncio.get_running_loop(), asyncio.Event()
        self._tls, _ = open_certificate(Home(self.folder), "127.0.0.1")
        async with Api(self.access) as self._api, asyncio.TaskGroup() as self._group:
            closing = self._group.create_task(self._closing.wait(), name="closing")
            self._is_ready.set()
            await closing
            for task in asyncio.all_tasks() - {asyncio.current_task()}:
                if task.get_name() in {node.name for node in self.nodes.values()}:
                    task.cancel()
        await asyncio.sleep(2 * TLS_END_SECONDS)


@contextmanager
def open_cluster(access: Access) -> Iterator[Cluster]:
    """A cluster without nodes; nothing of it is left afterwards. Where its control plane has failed, all tests fail at
    once."""
    if access in _failed or not is_healthy(access):
        _failed.append(access)
        raise AssertionError("the control plane of the tests does not answer any more")
    folder = Path(tempfile.mkdtemp(prefix="proctor-cluster-"))
    cluster = Cluster(access, folder)
    try:
        cluster.start()
        yield cluster
    finally:
        try:
            cluster.close()
        finally:
            shutil.rmtree(folder, ignore_errors=True)

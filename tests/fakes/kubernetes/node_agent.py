"""A node of a cluster and what a kubelet does there: it registers, renews its lease, and runs the pods bound to it."""

import asyncio
import os
import shutil
import ssl
import sys
import uuid
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from fakes.kubernetes.api import STRATEGIC, Api, ApiError, Object
from fakes.kubernetes.kubelet_server import KubeletServer
from fakes.kubernetes.pod_runner import PodRunner

HEARTBEAT_SECONDS = 1.0
LEASE_SECONDS = 40
GPU = "nvidia.com/gpu"
_PATH = f"{Path(sys.executable).parent}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class Images:
    """The images that no node can pull, and what the registry says about them."""

    def __init__(self) -> None:
        self.missing: dict[str, str] = {}


class NodeAgent:
    """One node. Everything runs in the loop it was started in."""

    def __init__(
        self,
        name: str,
        *,
        api: Api,
        folder: Path,
        images: Images,
        labels: Mapping[str, str],
        capacity: Mapping[str, str],
        tls: ssl.SSLContext,
    ) -> None:
        self.name = name
        self.api = api
        self.folder = folder
        self.runners: dict[str, PodRunner] = {}
        """The pods that it has, by uid."""
        self.is_connected = True
        self.without_network: list[str] = []
        """How the names of pods begin that have no network."""
        self.service_environment: dict[str, str] = {}
        self._images = images
        self._labels = labels
        self._capacity = dict(capacity)
        self._gpus = [f"GPU-{uuid.uuid4()}" for _ in range(int(capacity.get(GPU, "0")))]
        self._free_gpus = list(self._gpus)
        self._server = KubeletServer(self, tls)

    async def register(self) -> None:
        """Become a node of the cluster."""
        await self._server.start()
        try:
            await self.api.create("/api/v1/nodes", self._describe())
        except ApiError as error:
            if error.reason != "AlreadyExists":
                raise
        with suppress(ApiError):
            await self.api.create("/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases", self._lease())

    async def run(self) -> None:
        """Be a node until this is canceled."""
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._beat(), name=f"heartbeats of {self.name}")
                group.create_task(self._follow_pods(group), name=f"pods of {self.name}")
        finally:
            self.is_connected = False
            for runner in self.runners.values():
                runner.kill()
            await self._server.stop()

    async def cut_off(self) -> None:
        """No packet comes or goes any more; what runs there continues."""
        self.is_connected = False
        await self._server.stop()

    def power_off(self) -> None:
        """Everything on it ends at once. (Its server is stopped by `cut_off`.)"""
        for runner in self.runners.values():
            runner.lose()

    def lacks_image(self, image: str) -> str | None:
        """Why an image cannot be pulled, or None: it can."""
        return self._images.missing.get(image)

    def is_without_network(self, pod: str) -> bool:
        """Whether a pod reaches nothing."""
        return any(pod.startswith(prefix) for prefix in self.without_network)

    def take_gpus(self, limits: Mapping[str, Any]) -> list[str]:
        """The UUIDs of as many free GPUs as a container asks for."""
        count = int(limits.get(GPU, "0"))
        taken, self._free_gpus = self._free_gpus[:count], self._free_gpus[count:]
        return taken

    def give_gpus(self, gpus: list[str]) -> None:
        """They are free again."""
        self._free_gpus += gpus

    def image_environment(self, gpus: list[str]) -> dict[str, str]:
        """What the image and the device plugin set."""
        visible = {"NVIDIA_VISIBLE_DEVICES": ",".join(gpus)} if gpus else {}
        return {"PATH": _PATH, "HOME": "/root", **visible}

    def find(self, namespace: str, name: str) -> PodRunner | None:
        """The pod of this name."""
        found = [each for each in self.runners.values() if (each.namespace, each.name) == (namespace, name)]
        return found[-1] if found else None

    def _describe(self) -> Object:
        amounts = {"pods": "110", **self._capacity}
        now = _now()
        ready = {
            "type": "Ready",
            "status": "True",
            "reason": "KubeletReady",
            "message": "kubelet is posting ready status",
            "lastHeartbeatTime": now,
            "lastTransitionTime": now,
        }
        return {
            "metadata": {"name": self.name, "labels": {"kubernetes.io/hostname": self.name, **self._labels}},
            "status": {
                "capacity": amounts,
                "allocatable": amounts,
                "conditions": [ready],
                "addresses": [
                    {"type": "InternalIP", "address": "127.0.0.1"},
                    {"type": "Hostname", "address": self.name},
                ],
                "daemonEndpoints": {"kubeletEndpoint": {"Port": self._server.port}},
                "nodeInfo": {
                    "architecture": os.uname().machine,
                    "bootID": str(uuid.uuid4()),
                    "containerRuntimeVersion": "processes://1",
                    "kernelVersion": os.uname().release,
                    "kubeProxyVersion": "v1.20.2",
                    "kubeletVersion": "v1.20.2",
                    "machineID": uuid.uuid5(uuid.NAMESPACE_DNS, self.name).hex,
                    "operatingSystem": "linux",
                    "osImage": "tests",
                    "systemUUID": str(uuid.uuid5(uuid.NAMESPACE_DNS, self.name)),
                },
            },
        }

    def _lease(self) -> Object:
        spec = {"holderIdentity": self.name, "leaseDurationSeconds": LEASE_SECONDS, "renewTime": _now_micro()}
        return {"metadata": {"name": self.name, "namespace": "kube-node-lease"}, "spec": spec}

    async def _beat(self) -> None:
        path = f"/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/{self.name}"
        while True:
            await asyncio.sleep(HEARTBEAT_SECONDS)
            if self.is_connected:
                with suppress(ApiError):
                    await self.api.patch(path, {"spec": {"renewTime": _now_micro()}})
                    node = await self.api.get(f"/api/v1/nodes/{self.name}")
                    conditions = {each["type"]: each["status"] for each in node["status"]["conditions"]}
                    if conditions["Ready"] != "True":  # it was out of touch: only the node says that it is ready again
                        await self._post_status()

    async def _post_status(self) -> None:
        body = {"status": self._describe()["status"]}
        await self.api.patch(f"/api/v1/nodes/{self.name}/status", body, kind=STRATEGIC)

    async def _follow_pods(self, group: asyncio.TaskGroup) -> None:
        selector = f"spec.nodeName={self.name}"
        while True:
            with suppress(ApiError):
                if self.is_connected:
                    found = await self.api.get("/api/v1/pods", fieldSelector=selector)
                    for uid in self.runners.keys() - {pod["metadata"]["uid"] for pod in found["items"]}:
                        self.runners[uid].forget()
                    for pod in found["items"]:
                        self._see(pod, group)
                    version = found["metadata"]["resourceVersion"]
                    await self._watch(selector, version, group)
            await asyncio.sleep(0.2)

    async def _watch(self, selector: str, version: str, group: asyncio.TaskGroup) -> None:
        """Follow the changes until the connection ends, or is cut."""
        async for kind, pod in self.api.watch("/api/v1/pods", version=version, fieldSelector=selector):
            if not self.is_connected or kind == "ERROR":
                return
            if kind == "DELETED" and (runner := self.runners.get(pod["metadata"]["uid"])):
                runner.forget()
            elif kind in ("ADDED", "MODIFIED"):
                self._see(pod, group)

    def _see(self, pod: Object, group: asyncio.TaskGroup) -> None:
        uid = pod["metadata"]["uid"]
        runner = self.runners.get(uid)
        if runner is None:
            if pod["status"].get("phase") in ("Succeeded", "Failed"):
                return
            runner = self.runners[uid] = PodRunner(self, pod)
            group.create_task(self._live(runner), name=f"pod {runner.name}")
        runner.see(pod)

    async def _live(self, runner: PodRunner) -> None:
        try:
            await runner.live()
        finally:
            self.runners.pop(runner.uid, None)
            await asyncio.to_thread(shutil.rmtree, runner.folder, ignore_errors=True)


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _now_micro() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")

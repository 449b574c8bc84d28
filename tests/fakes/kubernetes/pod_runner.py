"""The life of one pod on a node, and its status in the words of a kubelet."""

import asyncio
import time
import uuid
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from signal import SIGKILL, SIGTERM
from typing import TYPE_CHECKING

from fakes.kubernetes.api import STRATEGIC, ApiError, Object
from fakes.kubernetes.container import Container, Mount, StartFailure
from fakes.kubernetes.volumes import Missing, Volume, Volumes, expand

if TYPE_CHECKING:
    from fakes.kubernetes.node_agent import NodeAgent

RETRY_SECONDS = 0.5
"""A kubelet waits longer, and ever longer, before it tries again."""


class _Stopped(Exception):
    """The pod is to go before all of its containers were started."""


class PodRunner:
    """One pod of a node: from its binding until it is gone. `pod` is the newest version that was seen."""

    def __init__(self, agent: "NodeAgent", pod: Object) -> None:
        self.pod = pod
        self._agent = agent
        self._metadata = pod["metadata"]
        self._spec = pod["spec"]
        self._init = [spec["name"] for spec in self._spec.get("initContainers", [])]
        first = "PodInitializing" if self._init else "ContainerCreating"
        self._states: dict[str, Object] = {name: {"waiting": {"reason": "PodInitializing"}} for name in self._init}
        self._states |= {spec["name"]: {"waiting": {"reason": first}} for spec in self._spec["containers"]}
        self.containers: dict[str, Container] = {}
        """The processes that have been started, by name."""
        self._has_started = _now()
        self._verdict: Object = {}
        """Phase, reason and message that say more than the containers' states."""
        self._gpus: list[str] = []
        self._changed = asyncio.Event()
        self._reported = asyncio.Event()
        self._stop = asyncio.Event()
        self._gone = asyncio.Event()
        self._is_lost = False
        self._stop_deadline = float("inf")
        self._volumes: dict[str, Volume] = {}
        self._source = Volumes(agent.api, pod, self.folder)

    @property
    def name(self) -> str:
        """Its name in the namespace."""
        return str(self._metadata["name"])

    @property
    def namespace(self) -> str:
        """Where it is."""
        return str(self._metadata["namespace"])

    @property
    def uid(self) -> str:
        """What it is known by."""
        return str(self._metadata["uid"])

    @property
    def folder(self) -> Path:
        """What this machine keeps of it."""
        return self._agent.folder / "pods" / self.uid

    @property
    def has_ended(self) -> bool:
        """Whether all of its containers have, or never will start."""
        return self.phase() in ("Succeeded", "Failed")

    async def live(self) -> None:
        """Run its containers one after the other and then together, and report; end when it has gone."""
        async with asyncio.TaskGroup() as group:
            reporter = group.create_task(self._report_changes(), name=f"status of {self.name}")
            try:
                await self._run()
            finally:
                self.kill()
                self._agent.give_gpus(self._gpus)
            self._change()
            await self._reported.wait()
            await self._gone.wait()
            await self._delete()
            reporter.cancel()

    def stop(self, grace_seconds: float) -> None:
        """End it: a request first, and what is left is killed after the grace."""
        self._stop_deadline = min(self._stop_deadline, time.monotonic() + grace_seconds)
        self._stop.set()

    def see(self, pod: Object) -> None:
        """Take a newer version, which may say that it is to go."""
        self.pod = pod
        if self._was_deleted():
            self.stop(pod["metadata"].get("deletionGracePeriodSeconds", 0))
            self._gone.set()

    def forget(self) -> None:
        """It is no longer in the list: end what is left of it."""
        self.stop(0)
        self._gone.set()

    def kill(self) -> None:
        """End its processes at once."""
        for container in self.containers.values():
            container.kill()

    def evict(self, message: str) -> None:
        """End it because its node has run out of something."""
        self._verdict = {"phase": "Failed", "reason": "Evicted", "message": message}
        self.stop(0)

    def lose(self) -> None:
        """Its node has lost power."""
        self._is_lost = True
        self.kill()

    def phase(self) -> str:
        """In one word."""
        if "phase" in self._verdict:
            return str(self._verdict["phase"])
        ends = [self._states[name].get("terminated") for name in self._init]
        if any(end is not None and end["exitCode"] != 0 for end in ends):
            return "Failed"
        states = [self._states[spec["name"]] for spec in self._spec["containers"]]
        if any("waiting" in state for state in states):
            return "Pending"
        if any("running" in state for state in states):
            return "Running"
        return "Failed" if any(state["terminated"]["exitCode"] != 0 for state in states) else "Succeeded"

    async def _run(self) -> None:
        """Run the containers. One that is not started before the pod is to go stays waiting."""
        with suppress(_Stopped):
            await self._make_volumes()
            for spec in self._spec.get("initContainers", []):
                if await self._run_container(spec) != 0:
                    return
            async with asyncio.TaskGroup() as group:
                for spec in self._spec["containers"]:
                    group.create_task(self._try_container(spec), name=f"container {spec['name']} of {self.name}")

    async def _try_container(self, spec: Object) -> None:
        with suppress(_Stopped):
            await self._run_container(spec)

    async def _make_volumes(self) -> None:
        while True:
            try:
                self._volumes = await self._source.make()
                return
            except Missing as error:
                await self.event("FailedMount", str(error), kind="Warning")
            except ApiError:
                pass
            await self._pause(RETRY_SECONDS)

    async def _run_container(self, spec: Object) -> int:
        """Run one container to its end; its exit code. Raises _Stopped."""
        name = spec["name"]
        await self._pull(spec)
        container = await self._create(spec)
        await self._pause(0)
        self.containers[name] = container
        try:
            await container.start()
        except StartFailure as error:
            message = f"failed to create containerd task: OCI runtime create failed: {error}"
            self._end(name, 128, "StartError", message)
            await self.event("Failed", f"Error: {message}", kind="Warning")
            return 128
        await self.event("Started", f"Started container {name}")
        self._set(name, {"running": {"startedAt": _now()}})
        async with asyncio.TaskGroup() as group:
            stopping = group.create_task(self._stop_container(container, spec), name=f"stop {name} of {self.name}")
            code = await container.wait()
            stopping.cancel()
        reason = "OOMKilled" if container.was_killed_for_memory else "Completed" if code == 0 else "Error"
        policy = spec.get("terminationMessagePolicy")
        message = container.read_termination(or_log=policy == "FallbackToLogsOnError" and code != 0)
        self._end(name, code, reason, message)
        return code

    async def _pull(self, spec: Object) -> None:
        """Wait until the node has the image."""
        image, name, is_first = spec["image"], spec["name"], True
        while (why := self._agent.lacks_image(image)) is not None:
            error = f'rpc error: code = NotFound desc = failed to pull and unpack image "{image}": {why}'
            pulled = f'Failed to pull image "{image}": {error}'
            await self.event("Pulling", f'Pulling image "{image}"')
            await self.event("Failed", pulled, kind="Warning")
            await self.event("Failed", "Error: ErrImagePull", kind="Warning")
            if is_first:
                self._set(name, {"waiting": {"reason": "ErrImagePull", "message": error}})
                await self._pause(RETRY_SECONDS)
            back_off = f'Back-off pulling image "{image}"'
            await self.event("BackOff", back_off)
            self._set(name, {"waiting": {"reason": "ImagePullBackOff", "message": back_off}})
            is_first = False
            await self._pause(RETRY_SECONDS)
        await self.event("Pulled", f'Container image "{image}" already present on machine')

    async def _create(self, spec: Object) -> Container:
        """A container of this specification; wait for what it names and is not there."""
        name = spec["name"]
        while True:
            try:
                variables = await self._source.environment(spec)
                break
            except Missing as error:
                self._set(name, {"waiting": {"reason": "CreateContainerConfigError", "message": str(error)}})
                await self.event("Failed", f"Error: {error}", kind="Warning")
            except ApiError:
                pass
            await self._pause(RETRY_SECONDS)
        gpus = self._agent.take_gpus(spec.get("resources", {}).get("limits", {}))
        self._gpus += gpus
        environment = self._agent.image_environment(gpus)
        environment |= {"HOSTNAME": self.name, **self._agent.service_environment, **variables}
        words = [expand(word, environment) for word in (*spec.get("command", ()), *spec.get("args", ()))]
        await self.event("Created", f"Created container {name}")
        security = {**self._spec.get("securityContext", {}), **spec.get("securityContext", {})}
        return Container(
            self.folder / "containers" / name,
            words or ["sleep", "infinity"],
            environment,
            [self._mount(mount) for mount in spec.get("volumeMounts", [])],
            self._spec.get("hostname", self.name)[:63],
            working_directory=spec.get("workingDir") or "/",
            user=security.get("runAsUser") or None,
            has_read_only_root=security.get("readOnlyRootFilesystem", False),
            termination_path=spec.get("terminationMessagePath") or "/dev/termination-log",
            has_network=not self._agent.is_without_network(self.name),
        )

    def _mount(self, mount: Object) -> Mount:
        volume = self._volumes[mount["name"]]
        return Mount(volume.path, mount["mountPath"].rstrip("/"), volume.is_read_only or mount.get("readOnly", False))

    async def _stop_container(self, container: Container, spec: Object) -> None:
        """Once the pod is to go: a request, and the end after the grace."""
        await self._stop.wait()
        await self.event("Killing", f"Stopping container {spec['name']}")
        container.signal(SIGTERM)
        while (left := self._stop_deadline - time.monotonic()) > 0:  # noqa: ASYNC110  (it may come nearer)
            await asyncio.sleep(min(left, 0.1))
        container.signal(SIGKILL)
        container.kill()

    def oom_kill(self, name: str) -> None:
        """End a container as the kernel does when its memory is used up."""
        self.containers[name].was_killed_for_memory = True
        self.containers[name].signal(SIGKILL)

    async def _delete(self) -> None:
        """Take it from the API server's list, once a deletion was asked for and everything has ended."""
        path = f"/api/v1/namespaces/{self.namespace}/pods/{self.name}"
        body = {"gracePeriodSeconds": 0, "preconditions": {"uid": self.uid}}
        while self._was_deleted() and self.uid in self._agent.runners:
            if self._agent.is_connected:
                try:
                    await self._agent.api.delete(path, body)
                    return
                except ApiError as error:
                    if error.status in (404, 409):
                        return
            await asyncio.sleep(RETRY_SECONDS)

    def _was_deleted(self) -> bool:
        return "deletionTimestamp" in self.pod["metadata"]

    async def event(self, reason: str, message: str, *, kind: str = "Normal") -> None:
        """Tell the API server what has happened; it need not be there."""
        now = _now()
        involved = {"kind": "Pod", "apiVersion": "v1", "namespace": self.namespace, "name": self.name, "uid": self.uid}
        body = {
            "metadata": {"name": f"{self.name}.{uuid.uuid4().hex[:16]}", "namespace": self.namespace},
            "involvedObject": involved,
            "reason": reason,
            "message": message,
            "type": kind,
            "count": 1,
            "firstTimestamp": now,
            "lastTimestamp": now,
            "source": {"component": "kubelet", "host": self._agent.name},
        }
        if self._agent.is_connected:
            with suppress(ApiError):
                await self._agent.api.create(f"/api/v1/namespaces/{self.namespace}/events", body)

    async def _pause(self, seconds: float) -> None:
        """Wait. Raises _Stopped if the pod is to go."""
        if seconds:
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._stop.wait()
        if self._stop.is_set():
            raise _Stopped

    def _set(self, name: str, state: Object) -> None:
        if self._states[name] != state:
            self._states[name] = state
            self._change()

    def _end(self, name: str, code: int, reason: str, message: str) -> None:
        if self._is_lost:
            code, reason, message = 255, "Unknown", ""
        started = self._states[name].get("running", {}).get("startedAt", self._has_started)
        end = {"exitCode": code, "reason": reason, "startedAt": started, "finishedAt": _now()}
        end["containerID"] = self._container_id(name)
        if message:
            end["message"] = message
        self._set(name, {"terminated": end})

    def _change(self) -> None:
        self._changed.set()
        self._reported.clear()

    async def _report_changes(self) -> None:
        while True:
            await self._changed.wait()
            self._changed.clear()
            while not await self._report():  # noqa: ASYNC110
                await asyncio.sleep(RETRY_SECONDS)
            if not self._changed.is_set():
                self._reported.set()

    async def _report(self) -> bool:
        """Send the status. Whether the API server has it, or the pod is gone."""
        if not self._agent.is_connected:
            return False
        body = {"metadata": {"uid": self.uid}, "status": self.status()}
        path = f"/api/v1/namespaces/{self.namespace}/pods/{self.name}/status"
        try:
            await self._agent.api.patch(path, body, kind=STRATEGIC)
        except ApiError as error:
            return error.status in (404, 409)
        return True

    def status(self) -> Object:
        """What the API server receives."""
        phase, now = self.phase(), _now()
        is_initialized = all(self._states[name].get("terminated", {}).get("exitCode") == 0 for name in self._init)
        flags = {"Initialized": is_initialized, "Ready": phase == "Running", "ContainersReady": phase == "Running"}
        conditions = [
            {"type": kind, "status": "True" if is_true else "False", "lastTransitionTime": now}
            for kind, is_true in flags.items()
        ]
        return {
            "phase": phase,
            "conditions": conditions,
            "hostIP": "127.0.0.1",
            "podIP": "127.0.0.1",
            "podIPs": [{"ip": "127.0.0.1"}],
            "startTime": self._has_started,
            "initContainerStatuses": [self._container_status(each) for each in self._spec.get("initContainers", [])],
            "containerStatuses": [self._container_status(each) for each in self._spec["containers"]],
            **self._verdict,
        }

    def _container_status(self, spec: Object) -> Object:
        state = self._states[spec["name"]]
        was_started = "waiting" not in state
        return {
            "name": spec["name"],
            "image": spec["image"],
            "imageID": f"sha256:{uuid.uuid5(uuid.NAMESPACE_URL, spec['image']).hex}" if was_started else "",
            "containerID": self._container_id(spec["name"]) if was_started else "",
            "ready": "running" in state,
            "started": "running" in state,
            "restartCount": 0,
            "state": state,
            "lastState": {},
        }

    def _container_id(self, name: str) -> str:
        return f"containerd://{uuid.uuid5(uuid.UUID(self.uid), name).hex * 2}"


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")

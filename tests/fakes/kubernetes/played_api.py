"""An API server in memory, which plays rules of Kubernetes 1.29 to 1.37 that the real one of the tests does not have.

Requests are answered as by a server: strict validation against the published schemas, dry runs, warnings, conflicts,
preconditions, partial objects, watches. Behind them are a Job controller (suspended Jobs, `podReplacementPolicy`, the
finalizer by which it counts pods), Pod Security, owners whose objects go with them, and a node on which every pod runs
as soon as what it mounts is there. No process is started. Decision 0046 says what this is for.
"""

import asyncio
import copy
import itertools
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from aiohttp import web
from fakes.kubernetes.pod_security import violations
from fakes.kubernetes.schemas import VERSIONS, check

Object = dict[str, Any]
Key = tuple[str, str]
"""The plural and the name of an object."""

NAMESPACE = "ml"
VERSION = VERSIONS[-1]
FINALIZER = "batch.kubernetes.io/job-tracking"
_KINDS = {
    "configmaps": ("v1", "ConfigMap"),
    "secrets": ("v1", "Secret"),
    "pods": ("v1", "Pod"),
    "events": ("v1", "Event"),
    "serviceaccounts": ("v1", "ServiceAccount"),
    "jobs": ("batch/v1", "Job"),
}
_MADE_AT = "2026-11-24T00:00:00Z"


class Refusal(Exception):
    """A request that is refused."""

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.reason = reason


@dataclass
class Fault:
    """What happens to the next request with this method at paths that end so, instead of an answer."""

    method: str
    path: str
    status: int = 0
    """0: the answer is cut in the middle."""
    headers: dict[str, str] = field(default_factory=dict)


class PlayedApi:
    """One namespace of a cluster."""

    def __init__(self) -> None:
        self.objects: dict[Key, Object] = {}
        self.requests: list[tuple[str, str]] = []
        """The method and the path with the query of each."""
        self.faults: list[Fault] = []
        self.level = "privileged"
        """What Pod Security enforces in the namespace."""
        self.forbidden: set[tuple[str, str]] = set()
        """The verbs and resources that the user lacks the right to."""
        self.priority_classes: set[str] = set()
        self.has_nodes = True
        self.quota_is_used_up = False
        self.suspends_jobs = False
        """As the webhook of a queue does."""
        self.url = ""
        self._numbers = itertools.count(1)
        self._changes: list[tuple[int, str, str, Object]] = []
        self._oldest = 0

    @asynccontextmanager
    async def serving(self, folder: Path) -> AsyncIterator["PlayedApi"]:
        """Serve, and write a kubeconfig file into the folder."""
        application = web.Application(client_max_size=2**21)
        application.router.add_route("*", "/{path:.*}", self._answer)
        runner = web.AppRunner(application, shutdown_timeout=0.1)
        await runner.setup()
        try:
            site = web.TCPSite(runner, "127.0.0.1", 0)
            await site.start()
            self.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
            context = {"name": "test", "context": {"cluster": "c", "user": "u", "namespace": NAMESPACE}}
            clusters = [{"name": "c", "cluster": {"server": self.url}}]
            users = [{"name": "u", "user": {"token": "secret"}}]
            config = {"current-context": "test", "contexts": [context], "clusters": clusters, "users": users}
            (folder / "kubeconfig").write_text(json.dumps(config))
            yield self
        finally:
            await runner.cleanup()

    # ---- what a test does and sees

    def all(self, plural: str) -> list[Object]:
        """The objects of a kind."""
        return [found for (kind, _), found in self.objects.items() if kind == plural]

    def one(self, plural: str) -> Object:
        """The only object of a kind."""
        (found,) = self.all(plural)
        return found

    def asked(self, method: str, path: str) -> int:
        """How many requests there were with this method at paths that end so, without their queries."""
        return sum(each == method and where.partition("?")[0].endswith(path) for each, where in self.requests)

    def add(self, body: Object) -> None:
        """Someone makes an object."""
        self._create(_plural(body), body, {})
        self._play()

    def remove(self, plural: str, name: str) -> None:
        """Someone deletes an object, and with it what it owns."""
        self._delete(self.objects[plural, name])
        self._play()

    def evict(self, name: str) -> None:
        """A pod is to end within its grace period, as a drain demands."""
        pod = self.objects["pods", name]
        condition = {"type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI"}
        self._set(pod, conditions=[{**condition, "message": "Eviction API: evicting"}])
        self._delete(pod)
        self._play()

    def resume_jobs(self) -> None:
        """The queue admits all Jobs."""
        self.suspends_jobs = False
        for job in self.all("jobs"):
            job["spec"]["suspend"] = False
            self._note("MODIFIED", "jobs", job)
        self._play()

    def end_pod(self, name: str, phase: str = "Failed") -> None:
        """A pod comes to its end."""
        self._set(self.objects["pods", name], phase=phase)
        self._play()

    def act(self) -> None:
        """Let the controllers and the nodes act, as they do from time to time."""
        self._play()

    def forget_changes(self) -> None:
        """Watches that continue from an earlier version are refused (410), those that are open included."""
        self._oldest = next(self._numbers)
        self._changes.clear()

    # ---- requests

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        self.requests.append((request.method, request.path_qs))
        fault = next((f for f in self.faults if f.method == request.method and request.path.endswith(f.path)), None)
        if fault is not None:
            self.faults.remove(fault)
            if fault.status:
                refusal = Refusal(fault.status, "", "a fault on demand")
                return web.json_response(_status(refusal), status=fault.status, headers=fault.headers)
            return await self._tear(request)
        try:
            if request.path == "/version":
                return web.json_response({"gitVersion": f"v{VERSION}.0"})
            if request.path.endswith("/selfsubjectaccessreviews"):
                return web.json_response(self._review((await request.json())["spec"]["resourceAttributes"]))
            return await self._serve(request)
        except Refusal as refusal:
            return web.json_response(_status(refusal), status=refusal.status)

    async def _tear(self, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Length": "1000"})
        await response.prepare(request)
        await response.write(b'{"kind": "Sta')
        assert request.transport is not None
        request.transport.abort()
        return response

    def _review(self, asked: Object) -> Object:
        resource = "/".join(filter(None, (asked["resource"], asked.get("subresource"))))
        return {"status": {"allowed": (asked["verb"], resource) not in self.forbidden}}

    async def _serve(self, request: web.Request) -> web.StreamResponse:
        namespace, _, rest = request.path.partition("/namespaces/")[2].partition("/")
        if namespace != NAMESPACE:
            raise Refusal(404, "NotFound", f'namespaces "{namespace}" not found')
        plural, _, rest = rest.partition("/")
        name, _, subresource = rest.partition("/")
        if plural not in _KINDS:
            raise Refusal(404, "NotFound", "the server could not find the requested resource")
        verb = _verb(request, name)
        if (verb, "/".join(filter(None, (plural, subresource)))) in self.forbidden:
            text = f'{plural} is forbidden: User "u" cannot {verb} resource "{plural}" in the namespace "{NAMESPACE}"'
            raise Refusal(403, "Forbidden", text)
        if verb == "watch":
            return await self._watch(request, plural)
        if subresource == "log":
            self._find(plural, name)
            return web.Response(body=b"")
        headers: list[tuple[str, str]] = []
        if verb == "list":
            found = [copy.deepcopy(each) for each in self.all(plural) if _matches(each, request)]
            body: Object = {"metadata": {"resourceVersion": str(next(self._numbers))}, "items": found}
        elif verb == "create":
            body, warnings = self._create(plural, await request.json(), request.query)
            headers = [("Warning", f'299 - "{text}"') for text in warnings]
        elif verb == "get":
            body = self._find(plural, name)
            if "PartialObjectMetadata" in request.headers["Accept"]:
                body = {"kind": "PartialObjectMetadata", "metadata": body["metadata"]}
        elif verb == "patch":
            body = self._find(plural, name)
            _merge(body, await request.json())
            self._note("MODIFIED", plural, body)
        else:
            body = self._find(plural, name)
            options = await request.json() if request.can_read_body else {}
            wanted = options.get("preconditions", {}).get("uid", body["metadata"]["uid"])
            if wanted != body["metadata"]["uid"]:
                raise Refusal(409, "Conflict", f"the UID in the precondition ({wanted}) is not that of the object")
            self._delete(body)
        response = web.json_response(body, status=201 if verb == "create" else 200)
        for key, value in headers:
            response.headers.add(key, value)
        self._play()
        return response

    async def _watch(self, request: web.Request, plural: str) -> web.StreamResponse:
        version = int(request.query["resourceVersion"])
        response = web.StreamResponse()
        await response.prepare(request)
        while True:
            if version < self._oldest:
                gone = {**_status(Refusal(410, "Expired", "too old resource version")), "code": 410}
                await response.write(json.dumps({"type": "ERROR", "object": gone}).encode() + b"\n")
                return response
            for number, change, kind, found in tuple(self._changes):
                if number > version and kind == plural and _matches(found, request):
                    await response.write(json.dumps({"type": change, "object": found}).encode() + b"\n")
                    version = number
            await asyncio.sleep(0.01)

    def _find(self, plural: str, name: str) -> Object:
        found = self.objects.get((plural, name))
        if found is None:
            raise Refusal(404, "NotFound", f'{plural} "{name}" not found')
        return found

    # ---- objects

    def _create(self, plural: str, body: Object, query: Any) -> tuple[Object, list[str]]:
        unknown = check(body, VERSION)
        if unknown and query.get("fieldValidation") == "Strict":
            raise Refusal(400, "BadRequest", f"{body['kind']} in version {body['apiVersion']!r}: strict: {unknown}")
        warnings = [unknown] if unknown else []
        metadata = body["metadata"]
        name = metadata.get("name") or f"{metadata['generateName']}{next(self._numbers):05d}"
        if (plural, name) in self.objects:
            raise Refusal(409, "AlreadyExists", f'{plural} "{name}" already exists')
        if plural == "pods":
            self._admit(body["spec"], name)
        elif plural == "jobs" and (found := violations(body["spec"]["template"]["spec"], self.level)):
            warnings.append(f'would violate PodSecurity "{self.level}:latest": {found}')
        number = next(self._numbers)
        made = {**copy.deepcopy(body), "status": copy.deepcopy(body.get("status", {}))}
        made["metadata"] |= {"name": name, "uid": f"uid-{number}", "resourceVersion": str(number)}
        made["metadata"] |= {"creationTimestamp": _MADE_AT, "namespace": NAMESPACE}
        if plural == "jobs" and self.suspends_jobs:
            made["spec"]["suspend"] = True
        if query.get("dryRun") != "All":
            self.objects[plural, name] = made
            self._note("ADDED", plural, made)
        return made, warnings

    def _admit(self, spec: Object, name: str) -> None:
        """What an API server asks of a pod, whoever creates it."""
        account, priority = spec.get("serviceAccountName", "default"), spec.get("priorityClassName")
        said = f'pods "{name}" is forbidden: '
        if account != "default" and ("serviceaccounts", account) not in self.objects:
            text = f'error looking up service account {NAMESPACE}/{account}: serviceaccount "{account}" not found'
            raise Refusal(403, "Forbidden", said + text)
        if priority is not None and priority not in self.priority_classes:
            raise Refusal(403, "Forbidden", f"{said}no PriorityClass with name {priority} was found")
        if self.quota_is_used_up:
            raise Refusal(
                403, "Forbidden", f"{said}exceeded quota: pods, requested: pods=1, used: pods=8, limited: pods=8"
            )
        if found := violations(spec, self.level):
            raise Refusal(403, "Forbidden", f'{said}violates PodSecurity "{self.level}:latest": {found}')

    def _delete(self, found: Object) -> None:
        """An object that has finalizers goes once it has none; what it owns goes with it."""
        metadata, plural = found["metadata"], _plural(found)
        is_running = plural == "pods" and found["status"].get("phase") in ("Pending", "Running")
        if metadata.get("finalizers") or is_running:
            if "deletionTimestamp" not in metadata:
                due = datetime.now(UTC) + timedelta(seconds=found["spec"].get("terminationGracePeriodSeconds", 30))
                metadata["deletionTimestamp"] = due.strftime("%Y-%m-%dT%H:%M:%SZ")
                self._note("MODIFIED", plural, found)
            return
        del self.objects[plural, metadata["name"]]
        self._note("DELETED", plural, found)
        for each in tuple(self.objects.values()):
            if metadata["uid"] in [owner["uid"] for owner in each["metadata"].get("ownerReferences", ())]:
                self._delete(each)

    def _note(self, change: str, plural: str, found: Object) -> None:
        number = next(self._numbers)
        found["metadata"]["resourceVersion"] = str(number)
        self._changes.append((number, change, plural, copy.deepcopy(found)))

    def _set(self, found: Object, **status: Any) -> None:
        if any(found["status"].get(key) != value for key, value in status.items()):
            found["status"] |= status
            self._note("MODIFIED", _plural(found), found)

    # ---- controllers and nodes

    def _play(self) -> None:
        """Let the controllers and the nodes act on what has changed."""
        for job in self.all("jobs"):
            self._control(job)
        for pod in self.all("pods"):
            if pod["status"].get("phase") == "Pending" and self.has_nodes:
                self._run(pod)
            self._end(pod)

    def _control(self, job: Object) -> None:
        pods = [pod for pod in self.all("pods") if pod["metadata"]["labels"]["job-name"] == job["metadata"]["name"]]
        failed = [pod for pod in pods if pod["status"].get("phase") == "Failed"]
        if failed:
            condition = {"type": "Failed", "status": "True", "reason": "BackoffLimitExceeded"}
            self._set(job, conditions=[{**condition, "message": "Job has reached the specified backoff limit"}])
        if job["spec"].get("suspend") or job["status"].get("conditions"):
            return
        only_failed = job["spec"].get("podReplacementPolicy") == "Failed"
        living = [pod for pod in pods if only_failed or "deletionTimestamp" not in pod["metadata"]]
        if not living:
            self._start_pod(job)

    def _start_pod(self, job: Object) -> None:
        template, owner = copy.deepcopy(job["spec"]["template"]), job["metadata"]
        metadata = template.get("metadata", {})
        metadata["labels"] = {**metadata.get("labels", {}), "job-name": owner["name"]}
        metadata |= {"generateName": f"{owner['name']}-", "finalizers": [FINALIZER]}
        reference = {"apiVersion": "batch/v1", "kind": "Job", "name": owner["name"], "uid": owner["uid"]}
        metadata["ownerReferences"] = [{**reference, "controller": True}]
        body = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": template["spec"]}
        try:
            made, _ = self._create("pods", body, {})
            self._set(made, phase="Pending")
        except Refusal as refusal:
            self._warn(job, "FailedCreate", f"Error creating: {refusal}")

    def _run(self, pod: Object) -> None:
        """Start a pod, or say what it lacks."""
        if "nodeName" not in pod["spec"]:
            pod["spec"]["nodeName"] = "node"
            self._note("MODIFIED", "pods", pod)
        for volume in pod["spec"].get("volumes", ()):
            for source, plural, key in (("configMap", "configmaps", "name"), ("secret", "secrets", "secretName")):
                name = volume.get(source, {}).get(key)
                if name is not None and (plural, name) not in self.objects:
                    text = (
                        f'MountVolume.SetUp failed for volume "{volume["name"]}" : {source.lower()} "{name}" not found'
                    )
                    self._warn(pod, "FailedMount", text)
                    return
        self._set(pod, phase="Running")

    def _end(self, pod: Object) -> None:
        """A node ends a pod that is being deleted; the Job controller counts it, and then it is gone."""
        metadata = pod["metadata"]
        if pod["status"].get("phase") in ("Failed", "Succeeded") and metadata.get("finalizers"):
            metadata["finalizers"] = []
            self._note("MODIFIED", "pods", pod)
        if "deletionTimestamp" in metadata and not metadata.get("finalizers"):
            self._delete(pod)

    def _warn(self, about: Object, reason: str, message: str) -> None:
        metadata = about["metadata"]
        name = f"{metadata['name']}.{reason.lower()}"
        involved = {"kind": about.get("kind"), "name": metadata["name"], "uid": metadata["uid"]}
        body = {"apiVersion": "v1", "kind": "Event", "metadata": {"name": name, "namespace": NAMESPACE}}
        body |= {"involvedObject": involved, "type": "Warning", "reason": reason, "message": message}
        if ("events", name) not in self.objects:
            self._create("events", body, {})


def _plural(found: Object) -> str:
    return next(plural for plural, (_, kind) in _KINDS.items() if kind == found["kind"])


def _verb(request: web.Request, name: str) -> str:
    if request.method == "GET" and not name:
        return "watch" if "watch" in request.query else "list"
    return {"POST": "create", "PATCH": "patch", "DELETE": "delete"}.get(request.method, "get")


def _matches(found: Object, request: web.Request) -> bool:
    labels = found["metadata"].get("labels", {})
    wanted = dict(each.split("=") for each in request.query.get("labelSelector", "").split(",") if each)
    fields = dict(each.split("=") for each in request.query.get("fieldSelector", "").split(",") if each)
    return wanted.items() <= labels.items() and all(found.get(key) == value for key, value in fields.items())


def _merge(ours: Object, theirs: Object) -> None:
    for key, value in theirs.items():
        if value is None:
            ours.pop(key, None)
        elif isinstance(value, dict) and isinstance(ours.get(key), dict):
            _merge(ours[key], value)
        else:
            ours[key] = value


def _status(refusal: Refusal) -> Object:
    return {"kind": "Status", "status": "Failure", "reason": refusal.reason, "message": str(refusal)}

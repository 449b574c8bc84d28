"""The API server of a cluster: requests, paged lists and watches, with JSON objects as they are. No other module
imports the library, which knows how to log in (kubeconfig files, the account of a pod) and how to speak TLS.
"""

import asyncio
import builtins
import json
import logging
import os
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, NoReturn, cast
from urllib.parse import urlencode

import aiohttp
from kubernetes.aio import config as kube_config
from kubernetes.aio.client import ApiClient, ApiException, Configuration
from kubernetes.aio.config.config_exception import ConfigException

from proctor.training_services.errors import ServiceUnavailable

__all__ = ["ApiRefused", "ApiUnreachable", "Cluster", "ExecStream", "KubernetesObject", "WatchExpired", "open_cluster"]

KubernetesObject = dict[str, Any]

PAGE_SIZE = 500
REQUEST_SECONDS = 30.0
WATCH_SECONDS = 240
"""A watch ends after this time and continues where it was: a connection that has died silently is noticed then."""
LAST_LINES_BYTES = 64 * 1024
"""How much of the last lines of a log is read, which may be long."""
_RETRIES = 5
_MOST_RETRY_AFTER_SECONDS = 20.0
_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_HEARTBEAT_SECONDS = 30.0
_TAIL_BYTES = 1000
_MOST_SHOWN = 100
_LONGEST_LINE_BYTES = 64 * 1024
_STDIN, _STDOUT, _STDERR, _STATUS = b"\0", b"\1", b"\2", b"\3"  # channels of v4.channel.k8s.io
_PATCH = {"Content-Type": "application/merge-patch+json"}

log = logging.getLogger(__name__)


class ApiRefused(ServiceUnavailable):
    """The API server has refused a request; the text is its own sentence.

    :param status: of HTTP.
    :param reason: one word of Kubernetes: Forbidden, Invalid, NotFound, AlreadyExists, Conflict, Expired, …
    """

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.reason = reason


class ApiUnreachable(ServiceUnavailable):
    """The API server does not answer."""


class WatchExpired(ServiceUnavailable):
    """What a watch was to continue from is forgotten there (410): list again."""


class Cluster:
    """One API server, as one user."""

    def __init__(
        self, client: ApiClient, *, context: str, namespace: str, log_in: Callable[[], Awaitable[object]] | None = None
    ) -> None:
        """:param log_in: gets new credentials; None: the library does, when they expire."""
        self._client = client
        self._log_in = log_in
        self.context = context
        """Its name in the kubeconfig file; "" inside of a cluster."""
        self.namespace = namespace
        """Where its user works by default."""

    @property
    def url(self) -> str:
        """Where the API server is."""
        return str(self._client.configuration.host)

    async def close(self) -> None:
        """Close all connections."""
        await self._client.close()

    async def get(self, path: str, query: Mapping[str, str] | None = None) -> KubernetesObject:
        """Raises ApiRefused (status 404 where there is no such object), ApiUnreachable."""
        return await self._request("GET", path, query)

    async def create(self, path: str, body: KubernetesObject) -> KubernetesObject:
        """Create an object in the collection `path`. Raises ApiRefused (status 409 where it exists), ApiUnreachable."""
        return await self._request("POST", path, body=body)

    async def patch(self, path: str, body: KubernetesObject) -> KubernetesObject:
        """Merge `body` into an object. Raises ApiRefused, ApiUnreachable."""
        return await self._request("PATCH", path, body=body, headers=_PATCH)

    async def delete(self, path: str, *, uid: str | None = None) -> bool:
        """Delete an object, and then, in the background, what it owns. False where it was not there.

        :param uid: only this one, not another one of its name. Raises ApiRefused, ApiUnreachable.
        """
        options: dict[str, Any] = {"propagationPolicy": "Background"}
        if uid is not None:
            options["preconditions"] = {"uid": uid}
        try:
            await self._request("DELETE", path, body=options)
        except ApiRefused as error:
            if error.status == 404:
                return False
            raise
        return True

    async def read_log(
        self, namespace: str, pod: str, container: str, *, tail_lines: int, limit_bytes: int = LAST_LINES_BYTES
    ) -> bytes:
        """The last lines that a container of a pod has printed; of more than `limit_bytes`, the first of them. Raises
        ApiRefused (status 400 where it has not been started), ApiUnreachable."""
        query = {"container": container, "tailLines": str(tail_lines), "limitBytes": str(limit_bytes)}
        path = f"/api/v1/namespaces/{namespace}/pods/{pod}/log"
        response = await self._send("GET", path, query, timeout=aiohttp.ClientTimeout(REQUEST_SECONDS))
        return await _read(response)

    async def list(
        self, path: str, query: Mapping[str, str]
    ) -> AsyncIterator[tuple[builtins.list[KubernetesObject], str]]:
        """All objects of a collection that the query's selectors choose, page by page, and with each page the resource
        version to watch from. Raises ApiRefused, ApiUnreachable; WatchExpired when further pages are forgotten."""
        token = ""
        while True:
            page = await self._request("GET", path, {**query, "limit": str(PAGE_SIZE), "continue": token})
            try:
                items, metadata = page["items"], page["metadata"]
                version, token = metadata["resourceVersion"], metadata.get("continue", "")
            except (LookupError, TypeError, AttributeError) as error:
                raise self._not_understood(path, "a list", page) from error
            yield items, version
            if not token:
                return

    async def watch(
        self, path: str, query: Mapping[str, str], resource_version: str
    ) -> AsyncIterator[tuple[str, KubernetesObject]]:
        """The changes since a resource version: ADDED, MODIFIED, DELETED or BOOKMARK with the object. Ends when the
        server ends it; then it continues from the last object's version.

        Raises ApiRefused, ApiUnreachable, WatchExpired.
        """
        asked = {**query, "watch": "1", "allowWatchBookmarks": "true", "timeoutSeconds": str(WATCH_SECONDS)}
        asked["resourceVersion"] = resource_version
        timeout = aiohttp.ClientTimeout(None, sock_connect=REQUEST_SECONDS, sock_read=WATCH_SECONDS + REQUEST_SECONDS)
        response = await self._send("GET", path, asked, timeout=timeout)
        try:
            async for line in cast("AsyncIterable[bytes]", response.content):
                event = json.loads(line)
                try:
                    kind, found = event["type"], event["object"]
                    status = int(found.get("code") or 500) if kind == "ERROR" else 0
                except (LookupError, TypeError, AttributeError) as error:
                    raise self._not_understood(path, "an event of a watch", event) from error
                if status:
                    _raise(status, found)
                yield kind, found
        except (aiohttp.ClientError, OSError, TimeoutError, ValueError) as error:
            raise ApiUnreachable(f"the watch of {path} was cut: {error or type(error).__name__}") from error
        finally:
            response.close()

    @asynccontextmanager
    async def exec(
        self, namespace: str, pod: str, container: str, command: Sequence[str]
    ) -> AsyncIterator["ExecStream"]:
        """Run a command in a container and exchange bytes with it; leaving the context closes its pipes. Raises
        ApiRefused, ApiUnreachable."""
        options = [("container", container), *(("command", word) for word in command)]
        options += [(name, "true") for name in ("stdin", "stdout", "stderr")]
        path = f"/api/v1/namespaces/{namespace}/pods/{pod}/exec?{urlencode(options)}"
        headers = {"sec-websocket-protocol": "v4.channel.k8s.io"}
        try:
            serialized = await self._client.param_serialize(
                "GET", path, header_params=headers, auth_settings=["BearerToken"]
            )
            connections = self._client.rest_client
            if connections.pool_manager is None:  # the library makes it at the first request
                await self.get("/version")
            # The library's own WsApiClient leaves the kubeconfig file's proxy out.
            async with connections.pool_manager.ws_connect(
                serialized[1], headers=serialized[2], heartbeat=_HEARTBEAT_SECONDS, proxy=connections.proxy
            ) as socket:
                yield ExecStream(socket)
        except aiohttp.WSServerHandshakeError as error:
            needs = ": its user needs the right to get pods/exec" if error.status == 403 else f": {error.message}"
            _raise(error.status, {"message": f"no command can be run in pod {pod}{needs}"})
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise ApiUnreachable(f"the stream to pod {pod} broke: {error or type(error).__name__}") from error

    async def _request(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None = None,
        *,
        body: KubernetesObject | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> KubernetesObject:
        timeout = aiohttp.ClientTimeout(REQUEST_SECONDS)
        response = await self._send(method, path, query or {}, body=body, headers=headers, timeout=timeout)
        data = await _read(response)
        try:
            found: KubernetesObject = json.loads(data)
        except ValueError as error:
            raise self._not_understood(path, "JSON", data.decode(errors="replace")) from error
        return found

    def _not_understood(self, path: str, expected: str, found: object) -> ApiUnreachable:
        """Something else answers in the place of the API server, such as a proxy that wants a login."""
        shown = found if isinstance(found, str) else json.dumps(found)
        return ApiUnreachable(f"{self.url} should answer {path} with {expected}, found {shown[:_MOST_SHOWN]!r}")

    async def _send(
        self,
        method: str,
        path: str,
        query: Mapping[str, str],
        *,
        timeout: aiohttp.ClientTimeout,
        body: KubernetesObject | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> aiohttp.ClientResponse:
        """The response to a request that was carried out; its body is still to be read. One that the server turns away
        because it is busy (429, 503, or with Retry-After) is sent again when it says so, and one whose credentials have
        expired is sent again with new ones."""
        may_log_in, attempts = self._log_in is not None, 0
        while True:
            response = await self._send_once(method, path, query, timeout=timeout, body=body, headers=headers)
            if response.status < 400:
                return response
            status = _parse_status(await _read(response))
            if response.status == 401 and self._log_in is not None and may_log_in:
                may_log_in = False
                await self._log_in()
            elif attempts < _RETRIES and (response.status in (429, 503) or "Retry-After" in response.headers):
                attempts += 1
                await asyncio.sleep(_retry_after(response))
            else:
                _raise(response.status, status)

    async def _send_once(
        self,
        method: str,
        path: str,
        query: Mapping[str, str],
        *,
        timeout: aiohttp.ClientTimeout,
        body: KubernetesObject | None,
        headers: Mapping[str, str] | None,
    ) -> aiohttp.ClientResponse:
        wanted = {name: value for name, value in query.items() if value}
        resource = f"{path}?{urlencode(wanted)}" if wanted else path
        try:
            serialized = await self._client.param_serialize(
                method,
                resource,
                header_params={"Accept": "application/json", **(headers or {})},
                body=body,
                auth_settings=["BearerToken"],
            )
            response = await self._client.call_api(*serialized, _request_timeout=timeout)
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            why = str(error) or type(error).__name__
            raise ApiUnreachable(f"the API server {self.url} cannot be reached: {why}") from error
        except (ApiException, ConfigException) as error:
            raise ApiUnreachable(f"no request can be made to {self.url}: {error}") from error
        return cast("aiohttp.ClientResponse", response.response)


class ExecStream:
    """The standard streams of a command in a container."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self._unread = b""
        self.stderr_tail = b""
        """The last of what it wrote to standard error."""
        self.problem = ""
        """Why it could not be started, or that it failed, once it has ended."""

    async def write(self, data: bytes) -> None:
        """To its standard input."""
        await self._socket.send_bytes(_STDIN + data)

    async def read(self) -> bytes:
        """What it has written to standard output; empty at the end."""
        if self._unread:
            data, self._unread = self._unread, b""
            return data
        while True:
            message = await self._socket.receive()
            if message.type is aiohttp.WSMsgType.ERROR:
                raise ApiUnreachable(f"its stream broke: {self._socket.exception()}")
            if message.type is not aiohttp.WSMsgType.BINARY:
                return b""
            channel, data = message.data[:1], message.data[1:]
            if channel == _STDOUT and data:
                return cast("bytes", data)
            if channel == _STDERR:
                self.stderr_tail = (self.stderr_tail + data)[-_TAIL_BYTES:]
            elif channel == _STATUS:
                status = _parse_status(data)
                self.problem = "" if status.get("status") == "Success" else str(status.get("message") or "")
                return b""

    async def read_line(self) -> bytes:
        """The next line of standard output; empty at the end. Waits for as long as it takes: the caller sets a limit,
        and a stream that has died silently is noticed by its heartbeat. Raises ApiUnreachable for a line that does not
        end."""
        line = b""
        while b"\n" not in line:
            data = await self.read()
            if not data:
                return b""
            line += data
            if len(line) > _LONGEST_LINE_BYTES:
                raise ApiUnreachable(f"its stream has sent a line of more than {_LONGEST_LINE_BYTES} bytes")
        line, _, self._unread = line.partition(b"\n")
        return line


async def open_cluster(kubeconfig: str | None, context: str | None) -> Cluster:
    """The cluster of a kubeconfig file's context, or without any, the one that this process runs in.

    :param kubeconfig: None: $KUBECONFIG, else ~/.kube/config, if there is one.
    :param context: None: the current one.
    :raises ServiceUnavailable: it cannot be used; names the file and what it has.
    """
    configuration = Configuration()
    configuration.retries = None
    configuration.connection_pool_maxsize = 0  # watches and exec streams hold theirs
    path = kubeconfig or os.environ.get("KUBECONFIG") or str(Path("~/.kube/config").expanduser())
    is_there = any(Path(each).expanduser().exists() for each in path.split(os.pathsep))
    if not is_there and kubeconfig is None and context is None and "KUBERNETES_SERVICE_HOST" in os.environ:
        try:
            kube_config.load_incluster_config(client_configuration=configuration)  # reads the token again by itself
            namespace = (_ACCOUNT / "namespace").read_text(encoding="utf-8").strip()
        except (ConfigException, OSError) as error:
            raise ServiceUnavailable(f"the service account of this pod cannot be used: {error}") from error
        return Cluster(ApiClient(configuration), context="", namespace=namespace)
    if not is_there:
        raise ServiceUnavailable(f"there is no kubeconfig file {path}; give trainingService.kubeconfig, or KUBECONFIG")

    async def log_in() -> KubernetesObject:
        try:
            loader = await kube_config.load_kube_config(
                config_file=path, context=context, client_configuration=configuration, persist_config=False
            )
        except Exception as error:  # a file that people write, in the hands of several libraries
            raise ServiceUnavailable(f"the kubeconfig file {path} cannot be used: {error}") from error
        found: KubernetesObject = loader.current_context
        return found

    chosen = await log_in()
    namespace = chosen["context"].get("namespace") or "default"
    return Cluster(ApiClient(configuration), context=chosen["name"], namespace=namespace, log_in=log_in)


async def _read(response: aiohttp.ClientResponse) -> bytes:
    try:
        return await response.read()
    except (aiohttp.ClientError, OSError, TimeoutError) as error:
        raise ApiUnreachable(f"an answer of {response.url.host} was cut: {error or type(error).__name__}") from error


def _retry_after(response: aiohttp.ClientResponse) -> float:
    """How long a busy server wants to be left alone, in seconds."""
    try:
        return min(float(response.headers.get("Retry-After", "1")), _MOST_RETRY_AFTER_SECONDS)
    except ValueError:  # it may be a date
        return 1.0


def _parse_status(body: bytes) -> KubernetesObject:
    """The Status object in an answer; a proxy in front of the server may have sent something else."""
    with suppress(ValueError):
        found = json.loads(body)
        if isinstance(found, dict):
            return found
    return {"message": body[:200].decode(errors="replace").strip()}


def _raise(status: int, body: KubernetesObject) -> NoReturn:
    message = str(body.get("message") or f"HTTP status {status}")
    if status == 410:
        raise WatchExpired(message)
    raise ApiRefused(status, str(body.get("reason") or ""), message)

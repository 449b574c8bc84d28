"""Client of a cluster's API server: requests, paged lists, watches and exec streams, with plain JSON objects. No other
module imports the library, which handles logins (kubeconfig files, service accounts) and TLS.
"""

import asyncio
import builtins
import json
import logging
import os
import re
import time
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

PAGE_SIZE = 300
REQUEST_SECONDS = 30.0
WATCH_SECONDS = 240
"""A watch is renewed after this time, so that a connection that has died silently is noticed."""
LAST_LINES_BYTES = 64 * 1024
"""How much of the last lines of a log is read; a line may be very long."""
LOGIN_SECONDS = 60.0
"""How long a login program may take, which may wait for a person who is not there."""
RENEWAL_SECONDS = 300.0
"""How often a login is renewed at most while the server cannot be reached: the login program of a kubeconfig file may
prompt the user."""
_UNANSWERED = 3
"""How many requests in a row it takes for that."""
_RETRIES = 5
_MOST_RETRY_AFTER_SECONDS = 20.0
_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_HEARTBEAT_SECONDS = 30.0
_TAIL_BYTES = 1000
_MOST_SHOWN = 100
_LONGEST_LINE_BYTES = 64 * 1024
_STDIN, _STDOUT, _STDERR, _STATUS = b"\0", b"\1", b"\2", b"\3"  # channels of v4.channel.k8s.io
_PATCH = {"Content-Type": "application/merge-patch+json"}
_METADATA_ONLY = {"Accept": "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"}

log = logging.getLogger(__name__)


class ApiRefused(ServiceUnavailable):
    """The API server has refused a request; the text is its message.

    :param status: the HTTP status.
    :param reason: the reason as Kubernetes names it: Forbidden, Invalid, NotFound, AlreadyExists, Conflict, Expired, …
    """

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.reason = reason

    @property
    def is_permanent(self) -> bool:
        """Whether an object can never be created as it is."""
        return self.status in (400, 413, 422)


class ApiUnreachable(ServiceUnavailable):
    """The API server does not answer."""


class WatchExpired(ServiceUnavailable):
    """The server no longer has the resource version to watch from (410): list again."""


class Cluster:
    """One API server, accessed as one user."""

    def __init__(
        self, client: ApiClient, *, context: str, namespace: str, log_in: Callable[[], Awaitable[object]] | None = None
    ) -> None:
        """:param log_in: gets new credentials, and the address, into the client's configuration; None: the library
        does, when they expire."""
        self._client = client
        self._log_in = log_in
        self._logging_in = asyncio.Lock()
        self._logins = 0
        self._logged_in_at = time.monotonic()
        self._connection = _describe_connection(client.configuration)
        self._unanswered = 0  # requests in a row
        self.context = context
        """The name of the context in the kubeconfig file; "" inside a cluster."""
        self.namespace = namespace
        """The default namespace of its user."""

    @property
    def url(self) -> str:
        """The URL of the API server."""
        return str(self._client.configuration.host)

    async def close(self) -> None:
        """Close all connections."""
        await self._client.close()

    async def get(self, path: str, query: Mapping[str, str] | None = None) -> KubernetesObject:
        """Read an object. Raises ApiRefused (status 404 if there is no such object), ApiUnreachable."""
        return await self._request("GET", path, query)

    async def find_metadata(self, path: str) -> KubernetesObject | None:
        """The metadata of an object, without its data, which may be large; None if there is no such object. Raises
        ApiRefused, ApiUnreachable."""
        try:
            found = await self._request("GET", path, headers=_METADATA_ONLY)
        except ApiRefused as error:
            if error.status != 404:
                raise
            return None
        metadata: KubernetesObject = found["metadata"]
        return metadata

    async def create(self, path: str, body: KubernetesObject) -> KubernetesObject:
        """Create an object in the collection `path`. Raises ApiRefused (status 409 if it exists), ApiUnreachable."""
        return await self._request("POST", path, body=body)

    async def try_creating(self, path: str, body: KubernetesObject) -> builtins.list[str]:
        """Have the server check an object strictly, and admit it, without creating it. Returns its warnings. Raises
        ApiRefused, ApiUnreachable."""
        query = {"dryRun": "All", "fieldValidation": "Strict"}
        response = await self._send("POST", path, query, body=body, timeout=aiohttp.ClientTimeout(REQUEST_SECONDS))
        await _read(response)
        return [_read_warning(text) for text in response.headers.getall("Warning", ())]

    async def patch(self, path: str, body: KubernetesObject) -> KubernetesObject:
        """Merge `body` into an object. Raises ApiRefused, ApiUnreachable."""
        return await self._request("PATCH", path, body=body, headers=_PATCH)

    async def delete(self, path: str, *, uid: str | None = None) -> bool:
        """Delete an object; what it owns is deleted in the background. Returns False if there was no such object.
        Raises ApiRefused, ApiUnreachable.

        :param uid: delete it only if it has this uid.
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
        """The last lines of the log of a container, cut after `limit_bytes`. Raises ApiRefused (status 400 if it has
        not been started), ApiUnreachable."""
        query = {"container": container, "tailLines": str(tail_lines), "limitBytes": str(limit_bytes)}
        path = f"/api/v1/namespaces/{namespace}/pods/{pod}/log"
        response = await self._send("GET", path, query, timeout=aiohttp.ClientTimeout(REQUEST_SECONDS))
        return await _read(response)

    async def list(
        self, path: str, query: Mapping[str, str]
    ) -> AsyncIterator[tuple[builtins.list[KubernetesObject], str]]:
        """The objects of a collection that match the selectors in `query`, page by page, each page with the resource
        version to watch from; it is emptied before the next one is read. Raises ApiRefused, ApiUnreachable;
        WatchExpired if the server no longer has the next page."""
        token = ""
        while True:
            page = await self._request("GET", path, {**query, "limit": str(PAGE_SIZE), "continue": token})
            try:
                items, metadata = page["items"], page["metadata"]
                version, token = metadata["resourceVersion"], metadata.get("continue", "")
            except (LookupError, TypeError, AttributeError) as error:
                raise self._not_understood(path, "a list", page) from error
            yield items, version
            items.clear()  # they would take room beside the next ones, several times that of their text
            if not token:
                return

    async def watch(
        self, path: str, query: Mapping[str, str], resource_version: str
    ) -> AsyncIterator[tuple[str, KubernetesObject]]:
        """The changes since a resource version: ADDED, MODIFIED, DELETED or BOOKMARK, with the object. Ends when the
        server ends the watch; continue then from the version of the last object. Raises ApiRefused, ApiUnreachable,
        WatchExpired."""
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
        """Run a command in a container, with its standard streams; leaving the context closes them. Raises ApiRefused,
        ApiUnreachable."""
        options = [("container", container), *(("command", word) for word in command)]
        options += [(name, "true") for name in ("stdin", "stdout", "stderr")]
        path = f"/api/v1/namespaces/{namespace}/pods/{pod}/exec?{urlencode(options)}"
        try:
            async with await self._open_socket(path) as socket:
                yield ExecStream(socket)
        except aiohttp.WSServerHandshakeError as error:
            needs = "its user needs the rights to create and get pods/exec" if error.status == 403 else error.message
            _raise(error.status, {"message": f"no command can be run in pod {pod}: {needs}"})
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise ApiUnreachable(f"the stream to pod {pod} broke: {error or type(error).__name__}") from error

    async def _open_socket(self, path: str) -> aiohttp.ClientWebSocketResponse:
        """Open a stream; once more with new credentials if they have expired (401)."""
        headers, may_log_in = {"sec-websocket-protocol": "v4.channel.k8s.io"}, self._log_in is not None
        while True:
            logins = self._logins
            if self._client.rest_client.pool_manager is None:  # the library makes it at the first request
                await self.get("/version")
            serialized = await self._client.param_serialize(
                "GET", path, header_params=headers, auth_settings=["BearerToken"]
            )
            connections = self._client.rest_client
            try:  # the library's own WsApiClient leaves the kubeconfig file's proxy out
                socket: aiohttp.ClientWebSocketResponse = await connections.pool_manager.ws_connect(
                    serialized[1], headers=serialized[2], heartbeat=_HEARTBEAT_SECONDS, proxy=connections.proxy
                )
            except aiohttp.WSServerHandshakeError as error:
                if error.status != 401 or not may_log_in:
                    raise
                may_log_in = False
                await self._renew_login(logins)
            else:
                return socket

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
        """The answer is not from an API server; it may be from a proxy that requires a login."""
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
        """Send a request and return the response, whose body is still unread. A request that is refused because the
        server is busy (429, 503, or with Retry-After) is sent again after the time it asks for, and one that is refused
        because credentials have expired (401) is sent again with new ones."""
        may_log_in, attempts = self._log_in is not None, 0
        while True:
            logins = self._logins
            try:
                response = await self._send_once(method, path, query, timeout=timeout, body=body, headers=headers)
            except ApiUnreachable:
                await self._note_unanswered(logins)
                raise
            self._unanswered = 0
            if response.status < 400:
                return response
            status = _parse_status(await _read(response))
            if response.status == 401 and may_log_in:
                may_log_in = False
                await self._renew_login(logins)
            elif attempts < _RETRIES and (response.status in (429, 503) or "Retry-After" in response.headers):
                attempts += 1
                await asyncio.sleep(_retry_after(response))
            else:
                _raise(response.status, status)

    async def _renew_login(self, before: int) -> None:
        """Log in again, unless that was done since `before`. Where the address or a certificate has changed, all
        connections are made anew. Raises ServiceUnavailable."""
        async with self._logging_in:
            if self._log_in is None or self._logins != before:
                return
            self._logins += 1  # also when it fails: the other requests do not try it once more each
            self._logged_in_at = time.monotonic()
            await self._log_in()
            configuration = self._client.configuration
            if (connection := _describe_connection(configuration)) != self._connection:
                earlier, self._client = self._client, _make_client(configuration)
                self._connection = connection
                await earlier.close()

    async def _note_unanswered(self, logins: int) -> None:
        """The server may have moved, or turn away a certificate that has expired: log in again from time to time."""
        self._unanswered += 1
        is_due = time.monotonic() - self._logged_in_at >= RENEWAL_SECONDS
        if self._unanswered >= _UNANSWERED and is_due:
            with suppress(ServiceUnavailable):  # that it cannot be reached says more
                await self._renew_login(logins)

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
        """The end of its standard error."""
        self.problem = ""
        """Once it has ended: why it could not be started, or how it failed."""

    async def write(self, data: bytes) -> None:
        """Write to its standard input."""
        await self._socket.send_bytes(_STDIN + data)

    async def read(self) -> bytes:
        """Read from its standard output; empty at the end."""
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
        """Read the next line of its standard output; empty at the end. Has no time limit of its own: callers set one
        where they need it, and the heartbeat notices a dead connection. Raises ApiUnreachable for an endless line."""
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
    """Open the cluster of a context in a kubeconfig file or, without such a file, the one that this process runs in.

    :param kubeconfig: None: $KUBECONFIG, else ~/.kube/config.
    :param context: None: the current one.
    :raises ServiceUnavailable: the file cannot be used; says which one, and why.
    """
    configuration = Configuration()
    configuration.retries = None
    configuration.connection_pool_maxsize = 0  # no limit: watches and exec streams keep their connections
    path = kubeconfig or os.environ.get("KUBECONFIG") or str(Path("~/.kube/config").expanduser())
    is_there = any(Path(each).expanduser().exists() for each in path.split(os.pathsep))
    if not is_there and kubeconfig is None and context is None and "KUBERNETES_SERVICE_HOST" in os.environ:
        try:
            kube_config.load_incluster_config(client_configuration=configuration)  # reads the token again by itself
            namespace = (_ACCOUNT / "namespace").read_text(encoding="utf-8").strip()
        except (ConfigException, OSError) as error:
            raise ServiceUnavailable(f"the service account of this pod cannot be used: {error}") from error
        return Cluster(_make_client(configuration), context="", namespace=namespace)
    if not is_there:
        raise ServiceUnavailable(f"there is no kubeconfig file {path}; give trainingService.kubeconfig, or KUBECONFIG")

    async def log_in() -> KubernetesObject:
        try:
            async with asyncio.timeout(LOGIN_SECONDS):
                loader = await kube_config.load_kube_config(
                    config_file=path, context=context, client_configuration=configuration, persist_config=False
                )
        except TimeoutError as error:
            why = f"the login of the kubeconfig file {path} has not ended within {LOGIN_SECONDS:g} s"
            raise ServiceUnavailable(f"{why}; log in with kubectl where the manager runs") from error
        except Exception as error:  # the file is the user's, and several libraries parse it
            raise ServiceUnavailable(f"the kubeconfig file {path} cannot be used: {error}") from error
        found: KubernetesObject = loader.current_context
        return found

    chosen = await log_in()
    namespace = chosen["context"].get("namespace") or "default"
    return Cluster(_make_client(configuration), context=chosen["name"], namespace=namespace, log_in=log_in)


def _describe_connection(configuration: Configuration) -> tuple[object, ...]:
    """What a connection depends on, with the content of the certificates. Raises ServiceUnavailable."""
    names = (configuration.ssl_ca_cert, configuration.cert_file, configuration.key_file)
    try:
        texts = [Path(name).read_bytes() if name else b"" for name in names]
    except OSError as error:
        raise ServiceUnavailable(f"the certificates for {configuration.host} cannot be read: {error}") from error
    proxy, name = configuration.proxy, configuration.tls_server_name
    return configuration.host, proxy, name, configuration.verify_ssl, *texts


def _make_client(configuration: Configuration) -> ApiClient:
    try:
        return ApiClient(configuration)
    except OSError as error:  # of the TLS library, too
        raise ServiceUnavailable(f"the certificates for {configuration.host} cannot be used: {error}") from error


async def _read(response: aiohttp.ClientResponse) -> bytes:
    try:
        return await response.read()
    except (aiohttp.ClientError, OSError, TimeoutError) as error:
        raise ApiUnreachable(f"an answer of {response.url.host} was cut: {error or type(error).__name__}") from error


def _retry_after(response: aiohttp.ClientResponse) -> float:
    """How long to wait before a busy server is asked again, in seconds."""
    try:
        return min(float(response.headers.get("Retry-After", "1")), _MOST_RETRY_AFTER_SECONDS)
    except ValueError:  # it may be a date
        return 1.0


def _read_warning(header: str) -> str:
    """The text of a `Warning` header: 299 - "text"."""
    _, _, quoted = header.partition('"')
    return re.sub(r"\\(.)", r"\1", quoted.rpartition('"')[0]) or header


def _parse_status(body: bytes) -> KubernetesObject:
    """The Status object in an answer, or one made of what something else (such as a proxy) has sent."""
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

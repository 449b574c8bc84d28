"""Requests, pages and watches against an API server that is busy, torn, slow or forgetful."""

import asyncio
import json
import secrets
import ssl
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import aiohttp
import kmock
import pytest
from aiohttp import web
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from proctor.manager.process.certificate import open_certificate
from proctor.manager.settings import Home
from proctor.training_services.base import EndReason
from proctor.training_services.errors import ServiceUnavailable
from proctor.training_services.keepers.archive import KeeperArchive
from proctor.training_services.keepers.hub import KeeperHub
from proctor.training_services.kubernetes.client import (
    ApiRefused,
    ApiUnreachable,
    Cluster,
    ExecStream,
    WatchExpired,
    open_cluster,
)
from proctor.training_services.kubernetes.manifests import ExperimentManifests, Names
from proctor.training_services.kubernetes.namespaces import NamespaceView
from proctor.training_services.kubernetes.objects import ExperimentObjects
from proctor.training_services.kubernetes.provider import KubernetesProvider
from proctor.training_services.kubernetes.settings import KubernetesSettings
from proctor.training_services.nodes.pool import NodePool
from proctor.training_services.providers import ProviderContext

pytestmark = pytest.mark.anyio

JOBS = "/apis/batch/v1/namespaces/ml/jobs"
PODS = "/api/v1/namespaces/ml/pods"
EVENTS = "/api/v1/namespaces/ml/events"


class Script:
    """The answers of an API server, by path: one after another, the last one again and again."""

    def __init__(self) -> None:
        self.requests: list[Any] = []
        self._answers: dict[str, list[Any]] = {}

    def answer(self, path: str, *answers: Any) -> None:
        """What is answered at a path, in this order; a callable gets the request."""
        self._answers[path] = list(answers)

    def __call__(self, request: Any) -> Any:
        self.requests.append(request)
        answers = self._answers.get(request.url.path, [refusal(404, "not found")])
        found = answers.pop(0) if len(answers) > 1 else answers[0]
        if not isinstance(found, kmock.Response) and callable(found):
            found = found(request)
        return found if isinstance(found, kmock.Response) else kmock.Response(status=200, payload=found)

    def asked(self, path: str) -> list[dict[str, str]]:
        """The queries of the requests at a path."""
        return [dict(request.url.query) for request in self.requests if request.url.path == path]


def refusal(status: int, message: str, **headers: str) -> kmock.Response:
    return kmock.Response(status=status, headers=headers, payload={"kind": "Status", "message": message})


def lines(*events: tuple[str, dict[str, Any]], torn: bytes = b"") -> kmock.Response:
    data = b"".join(json.dumps({"type": kind, "object": found}).encode() + b"\n" for kind, found in events)
    return kmock.Response(status=200, payload=data + torn)


def page(*items: dict[str, Any], version: str = "10", more: str = "") -> dict[str, Any]:
    return {"metadata": {"resourceVersion": version, "continue": more}, "items": list(items)}


def job(name: str, version: str = "1", **status: Any) -> dict[str, Any]:
    ids = {"proctor/job-id": name, "proctor/job-token": "t", "proctor/experiment-id": "E"}
    metadata = {"name": name, "uid": f"uid-{name}", "resourceVersion": version, "annotations": ids}
    return {"metadata": {**metadata, "creationTimestamp": "2026-11-24T00:00:00Z"}, "spec": {}, "status": status}


def write_kubeconfig(folder: Path, server: dict[str, Any], user: dict[str, Any]) -> None:
    config = {
        "current-context": "test",
        "contexts": [{"name": "test", "context": {"cluster": "c", "user": "u", "namespace": "ml"}}],
        "clusters": [{"name": "c", "cluster": server}],
        "users": [{"name": "u", "user": user}],
    }
    (folder / "kubeconfig").write_text(json.dumps(config))


@asynccontextmanager
async def serving(
    script: Script, folder: Path, token: str = "secret", user: dict[str, Any] | None = None
) -> AsyncIterator[Cluster]:
    handler = kmock.RawHandler()
    async with handler, kmock.Server(handler) as server:
        handler << script
        write_kubeconfig(folder, {"server": str(server.url).rstrip("/")}, user or {"token": token})
        cluster = await open_cluster(str(folder / "kubeconfig"), None)
        try:
            yield cluster
        finally:
            await cluster.close()


@pytest.fixture
def script() -> Script:
    return Script()


@pytest.fixture
async def cluster(script: Script, tmp_path: Path, anyio_backend: str) -> AsyncIterator[Cluster]:
    """A cluster whose server answers as the script says."""
    async with serving(script, tmp_path) as opened:
        yield opened


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The seconds for which the client wanted to wait; it does not."""
    taken: list[float] = []

    async def pause(seconds: float) -> None:
        taken.append(seconds)

    without_waiting = SimpleNamespace(**{**vars(asyncio), "sleep": pause})
    monkeypatch.setattr("proctor.training_services.kubernetes.client.asyncio", without_waiting)
    return taken


@pytest.mark.parametrize("status", [429, 500, 502, 503, 504])
async def test_a_server_is_asked_again_after_the_time_that_it_names(
    script: Script, cluster: Cluster, pauses: list[float], status: int
) -> None:
    script.answer(JOBS, *(refusal(status, "busy", **{"Retry-After": after}) for after in ("7", "2")), {"kind": "Job"})
    assert await cluster.create(JOBS, {"kind": "Job"}) == {"kind": "Job"}
    assert pauses == [7.0, 2.0]
    assert [request.method.value.upper() for request in script.requests] == ["POST"] * 3


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [({}, 1.0), ({"Retry-After": "Tue, 24 Nov 2026 00:00:00 GMT"}, 1.0), ({"Retry-After": "3600"}, 20.0)],
)
async def test_a_busy_server_is_asked_again_soon_and_a_few_times(
    script: Script, cluster: Cluster, pauses: list[float], headers: dict[str, str], seconds: float
) -> None:
    script.answer(JOBS, refusal(503, "starting", **headers))
    with pytest.raises(ApiRefused, match="starting"):
        await cluster.get(JOBS)
    assert pauses == [seconds] * 5


@pytest.mark.parametrize("status", [400, 403, 409, 500])
async def test_other_refusals_are_passed_on_at_once_in_the_servers_words(
    script: Script, cluster: Cluster, status: int
) -> None:
    script.answer(JOBS, refusal(status, 'cannot create resource "jobs"'))
    with pytest.raises(ApiRefused, match='cannot create resource "jobs"') as caught:
        await cluster.create(JOBS, {})
    assert caught.value.status == status
    assert len(script.requests) == 1


async def test_a_proxy_that_answers_something_else_is_named(script: Script, cluster: Cluster) -> None:
    script.answer(JOBS, b"<html>log in first</html>")
    with pytest.raises(ApiUnreachable, match="with JSON, found '<html>log in first"):
        await cluster.get(JOBS)


def token_of(request: Any) -> str:
    """The token with which a request was made."""
    headers = {name.lower(): value for name, value in request.headers.items()}
    return str(headers["authorization"]).removeprefix("Bearer ")


def renew_token(folder: Path) -> None:
    config = (folder / "kubeconfig").read_text()
    (folder / "kubeconfig").write_text(config.replace('"old"', '"new"'))


async def test_expired_credentials_are_read_again_once(script: Script, tmp_path: Path) -> None:
    script.answer(JOBS, lambda request: {} if token_of(request) == "new" else refusal(401, "Unauthorized"))
    async with serving(script, tmp_path, token="old") as cluster:
        with pytest.raises(ApiRefused, match="Unauthorized"):
            await cluster.get(JOBS)
        renew_token(tmp_path)
        assert await cluster.get(JOBS) == {}
    assert len(script.requests) == 4


async def test_requests_that_are_turned_away_together_log_in_once(tmp_path: Path) -> None:
    script, logins, token = Script(), tmp_path / "logins", tmp_path / "token"
    token.write_text("old")

    script.answer(JOBS, lambda request: {} if token_of(request) == token.read_text() else refusal(401, "Unauthorized"))
    credential = (
        '{"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential", "status": {"token": "%s"}}'
    )
    program = f"echo login >> {logins}; printf '{credential}' $(cat {token})"
    user = {"exec": {"apiVersion": "client.authentication.k8s.io/v1", "command": "sh", "args": ["-c", program]}}
    async with serving(script, tmp_path, user=user) as cluster:
        assert await cluster.get(JOBS) == {}
        token.write_text("new")
        assert await asyncio.gather(*(cluster.get(JOBS) for _ in range(8))) == [{}] * 8
    assert logins.read_text() == "login\n" * 2


async def test_a_stream_that_is_turned_away_is_opened_with_new_credentials_once(script: Script, tmp_path: Path) -> None:
    sent: list[str] = []

    def check(request: Any) -> Any:
        sent.append(token_of(request))
        return refusal(403 if sent[-1] == "new" else 401, "refused")

    script.answer(f"{PODS}/pod/exec", check)
    script.answer("/version", {})

    async def run(cluster: Cluster) -> None:
        async with cluster.exec("ml", "pod", "trial", ["true"]):
            pass

    async with serving(script, tmp_path, token="old") as cluster:
        with pytest.raises(ApiRefused, match="no command can be run in pod pod") as caught:
            await run(cluster)
        assert (caught.value.status, sent) == (401, ["old"] * 2)
        renew_token(tmp_path)
        with pytest.raises(ApiRefused, match="needs the rights to create and get pods/exec"):
            await run(cluster)
    assert sent[2:] == ["old", "new"]


def write_client_certificate(path: Path) -> None:
    """One that a server can trust by itself, with its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, f"user {secrets.token_hex(4)}")])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    pem, pkcs8 = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    path.write_bytes(key.private_bytes(pem, pkcs8, serialization.NoEncryption()) + certificate.public_bytes(pem))


async def test_a_client_certificate_that_was_renewed_is_used_once_the_old_one_is_turned_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("proctor.training_services.kubernetes.client.RENEWAL_SECONDS", 0.0)
    home, mine = Home(tmp_path / "home"), tmp_path / "user.pem"
    home.prepare()

    async def answer(_: web.Request) -> web.Response:
        return web.json_response({})

    @asynccontextmanager
    async def trusting(port: int) -> AsyncIterator[int]:
        """An API server for the certificate that is there now."""
        tls, _ = open_certificate(home, "127.0.0.1")
        tls.verify_mode = ssl.CERT_REQUIRED
        tls.load_verify_locations(mine)
        app = web.Application()
        app.router.add_get(JOBS, answer)
        runner = web.AppRunner(app)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", port, ssl_context=tls)
        await site.start()
        try:
            yield runner.addresses[0][1]
        finally:
            await runner.cleanup()

    write_client_certificate(mine)
    user = {"client-certificate": str(mine), "client-key": str(mine)}
    async with trusting(0) as port:
        server = {"server": f"https://127.0.0.1:{port}", "insecure-skip-tls-verify": True}
        write_kubeconfig(tmp_path, server, user)
        cluster = await open_cluster(str(tmp_path / "kubeconfig"), None)
        assert await cluster.get(JOBS) == {}
    write_client_certificate(mine)
    async with trusting(port):
        for _ in range(3):
            with pytest.raises(ApiUnreachable):
                await cluster.get(JOBS)
        assert await cluster.get(JOBS) == {}
    await cluster.close()


async def test_a_server_that_has_moved_is_found_in_the_kubeconfig_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("proctor.training_services.kubernetes.client.RENEWAL_SECONDS", 0.0)
    for name in ("old", "new"):
        (tmp_path / name).mkdir()
    async with serving(Script(), tmp_path / "old"):
        pass
    cluster = await open_cluster(str(tmp_path / "old" / "kubeconfig"), None)
    assert cluster.namespace == "ml"
    script = Script()
    script.answer(JOBS, {})
    async with serving(script, tmp_path / "new"):
        (tmp_path / "new" / "kubeconfig").replace(tmp_path / "old" / "kubeconfig")
        for _ in range(3):
            with pytest.raises(ApiUnreachable, match="cannot be reached"):
                await cluster.get(JOBS)
        assert await cluster.get(JOBS) == {}
    await cluster.close()


@pytest.mark.parametrize("text", ["", "{", '{"contexts": []}'])
async def test_a_kubeconfig_file_that_cannot_be_used_is_named(tmp_path: Path, text: str) -> None:
    path = tmp_path / "kubeconfig"
    path.write_text(text)
    with pytest.raises(ServiceUnavailable, match=f"{path}.* cannot be used"):
        await open_cluster(str(path), None)
    with pytest.raises(ServiceUnavailable, match="there is no kubeconfig file"):
        await open_cluster(str(tmp_path / "missing"), None)


async def test_a_collection_is_listed_page_by_page(script: Script, cluster: Cluster) -> None:
    script.answer(JOBS, page(job("a"), more="next"), page(job("b"), version="11"))
    pages, found = [], []
    async for items, version in cluster.list(JOBS, {}):
        pages.append(items)
        found += [(item["metadata"]["name"], version) for item in items]
    assert found == [("a", "10"), ("b", "11")]
    assert pages[0] == []  # its memory is free for the next one
    assert [query.get("continue") for query in script.asked(JOBS)] == [None, "next"]
    assert [query["limit"] for query in script.asked(JOBS)] == ["300"] * 2


@pytest.mark.parametrize("answer", [{}, [], {"items": []}, {"items": None, "metadata": {}}, "log in first"])
async def test_a_list_that_is_none_is_named(script: Script, cluster: Cluster, answer: Any) -> None:
    script.answer(JOBS, json.dumps(answer).encode())
    with pytest.raises(ApiUnreachable, match="with a list, found"):
        async for _ in cluster.list(JOBS, {}):
            pass


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (lambda _: lines(torn=b'{"error": "log in first"}\n'), ApiUnreachable),
        (lambda _: lines(torn=b"[]\n"), ApiUnreachable),
        (lambda _: refusal(410, "too old resource version"), WatchExpired),
        (lambda _: lines(("ERROR", {"code": 410, "message": "too old resource version"})), WatchExpired),
        (lambda _: lines(("ERROR", {"code": 500, "message": "etcd"})), ApiRefused),
        (lambda _: lines(torn=b'{"type": "ADDED", "obj'), ApiUnreachable),
    ],
)
async def test_how_a_watch_breaks(
    script: Script, cluster: Cluster, answer: Callable[[Any], Any], error: type[Exception]
) -> None:
    script.answer(JOBS, answer)
    with pytest.raises(error):
        async for _ in cluster.watch(JOBS, {}, "10"):
            pass


# ---- what a namespace has, across watches that break


@pytest.mark.parametrize(("given", "expected"), [({}, "ml"), ({"namespace": "vision"}, "vision")])
async def test_trials_are_in_the_namespace_of_the_section_or_else_of_the_context(
    tmp_path: Path, given: dict[str, str], expected: str
) -> None:
    write_kubeconfig(tmp_path, {"server": "http://127.0.0.1:9"}, {"token": "secret"})
    chosen = KubernetesSettings.read({"image": "i", "kubeconfig": str(tmp_path / "kubeconfig"), **given})
    pool = NodePool()
    provider = KubernetesProvider(ProviderContext("m", tmp_path, tmp_path / "socket", pool, KeeperHub(pool)))
    view = await provider.view(chosen, "E")
    assert view.jobs_path == f"/apis/batch/v1/namespaces/{expected}/jobs"
    assert view.pods_path == f"/api/v1/namespaces/{expected}/pods"
    await view.cluster.close()


async def until_names(view: NamespaceView, names: Sequence[str]) -> None:
    """Wait until the view has these Jobs and no others."""
    changes = view.listen()
    while sorted(seen.job_id for seen in await view.list()) != sorted(names):
        await changes.take()


@asynccontextmanager
async def watching(script: Script, folder: Path) -> AsyncIterator[NamespaceView]:
    """A view of the namespace, watched."""
    for path in (PODS, EVENTS):
        script.answer(path, lambda request: held() if "watch" in request.url.query else page())
    async with serving(script, folder) as cluster, asyncio.timeout(20):
        view = NamespaceView(cluster, "ml", "app.kubernetes.io/managed-by=proctor")
        task = asyncio.get_running_loop().create_task(view.run(), name="view")
        try:
            yield view
        finally:
            task.cancel()
            await asyncio.wait({task})


def held() -> kmock.Response:
    """A watch in which nothing happens."""

    async def wait() -> AsyncIterator[bytes]:
        await asyncio.sleep(3600)
        yield b""

    return kmock.Response(status=200, payload=wait())


async def test_a_watch_that_ends_continues_from_its_last_change_without_a_new_list(
    script: Script, tmp_path: Path
) -> None:
    script.answer(
        JOBS,
        page(job("a"), version="10"),
        lines(("ADDED", job("b", "12")), ("BOOKMARK", {"metadata": {"resourceVersion": "15"}})),
        lines(("ADDED", job("c", "17")), torn=b'{"type": "ADD'),
        lambda _: held(),
    )
    async with watching(script, tmp_path) as view:
        await until_names(view, "abc")
        while len(script.asked(JOBS)) < 4:  # noqa: ASYNC110 - the server is asked
            await asyncio.sleep(0.01)
    asked = script.asked(JOBS)
    assert [query.get("resourceVersion") for query in asked] == [None, "10", "15", "17"]
    assert ["watch" in query for query in asked] == [False, True, True, True]
    assert [query.get("allowWatchBookmarks") for query in asked] == [None, "true", "true", "true"]


BREAKS: dict[str, tuple[list[Any], str, list[dict[str, str]]]] = {
    "a watch after 410: what is missing is gone": (
        [page(job("a"), job("b"), version="10"), refusal(410, "too old"), page(job("b"), job("c"), version="20")],
        "bc",
        [{}, {"resourceVersion": "10"}, {}],
    ),
    "a next page that has expired": (
        [
            page(job("a"), version="10", more="next"),
            refusal(410, "the continue token is too old"),
            page(job("b"), version="20", more="other"),
            page(job("c"), version="20"),
        ],
        "bc",
        [{}, {"continue": "next"}, {}, {"continue": "other"}],
    ),
    "a watch that is refused": (
        [page(job("a"), version="10"), refusal(500, "etcd is busy"), lines(("ADDED", job("b", "12")))],
        "ab",
        [{}, {"resourceVersion": "10"}, {"resourceVersion": "10"}],
    ),
    "objects that are none": (
        [
            page(job("a"), version="10"),
            lines(("ADDED", {"kind": "Job"})),
            {"metadata": {"resourceVersion": "11"}, "items": [{"kind": "Job"}]},
            page(job("b"), version="12"),
        ],
        "b",
        [{}, {"resourceVersion": "10"}, {}, {}],
    ),
}
"""What is answered; the Jobs that are known then, and where each of the requests continues."""


@pytest.mark.parametrize(("answers", "names", "asked"), BREAKS.values(), ids=BREAKS)
async def test_after_a_break_a_namespace_is_listed_again_only_where_its_watch_cannot_continue(
    script: Script,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    answers: list[Any],
    names: str,
    asked: list[dict[str, str]],
) -> None:
    script.answer(JOBS, *answers, lambda _: held())
    async with watching(script, tmp_path) as view:
        await until_names(view, names)
    kept = ("continue", "resourceVersion")
    found = [{key: query[key] for key in kept if key in query} for query in script.asked(JOBS)]
    assert found[: len(asked)] == asked
    assert ("an object is malformed: KeyError('metadata')" in caplog.text) is (names == "b")


async def test_a_pod_that_does_not_end_in_time_is_overdue(
    script: Script, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script.answer(JOBS, page(job("a"), version="10"), lambda _: held())
    metadata = {"name": "a-1", "uid": "pod", "labels": {"proctor/job": "a"}, "resourceVersion": "11"}
    metadata |= {"creationTimestamp": "2026-11-24T00:00:00Z", "deletionTimestamp": "2026-11-24T00:01:00Z"}
    pod = {"metadata": metadata, "spec": {"nodeName": "node-1"}, "status": {"phase": "Running"}}
    monkeypatch.setattr("proctor.training_services.kubernetes.namespaces.OVERDUE_SECONDS", 0.0)
    async with watching(script, tmp_path) as view:
        script.answer(PODS, page(pod, version="11"), lambda _: held())
        async with asyncio.timeout(10):
            while [seen.reason for seen in await view.list()] != [EndReason.NODE_LOST]:  # noqa: ASYNC110
                await asyncio.sleep(0.01)


async def test_a_job_whose_only_pod_was_deleted_has_lost_it(script: Script, tmp_path: Path) -> None:
    script.answer(JOBS, page(job("a"), version="10"), lambda _: held())
    metadata = {"name": "a-1", "uid": "pod", "labels": {"proctor/job": "a"}, "resourceVersion": "11"}
    metadata |= {"creationTimestamp": "2026-11-24T00:00:00Z"}
    pod = {"metadata": metadata, "spec": {"nodeName": "node-1"}, "status": {"phase": "Running"}}
    async with watching(script, tmp_path) as view:
        script.answer(PODS, page(pod, version="11"), lines(("DELETED", pod)), lambda _: held())
        changes = view.listen()
        while (found := view.first_pod("a")) is None or found.phase != "Failed":
            await changes.take()
        assert found.is_going


async def test_what_was_just_created_or_deleted_is_known_before_its_watch_says_so(
    script: Script, tmp_path: Path
) -> None:
    script.answer(JOBS, page(job("a"), version="10"), lambda _: held())
    async with watching(script, tmp_path) as view:
        await until_names(view, "a")
        view.note_created(job("b"))
        assert sorted(seen.job_id for seen in await view.list()) == ["a", "b"]
        view.note_deleted("b")
        view.note_created(job("b"))  # the answer to its creation, late
        assert [seen.job_id for seen in await view.list()] == ["a"]


async def test_an_answer_that_is_cut_is_told(tmp_path: Path) -> None:
    async def cut(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nthe ")
        writer.close()

    async with await asyncio.start_server(cut, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        write_kubeconfig(tmp_path, {"server": f"http://127.0.0.1:{port}"}, {})
        cluster = await open_cluster(str(tmp_path / "kubeconfig"), None)
        try:
            with pytest.raises(ApiUnreachable, match=r"an answer of .* was cut"):
                await cluster.read_log("ml", "pod", "trial", tail_lines=20)
        finally:
            await cluster.close()


async def test_of_the_log_of_one_container_the_end_is_read_up_to_a_limit(script: Script, cluster: Cluster) -> None:
    script.answer(f"{PODS}/pod/log", kmock.Response(status=200, payload=b"the end\n"))
    assert await cluster.read_log("ml", "pod", "trial", tail_lines=20) == b"the end\n"
    await cluster.read_log("ml", "pod", "trial", tail_lines=20_000, limit_bytes=1 << 24)
    assert script.asked(f"{PODS}/pod/log") == [
        {"container": "trial", "tailLines": "20", "limitBytes": "65536"},
        {"container": "trial", "tailLines": "20000", "limitBytes": "16777216"},
    ]


class Socket:
    """Of a command that writes what it is given, in messages of this size, and does not end."""

    def __init__(self, text: bytes, size: int) -> None:
        self._text, self._size = text, size

    async def receive(self) -> aiohttp.WSMessage:
        data, self._text = self._text[: self._size], self._text[self._size :] or self._text
        return aiohttp.WSMessage(aiohttp.WSMsgType.BINARY, b"\1" + data, None)


async def test_the_lines_of_a_command_are_read_one_by_one_and_one_that_does_not_end_is_given_up() -> None:
    stream = ExecStream(Socket(b"first\nsecond\n", 5))  # type: ignore[arg-type]
    assert [await stream.read_line(), await stream.read_line()] == [b"first", b"second"]
    with pytest.raises(ApiUnreachable, match="a line of more than 65536 bytes"):
        await ExecStream(Socket(b"x" * 4096, 4096)).read_line()  # type: ignore[arg-type]


async def test_a_namespace_that_cannot_be_listed_says_why(
    script: Script, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("proctor.training_services.kubernetes.namespaces.SYNC_SECONDS", 0.3)
    script.answer(JOBS, refusal(403, 'cannot list resource "jobs"'))
    async with watching(script, tmp_path) as view:
        with pytest.raises(ServiceUnavailable, match='cannot list resource "jobs"'):
            await view.list()


async def test_an_object_of_an_anchor_that_was_deleted_is_waited_for(tmp_path: Path) -> None:
    script, maps = Script(), "/api/v1/namespaces/ml/configmaps"
    names = Names("manager")
    manifests = ExperimentManifests(names, "E", KubernetesSettings.read({"image": "i"}), "1")
    archive = KeeperArchive(tmp_path / "keeper.pyz", "0" * 64, "keeper.pyz")
    archive.path.write_bytes(b"keeper")
    anchor, keeper = names.anchor("E"), names.keeper("E", archive.sha256)
    script.answer(f"{maps}/{anchor}", {"metadata": {"name": anchor, "uid": "new"}, "data": {"endpoint": "here"}})
    script.answer(maps, refusal(409, "exists"))
    left = {"metadata": {"name": keeper, "ownerReferences": [{"uid": "old"}]}}
    script.answer(f"{maps}/{keeper}", left, {"metadata": {"name": keeper, "ownerReferences": [{"uid": "new"}]}})
    async with serving(script, tmp_path) as cluster:
        objects = ExperimentObjects(cluster, "ml", manifests, archive)
        with pytest.raises(ServiceUnavailable, match="of an earlier experiment is being deleted"):
            await objects.prepare("here")
        assert (await objects.prepare("here"))["metadata"]["uid"] == "new"

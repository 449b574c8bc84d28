"""The port for keepers over TLS: who is served there, who is not, and what a stranger can hold up."""

import asyncio
import hashlib
import json
import random
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from proctor.manager.api import keepers
from proctor.manager.api.keepers import PREFIX, keeper_application
from proctor.manager.process import server
from proctor.manager.process.server import KeeperHttpProtocol, TlsHttpServer
from proctor.manager.process.sockets import listen_for_keepers
from proctor.manager.settings import Home, ListenAddress
from proctor.training_services.keepers.hub import KeeperHub
from proctor.training_services.nodes.pool import NodePool
from proctor.trial_keeper.errors import SessionError
from proctor.trial_keeper.protocol import Registration, manager_proof, to_json
from proctor.trial_keeper.uplink.http_client import HttpConnection
from proctor.trial_keeper.uplink.pointer import ManagerEndpoint, read_pointer

pytestmark = pytest.mark.anyio

HOST = "127.0.0.1"
SECRET = "the secret of node one"
HELLO = json.dumps({"nonce": "ab12"}).encode()
REGISTRATION = json.dumps(to_json(Registration("k", 1, "boot", "host", "0.1.0", "3.11", [], []))).encode()
SECONDS = 30.0


@asynccontextmanager
async def serving(listener: socket.socket, context: ssl.SSLContext) -> AsyncIterator[TlsHttpServer]:
    """A server for the keeper of node `one`."""
    pool = NodePool()
    pool.add("one", "local")
    hub = KeeperHub(pool)
    hub.add_node("one", SECRET)
    await hub.mark_reattached()
    made = TlsHttpServer(keeper_application(hub), context)
    with listener:
        async with asyncio.TaskGroup() as group:
            group.create_task(made.serve_on(listener), name="keepers")
            await made.serving.wait()
            try:
                yield made
            finally:
                hub.close()
                made.leave()


@pytest.fixture
async def endpoint(tmp_path: Path) -> AsyncIterator[ManagerEndpoint]:
    """Where a server listens that has the certificate of a home."""
    home = Home(tmp_path)
    home.prepare()
    listening = listen_for_keepers(home, ListenAddress(HOST, 0))
    async with serving(listening.socket, listening.context):
        yield read_pointer(str(home.endpoint_pointer))


async def greet(endpoint: ManagerEndpoint, node_id: str = "one") -> object:
    """The proof that a keeper gets."""
    async with HttpConnection(endpoint, PREFIX + node_id) as connection:
        status, answer = await connection.post("hello", HELLO, timeout_seconds=SECONDS)
    assert status == 200
    return json.loads(answer)["proof"]


@asynccontextmanager
async def client(endpoint: ManagerEndpoint) -> AsyncIterator[httpx.AsyncClient]:
    """A client that trusts whoever it finds."""
    async with httpx.AsyncClient(base_url=str(endpoint), verify=False, timeout=SECONDS) as made:
        yield made


async def test_a_keeper_with_the_right_pin_is_served(endpoint: ManagerEndpoint) -> None:
    assert await greet(endpoint) == manager_proof(SECRET, "ab12")
    async with HttpConnection(endpoint, PREFIX + "one") as connection:
        connection.authorize(SECRET)
        status, answer = await connection.post("register", REGISTRATION, timeout_seconds=SECONDS)
    assert (status, next(iter(json.loads(answer)))) == (200, "session")


async def test_a_listener_with_another_certificate_is_sent_nothing(
    endpoint: ManagerEndpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    received: list[bytes] = []
    monkeypatch.setattr(KeeperHttpProtocol, "data_received", lambda self, data: received.append(data))
    pinned = replace(endpoint, fingerprint="ab" * 32, pointer="/etc/pointer")
    with pytest.raises(SessionError, match=f"sha256:{endpoint.fingerprint}, not the pinned one.* /etc/pointer"):
        await greet(pinned)
    assert received == []


async def test_neither_dates_nor_names_nor_issuers_of_the_pinned_certificate_matter(tmp_path: Path) -> None:
    key, name = ec.generate_private_key(ec.SECP256R1()), x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "x")])
    long_ago = datetime.now(UTC) - timedelta(days=1000)
    certificate = x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key())
    certificate = certificate.serial_number(1).not_valid_before(long_ago).not_valid_after(long_ago + timedelta(days=1))
    signed = certificate.sign(key, hashes.SHA256())
    pem = serialization.Encoding.PEM
    private = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    (tmp_path / "expired.pem").write_bytes(private + signed.public_bytes(pem))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "expired.pem")
    listener = socket.create_server((HOST, 0))
    listener.setblocking(False)
    pin = hashlib.sha256(signed.public_bytes(serialization.Encoding.DER)).hexdigest()
    async with serving(listener, context):
        place = ManagerEndpoint(host="localhost", port=listener.getsockname()[1], fingerprint=pin)
        assert await greet(place) == manager_proof(SECRET, "ab12")


async def test_an_unknown_keeper_and_a_wrong_secret_are_answered_alike(endpoint: ManagerEndpoint) -> None:
    unknown = await greet(endpoint, "two")
    assert unknown == await greet(endpoint, "two") != await greet(endpoint, "three")
    assert unknown not in (manager_proof(SECRET, "ab12"), manager_proof("", "ab12"))
    answers = []
    async with client(endpoint) as stranger:
        for node_id, bearer in (("one", "wrong"), ("two", "wrong"), ("two", SECRET)):
            headers = {"Authorization": f"Bearer {bearer}"}
            answer = await stranger.post(f"{PREFIX}{node_id}/register", content=REGISTRATION, headers=headers)
            answers.append((answer.status_code, answer.content, sorted(answer.headers)))
    assert answers[0][0] == 401
    assert len(set(map(str, answers))) == 1


@pytest.mark.parametrize("path", ["/", "/api/v1/health", "/api/v1/experiments", "/api/v1/openapi.json", PREFIX + "one"])
async def test_nothing_but_the_keepers_routes_is_there(endpoint: ManagerEndpoint, path: str) -> None:
    async with client(endpoint) as stranger:
        assert (await stranger.get(path)).status_code == 404
        assert (await stranger.post(path)).status_code == 404


async def test_a_client_that_speaks_plain_http_gets_nothing(endpoint: ManagerEndpoint) -> None:
    reader, writer = await asyncio.open_connection(endpoint.host, endpoint.port)
    writer.write(b"GET /api/v1/health HTTP/1.1\r\nHost: localhost\r\n\r\n")
    with suppress(ConnectionError):
        async with asyncio.timeout(SECONDS):
            assert b"HTTP" not in await reader.read()
    writer.close()
    assert await greet(endpoint)


def damaged_hello(seed: int) -> bytes:
    """What a client begins a handshake with, cut and with other bytes in it."""
    incoming, outgoing, randomness = ssl.MemoryBIO(), ssl.MemoryBIO(), random.Random(seed)
    with suppress(ssl.SSLWantReadError):
        # no default context: that reads the certificates of all authorities, each time
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.wrap_bio(incoming, outgoing, server_hostname="localhost").do_handshake()
    hello = bytearray(outgoing.read())
    for _ in range(randomness.randrange(1, 20)):
        hello[randomness.randrange(len(hello))] = randomness.randrange(256)
    return bytes(hello[: randomness.randrange(len(hello))])


async def test_a_damaged_handshake_ends_nothing_but_its_connection(endpoint: ManagerEndpoint) -> None:
    async with asyncio.timeout(SECONDS):
        for seed in range(100):
            reader, writer = await asyncio.open_connection(endpoint.host, endpoint.port)
            writer.write(damaged_hello(seed))
            writer.write_eof()
            with suppress(ConnectionError):
                await reader.read()
            writer.close()
    assert await greet(endpoint)


async def test_one_that_is_silent_before_or_after_the_handshake_is_let_go(
    endpoint: ManagerEndpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "HANDSHAKE_SECONDS", 0.5)
    monkeypatch.setattr(server, "HEAD_SECONDS", 0.5)
    async with asyncio.timeout(SECONDS):
        reader, writer = await asyncio.open_connection(endpoint.host, endpoint.port)
        assert await reader.read() == b""
        writer.close()
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        reader, writer = await asyncio.open_connection(endpoint.host, endpoint.port, ssl=context)
        assert (await reader.read()).startswith(b"HTTP/1.1 408 ")
        writer.transport.abort()


@pytest.mark.parametrize("is_announced", [True, False])
async def test_a_body_that_is_too_large_is_not_read(
    endpoint: ManagerEndpoint, monkeypatch: pytest.MonkeyPatch, is_announced: bool
) -> None:
    async def pieces() -> AsyncIterator[bytes]:
        for _ in range(10):
            yield b" " * 1000

    monkeypatch.setattr(keepers, "MAX_BODY_BYTES", 5000)
    async with client(endpoint) as stranger:
        body = b" " * 10_000
        content = body if is_announced else pieces()
        assert (await stranger.post(PREFIX + "one/hello", content=content)).status_code == 413
        bearer = {"Authorization": f"Bearer {SECRET}"}
        content = body if is_announced else pieces()
        answer = await stranger.post(PREFIX + "one/register", content=content, headers=bearer)
        assert (answer.status_code, answer.json()["detail"]) == (413, "expected at most 5000 bytes")


async def test_a_keeper_is_greeted_beside_more_silent_handshakes_and_connections_than_there_may_be(
    endpoint: ManagerEndpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SECURITY.md promises it: those that wait longest for their client make room."""
    monkeypatch.setattr(server, "MAX_HANDSHAKES", 20)
    monkeypatch.setattr(KeeperHttpProtocol, "max_connections", 8)
    proof = manager_proof(SECRET, "ab12")
    async with AsyncExitStack() as stack, asyncio.timeout(SECONDS):
        busy = await stack.enter_async_context(HttpConnection(endpoint, PREFIX + "one"))
        for _ in range(10):
            silent = HttpConnection(endpoint, PREFIX + "one")
            await stack.enter_async_context(silent)
            assert (await busy.post("hello", HELLO, timeout_seconds=SECONDS))[0] == 200
        handshakes = [await asyncio.open_connection(endpoint.host, endpoint.port) for _ in range(30)]
        greeted = 0
        for _ in range(40):
            with suppress(SessionError):
                greeted += await greet(endpoint) == proof
        assert greeted >= 39
        reader, _ = handshakes[0]
        with suppress(ConnectionError):
            assert await reader.read() == b""
        for _, writer in handshakes:
            writer.close()


async def test_what_does_not_listen_or_speaks_no_tls_is_named(endpoint: ManagerEndpoint) -> None:
    plain = await asyncio.start_server(lambda reader, writer: writer.close(), HOST, 0)
    port = plain.sockets[0].getsockname()[1]
    place = replace(endpoint, port=port)
    with pytest.raises(SessionError, match=rf"https://127\.0\.0\.1:{port}.* write its new address and certificate to"):
        await greet(place)
    plain.close()
    await plain.wait_closed()
    with pytest.raises(SessionError, match=rf"no manager listens on https://127\.0\.0\.1:{port}"):
        await greet(place)

"""The client's connections: kept, broken off, silent, through proxies, over TLS; and what is sent over them."""

import gzip
import ipaddress
import re
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from proctor.sdk.client import Client
from proctor.sdk.client.errors import ManagerUnreachable, Unauthorized
from proctor.sdk.client.transport import Transport

HERE = "127.0.0.2"
"""An address of this machine that is none of its manager's own: proxies and certificates of the environment count."""
PROXIES = ("http_proxy", "https_proxy", "all_proxy", "no_proxy")
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


def answer(body: bytes = b'{"a": 1}', *, status: str = "200 OK", length: int | None = None, head: str = "") -> bytes:
    """An answer; `length`: not the true one."""
    size = len(body) if length is None else length
    return f"HTTP/1.1 {status}\r\nContent-Length: {size}\r\n{head}\r\n".encode() + body


def read_request(connection: socket.socket) -> bytes:
    """Return a whole request, its body included, or what came of one that breaks off."""
    request = b""
    while piece := connection.recv(65536):
        request += piece
        head, end, body = request.partition(b"\r\n\r\n")
        length = re.search(rb"content-length: (\d+)", head.lower())
        if end and len(body) >= (int(length[1]) if length else 0):
            break
    return request


class Server:
    """Gives answers, one a request, and closes the connection after those that are in `last`; then is silent."""

    def __init__(self, host: str = "127.0.0.1", wrap: Callable[[socket.socket], socket.socket] | None = None) -> None:
        self._listener = socket.create_server((host, 0))
        self._wrap = wrap
        self.port = self._listener.getsockname()[1]
        self.url = f"http://{host}:{self.port}"
        self.answers: list[bytes] = []
        self.last: list[bytes] = []
        self.requests: list[bytes] = []
        self.connections = 0
        self.has_closed = threading.Event()
        self._open: list[socket.socket] = []
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        for connection in self._open:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._listener.close()

    def _serve(self) -> None:
        with suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                self.connections += 1
                self._open.append(connection)
                with suppress(OSError), self._wrap(connection) if self._wrap else connection as wrapped:
                    self._talk(wrapped)
                self.has_closed.set()

    def _talk(self, connection: socket.socket) -> None:
        while request := read_request(connection):
            self.requests.append(request)
            if self.last and not self.answers:
                connection.sendall(self.last.pop(0))
                return
            if self.answers:
                connection.sendall(self.answers.pop(0))


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server()
    yield made
    made.close()


@pytest.fixture(autouse=True)
def _no_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in PROXIES:
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


def test_a_connection_is_kept_until_its_other_end_closes_it(server: Server) -> None:
    server.answers = [answer(), answer(b"")]
    server.last = [answer(b'{"a": 2}'), answer(b'{"a": 3}')]
    with Transport(server.url, "token") as transport:
        assert [transport.request("GET", "/x"), transport.request("POST", "/x")] == [{"a": 1}, None]
        assert transport.request("GET", "/x") == {"a": 2}
        assert server.connections == 1
        assert server.has_closed.wait(60)
        assert transport.request("GET", "/x") == {"a": 3}
        assert server.connections == 2


def test_what_is_sent(server: Server) -> None:
    server.answers = [answer()]
    with Transport(server.url.replace("://", "://ann:s%20t@") + "/präfix/", None, agent="me") as transport:
        transport.request("PUT", "/x%2Fy", query={"a": ["1", "2"], "b": None, "c": "d e"}, body={"ä": 1})
    head, _, body = server.requests[0].partition(b"\r\n\r\n")
    line, *headers = head.decode().split("\r\n")
    assert line == "PUT /pr%C3%A4fix/api/v1/x%2Fy?a=1&a=2&c=d+e HTTP/1.1"
    assert {"User-Agent: me", "Authorization: Basic YW5uOnMgdA==", "Content-Type: application/json"} <= {*headers}
    assert body == '{"ä":1}'.encode()


@pytest.mark.parametrize(
    "broken",
    [
        answer(b"hello"),
        answer(b'{"a":', length=9),
        CHUNKED + b"5\r\n{" + b'"a":\r\n',
        CHUNKED + b"9\r\n{",
        b"HTTP/1.1 200 OK\r\nConte",
        b"SSH-2.0-OpenSSH_9.2\r\n",
        answer(b"no gzip", head="Content-Encoding: gzip\r\n"),
        answer(gzip.compress(b"{}", mtime=0)[:-9], head="Content-Encoding: gzip\r\n"),
    ],
    ids=["not JSON", "body", "chunk head", "chunk", "head", "not HTTP", "not compressed", "compressed"],
)
def test_an_answer_that_breaks_off_or_is_no_managers_is_none(server: Server, broken: bytes) -> None:
    server.last = [broken]
    told = "does not respond like a Proctor manager" if b"hello" in broken else "no manager answers at"
    with Transport(server.url, "token") as transport, pytest.raises(ManagerUnreachable, match=told):
        transport.request("GET", "/x")


@pytest.mark.parametrize("broken", [answer(b'{"a": 1}\n', length=20), CHUNKED + b'9\r\n{"a": 1}\n\r\n'])
def test_a_stream_that_breaks_off_raises_after_what_came(server: Server, broken: bytes) -> None:
    server.last = [broken, broken]
    with Transport(server.url, "token") as transport:
        lines = transport.json_lines("POST", "/x")
        assert next(lines) == {"a": 1}
        with pytest.raises(ManagerUnreachable, match="no manager answers at"):
            next(lines)
        with transport.body("/x") as pieces, pytest.raises(ManagerUnreachable, match="no manager answers at"):
            list(pieces)


def test_what_goes_wrong_with_a_file_is_not_the_managers_fault(server: Server) -> None:
    server.last = [answer()]
    with Transport(server.url, "token") as transport, pytest.raises(OSError, match="the disk is full"):
        with transport.body("/x"):
            raise OSError("the disk is full")


def test_lines_come_whole_however_they_were_sent(server: Server) -> None:
    server.last = [CHUNKED + b'5\r\n{"a":\r\n5\r\n 1}\r\n\r\n7\r\n[2]\n"\xe2\x80\r\n6\r\n\xa8"\n[3]\r\n0\r\n\r\n']
    with Transport(server.url, "token") as transport:
        assert list(transport.json_lines("GET", "/x")) == [{"a": 1}, [2], "\u2028", [3]]


def test_a_compressed_answer_is_unpacked(server: Server) -> None:
    server.answers = [answer(gzip.compress(b'{"a": 1}', mtime=0), head="Content-Encoding: gzip\r\n")]
    server.last = [b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n[]"]
    with Transport(server.url, "token") as transport:
        assert transport.request("GET", "/x") == {"a": 1}
        assert transport.request("GET", "/x") == [], "a body that ends with the connection, which says so"
    assert b"Accept-Encoding: gzip\r\n" in server.requests[0]


def test_a_silent_manager_is_waited_for_as_long_as_was_said(server: Server) -> None:
    with Transport(server.url, "token", timeout_seconds=0.05) as transport:
        with pytest.raises(ManagerUnreachable, match="did not answer GET /x in time"):
            transport.request("GET", "/x", query={"q": 1})


def test_a_refused_stream_raises_what_the_manager_says(server: Server) -> None:
    server.answers = [answer(b'{"detail": "No."}', status="401 Unauthorized")]
    with Transport(server.url, "token") as transport, pytest.raises(Unauthorized, match=r"^No\.$"):
        list(transport.json_lines("GET", "/x"))


def test_a_closed_client_sends_nothing(server: Server) -> None:
    transport = Transport(server.url, "token")
    transport.close()
    with pytest.raises(RuntimeError, match="closed"):
        transport.request("GET", "/x")
    assert not server.requests


@pytest.mark.parametrize(
    ("url", "token"),
    [
        ("localhost:8080", "t"),
        ("ftp://127.0.0.1", "t"),
        ("http://", "t"),
        ("http://[::1", "t"),
        ("http://127.0.0.1:99999", "t"),
        ("http://127.0.0.1:8080", "tok\nen"),
        ("http://127.0.0.1:8080", "tokén"),
        (f"http://{'a' * 64}.example", "t"),
    ],
)
def test_a_url_or_a_token_that_cannot_be_used_is_refused_in_a_sentence(url: str, token: str) -> None:
    with pytest.raises(ManagerUnreachable, match=r"no manager answers at .*; see `proctor manager status`") as refused:
        Client(url, token).version()
    assert token not in str(refused.value) or token == "t"


# ---- proxies and TLS --------------------------------------------------------------------------------------------


def test_a_proxy_is_used_for_other_machines_alone(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", server.url.replace("://", "://me:secret@"))
    server.answers = [answer(), answer()]
    for url in ("http://manager.invalid:8080/p", server.url):
        with Transport(url, "token") as transport:
            transport.request("GET", "/x")
    first, second = server.requests
    assert first.startswith(b"GET http://manager.invalid:8080/p/api/v1/x HTTP/1.1\r\nHost: manager.invalid:8080\r\n")
    assert b"\r\nProxy-Authorization: Basic bWU6c2VjcmV0\r\n" in first
    assert second.startswith(b"GET /api/v1/x HTTP/1.1\r\n")
    assert b"Proxy-Authorization" not in second


def test_a_machine_that_needs_no_proxy_is_asked_itself(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("all_proxy", server.url)
    monkeypatch.setenv("no_proxy", "other.invalid,manager.invalid")
    with Transport("http://manager.invalid:8080", "token") as transport, pytest.raises(ManagerUnreachable):
        transport.request("GET", "/x")
    assert not server.requests


def test_a_proxy_passes_tls_on_as_it_is(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTPS_PROXY", server.url.removeprefix("http://"))
    server.answers = [answer(status="403 Forbidden")]
    with Transport("https://manager.invalid", "token") as transport:
        with pytest.raises(ManagerUnreachable, match="Tunnel connection failed: 403 Forbidden"):
            transport.request("GET", "/x")
    assert server.requests[0].startswith(b"CONNECT manager.invalid:443 HTTP/1.")
    assert b"token" not in server.requests[0]


@pytest.mark.parametrize("proxy", ["https://proxy.invalid", "socks5://127.0.0.1:1080", "http://127.0.0.1:x"])
def test_a_proxy_of_another_kind_is_refused(proxy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("all_proxy", proxy)
    with pytest.raises(ManagerUnreachable, match="proxy"):
        Transport("https://manager.invalid", "token")


@pytest.fixture
def certificate(tmp_path: Path) -> Path:
    key, name = ec.generate_private_key(ec.SECP256R1()), x509.Name([])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder(name, name, key.public_key(), 1, now, now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(HERE))]), critical=True)
        .sign(key, hashes.SHA256())
    )
    pem, none = serialization.Encoding.PEM, serialization.NoEncryption()
    file = tmp_path / "certificate.pem"
    own = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, none)
    file.write_bytes(made.public_bytes(pem) + own)
    return file


def test_only_a_manager_with_a_trusted_certificate_is_asked(certificate: Path, monkeypatch) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    server = Server(HERE, lambda plain: context.wrap_socket(plain, server_side=True))
    server.answers = [answer()]
    url = f"https://{HERE}:{server.port}"
    try:
        with Transport(url, "token") as stranger, pytest.raises(ManagerUnreachable, match="certificate verify failed"):
            stranger.request("GET", "/x")
        assert not server.requests
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
        with Transport(url, "token") as transport:
            assert transport.request("GET", "/x") == {"a": 1}
    finally:
        server.close()

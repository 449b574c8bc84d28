"""A real control plane of Kubernetes on loopback: etcd, the API server, the controllers and the scheduler.

Users are known by tokens (`USERS`). `admin` may do everything; `person` has no rights but those that a test gives it.
"""

import base64
import json
import random
import secrets
import socket
import ssl
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from fakes.kubernetes.requirements import find_part

NODE_GRACE_SECONDS = 10
"""A node that has not been heard of for so long is not ready."""
EVICTION_SECONDS = 2
"""Pods are deleted so long after their node was found to be away, unless they tolerate it for longer."""
USERS = {"admin": "system:masters", "person": ""}
"""The groups of the users."""
READY_SECONDS = 120.0
"""How long everything may take to be ready."""
HEALTH_SECONDS = 30.0
_CONTROLLERS = (
    "job,garbagecollector,namespace,nodelifecycle,podgc,ttl-after-finished,resourcequota,disruption,"
    "serviceaccount,serviceaccount-token,root-ca-cert-publisher,persistentvolume-binder"
)


@dataclass(frozen=True)
class Access:
    """What a client needs to use a control plane."""

    port: int
    tokens: dict[str, str]
    """By user."""
    ca_file: str

    @property
    def address(self) -> str:
        """Where the API server answers."""
        return f"https://127.0.0.1:{self.port}"

    @property
    def ca_data(self) -> str:
        """The certificate authority, as a kubeconfig file holds it."""
        return base64.b64encode(Path(self.ca_file).read_bytes()).decode()

    def kubeconfig(self, *, namespace: str, port: int | None = None) -> dict[str, Any]:
        """A kubeconfig file with a context per user, named after it; the first is current.

        :param port: another one at which the API server is reached.
        """
        server = {
            "server": f"https://127.0.0.1:{port or self.port}",
            "certificate-authority-data": self.ca_data,
        }
        return {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "test", "cluster": server}],
            "users": [{"name": user, "user": {"token": token}} for user, token in self.tokens.items()],
            "contexts": [
                {"name": user, "context": {"cluster": "test", "user": user, "namespace": namespace}}
                for user in self.tokens
            ],
            "current-context": next(iter(self.tokens)),
        }


class ControlPlane:
    """Four processes. They end with the thread that has started them, so start them in one that lives as long.

    :param api_options: more options of the API server.
    """

    def __init__(
        self, folder: Path, *, node_grace_seconds: int = NODE_GRACE_SECONDS, api_options: Sequence[str] = ()
    ) -> None:
        self._folder = folder
        self._node_grace_seconds = node_grace_seconds
        self._api_options = api_options
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self._deadline = 0.0
        names = ("etcd", "peers", "api", "controllers", "scheduler")
        self._ports = dict(zip(names, free_ports(len(names)), strict=True))
        tokens = {user: secrets.token_hex(16) for user in USERS}
        self.access = Access(self._ports["api"], tokens, str(folder / "api" / "apiserver.crt"))

    @property
    def pids(self) -> list[int]:
        """Of what runs."""
        return [process.pid for process in self._running.values()]

    def start(self) -> None:
        """Start everything, and wait until it can be used."""
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._deadline = time.monotonic() + READY_SECONDS
        users = [f'{token},{user},{user},"{USERS[user]}"' for user, token in self.access.tokens.items()]
        (self._folder / "tokens.csv").write_text("\n".join(users) + "\n")
        key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        encoding = (serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL)
        (self._folder / "accounts.key").write_bytes(key.private_bytes(*encoding, serialization.NoEncryption()))
        self._start("etcd", self._etcd())
        self._start("kube-apiserver", self._api_server())
        self._wait("/readyz")
        (self._folder / "kubeconfig").write_text(json.dumps(self.access.kubeconfig(namespace="default")))
        self._start("kube-controller-manager", self._controller_manager())
        self._start("kube-scheduler", self._scheduler())
        self._wait("/api/v1/namespaces/default/serviceaccounts/default")
        self._wait("/api/v1/namespaces/kube-node-lease")

    def stop(self) -> None:
        """End everything at once."""
        for process in self._running.values():
            process.kill()
        for process in self._running.values():
            process.wait()
        self._running.clear()

    @contextmanager
    def running(self) -> Iterator["ControlPlane"]:
        """Started, and ended afterwards."""
        try:
            self.start()
            yield self
        finally:
            self.stop()

    def _etcd(self) -> list[str]:
        clients, peers = (f"http://127.0.0.1:{self._ports[name]}" for name in ("etcd", "peers"))
        return [
            f"--data-dir={self._folder}/etcd",
            f"--listen-client-urls={clients}",
            f"--advertise-client-urls={clients}",
            f"--listen-peer-urls={peers}",
            f"--initial-advertise-peer-urls={peers}",
            f"--initial-cluster=default={peers}",
            "--unsafe-no-fsync",
            "--log-level=error",
        ]

    def _api_server(self) -> list[str]:
        key = self._folder / "accounts.key"
        return [
            f"--etcd-servers=http://127.0.0.1:{self._ports['etcd']}",
            "--bind-address=127.0.0.1",
            "--advertise-address=127.0.0.1",
            f"--secure-port={self._ports['api']}",
            f"--cert-dir={self._folder}/api",
            f"--token-auth-file={self._folder}/tokens.csv",
            "--authorization-mode=RBAC",
            "--anonymous-auth=false",
            "--allow-privileged=true",
            "--kubelet-preferred-address-types=InternalIP",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-key-file={key}",
            f"--service-account-signing-key-file={key}",
            "--service-cluster-ip-range=10.0.0.0/24",
            "--enable-admission-plugins=PodNodeSelector",
            "--disable-admission-plugins=TaintNodesByCondition",  # a node can be used at once
            f"--default-not-ready-toleration-seconds={EVICTION_SECONDS}",
            f"--default-unreachable-toleration-seconds={EVICTION_SECONDS}",
            "--endpoint-reconciler-type=none",
            "--enable-priority-and-fairness=false",
            "--feature-gates=TTLAfterFinished=true",
            "--profiling=false",
            *self._api_options,
        ]

    def _controller_manager(self) -> list[str]:
        return [
            *self._client("controllers"),
            f"--controllers={_CONTROLLERS}",
            "--feature-gates=TTLAfterFinished=true",
            f"--service-account-private-key-file={self._folder}/accounts.key",
            f"--root-ca-file={self.access.ca_file}",
            f"--node-monitor-grace-period={self._node_grace_seconds}s",
            "--node-monitor-period=1s",
            "--pvclaimbinder-sync-period=1s",
        ]

    def _scheduler(self) -> list[str]:
        return self._client("scheduler")

    def _client(self, name: str) -> list[str]:
        return [
            f"--kubeconfig={self._folder}/kubeconfig",
            "--bind-address=127.0.0.1",
            f"--secure-port={self._ports[name]}",
            "--port=0",
            f"--cert-dir={self._folder}/{name}",
            "--leader-elect=false",
            "--kube-api-qps=1000",
            "--kube-api-burst=2000",
        ]

    def _start(self, name: str, options: list[str]) -> None:
        program = find_part(name)
        assert program is not None, f"{name} is missing"
        words = ["setpriv", "--pdeathsig", "KILL", "--", str(program), *options]
        with (self._folder / f"{name}.log").open("ab") as log:
            self._running[name] = subprocess.Popen(
                words, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=self._folder, start_new_session=True
            )

    def _wait(self, path: str) -> None:
        while not answers(self.access, path):
            for name, process in self._running.items():
                ended = f"{name} has ended"
                assert process.poll() is None, f"{ended}: {self._log(name)}"
            assert time.monotonic() < self._deadline, f"no answer from {path}: {self._log('kube-apiserver')}"
            time.sleep(0.05)

    def _log(self, name: str) -> str:
        return (self._folder / f"{name}.log").read_text(errors="replace")[-2000:]


def answers(access: Access, path: str) -> bool:
    """Whether the API server has what is at a path."""
    request = Request(access.address + path, headers={"Authorization": f"Bearer {access.tokens['admin']}"})
    try:
        tls = ssl.create_default_context(cafile=access.ca_file)
        with urlopen(request, timeout=5, context=tls) as answer:
            return bool(answer.status == 200)
    except (HTTPError, URLError, OSError):
        return False


def is_healthy(access: Access) -> bool:
    """Whether a control plane serves, or does again within `HEALTH_SECONDS`."""
    deadline = time.monotonic() + HEALTH_SECONDS
    while not answers(access, "/readyz"):
        if time.monotonic() >= deadline:
            return False
        time.sleep(0.2)
    return True


def free_ports(count: int) -> list[int]:
    """Ports of loopback that nothing listens at, outside of those that the kernel gives to others."""
    found: set[int] = set()
    while len(found) < count:
        port = random.SystemRandom().randrange(20000, 32000)
        with socket.socket() as candidate:
            candidate.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                candidate.bind(("127.0.0.1", port))
            except OSError:
                continue
        found.add(port)
    return list(found)

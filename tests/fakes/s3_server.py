"""A real S3 server (SeaweedFS) on loopback, with one bucket and two users: the owner, and one who may only read."""

import asyncio
import json
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.request import urlopen

from fakes.gate import Gate

from proctor.sdk.client.credentials import STORAGE_SECRETS

BUCKET = "checkpoints"
OWNER = {"AWS_ACCESS_KEY_ID": "owner-key", "AWS_SECRET_ACCESS_KEY": "owner-secret"}
READER = {"AWS_ACCESS_KEY_ID": "reader-key", "AWS_SECRET_ACCESS_KEY": "reader-secret"}
PROGRAM = Path(sys.executable).parent / "weed"
READY_SECONDS = 60.0
_ACTIONS = {"owner": ["Admin", "Read", "Write", "List"], "reader": ["Read", "List"]}


class S3Server:
    """One server. Clients reach it through `gate`."""

    def __init__(self, folder: Path, address: str) -> None:
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None
        names = ["master", "volume", "filer", "s3"]
        self._ports = dict(zip([*names, *(f"{name}.grpc" for name in names)], _free_ports(2 * len(names)), strict=True))
        self.gate = Gate(self._ports["s3"], address)
        self.url = f"s3://{BUCKET}/proctor"
        self._loop = asyncio.new_event_loop()

    @property
    def endpoint(self) -> str:
        """The server as a client knows it."""
        return f"http://{self.gate.address}:{self.gate.port}"

    def environment(self, user: dict[str, str] = OWNER) -> dict[str, str]:
        """What a client needs in its environment. It does not try again by itself."""
        return {
            **user,
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_MAX_ATTEMPTS": "1",
        }

    def system(self) -> Any:
        """The file system of fsspec for it, with all rights and without a memory. Its loop is the server's own: that
        of fsspec is in the network in which the process has first used fsspec."""
        from s3fs import S3FileSystem

        key, secret = OWNER.values()
        system = S3FileSystem(
            key=key, secret=secret, endpoint_url=self.endpoint, use_listings_cache=False, loop=self._loop
        )
        system.invalidate_cache()
        return system

    def start(self) -> None:
        """Start it, and wait until it answers and has its bucket."""
        threading.Thread(target=self._loop.run_forever, name="client of the S3 server", daemon=True).start()
        self._folder.mkdir(parents=True, exist_ok=True)
        identities = [
            {
                "name": name,
                "credentials": [{"accessKey": f"{name}-key", "secretKey": f"{name}-secret"}],
                "actions": actions,
            }
            for name, actions in _ACTIONS.items()
        ]
        (self._folder / "s3.json").write_text(json.dumps({"identities": identities}))
        ports = [
            f"-{name.replace('.grpc', '.port.grpc') if name.endswith('.grpc') else f'{name}.port'}={port}"
            for name, port in self._ports.items()
        ]
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [
                    str(PROGRAM),
                    "server",
                    "-ip=127.0.0.1",
                    "-ip.bind=127.0.0.1",
                    f"-dir={self._folder}",
                    "-filer",
                    "-s3",
                    f"-s3.config={self._folder}/s3.json",
                    "-s3.port.iceberg=0",
                    "-s3.port.lance=0",
                    f"-s3.localSocket={self._folder}/s3.sock",
                    f"-filer.localSocket={self._folder}/filer.sock",
                    "-master.volumeSizeLimitMB=64",
                    "-volume.max=20",
                    "-master.telemetry=false",
                    *ports,
                ],
                cwd=self._folder,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self.gate.open()
        deadline = time.monotonic() + READY_SECONDS
        while not self._make_bucket():
            assert self._process.poll() is None, (self._folder / "log").read_text()[-2000:]
            assert time.monotonic() < deadline, (self._folder / "log").read_text()[-2000:]
            time.sleep(0.2)

    def kill(self) -> None:
        """End it at once."""
        self.gate.close()
        self._loop.call_soon_threadsafe(self._loop.stop)
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def _make_bucket(self) -> bool:
        try:
            with suppress(HTTPError), urlopen(self.endpoint, timeout=5):
                pass
            system = self.system()
            if not system.exists(BUCKET):
                system.mkdir(BUCKET)
            system.pipe_file(f"{BUCKET}/.ready", b"ready")
        except (URLError, OSError):
            return False
        return True


def stored_in(server: S3Server, user: dict[str, str] = OWNER, location: str = "") -> dict[str, Any]:
    """What `create` needs for an experiment whose checkpoints are stored in the server: a part of its configuration,
    and the secrets that it hands over."""
    variables = server.environment(user)
    return {
        "checkpointStorage": {"location": location or server.url, "environment": sorted(variables)},
        "secrets": {f"{STORAGE_SECRETS}.{name}": value for name, value in variables.items()},
    }


def _free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    try:
        return [each.getsockname()[1] for each in sockets]
    finally:
        for each in sockets:
            each.close()


@contextmanager
def s3_server(folder: Path, *, address: str = "127.0.0.1") -> Iterator[S3Server]:
    """A server that is running, and removed with all that it has stored.

    :param address: where its clients reach it.
    """
    server = S3Server(folder, address)
    try:
        server.start()
        yield server
    finally:
        server.kill()
        shutil.rmtree(folder, ignore_errors=True)

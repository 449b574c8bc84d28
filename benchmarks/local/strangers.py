"""Clients without a token that send requests ahead of the answers: what others wait for meanwhile, and the memory."""

import asyncio
import http.client
import multiprocessing
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from multiprocessing.synchronize import Event
from pathlib import Path
from statistics import median
from urllib.parse import urlsplit

from benchmarks import harness
from benchmarks.table import Row, spread

CONNECTIONS = 250
LOOKS = 40
ROUNDS = 5
SECONDS = 5.0
"""How long they send before it is looked, so that memory has grown."""
PATIENCE_SECONDS = 60.0
TARGET_RATIO = 5.0
TARGET_MEBIBYTES = 64
REQUESTS = b"".join(
    b"GET /api/v1/%s HTTP/1.1\r\nHost: localhost\r\n\r\n" % path for path in (b"experiments", b"health")
)
AHEAD = 500
"""How many times they are written at once."""


async def _flood(host: str, port: int, connections: int, begun: Event) -> None:
    async def read(reader: asyncio.StreamReader) -> None:
        while await reader.read(2**18):
            pass

    async def send() -> None:
        while True:
            with suppress(OSError):
                reader, writer = await asyncio.open_connection(host, port)
                try:
                    async with asyncio.TaskGroup() as group:
                        reading = group.create_task(read(reader), name="reading")
                        while not reading.done():
                            writer.write(REQUESTS * AHEAD)
                            await writer.drain()
                except* OSError:
                    pass
                finally:
                    writer.close()

    async with asyncio.TaskGroup() as group:
        for number in range(connections):
            group.create_task(send(), name=f"connection {number}")
        begun.set()


def _run_flood(host: str, port: int, connections: int, begun: Event) -> None:
    asyncio.run(_flood(host, port, connections, begun))


@contextmanager
def _strangers(host: str, port: int, connections: int) -> Iterator[None]:
    """So many connections, in a process of their own, that send as fast as the manager takes it."""
    context = multiprocessing.get_context("spawn")
    begun = context.Event()
    process = context.Process(target=_run_flood, args=(host, port, connections, begun), daemon=True)
    process.start()
    try:
        if not begun.wait(PATIENCE_SECONDS):
            raise harness.BenchmarkError("the clients without a token did not begin")
        yield
        if not process.is_alive():
            raise harness.BenchmarkError("the clients without a token have ended too early")
    finally:
        process.kill()
        process.join()


def _waits(host: str, port: int, looks: int) -> list[float]:
    """Milliseconds of each of so many requests for the manager's health, each on a connection of its own."""
    found = []
    for _ in range(looks):
        began = time.perf_counter()
        connection = http.client.HTTPConnection(host, port, timeout=PATIENCE_SECONDS)
        connection.request("GET", "/api/v1/health")
        answer = connection.getresponse()
        answer.read()
        connection.close()
        if answer.status != 200:
            raise harness.BenchmarkError(f"/health was answered with {answer.status}")
        found.append((time.perf_counter() - began) * 1000)
    return found


def _mebibytes(pid: int) -> float:
    """The resident memory of a process."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    raise harness.BenchmarkError(f"process {pid} has no resident memory")


def measure(quick: bool) -> list[Row]:
    """Rows for the table."""
    looks, rounds, seconds = (10, 1, 1.0) if quick else (LOOKS, ROUNDS, SECONDS)
    alone, beside, grown, left = [], [], [], []
    with harness.manager() as running:
        url, pid = urlsplit(running.client.url), running.process.pid
        host, port = str(url.hostname), int(url.port or 0)
        time.sleep(4.0)  # all parts of the API are loaded
        before = _mebibytes(pid)
        for _ in range(rounds):
            alone.append(median(_waits(host, port, looks)))
            with _strangers(host, port, CONNECTIONS):
                time.sleep(seconds)
                beside.append(median(_waits(host, port, looks)))
                grown.append(_mebibytes(pid) - before)
            _waits(host, port, looks)
            left.append(_mebibytes(pid) - before)
    ratio = median(one / other for one, other in zip(beside, alone, strict=True))
    return [
        Row(
            f"/health, beside {CONNECTIONS} connections without a token that send requests ahead of the answers",
            f"no such connection: {spread(alone, ' ms')}",
            spread(beside, " ms"),
            f"{ratio:.2f}",
            f"≤ {TARGET_RATIO:g} ×",
            ratio <= TARGET_RATIO,
        ),
        _memory("… resident memory of the manager meanwhile", before, grown),
        _memory("… and after they have left", before, left),
    ]


def _memory(work: str, before: float, more: list[float]) -> Row:
    return Row(
        work,
        f"before: {before:.0f} MiB",
        "+" + spread(more, " MiB", 0),
        "–",
        f"≤ +{TARGET_MEBIBYTES} MiB",
        max(more) <= TARGET_MEBIBYTES,
    )

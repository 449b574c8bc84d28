"""The relay in a pod: what its end is called. That it carries connections is shown with a real control plane."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest

from proctor.training_services.errors import ServiceUnavailable
from proctor.training_services.kubernetes.relay import SOCKET, PodRelay

pytestmark = pytest.mark.anyio


class EndingCluster:
    """Its relays start, and the one that listens ends at once with these words, or without any."""

    def __init__(self, said: bytes, problem: str) -> None:
        self.stderr_tail = said
        self.problem = problem

    @asynccontextmanager
    async def exec(self, *_: object) -> AsyncIterator["EndingCluster"]:
        yield self

    async def write(self, data: bytes) -> None:
        self._carries = json.loads(data)["carry"]
        self._is_asked = False

    async def read_line(self) -> bytes:
        if self._is_asked:
            await asyncio.Event().wait()  # no connection comes
        self._is_asked = True
        return json.dumps({"socket": SOCKET}).encode()

    async def read(self) -> bytes:
        return b""


@pytest.mark.parametrize(
    ("said", "problem", "words"),
    [(b"Killed\n", "", ": Killed"), (b"", "exit code 137", ": exit code 137"), (b"", "", "")],
)
async def test_the_end_of_a_relay_is_an_error_with_its_last_words(said: bytes, problem: str, words: str) -> None:
    relay = PodRelay(cast(Any, EndingCluster(said, problem)), "lab", "pod-1", "python3", "/nowhere")
    with pytest.raises(ServiceUnavailable, match=f"^the relay in pod pod-1 has ended{words}$"):
        await relay.run()

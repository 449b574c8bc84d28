"""A dispatcher as a real process: its death at any moment is no failure of the manager's."""

import asyncio
import shutil
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
import uvloop

from proctor.manager.dispatcher.process import open_process

LOOPS = [pytest.param(asyncio.new_event_loop, id="asyncio"), pytest.param(uvloop.new_event_loop, id="uvloop")]


@pytest.mark.parametrize("loop_factory", LOOPS)
def test_leaving_a_dispatcher_that_died_before_it_was_spoken_to_raises_nothing(
    loop_factory: Callable[[], asyncio.AbstractEventLoop], tmp_path: Path
) -> None:
    executable = shutil.which("false")
    assert executable is not None

    async def speak_to_the_dead() -> str:
        async with open_process(log_path=tmp_path / "log", directory=tmp_path, executable=executable) as channel:
            await channel.process.wait()
            for _ in range(3):  # the first write finds out, the others come upon a closed channel
                with suppress(ConnectionError):
                    await channel.send(b"{}\n")
                await asyncio.sleep(0.01)
        return channel.epitaph()

    with asyncio.Runner(loop_factory=loop_factory) as runner:
        assert "exited with 1" in runner.run(speak_to_the_dead())


@pytest.mark.parametrize("loop_factory", LOOPS)
def test_a_dispatcher_leaves_when_it_is_told_goodbye(
    loop_factory: Callable[[], asyncio.AbstractEventLoop], tmp_path: Path
) -> None:
    async def say_goodbye() -> int | None:
        async with open_process(log_path=tmp_path / "log", directory=tmp_path, executable=sys.executable) as channel:
            process = channel.process
        return process.returncode

    with asyncio.Runner(loop_factory=loop_factory) as runner:
        assert runner.run(say_goodbye()) == 0

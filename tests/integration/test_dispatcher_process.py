"""A dispatcher as a real process: its death at any moment is no failure of the manager's."""

import asyncio
import os
import shutil
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import uvloop

from proctor.manager.dispatcher import protocol
from proctor.manager.dispatcher.client import process
from proctor.manager.dispatcher.client.process import earlier_log, open_process

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
        return channel.exit_message()

    with asyncio.Runner(loop_factory=loop_factory) as runner:
        assert "exited with 1" in runner.run(speak_to_the_dead())


@pytest.mark.parametrize("loop_factory", LOOPS)
def test_a_dispatcher_leaves_when_it_is_told_goodbye(
    loop_factory: Callable[[], asyncio.AbstractEventLoop], tmp_path: Path
) -> None:
    async def end() -> int | None:
        async with open_process(log_path=tmp_path / "log", directory=tmp_path, executable=sys.executable) as channel:
            process = channel.process
        return process.returncode

    with asyncio.Runner(loop_factory=loop_factory) as runner:
        assert runner.run(end()) == 0


def test_a_dispatcher_whose_start_is_canceled_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[asyncio.subprocess.Process] = []
    create = asyncio.create_subprocess_exec

    async def create_and_remember(*words: str, **options: Any) -> asyncio.subprocess.Process:
        started.append(await create(*words, **options))
        return started[-1]

    async def cancel(**_: Any) -> None:
        raise asyncio.CancelledError

    monkeypatch.setattr(asyncio, "create_subprocess_exec", create_and_remember)
    monkeypatch.setattr(asyncio, "open_connection", cancel)

    async def start() -> None:
        with pytest.raises(asyncio.CancelledError):
            async with open_process(log_path=tmp_path / "log", directory=tmp_path):
                pass
        assert started[0].returncode == -signal.SIGKILL

    asyncio.run(start())


LARGE = """
from proctor.sdk.tuner import Tuner

class Large(Tuner):
    def update_search_space(self, search_space): ...
    def generate_parameters(self, parameter_id, **kwargs): return {"x": "x" * 70_000_000}
    def receive_trial_result(self, *args, **kwargs): ...
"""


def test_a_proposal_too_large_to_travel_is_an_error_with_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "large.py").write_text(LARGE)
    spec = protocol.AlgorithmSpec(class_name="large.Large", code_directory=str(tmp_path))
    space = {"x": {"_type": "uniform", "_value": [0, 1]}}

    async def ask() -> list[object]:
        received: list[object] = []
        async with open_process(log_path=tmp_path / "log", directory=tmp_path) as channel:
            beginning = protocol.Initialize("Ab3dE5f7", space, spec, None, 1, str(tmp_path / "checkpoint"))
            await channel.send(protocol.encode(beginning) + protocol.encode(protocol.RequestTrialJobs(1, [0])))
            async for line in channel.lines():
                received.append(protocol.decode(line))
                if isinstance(received[-1], protocol.Error):
                    break
        return received

    error = asyncio.run(ask())[-1]
    assert isinstance(error, protocol.Error)
    assert "may travel" in error.summary


CHATTY = """
import threading
from proctor.sdk.tuner import Tuner

def chatter():
    number = 0
    while True:
        number += 1
        print(f"{number:09d} " + "x" * 1000)

class Chatty(Tuner):
    def update_search_space(self, search_space):
        threading.Thread(target=chatter, daemon=True).start()
    def generate_parameters(self, parameter_id, **kwargs): return {"x": parameter_id}
    def receive_trial_result(self, *args, **kwargs): ...
"""


def test_a_tuner_that_prints_without_end_neither_waits_nor_fills_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit = 1024 * 1024
    monkeypatch.setattr(process, "LOG_BYTES", limit)
    (tmp_path / "chatty.py").write_text(CHATTY)
    spec = protocol.AlgorithmSpec(class_name="chatty.Chatty", code_directory=str(tmp_path))
    log = tmp_path / "log"

    def last_number(path: Path) -> int:
        lines = path.read_bytes().splitlines() if path.exists() else []
        return max((int(line[:9]) for line in lines if len(line) == 1010 and line[:9].isdigit()), default=0)

    async def listen() -> tuple[int, int]:
        async with open_process(log_path=log, directory=tmp_path) as channel:
            limiting = asyncio.ensure_future(channel.limit_log())
            beginning = protocol.Initialize("Ab3dE5f7", {}, spec, None, 1, str(tmp_path / "checkpoint"))
            await channel.send(protocol.encode(beginning))
            cut, numbers = earlier_log(log), [0]
            async with asyncio.timeout(120):
                while len(numbers) < 4:  # cut three times
                    await asyncio.sleep(0.05)
                    if (number := last_number(cut)) > numbers[-1]:
                        numbers.append(number)
                        assert cut.stat().st_size <= limit
            limiting.cancel()
            exit_message = channel.exit_message()
        assert "x" * 1000 in exit_message
        return numbers[1], numbers[-1]

    first, last = asyncio.run(listen())
    assert last > first


SAVING = """
import os
from proctor.sdk.tuner import Tuner

class Saving(Tuner):
    def write(self, word):
        with open(os.environ["DIARY"], "a") as file:
            file.write(word + "\\n")
    def update_search_space(self, search_space): ...
    def generate_parameters(self, parameter_id, **kwargs): return {"x": parameter_id}
    def receive_trial_result(self, *args, **kwargs): ...
    def save_checkpoint(self): self.write("save")
    def load_checkpoint(self): ...
    def _on_exit(self): self.write("exit")
"""


@pytest.mark.parametrize(("says_goodbye", "diary"), [(True, ["save", "exit"]), (False, ["exit"])])
def test_a_dispatcher_saves_itself_at_the_end_only_where_its_manager_lives(
    tmp_path: Path, says_goodbye: bool, diary: list[str]
) -> None:
    """The next manager may have started its successor, which keeps its checkpoint in the same folder."""
    (tmp_path / "saving.py").write_text(SAVING)
    spec = protocol.AlgorithmSpec(class_name="saving.Saving", code_directory=str(tmp_path))
    beginning = protocol.Initialize("Ab3dE5f7", {}, spec, None, 1, str(tmp_path / "checkpoint"))

    async def converse() -> None:
        environment = {**os.environ, "DIARY": str(tmp_path / "diary")}
        async with open_process(log_path=tmp_path / "log", directory=tmp_path, environment=environment) as channel:
            await channel.send(protocol.encode(beginning) + protocol.encode(protocol.RequestTrialJobs(1, [0])))
            async for line in channel.lines():
                if isinstance(protocol.decode(line), protocol.NewTrial):
                    break
            if not says_goodbye:
                channel._writer.transport.abort()
                async with asyncio.timeout(60):
                    await channel.process.wait()

    asyncio.run(converse())
    assert (tmp_path / "diary").read_text().split() == diary

"""Dispatchers as real processes that do not answer: suspended, deadlocked, or at work in native code."""

import asyncio
import os
import signal
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from integration.test_dispatcher_restarts import config, dispatchers, leave_alone, run, trial_count

from proctor.manager.dispatcher.client.liveness import Patience
from proctor.manager.dispatcher.client.process import open_process
from proctor.manager.engine.manager import Manager
from proctor.manager.lifecycle.states import ExperimentStatus
from proctor.manager.settings import Home
from proctor.manager.store.tables import events

pytestmark = pytest.mark.anyio

IMPATIENT = Patience(3.0)


async def test_a_suspended_dispatcher_is_replaced_and_no_suggestion_is_lost_or_doubled(tmp_path: Path) -> None:
    suspended, successors, notices = list[int](), list[int](), list[str]()

    async def suspend(manager: Manager, experiment_id: str) -> None:
        await trial_count(manager, experiment_id, 2)
        suspended.extend(dispatchers())
        for pid in suspended:
            os.kill(pid, signal.SIGSTOP)
        await trial_count(manager, experiment_id, 12)
        successors.extend(dispatchers())
        notices.extend(await manager.control.read(lambda c: events.notices(c, experiment_id)))

    settings = config(assessor={"name": "Medianstop"})
    row, found = await run(Home(tmp_path / "a" / "home"), settings, suspend, patience=IMPATIENT)
    _, expected = await run(Home(tmp_path / "b" / "home"), settings, leave_alone)
    assert row.status is ExperimentStatus.DONE
    assert [trial.parameters for trial in found] == [trial.parameters for trial in expected]
    assert [trial.parameter_id for trial in found] == list(range(12))
    assert not set(successors) & set(suspended)
    (notice,) = notices
    assert "it is suspended (by SIGSTOP or a debugger), so it was killed" in notice
    assert "was killed by signal 9" in notice


HOLDING = """
import ctypes, time
from pathlib import Path
from nni.tuner import Tuner

class Holding(Tuner):
    def __init__(self, mark, computes):
        self.mark, self.computes = Path(mark), computes

    def update_search_space(self, search_space): ...
    def receive_trial_result(self, parameter_id, parameters, value, **kwargs): ...

    def generate_parameters(self, parameter_id, **kwargs):
        if parameter_id == 4 and not self.mark.exists():
            self.mark.touch()
            self.compute(5.0) if self.computes else ctypes.PyDLL(None).sleep(1000)
        return {"x": parameter_id / 100}

    def compute(self, seconds):
        # In one call of native code, which lets no other thread run.
        began = time.monotonic()
        sum(range(5_000_000))
        sum(range(int(5_000_000 * seconds / (time.monotonic() - began))))
"""


@pytest.mark.parametrize("computes", [True, False])
async def test_a_dispatcher_whose_tuner_holds_the_interpreter_is_killed_only_if_it_does_not_compute(
    *, computes: bool, tmp_path: Path
) -> None:
    notices: list[str] = []

    async def listen(manager: Manager, experiment_id: str) -> None:
        await trial_count(manager, experiment_id, 12)
        notices.extend(await manager.control.read(lambda c: events.notices(c, experiment_id)))

    (tmp_path / "holding.py").write_text(HOLDING)
    arguments: dict[str, Any] = {"mark": str(tmp_path / "mark"), "computes": computes}
    tuner = {"className": "holding.Holding", "codeDirectory": str(tmp_path), "classArgs": arguments}
    row, found = await run(Home(tmp_path / "home"), config(tuner=tuner), listen, patience=IMPATIENT)
    assert row.status is ExperimentStatus.DONE
    assert [trial.parameters["x"] for trial in found] == [n / 100 for n in range(12)]
    kills = [notice for notice in notices if "so it was killed" in notice]
    assert len(kills) == (0 if computes else 1)


async def test_leaving_a_suspended_dispatcher_that_reads_nothing_waits_for_nothing(tmp_path: Path) -> None:
    pid = 0
    try:
        async with asyncio.timeout(60):
            async with open_process(log_path=tmp_path / "log", directory=tmp_path) as channel:
                pid = channel.process.pid
                os.kill(pid, signal.SIGSTOP)
                with suppress(TimeoutError):
                    async with asyncio.timeout(0.5):
                        await channel.send(b" " * 16_000_000 + b"\n")
            assert channel.process.returncode == -signal.SIGKILL
    except TimeoutError:
        os.kill(pid, signal.SIGKILL)
        raise

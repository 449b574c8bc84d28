"""The importance of parameters: asked over REST, computed in a process."""

import asyncio
import os
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from proctor.manager.engine import importance
from proctor.manager.lifecycle.states import TrialStatus
from proctor.manager.store.rows import TrialRow
from proctor.manager.store.tables import trials

pytestmark = pytest.mark.anyio

QUESTION = b'{"search_space":{},"key":null,"quantile":0.1,"maximize":false,"trials":[]}'


async def add_ended(api: Any, experiment_id: str, first: int, number: int) -> None:
    """Trials that have succeeded, with the squares of their parameters as values."""

    def write(connection: sqlite3.Connection) -> None:
        for place in range(first, first + number):
            x = place % 50 / 50
            row = TrialRow(
                *(f"ended{place}", experiment_id, place, TrialStatus.SUCCEEDED, place),
                parameters={"x": x},
                created_at=1.0,
                final_value=x * x,
                final_data={"default": x * x, "loss": -x},
            )
            trials.insert(connection, row)

    await api.manager.control.write(write)


async def ask(api: Any, experiment_id: str, query: str = "") -> dict[str, Any]:
    return dict(await api.get(f"/api/v1/experiments/{experiment_id}/importance{query}", status=200))


async def computed(api: Any, experiment_id: str, query: str = "") -> dict[str, Any]:
    """The answer once nothing is being computed."""
    await ask(api, experiment_id, query)
    for kept in list(api.manager.importances._kept.values()):
        if kept.task is not None:
            await kept.task
    return await ask(api, experiment_id, query)


@pytest.mark.slow
async def test_an_answer_is_computed_beside_and_kept_until_trials_end_or_a_failure_is_said(
    api: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importance, "LEAST_PAUSE_SECONDS", 0)
    monkeypatch.setattr(importance, "LARGEST_SHARE", float("inf"))
    created = (await api.ran()).id
    first = await ask(api, created)
    assert (first["state"], first["revision"], first["parameters"]) == ("COMPUTING", None, [])
    few = await computed(api, created)
    assert (few["state"], few["parameters"]) == ("CURRENT", [])
    assert "too few trials: 3 trials that succeeded have a final metric" in few["reason"]
    await add_ended(api, created, 100, 60)
    meanwhile = await ask(api, created)
    assert (meanwhile["state"], meanwhile["reason"]) == ("COMPUTING", few["reason"])  # the earlier answer
    many = await computed(api, created)
    assert (many["state"], many["parameters"]) == ("CURRENT", [{"name": "x", "importance": 1.0}])
    assert (many["trials"], many["direction"], many["quantile"]) == (63, "minimize", 0.1)
    assert many["revision"] > few["revision"]
    with monkeypatch.context() as patch:
        patch.setattr(importance, "MODULE", "proctor.no_such_module")
        await api.patch(f"/api/v1/experiments/{created}", json={"tags": ["a change without results"]}, status=200)
        again = await computed(api, created)  # without being computed again
        assert again["state"] == "CURRENT"
        assert {**again, "revision": 0} == {**many, "revision": 0}
        await add_ended(api, created, 200, 1)
        failed = await computed(api, created)
    assert failed["state"] == "OUTDATED"
    assert "cannot be computed: its process exited with 1: " in failed["reason"]
    assert "No module named proctor.no_such_module" in failed["reason"]
    assert failed["parameters"] == many["parameters"]
    assert (await ask(api, created))["state"] == "OUTDATED"  # it is not tried again at once


@pytest.mark.slow
async def test_a_question_names_key_quantile_and_direction(api: Any) -> None:
    created = (await api.ran()).id
    await add_ended(api, created, 100, 60)
    found = await computed(api, created, "?key=loss&quantile=0.25&direction=maximize")
    assert (found["key"], found["quantile"], found["direction"]) == ("loss", 0.25, "maximize")
    assert (found["trials"], found["parameters"]) == (60, [{"name": "x", "importance": 1.0}])
    for wrong in ("?quantile=0", "?quantile=1", "?direction=up"):
        assert (await api.client.get(f"/api/v1/experiments/{created}/importance{wrong}")).status_code == 422


async def test_a_process_that_is_killed_or_too_slow_is_gone_and_says_so(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "sleeper.py").write_text("import time; time.sleep(600)")
    (tmp_path / "killed.py").write_text(f"import os; os.kill(os.getpid(), {int(signal.SIGKILL)})")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(importance, "MODULE", "killed")
    with pytest.raises(ValueError, match="its process was killed by signal 9"):
        await importance.compute(QUESTION)
    monkeypatch.setattr(importance, "MODULE", "sleeper")
    with pytest.raises(ValueError, match="longer than 1 s"):
        await importance.compute(QUESTION, limit_seconds=1)
    working = asyncio.ensure_future(importance.compute(QUESTION))
    await asyncio.sleep(0.2)
    working.cancel()
    with pytest.raises(asyncio.CancelledError):
        await working
    pgrep = await asyncio.create_subprocess_exec(*("pgrep", "-P", str(os.getpid()), "-f", "sleeper"))
    assert await pgrep.wait() == 1  # none


@pytest.mark.thorough
async def test_a_module_in_the_folder_of_the_manager_is_not_imported(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "optuna.py").write_text("raise SystemExit('the module of somebody else')")
    monkeypatch.chdir(tmp_path)
    assert (await importance.compute(QUESTION))["trials"] == 0


@pytest.mark.thorough
def test_the_process_ends_with_its_parent_and_at_its_own_limit() -> None:
    program = [sys.executable, "-m", importance.MODULE, "--seconds"]
    orphan = subprocess.Popen([*program, "600", "--parent", "1"], stdin=subprocess.PIPE, stderr=subprocess.DEVNULL)
    assert orphan.wait(60) == 1  # its parent is another process than it was started by; stdin stays open
    slow = subprocess.Popen([*program, "1", "--parent", str(os.getpid())], stdin=subprocess.PIPE)
    assert slow.wait(60) == -signal.SIGALRM
    for each in (orphan, slow):
        assert each.stdin is not None
        each.stdin.close()

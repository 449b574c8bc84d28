"""A user's own tuner in a real dispatcher process, from the first call to the last. Jobs are played in memory."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from integration.test_dispatcher_restarts import config, dispatchers, serving_manager, trial_count
from integration.test_dispatcher_restarts import script as two_reports

from proctor.manager.engine.manager import Manager
from proctor.manager.lifecycle.states import ExperimentStatus, TrialStatus
from proctor.manager.settings import Home
from proctor.manager.store.rows import ExperimentRow
from proctor.manager.store.tables import events, trials
from proctor.training_services.base import TrialJobForm
from proctor.training_services.in_memory.scripts import Final, Script, ScriptedReport, Step

pytestmark = pytest.mark.anyio

DIARY = """
import json
import os
import threading
import time
from nni.tuner import Tuner

class Own(Tuner):
    def __init__(self, diary, pause=0.0, wait_at=None, fail_at=None, fail_on_exit=False):
        self.diary, self.pause, self.wait_at, self.fail_at = diary, pause, wait_at, fail_at
        self.fail_on_exit = fail_on_exit
        self.proposed = 0
        self.write("new")

    def write(self, *words):
        with open(self.diary, "a") as file:
            file.write(json.dumps(words) + "\\n")

    def update_search_space(self, search_space):
        self.write("space")

    def generate_parameters(self, parameter_id, **kwargs):
        self.write("generate", parameter_id)
        if parameter_id == self.wait_at:
            threading.Event().wait()
        self.proposed += 1
        return {"x": self.proposed / 100}

    def receive_trial_result(self, parameter_id, parameters, value, **kwargs):
        time.sleep(self.pause)
        if parameter_id == self.fail_at:
            raise ValueError(f"cannot learn from {parameter_id}")
        self.write("result", parameter_id)

    def trial_end(self, parameter_id, success, **kwargs):
        time.sleep(self.pause)
        self.write("end", parameter_id)

    def import_data(self, data):
        self.write("import", [row["parameter"]["x"] for row in data])

    def _on_exit(self):
        self.write("exit")
        if self.fail_on_exit:
            raise KeyError("cannot leave")
"""

SAVING = """
    def save_checkpoint(self):
        with open(os.path.join(self.get_checkpoint_path(), "own.json"), "w") as file:
            json.dump(self.proposed, file)
        self.write("save")

    def load_checkpoint(self):
        with open(os.path.join(self.get_checkpoint_path(), "own.json")) as file:
            self.proposed = json.load(file)
        self.write("load")
"""


class Place:
    """A home with one tuner, and what that tuner wrote down."""

    def __init__(self, folder: Path, *, saves: bool = False, script: Script = two_reports, **arguments: Any) -> None:
        self.home = Home(folder / "home")
        self.home.prepare()
        self._diary = folder / "diary"
        self._script = script
        (folder / "own_tuner.py").write_text(DIARY + (SAVING if saves else ""))
        arguments = {"diary": str(self._diary), **arguments}
        tuner = {"className": "own_tuner.Own", "codeDirectory": str(folder), "classArgs": arguments}
        self.config = config(tuner=tuner, maxTrialNumber=3)

    @asynccontextmanager
    async def manager(self) -> AsyncIterator[Manager]:
        """A manager; on leaving it goes as after SIGTERM."""
        async with serving_manager(self.home, self._script) as manager:
            yield manager

    def diary(self, *words: str) -> list[list[Any]]:
        """What the tuner wrote, in order; only what begins with one of the words, if any are given."""
        entries = [json.loads(line) for line in self._diary.read_text().splitlines()]
        return [entry for entry in entries if not words or entry[0] in words]

    async def create(self, manager: Manager) -> str:
        row = await manager.create_experiment(config=self.config, directory=str(self.home.path.parent))
        return row.id


async def reached(manager: Manager, experiment_id: str, status: ExperimentStatus) -> ExperimentRow:
    async with asyncio.timeout(60):
        while True:
            bell = manager.feed.next_change()
            row = await manager.experiment(experiment_id)
            if row.status is status:
                return row
            await bell.wait()


async def parameters(manager: Manager, experiment_id: str) -> list[Any]:
    page = await manager.control.read(lambda c: trials.page(c, experiment_id, limit=100))
    return [trial.parameters for trial in page.items]


async def raise_limit(manager: Manager, experiment_id: str, trials: int) -> None:
    """Let a finished experiment have more trials; returns when these have ended."""
    await manager.update_experiment(experiment_id, max_trial_number=trials)
    await trial_count(manager, experiment_id, trials)
    await reached(manager, experiment_id, ExperimentStatus.DONE)


async def stop(manager: Manager, experiment_id: str) -> None:
    await manager.stop_experiment(experiment_id)
    await reached(manager, experiment_id, ExperimentStatus.STOPPED)


@pytest.mark.parametrize("pause", [0.0, 0.3])
async def test_a_tuner_goes_on_after_a_raised_limit_and_gets_everything_before_its_exit_hook_and_nothing_after_it(
    tmp_path: Path, pause: float
) -> None:
    place = Place(tmp_path, pause=pause)
    async with place.manager() as manager:
        experiment_id = await place.create(manager)
        await reached(manager, experiment_id, ExperimentStatus.DONE)
        await raise_limit(manager, experiment_id, 5)
        assert await parameters(manager, experiment_id) == [{"x": n / 100} for n in range(1, 6)]
        await stop(manager, experiment_id)
        assert dispatchers() == []
    assert place.diary("new", "generate") == [["new"], *(["generate", n] for n in range(5))]
    assert place.diary("result") == [["result", n] for n in range(5)]
    assert sorted(place.diary("end")) == [["end", n] for n in range(5)]
    assert place.diary()[-1] == ["exit"]
    assert place.diary("exit") == [["exit"]]


@pytest.mark.parametrize(
    ("saves", "x", "loads", "imported"),
    [(False, 0.01, [], [0.01, 0.02, 0.03]), (True, 0.04, [["load"]], [])],
    ids=["new", "saved"],
)
async def test_a_restarted_manager_starts_a_tuner_only_when_it_is_asked_for_new_ids(
    tmp_path: Path, saves: bool, x: float, loads: list[Any], imported: list[float]
) -> None:
    """One that has saved itself continues; a new one is given the results."""
    place = Place(tmp_path, saves=saves)
    async with place.manager() as manager:
        experiment_id = await place.create(manager)
        await reached(manager, experiment_id, ExperimentStatus.DONE)
    async with place.manager() as manager:
        await reached(manager, experiment_id, ExperimentStatus.DONE)
        assert dispatchers() == []
        assert place.diary("new") == [["new"]]
        await raise_limit(manager, experiment_id, 4)
        assert (await parameters(manager, experiment_id))[3] == {"x": x}
        await stop(manager, experiment_id)
    assert place.diary("generate") == [["generate", n] for n in range(4)]
    assert place.diary("load") == loads
    assert [x for _, xs in place.diary("import") for x in xs] == imported
    assert place.diary("result") == [["result", n] for n in range(4)]


async def test_a_tuner_that_raises_for_the_last_result_puts_the_experiment_in_error(tmp_path: Path) -> None:
    place = Place(tmp_path, pause=0.2, fail_at=2)
    async with place.manager() as manager:
        experiment_id = await place.create(manager)
        row = await reached(manager, experiment_id, ExperimentStatus.ERROR)
        assert "cannot learn from 2" in row.reason
        assert "receive_trial_result" in row.error
    assert place.diary("exit") == []


async def test_what_a_tuner_raises_while_it_leaves_is_noted(tmp_path: Path) -> None:
    place = Place(tmp_path, fail_on_exit=True)
    async with place.manager() as manager:
        experiment_id = await place.create(manager)
        await reached(manager, experiment_id, ExperimentStatus.DONE)
        await stop(manager, experiment_id)
        notices = await manager.control.read(lambda c: events.notices(c, experiment_id))
    assert any("while the experiment was being stopped: KeyError: 'cannot leave'" in notice for notice in notices)


async def test_a_tuner_that_waits_for_something_that_never_comes_does_not_keep_its_experiment_from_stopping(
    tmp_path: Path,
) -> None:
    place = Place(tmp_path, wait_at=2)
    async with place.manager() as manager:
        experiment_id = await place.create(manager)
        await trial_count(manager, experiment_id, 2)
        async with asyncio.timeout(60):
            while place.diary("end") != [["end", 0], ["end", 1]]:  # noqa: ASYNC110 - a file rings no bell
                await asyncio.sleep(0.05)
        await manager.stop_experiment(experiment_id)
        stopping = await manager.experiment(experiment_id)
        assert "waits for its dispatcher" in manager.awaited(stopping)
        await reached(manager, experiment_id, ExperimentStatus.STOPPED)
        assert dispatchers() == []
    assert place.diary("exit") == []


async def test_a_stopped_experiment_resumes_with_what_its_tuner_had_saved(tmp_path: Path) -> None:
    place = Place(tmp_path, saves=True)
    place.config["maxTrialNumber"] = 1000
    async with place.manager() as manager:
        experiment_id = await place.create(manager)
        await trial_count(manager, experiment_id, 3)
        await stop(manager, experiment_id)
        sent = len(place.diary("result"))
        await manager.resume_experiment(experiment_id)
        await trial_count(manager, experiment_id, sent + 5)
        await stop(manager, experiment_id)
        tried = await parameters(manager, experiment_id)
    assert tried == [{"x": n / 100} for n in range(1, len(tried) + 1)]
    results = place.diary("result")
    assert results == [["result", n] for n in range(len(results))]


def falling_behind(form: TrialJobForm) -> Iterable[Step]:
    """The third trial is worse than the others, and does not end by itself."""
    for _ in range(2 if form.sequence_id < 2 else 1000):
        yield ScriptedReport(0.01, 0.5 if form.sequence_id < 2 else 0.25)
    yield Final(0.01, 0.5)


async def test_a_trial_that_was_stopped_early_has_no_result_unless_that_is_asked_for(tmp_path: Path) -> None:
    place = Place(tmp_path, script=falling_behind)
    place.config["assessor"] = {"name": "Medianstop", "classArgs": {"optimize_mode": "maximize"}}
    async with place.manager() as manager:
        experiment_id = await place.create(manager)
        await reached(manager, experiment_id, ExperimentStatus.DONE)
        await stop(manager, experiment_id)
        page = await manager.control.read(lambda c: trials.page(c, experiment_id))
    assert page.items[2].status is TrialStatus.EARLY_STOPPED
    assert place.diary("result") == [["result", 0], ["result", 1]]
    assert sorted(place.diary("end")) == [["end", 0], ["end", 1], ["end", 2]]

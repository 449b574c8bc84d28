"""`python -m proctor.manager.sample`: a home with a made-up experiment."""

import asyncio
import sqlite3
from collections.abc import Coroutine
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from proctor.manager.app import prepare
from proctor.manager.lifecycle.states import ExperimentStatus, TrialStatus
from proctor.manager.process.instance import InstanceLock
from proctor.manager.sample import LiveScript, SampleSize, fill, main, search_space
from proctor.manager.settings import METRICS_FILE, Home
from proctor.manager.simulation.simulation import Simulation
from proctor.manager.simulation.virtual_time import VirtualTimeLoop, run_virtual
from proctor.manager.store.rows import TrialRow
from proctor.manager.store.tables import experiments, jobs, metrics, trials

SIZE = SampleSize(trials=60, points=5, parameters=10)


@pytest.fixture
def home(tmp_path: Path) -> Home:
    """A home as a manager prepares it."""
    found = Home(tmp_path / "home")
    prepare(found)
    return found


def read_trials(home: Home, experiment_id: str) -> list[TrialRow]:
    with closing(sqlite3.connect(home.control_database)) as connection:
        return trials.page(connection, experiment_id, limit=1000).items


def test_it_fills_a_home_with_trials_of_every_end_their_jobs_and_curves(home: Home) -> None:
    experiment_id = asyncio.run(fill(home, SIZE))
    rows = read_trials(home, experiment_id)
    assert [row.sequence_id for row in rows] == list(range(60))
    assert {row.status for row in rows} >= {TrialStatus.SUCCEEDED, TrialStatus.FAILED, TrialStatus.EARLY_STOPPED}
    assert all(len(row.parameters) == 10 for row in rows)
    assert {type(row.parameters["model"]) for row in rows} == {dict}
    database = home.experiment_directory(experiment_id) / METRICS_FILE
    with closing(sqlite3.connect(home.control_database)) as control, closing(sqlite3.connect(database)) as stored:
        for row in rows:
            assert len(jobs.of_trial(control, row.id)) == row.jobs
            curve = metrics.curve(stored, row.id)
            assert len(curve) == row.intermediate_count
            assert curve == [] or curve[-1].value == row.latest_value
        assert experiments.get(control, experiment_id).status is ExperimentStatus.STOPPED


def test_the_same_seed_gives_the_same_trials_and_another_home_can_hold_several(home: Home) -> None:
    first, second = (asyncio.run(fill(home, SIZE)) for _ in range(2))
    other = asyncio.run(fill(home, SampleSize(trials=60, points=5, parameters=10, seed=1)))
    found = [
        [(row.status, row.parameters, row.final_value) for row in read_trials(home, each)]
        for each in (first, second, other)
    ]
    assert found[0] == found[1] != found[2]


def test_more_parameters_than_there_are_kinds_are_numbered() -> None:
    assert list(search_space(10))[-2:] == ["x1", "x2"]
    assert list(search_space(1)) == ["lr"]


@pytest.mark.slow
def test_a_manager_continues_a_live_one_at_the_rate_that_was_asked_for(home: Home) -> None:
    experiment_id = asyncio.run(fill(home, SIZE, is_live=True))

    def live(loop: VirtualTimeLoop) -> Coroutine[Any, Any, int]:
        async def run() -> int:
            async with Simulation(home, loop, script=LiveScript(points=50, events=20.0)).manager():
                await asyncio.sleep(60.0)
            return len(read_trials(home, experiment_id))

        return run()

    made = run_virtual(live) - 60
    reports = sum(row.intermediate_count for row in read_trials(home, experiment_id)[60:])
    assert made > 8
    assert reports == pytest.approx(60 * 20, rel=0.1)


def test_a_home_with_a_manager_is_left_alone(home: Home, capsys: pytest.CaptureFixture[str]) -> None:
    with InstanceLock(home):
        assert main(["--home", str(home.path), "--trials", "1"]) == 5
    assert "a manager runs on the home" in capsys.readouterr().err
    assert not home.control_database.exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--trials", "-1"], "--trials: expected a number from 0, found '-1'"),
        (["--points", "0"], "--points: expected a number from 1, found '0'"),
        (["--events", "many"], "--events: expected a number from 1, found 'many'"),
    ],
)
def test_a_number_that_is_none_is_refused(
    arguments: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main(["--home", str(tmp_path / "home"), *arguments])
    assert message in capsys.readouterr().err
    assert not (tmp_path / "home").exists()

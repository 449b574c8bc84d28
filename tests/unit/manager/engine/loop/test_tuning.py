"""What the loop makes of stored metrics."""

from dataclasses import replace
from pathlib import Path

import pytest

from proctor.manager.config.loading import load_experiment_mapping
from proctor.manager.engine import creation
from proctor.manager.engine.loop import tuning
from proctor.manager.engine.loop.messages import MetricsStored
from proctor.manager.engine.loop.starts import create_job, create_trial
from proctor.manager.engine.loop.state import ExperimentState, Turn
from proctor.manager.store.tables.metrics import StoredChunk


def one_running_trial(directory: Path) -> tuple[ExperimentState, str]:
    """An experiment's state with one trial; its job's id."""
    config = {
        "searchSpace": {"x": {"_type": "uniform", "_value": [0, 1]}},
        "trialCommand": "python trial.py",
        "trialConcurrency": 1,
        "tuner": {"name": "Random"},
        "assessor": {"name": "Medianstop"},
        "trainingService": {"platform": "local"},
    }
    loaded = load_experiment_mapping(config, str(directory))
    state = ExperimentState(creation.new_row(loaded, "E", directory, now=0.0))
    trial = create_trial(state, Turn("E", 0.0), parameter_id=0, parameters={"x": 0.5}, source="algorithm")
    job = create_job(state, Turn("E", 0.0), trial, token="t", placement=None)
    return state, job.id


def test_metrics_that_came_while_the_experiment_was_taken_up_are_told_once(tmp_path: Path) -> None:
    state, job_id = one_running_trial(tmp_path)
    state.row, state.replayed_to = replace(state.row, metrics_told=7), 7
    turn = Turn("E", 1.0)
    told = StoredChunk(100, intermediates=[(7, 1, 0.2, None, 5.0)])
    tuning.on_stored(state, turn, MetricsStored([(job_id, told)]), notify=True)
    assert (turn.inputs, state.row.metrics_told) == ([], 7)
    chunk = StoredChunk(200, intermediates=[(7, 1, 0.2, None, 5.0), (8, 2, 0.3, 30, 3.5)])
    tuning.on_stored(state, turn, MetricsStored([(job_id, chunk)]), notify=True)
    assert [message.rows for message in turn.inputs] == [[(0, job_id[:-2], 1, 2, 0.3, 30, 3.5)]]  # type: ignore[union-attr]
    assert state.row.metrics_told == 8
    assert state.by_job[job_id].latest == 0.3


def test_metrics_that_were_stored_while_their_job_was_given_up_are_the_trials(tmp_path: Path) -> None:
    state, job_id = one_running_trial(tmp_path)
    trial = state.by_job.pop(job_id)
    trial.job = None  # its node was lost meanwhile
    turn = Turn("E", 1.0)
    chunk = StoredChunk(200, intermediates=[(1, 0, 0.2, None, 5.0)], finals=[(0.3, 0.3)])
    tuning.on_stored(state, turn, MetricsStored([(job_id, chunk)]), notify=True)
    assert [message.rows for message in turn.inputs] == [[(0, job_id[:-2], 1, 0, 0.2, None, 5.0)]]  # type: ignore[union-attr]
    assert (trial.row.intermediate_count, trial.row.final_value) == (1, 0.3)


def test_late_intermediate_metrics_of_an_earlier_job_are_not_the_latest_ones(tmp_path: Path) -> None:
    state, job_id = one_running_trial(tmp_path)
    trial = state.by_job[job_id]
    create_job(state, Turn("E", 0.0), trial, token="t", placement=None)
    tuning.on_stored(
        state,
        Turn("E", 1.0),
        MetricsStored([(job_id, StoredChunk(200, intermediates=[(1, 4, 0.2, None, 5.0)]))]),
        notify=True,
    )
    assert (trial.row.intermediate_count, trial.has_latest) == (0, False)


@pytest.mark.parametrize(
    ("count", "notices"),
    [
        (1, ["1 report lost: the trial's disk was full", "1 journal record could not be read"]),
        (2, ["2 reports lost: the trial's disk was full", "2 journal records could not be read"]),
    ],
)
def test_what_was_lost_is_counted_in_the_singular_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int, notices: list[str]
) -> None:
    state, job_id = one_running_trial(tmp_path)
    turn, found = Turn("E", 1.0), list[str]()
    monkeypatch.setattr(turn, "add_notice", lambda text, **_: found.append(text))
    chunk = StoredChunk(100, lost=count, unreadable=count)
    tuning.on_stored(state, turn, MetricsStored([(job_id, chunk)]), notify=False)
    assert found == notices

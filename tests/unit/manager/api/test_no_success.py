"""What is said where nothing has succeeded: in REST and on the page."""

import sqlite3
from typing import Any

import pytest

from proctor.manager.api import resources
from proctor.manager.lifecycle.states import ExperimentStatus, TrialStatus
from proctor.manager.store.tables import experiments, trials

pytestmark = pytest.mark.anyio

FAILED, EARLY = TrialStatus.FAILED, TrialStatus.EARLY_STOPPED


async def end_as(api: Any, ends: list[tuple[TrialStatus, str]], status: str = "DONE") -> str:
    """An experiment whose trials have ended like this, without a metric; its id."""
    ran = await api.ran(max_trial_number=len(ends))
    [*rows] = ran.trials
    columns = {} if status == "DONE" else {"ended_at": None}

    def write(connection: sqlite3.Connection) -> None:
        for row, (end, reason) in zip(rows, ends, strict=True):
            expected = tuple(TrialStatus)
            trials.move(connection, row["id"], expected=expected, status=end, reason=reason, time=1.0, final_value=None)
        experiments.move(
            connection,
            ran.id,
            expected=tuple(ExperimentStatus),
            status=ExperimentStatus(status),
            reason="maxTrialNumber is reached",
            time=1.0,
            **columns,
        )

    await api.manager.control.write(write)
    return str(ran.id)


async def failure(api: Any, identifier: str) -> str:
    return str((await api.get(f"/api/v1/experiments/{identifier}"))["failure"])


NO_FILE = "exit code 1: no <file>"
FAILURES = {
    "the most frequent reason": (
        [(FAILED, f"{NO_FILE} 17"), (FAILED, "out of memory"), (FAILED, f"{NO_FILE} 18")],
        "DONE",
        f"none of 3 trials has succeeded; 2 of 3 ended with: {NO_FILE} 18",
    ),
    "one has succeeded": ([(FAILED, "exit code 1"), (TrialStatus.SUCCEEDED, "")], "DONE", ""),
    "one was stopped early and others may come": ([(FAILED, "exit code 1"), (EARLY, "slow")], "RUNNING", ""),
    "all were stopped early": (
        [(EARLY, "slow"), (EARLY, "slow")],
        "DONE",
        "none of 2 trials has succeeded; 2 of 2 ended with: slow",
    ),
    "the first one, while others may come": (
        [(FAILED, "exit code 127: command not found")],
        "RUNNING",
        "the only finished trial failed: exit code 127: command not found",
    ),
}


@pytest.mark.parametrize(("ends", "status", "said"), FAILURES.values(), ids=FAILURES)
async def test_where_nothing_has_succeeded_the_reason_is_said(
    api: Any, ends: list[tuple[TrialStatus, str]], status: str, said: str
) -> None:
    assert await failure(api, await end_as(api, ends, status)) == said


async def test_only_the_newest_reasons_are_read(api: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resources, "MOST_REASONS", 2)
    ends = [(FAILED, "old"), (FAILED, "old"), (FAILED, "old"), (TrialStatus.SYS_CANCELED, ""), (FAILED, "")]
    said = await failure(api, await end_as(api, ends))
    assert said == "none of 5 trials has succeeded; 2 of the newest 2 ended with: no reason was given"


@pytest.mark.parametrize(
    ("status", "data", "said"),
    [
        ("SUCCEEDED", "NaN", "no final metric is a finite number that could be compared; trial 1 reported NaN"),
        (
            "EARLY_STOPPED",
            {"loss": 1},
            'no final metric is a finite number that could be compared; trial 1 reported {"loss": 1}',
        ),
        ("FAILED", 0.5, "only trials without success have reported a final metric; trial 1 is FAILED"),
        ("RUNNING", 0.5, "trial 1 has reported a final metric, but has not ended yet"),
        ("SUCCEEDED", None, "no trial has reported a final metric"),
    ],
)
async def test_without_a_best_trial_it_is_said_what_became_of_the_final_metrics(
    api: Any, status: str, data: object, said: str
) -> None:
    identifier = await end_as(api, [(FAILED, "exit code 1"), (TrialStatus(status), "")])
    rows = (await api.get(f"/api/v1/experiments/{identifier}/trials?sort=sequence_id"))["items"]

    def write(connection: sqlite3.Connection) -> None:
        trials.update(connection, rows[0]["id"], final_data=None)
        trials.update(connection, rows[1]["id"], final_data=data)

    await api.manager.control.write(write)
    body = await api.get(f"/api/v1/experiments/{identifier}")
    assert (body["best"], body["no_best_reason"]) == (None, said)
    refused = await api.get(f"/api/v1/experiments/{identifier}/best")
    assert refused["detail"] == f"experiment {identifier} has no best trial: {said}"


async def test_an_experiment_with_a_best_trial_gives_no_reason_for_none(api: Any) -> None:
    assert (await api.ended((await api.create())["id"]))["no_best_reason"] == ""

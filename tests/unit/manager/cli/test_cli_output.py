"""The four forms of output; data on stdout, all else on stderr."""

import csv
import io
import json
import time

import pytest
from fakes.rest import FakeRest
from ruamel.yaml import YAML

from proctor.manager.api.json_types import rfc3339, utc
from proctor.manager.cli import columns
from proctor.sdk.json_input import LATEST_TIME


@pytest.mark.parametrize("zone", ["Asia/Tokyo", "Pacific/Kiritimati", "Etc/GMT-14", "Etc/GMT+12", "UTC"])
@pytest.mark.parametrize("seconds", [0.0, LATEST_TIME, 1e18])
def test_every_time_that_a_manager_sends_can_be_shown_in_every_time_zone(
    monkeypatch: pytest.MonkeyPatch, zone: str, seconds: float
) -> None:
    monkeypatch.setenv("TZ", zone)
    time.tzset()
    try:
        assert columns.local_time(rfc3339(utc(seconds)))[:4] in {"1969", "1970", "9999"}
    finally:
        monkeypatch.undo()
        time.tzset()


@pytest.fixture
def seven(rest: FakeRest) -> FakeRest:
    rest.add_experiment("e")
    for number in range(7):
        rest.add_trial("e", f"trial{number}")
    return rest


def test_json_is_exactly_what_the_manager_sent_of_all_pages(seven: FakeRest, invoke) -> None:
    result = invoke("trial", "ls", "-o", "json")
    assert json.loads(result.stdout) == list(seven.trials.values())
    assert not result.stderr


def test_one_object_in_json_is_the_object(seven: FakeRest, invoke) -> None:
    assert json.loads(invoke("experiment", "show", "-o", "json").stdout) == seven.experiments["e"]


def test_yaml_says_the_same_as_json(seven: FakeRest, invoke) -> None:
    assert YAML(typ="safe").load(invoke("trial", "ls", "-o", "yaml").stdout) == list(seven.trials.values())


def test_csv_has_a_column_for_every_nested_field(seven: FakeRest, invoke) -> None:
    rows = list(csv.DictReader(io.StringIO(invoke("trial", "ls", "-o", "csv").stdout)))
    assert len(rows) == 7
    assert rows[3]["parameters.layer.units"] == "8"
    assert rows[3]["final_value"] == "3.0"


def test_a_table_into_a_file_is_plain_and_not_cut(rest: FakeRest, invoke) -> None:
    rest.add_experiment("e", reason="long " * 60)
    output = invoke("experiment", "list").stdout
    assert "\x1b" not in output
    assert "long " * 59 in output


def test_what_is_empty_is_said_on_stderr(rest: FakeRest, invoke) -> None:
    result = invoke("experiment", "list")
    assert not result.stdout
    assert "no experiments" in result.stderr
    assert invoke("experiment", "list", "-o", "json").stdout == "[]\n"


def test_the_same_fields_have_values_that_are_no_numbers(rest: FakeRest, invoke) -> None:
    rest.add_experiment("e")
    rest.add_trial("e", "t", final_value=float("nan"))
    rest.add_trial("e", "u", final_value=None, latest_value=float("inf"), status="RUNNING")
    output = invoke("trial", "ls").stdout
    assert " NaN " in output
    assert "~Infinity" in output


@pytest.mark.parametrize(
    ("arguments", "names"),
    [
        ((), ["t0", "t1", "t2", "t3", "t4"]),
        (("--head", "2"), ["t4", "t3"]),
        (("--tail", "2"), ["t1", "t0"]),
        (("--sort", "sequence_id", "--tail", "2"), ["t3", "t4"]),
        (("--sort", "-sequence_id", "--head", "1"), ["t4"]),
        (("--sort", "value"), ["t0", "t1", "t2", "t3", "t4"]),
        (("--status", "failed"), []),
    ],
)
def test_trials_are_listed_in_the_order_asked_for(rest: FakeRest, invoke, arguments, names: list[str]) -> None:
    rest.add_experiment("e")
    for number in range(5):
        rest.add_trial("e", f"t{number}")
    rows = json.loads(invoke("trial", "ls", *arguments, "-o", "json").stdout)
    assert [row["id"] for row in rows] == names


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(None, "-"), (0.04, "0.0s"), (9.94, "9.9s"), (59.9, "59s"), (61, "1m 01s"), (7500, "2h 05m"), (90000, "1d 01h")],
)
def test_durations_read_well(seconds: float | None, text: str) -> None:
    assert columns.duration(seconds) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "-"),
        (0.0126485739, "0.01265"),
        (-1.0, "-1"),
        (9999.4, "9999"),
        (9999.6, "10000"),
        (1234567.89, "1234568"),
        (1.5e20, "1.5e+20"),
        (1.23456e-7, "1.235e-07"),
        (1234567, "1234567"),
        ("NaN", "NaN"),
    ],
)
def test_numbers_in_tables_have_four_significant_digits(value: float | str | None, text: str) -> None:
    assert columns.number(value) == text


def test_a_little_time_is_not_written_as_a_power_of_ten() -> None:
    row = {"usage": {"gpu_hours": 1.94e-05, "cpu_hours": 0.012, "unmeasured_jobs": 1}}
    assert (columns.gpu_hours(row), columns.cpu_hours(row)) == ("<0.01", "at least 0.012")
    assert columns.gpu_hours({"usage": {"gpu_hours": 0.0}}) == "0"


@pytest.mark.parametrize(
    ("changes", "seconds"),
    [
        ({}, 60.0),
        ({"trial_counts": {"RUNNING": 2}}, None),
        ({"max_trial_number": None}, None),
        ({"status": "PAUSED"}, None),
        ({"status": "DONE"}, None),
        ({"max_experiment_duration_seconds": 50.0}, 20.0),
        ({"max_experiment_duration_seconds": 10.0}, None),
        ({"max_trial_number": None, "max_experiment_duration_seconds": 50.0}, 20.0),
        ({"status": "NO_MORE_TRIAL", "max_experiment_duration_seconds": 10.0}, 20.0),
        ({"status": "TUNER_NO_MORE_TRIAL", "max_trial_number": None}, 20.0),
        ({"max_trial_number": 2}, None),
    ],
)
def test_the_time_that_remains_follows_from_the_trials_that_have_ended(changes, seconds: float | None) -> None:
    counts = {"SUCCEEDED": 2, "FAILED": 1, "RUNNING": 1, "WAITING": 1}
    experiment = {"status": "RUNNING", "max_trial_number": 9, "trial_counts": counts}
    assert columns.remaining({**experiment, "max_experiment_duration_seconds": None, **changes}, 30.0) == seconds


def test_wide_characters_do_not_shift_the_columns_of_a_file(rest: FakeRest, invoke) -> None:
    rest.add_experiment("a", name="数字")
    rest.add_experiment("b", name="digits!")
    lines = invoke("experiment", "list").stdout.splitlines()
    assert {line.index("STATUS") for line in lines[:1]} == {lines[1].index("RUNNING")}
    assert lines[2].index("RUNNING") == lines[1].index("RUNNING") - 2  # each of the two is as wide as two


def test_a_job_that_was_killed_shows_its_signal(rest: FakeRest, invoke) -> None:
    rest.add_experiment("e")
    rest.add_trial("e", "t")
    job = dict.fromkeys(("node_id", "started_at", "ended_at", "exit_code"))
    rest.jobs["t"] = [
        {**job, "id": "t.1", "status": "ENDED", "end_reason": "SIGNALED", "signal": 9, "detail": "killed from outside"}
    ]
    line = invoke("trial", "show", "t").stdout.splitlines()[-1]
    assert line.split() == ["t.1", "ENDED", "SIGNALED", "signal", "9", "-", "-", "-", "killed", "from", "outside"]


def test_a_second_attempt_shows_where_it_begins(rest: FakeRest, invoke) -> None:
    rest.add_experiment("e")
    rest.add_trial("e", "t")
    job = dict.fromkeys(("node_id", "started_at", "ended_at", "exit_code", "end_reason", "signal"))
    reason = "from checkpoint 3 of job 1"
    rest.jobs["t"] = [{**job, "id": "t.2", "status": "RUNNING", "detail": "", "start_reason": reason}]
    assert reason in " ".join(invoke("trial", "show", "t").stdout.split())


def test_an_experiment_in_which_nothing_has_succeeded_stands_out_in_the_list(rest: FakeRest, invoke) -> None:
    failure = "none of 12 trials has succeeded; 9 of 12 ended with: exit code 1"
    fields = {"status": "DONE", "max_trial_number": 12, "reason": "maxTrialNumber 12 is reached"}
    rest.add_experiment("e", trial_counts={"FAILED": 12}, failure=failure, **fields)
    rest.add_experiment("c", trial_counts={"USER_CANCELED": 12}, failure="none of 12", **fields)
    rest.add_experiment("f", trial_counts={"SUCCEEDED": 12}, **fields)
    lines = {line.split()[0]: line for line in invoke("experiment", "list").stdout.splitlines()}
    assert "12/12 failed" in lines["e"]
    assert f"{failure}; maxTrialNumber 12 is reached" in lines["e"]
    assert "12/12 no success" in lines["c"]
    assert "failed" not in lines["f"]
    assert failure in invoke("experiment", "show", "e").stdout
    assert failure in invoke("experiment", "status", "e").stdout


def test_a_trial_is_shown_with_the_reports_that_are_lost(rest: FakeRest, invoke) -> None:
    rest.add_experiment("e")
    rest.add_trial("e", "t", jobs=1)
    row = {"job": 1, "kind": "lost", "value": None, "data": "the trial cut its journal back"}
    rest.metrics["t"] = [row, {**row, "value": 7.0, "data": 7.0}, {**row, "kind": "final", "value": 1.0}]
    lines = invoke("trial", "show", "t").stdout.splitlines()
    assert "job 1: the trial cut its journal back" in lines
    assert "job 1: 7 reports lost: the trial's disk was full" in lines

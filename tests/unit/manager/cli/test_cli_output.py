"""The four forms of output; data on stdout, all else on stderr."""

import csv
import io
import json
import time
from collections.abc import Iterator
from typing import Any

import pytest
from fakes.served_manager import ServedManager
from ruamel.yaml import YAML

from proctor.manager.api.json_types import rfc3339, utc
from proctor.manager.cli import columns
from proctor.manager.cli.commands.trial import Selection
from proctor.manager.cli.watching import WatchedExperiment
from proctor.sdk.client import Client
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


@pytest.fixture(scope="module")
def seven(read_only: ServedManager) -> ServedManager:
    trials = [{"id": f"trial{number}", "final_value": float(number)} for number in range(7)]
    read_only.add_experiment("seven", trials=trials)
    return read_only


@pytest.fixture
def sent(seven: ServedManager) -> Iterator[list[dict[str, Any]]]:
    """The resources of the seven trials."""
    with Client(home=seven.home) as client:
        yield list(client.trials("seven"))


def test_json_is_exactly_what_the_manager_sent_of_all_pages(
    sent, read, seven: ServedManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(Selection._read.__kwdefaults__, "page_size", 3)
    seven.asked.clear()
    result = read("trial", "ls", "seven", "-o", "json")
    assert seven.requests("GET").count(("/experiments/seven/trials", None)) == 3
    assert json.loads(result.stdout) == sent
    assert not result.stderr


def test_one_object_in_json_is_the_object(seven: ServedManager, read) -> None:
    with Client(home=seven.home) as client:
        assert json.loads(read("experiment", "show", "seven", "-o", "json").stdout) == client.experiment("seven")


def test_yaml_says_the_same_as_json(sent, read) -> None:
    assert YAML(typ="safe").load(read("trial", "ls", "seven", "-o", "yaml").stdout) == sent


def test_csv_has_a_column_for_every_nested_field(seven: ServedManager, read) -> None:
    rows = list(csv.DictReader(io.StringIO(read("trial", "ls", "seven", "-o", "csv").stdout)))
    assert len(rows) == 7
    assert rows[3]["parameters.layer.units"] == "8"
    assert rows[3]["final_value"] == "3.0"


def test_a_table_into_a_file_is_plain_and_not_cut(served: ServedManager, invoke) -> None:
    empty = invoke("experiment", "list")
    assert not empty.stdout
    assert "no experiments" in empty.stderr
    assert invoke("experiment", "list", "-o", "json").stdout == "[]\n"
    served.add_experiment(reason="long " * 60)
    output = invoke("experiment", "list").stdout
    assert "\x1b" not in output
    assert "long " * 59 in output


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


def test_wide_characters_do_not_shift_the_columns_of_a_file(served: ServedManager, invoke) -> None:
    served.add_experiment("a", name="数字", created_at=1.0)
    served.add_experiment("b", name="digits!", created_at=2.0)
    lines = invoke("experiment", "list").stdout.splitlines()
    assert lines[0].index("STATUS") == lines[1].index("STOPPED")
    assert lines[2].index("STOPPED") == lines[1].index("STOPPED") - 2  # each of the two is as wide as two


def test_an_experiment_in_which_nothing_has_succeeded_stands_out_in_the_list(served: ServedManager, invoke) -> None:
    fields = {"status": "DONE", "max_trial_number": 12, "reason": "maxTrialNumber 12 is reached"}
    failed = {"status": "FAILED", "reason": "exit code 1"}
    trials = {"e": [failed] * 12, "c": [{"status": "USER_CANCELED"}] * 12, "f": [{"final_value": 1.0}] * 12}
    for name, made in trials.items():
        numbered = [{**trial, "id": f"{name}{number}"} for number, trial in enumerate(made)]
        served.add_experiment(name, trials=numbered, **fields)
    lines = {line.split()[0]: line for line in invoke("experiment", "list").stdout.splitlines()}
    assert "12/12 failed" in lines["e"]
    assert "12/12 no success" in lines["c"]
    assert "failed" not in lines["f"]


def test_how_long_something_runs_is_what_the_manager_says_however_the_clocks_are_set() -> None:
    running = {"status": "RUNNING", "started_at": "2020-01-01T00:00:00Z", "ended_at": None}
    assert columns.elapsed({**running, "run_seconds": 5.0}) == 5.0
    assert columns.elapsed({**running, "run_seconds": None}) == pytest.approx(columns.since_start(running), abs=60.0)
    watched = WatchedExperiment({"status": "RUNNING"}, [{**running, "run_seconds": 5.0}], time.monotonic() - 60.0)
    [row] = watched.running_now
    assert row["run_seconds"] == pytest.approx(65.0, abs=30.0)


def test_what_has_not_begun_has_no_duration_and_what_is_no_number_is_said() -> None:
    assert columns.elapsed({"started_at": None}) is None
    assert columns.elapsed({"started_at": None, "run_seconds": 5.0}) is None
    assert columns.metric(None, {"default": "NaN", "loss": 1}) == "NaN"

"""The remaining verbs: what they ask the manager, and what they say."""

import csv
import io
import json
import re
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from fakes.rest import FakeRest

from proctor.manager.config.loading import load_experiment, load_experiment_mapping
from proctor.manager.process.instance import ManagerAddress, write_address
from proctor.manager.settings import Home
from proctor.sdk.client import Client, result_calls
from proctor.sdk.client.experiment import Experiment


@pytest.fixture
def running(rest: FakeRest) -> FakeRest:
    rest.add_experiment("e")
    rest.add_trial("e", "t0", status="RUNNING", final_value=None)
    rest.add_trial("e", "t1", final_value=0.5)
    return rest


@pytest.mark.parametrize(
    ("arguments", "changes", "said"),
    [
        (("concurrency", "-v", "5"), {"trial_concurrency": 5}, "Concurrency of e is now 5 (was 2)."),
        (("trialnum", "-v", "99"), {"max_trial_number": 99}, "Trial limit of e is now 99 (was 30)."),
        (("trialnum", "--value", "none"), {"max_trial_number": None}, "Trial limit of e is now none (was 30)."),
        (
            ("duration", "-v", "1.5h"),
            {"max_experiment_duration_seconds": 5400.0},
            "Time limit of e is now 1h 30m (was none).",
        ),
        (
            ("duration", "-v", "none"),
            {"max_experiment_duration_seconds": None},
            "Time limit of e is now none (was none).",
        ),
        (
            ("duration", "-v", "30s", "--trial"),
            {"max_trial_duration_seconds": 30.0},
            "Time limit of each trial of e is now 30s (was none).",
        ),
        (("priority", "--value", "-5"), {"priority": -5}, "Priority of e is now -5 (was 0)."),
        (("gpuhours", "--value", "12.5"), {"max_gpu_hours": 12.5}, "Limit of GPU-hours of e is now 12.5 (was none)."),
        (("gpuhours", "--value", "none"), {"max_gpu_hours": None}, "Limit of GPU-hours of e is now none (was none)."),
    ],
)
def test_update_changes_one_limit(running: FakeRest, invoke, arguments, changes, said: str) -> None:
    running.experiments["e"].update(trial_concurrency=2, max_trial_number=30)
    result = invoke("update", arguments[0], "e", *arguments[1:])
    assert (result.exit_code, result.stderr) == (0, f"{said}\n")
    assert running.requests("PATCH") == [("/experiments/e", changes)]


def test_update_reads_a_search_space_from_a_file(running: FakeRest, invoke, tmp_path: Path) -> None:
    (tmp_path / "space.json").write_text('{"lr": {"_type": "uniform", "_value": [1e-4, 1]}}')
    result = invoke("update", "searchspace", "-f", str(tmp_path / "space.json"))
    assert (result.exit_code, result.stderr) == (0, "Changed the search space of e: lr.\n")
    [(_, body)] = running.requests("PATCH")
    assert body == {"search_space": {"lr": {"_type": "uniform", "_value": [0.0001, 1]}}}


@pytest.mark.parametrize("space", [[1, "two"], {}, "a name"])
def test_update_reads_a_search_space_of_any_kind(running: FakeRest, invoke, tmp_path: Path, space) -> None:
    (tmp_path / "space.json").write_text(json.dumps(space))
    assert invoke("update", "searchspace", "-f", str(tmp_path / "space.json")).exit_code == 0
    assert running.requests("PATCH") == [("/experiments/e", {"search_space": space})]


@pytest.mark.parametrize("parameters", [[1, {"x": 2}], "a text", 3, None])
def test_a_trial_is_added_with_parameters_of_any_kind(running: FakeRest, invoke, tmp_path: Path, parameters) -> None:
    (tmp_path / "parameters.json").write_text(json.dumps(parameters))
    assert invoke("trial", "add", "--parameters", json.dumps(parameters)).exit_code == 0
    assert invoke("trial", "add", "--filename", str(tmp_path / "parameters.json")).exit_code == 0
    assert running.requests("POST") == [("/experiments/e/trials", {"parameters": parameters})] * 2


def test_parameters_of_any_kind_are_shown(running: FakeRest, invoke) -> None:
    running.add_trial("e", "t9", sequence_id=9, parameters=[1, "two"])
    assert '[1, "two"]' in invoke("trial", "ls", "e").stdout
    assert '[1, "two"]' in invoke("trial", "show", "t9").stdout


def test_trials_are_paused_and_resumed(running: FakeRest, invoke) -> None:
    assert "Trial 0 (t0) is PAUSED; `proctor trial resume t0` resumes it." in invoke("trial", "pause", "t0").stderr
    assert "Trial 0 (t0) is resumed (waiting: resumed by the user)." in invoke("trial", "resume", "0").stderr
    assert running.requests("POST") == [("/trials/t0/pause", None), ("/trials/t0/resume", None)]


def test_a_trial_is_cloned_with_other_parameters(running: FakeRest, invoke) -> None:
    result = invoke("trial", "clone", "t0", "--set", "lr=0.01", "--set", "kind=adam", "--set", 'net={"depth": 3}')
    assert result.stdout == "clonet0\n"
    assert "continues from the newest checkpoint of trial 0." in result.stderr
    parameters = {"lr": 0.01, "kind": "adam", "net": {"depth": 3}}
    assert running.requests("POST") == [("/trials/t0/clone", {"parameters": parameters})]


def test_a_change_without_a_name_or_a_value_is_refused(running: FakeRest, invoke) -> None:
    result = invoke("trial", "clone", "t0", "--set", "0.01")
    assert result.exit_code == 2
    assert "--set expects NAME=VALUE, as in lr=0.01; found '0.01'" in result.stderr


def test_a_trial_is_retried_from_its_checkpoint(running: FakeRest, invoke) -> None:
    again = invoke("trial", "retry", "t1", "--from-checkpoint")
    assert again.stderr.endswith(", from its newest checkpoint.\n")
    assert running.queries == [{"from_checkpoint": "true"}]


def test_an_experiment_is_paused_and_resumed_with_its_trials(running: FakeRest, invoke) -> None:
    assert "its trials are being paused; `proctor resume e --trials` resumes" in invoke("pause", "--trials").stderr
    running.set_status("e", "NO_MORE_TRIAL")
    assert invoke("resume", "--trials").exit_code == 0
    assert running.queries == [{"trials": "true"}, {"trials": "true"}]


def test_a_list_without_trials_names_what_was_asked_for(running: FakeRest, invoke) -> None:
    assert invoke("trial", "ls", "e", "--status", "early_stopped").stderr == "No early stopped trials in e.\n"
    running.add_experiment("empty")
    assert invoke("trial", "ls", "empty").stderr == "No trials in empty.\n"


def test_the_causes_of_failed_trials_are_listed(running: FakeRest, invoke) -> None:
    assert invoke("experiment", "failures", "e").stderr == "no trial of experiment e has failed\n"
    cause = {
        "end_reason": "EXITED_ERROR",
        "detail": "exit code 1: no such file",
        "trials": 14,
        "nodes": [{"node_id": "gpu-3", "trials": 12}, {"node_id": None, "trials": 2}],
        "example": {"trial_id": "t1", "sequence_id": 1, "reason": "exit code 1: no such file\nmore"},
    }
    running.failures = {"failed": 20, "counted": 14, "cause_count": 3, "causes": [cause]}
    listed = invoke("experiment", "failures", "e")
    assert listed.stdout.splitlines()[1].split() == [
        *("14", "EXITED_ERROR", "gpu-3:12", "-:2", "1", "exit", "code", "1:", "no", "such", "file")
    ]  # fmt: skip
    assert listed.stderr == (
        "Counted are the newest 14 of 20 failed trials.\nThese are the most frequent of 3 causes.\n"
    )
    assert json.loads(invoke("experiment", "failures", "e", "-o", "json").stdout) == [cause]
    with Client(home=running.home) as client:
        assert client.failures("e")["causes"] == [cause]
    assert Experiment.connect(id="e", home=running.home).failures() == [cause]


def test_the_importance_of_parameters_is_listed_once_it_is_computed(
    running: FakeRest, invoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(result_calls, "IMPORTANCE_POLL_SECONDS", 0)
    known: dict[str, Any] = {"key": None, "quantile": 0.1, "direction": "minimize", "revision": 7, "reason": None}
    computing = {**known, "state": "COMPUTING", "trials": 0, "top": 0, "outside": 0, "parameters": []}
    shares = [{"name": "lr", "importance": 0.8125}, {"name": "model.width", "importance": 0.1875}]
    ready = {**known, "state": "CURRENT", "trials": 40, "top": 4, "outside": 1, "parameters": shares}
    running.importances = [computing, computing, ready]
    listed = invoke("experiment", "importance", "e")
    assert [line.split() for line in listed.stdout.splitlines()[1:]] == [["lr", "81.2%"], ["model.width", "18.8%"]]
    assert listed.stderr == (
        "Of 40 trials with a value, the best 4 against all.\nLeft out 1 trial outside of the search space.\n"
    )
    assert json.loads(invoke("experiment", "importance", "e", "-o", "json").stdout) == ready
    assert Experiment.connect(id="e", home=running.home).importance() == {"lr": 0.8125, "model.width": 0.1875}
    running.importances = [{**computing, "state": "CURRENT", "reason": "too few trials: 1 trial that succeeded has"}]
    assert invoke("experiment", "importance", "e").stderr == "too few trials: 1 trial that succeeded has\n"


def test_a_trial_scheduler_is_shown_as_tables_with_the_numbers_of_trials(running: FakeRest, invoke) -> None:
    assert invoke("experiment", "scheduler", "e").stderr == "Experiment e has no trial scheduler.\n"
    rungs = {"title": "Rungs", "columns": ["milestone", "trials", "best"], "rows": [[1, 9, 0.712345], [3, 0, None]]}
    paused = {"title": "Paused trials", "columns": ["trial", "because it"], "rows": [[4, "waits for 2"]]}
    tables = [{**rungs, "trial_columns": []}, {**paused, "trial_columns": [0]}]
    known = {"name": "ASHA", "tables": tables, "trial_ids": {"4": "t4"}, "updated_at": "2026-01-02T03:04:05Z"}
    running.schedulers["e"] = known
    shown = invoke("experiment", "scheduler", "e")
    assert [line.split() for line in shown.stdout.splitlines()] == [
        ["Rungs:"],
        ["MILESTONE", "TRIALS", "BEST"],
        ["1", "9", "0.7123"],
        ["3", "0", "-"],
        [],
        ["Paused", "trials:"],
        ["TRIAL", "BECAUSE", "IT"],
        ["4", "waits", "for", "2"],
        [],
    ]
    assert shown.stderr.startswith("ASHA, as of 2026-01-0")
    assert json.loads(invoke("experiment", "scheduler", "e", "-o", "json").stdout)["tables"] == tables
    assert (
        invoke("experiment", "scheduler", "e", "-o", "csv").stdout.splitlines()[-1] == "Paused trials,,,,4,waits for 2"
    )
    with Client(home=running.home) as client:
        assert client.scheduler("e")["trial_ids"] == {"4": "t4"}
    running.schedulers["e"] = {**known, "tables": []}
    assert invoke("experiment", "scheduler", "e").stderr == "ASHA has shown nothing yet.\n"


def test_a_trial_is_shown_with_what_its_scheduler_has_decided(running: FakeRest, invoke) -> None:
    running.add_trial("e", "decided1")
    donor = {"donor_trial_id": "t3", "donor_sequence_id": 3, "has_donor_checkpoint": True}
    decision = {"kind": "clone", "reason": "the donor is at 0.91", "job": 2, "decided_at": "2026-01-02T03:04:05Z"}
    running.decisions["decided1"] = [decision | donor]
    shown = invoke("trial", "show", "decided1").stdout
    assert "continues from trial 3: the donor is at 0.91" in shown
    (found,) = json.loads(invoke("trial", "show", "decided1", "-o", "json").stdout)["decisions"]
    assert (found["kind"], found["job"]) == ("clone", 2)


def test_experiments_are_tagged_and_found_by_their_tags(running: FakeRest, invoke) -> None:
    running.add_experiment("other")
    assert "TAGS" not in invoke("experiment", "ls").stdout
    assert invoke("experiment", "tag", "e", "paper", "base line").stderr == "Tags of e: paper, base line.\n"
    assert invoke("experiment", "tag", "e", "paper", "--remove").stderr == "Tags of e: base line.\n"
    assert running.experiments["e"]["tags"] == ["base line"]
    listed = invoke("experiment", "ls", "--tag", "base line").stdout.splitlines()
    assert "TAGS" in listed[0]
    assert [line.split()[0] for line in listed[1:]] == ["e"]
    assert invoke("experiment", "ls", "--tag", "paper").stdout == ""


def test_archived_experiments_are_listed_only_when_asked_for(running: FakeRest, invoke) -> None:
    running.add_experiment("old", name="old one", status="STOPPED")
    said = invoke("experiment", "archive", "old", "e").stderr.splitlines()
    assert said == ["Archived experiment old.", "Archived experiment e; it is RUNNING, and listed until it has ended."]
    assert [row["id"] for row in json.loads(invoke("experiment", "ls", "-o", "json").stdout)] == ["e"]
    assert [row["id"] for row in json.loads(invoke("experiment", "ls", "--archived", "-o", "json").stdout)] == ["old"]
    assert "archived" in invoke("experiment", "show", "old one").stdout
    assert invoke("experiment", "unarchive", "old").stderr == "Experiment old is listed again.\n"
    assert {row["id"] for row in json.loads(invoke("experiment", "ls", "-o", "json").stdout)} == {"e", "old"}
    old = Experiment.connect(id="old", home=running.home)
    old.archive()
    old.update_tags("a", "b")
    with Client(home=running.home) as client:
        assert [row["id"] for row in client.experiments()] == ["e"]
        assert [row["id"] for row in client.experiments(archived=True, tags=["b"])] == ["old"]
    assert len(old.get_all_experiments_metadata()) == 2


def test_the_checkpoints_of_a_trial_are_listed(running: FakeRest, invoke) -> None:
    assert invoke("trial", "checkpoints", "t0").stderr == "Trial t0 has no checkpoint.\n"
    row = {"id": 1, "trial_id": "t0", "job": 2, "member": 0, "step": 300, "sequence": 3, "time": "2026-01-02T03:04:05Z"}
    gone = {"deleted_at": "2026-01-02T03:04:05Z", "kept": [], "value": None}
    kept = {"deleted_at": None, "kept": ["NEWEST", "GIVEN"], "value": 0.25}
    old = {**row, **gone, "path": "output/checkpoints/1", "is_here": False, "size_bytes": None}
    new = {**row, **kept, "id": 2, "path": "output/checkpoints/2", "is_here": True, "size_bytes": 10_485_760}
    running.checkpoints["t0"] = [old, new, {**new, "kept": []}]
    listed = invoke("trial", "checkpoints", "t0")
    assert "output/checkpoints/1" not in listed.stdout
    assert listed.stderr == "1 more was deleted; --all lists it.\n"
    lines = invoke("trial", "checkpoints", "t0", "--all").stdout.splitlines()
    assert lines[1].split()[:7] == ["1", "2", "0", "output/checkpoints/1", "300", "3", "-"]
    assert "deleted" in lines[1]
    assert lines[2].split()[:8] == ["2", "2", "0", "output/checkpoints/2", "300", "3", "10.5", "MB"]
    assert "newest, given to a job" in lines[2]
    assert "being deleted" in lines[3]
    refused = invoke("trial", "checkpoints", "t0", "-d", "here")
    assert (refused.exit_code, "goes with --download ID" in refused.stderr) == (2, True)


def test_trials_are_killed_retried_and_added(running: FakeRest, invoke) -> None:
    assert invoke("trial", "kill", "t0").exit_code == 0
    assert invoke("trial", "retry", "1").stdout == "againt1\n"
    assert invoke("trial", "add", "--parameters", '{"lr": 0.1}').stdout == "new3\n"
    assert running.requests("POST") == [
        ("/trials/t0/kill", None),
        ("/trials/t1/retry", None),
        ("/experiments/e/trials", {"parameters": {"lr": 0.1}}),
    ]


def test_a_log_is_printed_byte_by_byte_as_it_is(running: FakeRest, invoke) -> None:
    text = "first line\nsecond \xff\nthird without end".encode("latin-1")
    running.logs["t1", "stdout", 1] = text
    assert invoke("trial", "log", "t1").stdout_bytes == text
    assert invoke("trial", "log", "t1", "--tail", "2").stdout_bytes == text[11:]
    assert invoke("trial", "log", "t1", "--head", "1").stdout_bytes == text[:11]
    assert invoke("log", "trial", "t1", "--stderr").stdout_bytes == b""


def test_both_streams_of_a_trial_are_printed(running: FakeRest, invoke) -> None:
    running.logs["t1", "stdout", 1] = b"one\ntwo"
    assert invoke("trial", "log", "t1").stderr == ""
    running.logs["t1", "stderr", 1] = b"a warning\nan error\n"
    both = invoke("trial", "log", "t1")
    assert both.stdout == "one\ntwo\na warning\nan error\n"
    assert both.stderr == "==> stdout <==\n==> stderr <==\n"
    assert both.output.startswith("==> stdout <==\none\ntwo\n==> stderr <==\na warning\n")
    assert invoke("trial", "log", "t1", "--stdout").stdout == "one\ntwo"
    assert invoke("trial", "log", "t1", "--stdout", "--stderr").stdout == both.stdout
    assert invoke("trial", "log", "t1", "--stderr").output == "a warning\nan error\n"
    assert invoke("trial", "log", "t1", "-n", "1").stdout == "two\nan error\n"
    assert invoke("trial", "log", "t1", "--head", "1").stdout == "one\na warning\n"


def test_the_stderr_of_a_failed_trial_is_never_hidden(running: FakeRest, invoke) -> None:
    running.logs["t1", "stdout", 1] = b"one\n"
    running.logs["t1", "stderr", 1] = b"Traceback\n"
    assert invoke("trial", "log", "t1", "--stdout").stderr == ""
    running.set_status("t1", "FAILED")
    for words in ((), ("-f",), ("--tail", "1"), ("-f", "--tail", "1")):
        assert "Traceback" in invoke("trial", "log", "t1", *words).stdout
        hidden = invoke("trial", "log", "t1", "--stdout", *words)
        assert hidden.stdout == "one\n"
        assert hidden.stderr == "It failed and wrote to stderr, too: proctor trial log t1 --stderr\n"


def test_a_trial_that_has_printed_nothing_says_so(running: FakeRest, invoke) -> None:
    assert invoke("trial", "log", "t1").stderr == "Trial t1 has printed nothing yet.\n"
    running.logs["t1", "stdout", 1] = b"one\n"
    assert invoke("trial", "log", "t1", "--stderr").stderr == "Trial t1 has printed nothing to stderr yet.\n"


def test_a_followed_log_may_begin_with_its_last_lines(running: FakeRest, invoke) -> None:
    running.logs["t0", "stdout", 1] = b"one\ntwo\nthree\n"
    running.logs["t0", "stderr", 1] = b"a\nb\n"

    def add() -> None:
        running.logs["t0", "stdout", 1] += b"four\n"
        running.logs["t0", "stderr", 1] += b"c\n"
        running.set_status("t0", "SUCCEEDED")

    running.on_ask["GET", "/trials/t0"] = lambda: running.on_ask.update({("GET", "/trials/t0"): add})
    result = invoke("trial", "log", "t0", "-f", "--tail", "1")
    assert result.output == ("==> stdout <==\nthree\n==> stderr <==\nb\n==> following both <==\nfour\nc\n")


def test_a_followed_log_goes_on_until_the_trial_has_ended(running: FakeRest, invoke) -> None:
    running.logs["t0", "stdout", 1] = b"one\n"

    def end() -> None:
        running.logs["t0", "stdout", 1] += b"two\n"
        running.set_status("t0", "SUCCEEDED")

    running.on_ask["GET", "/trials/t0/logs"] = end
    result = invoke("trial", "log", "t0", "-f")
    assert result.exit_code == 0
    assert result.stdout == "one\ntwo\n"


def test_a_followed_log_goes_on_with_the_next_attempt(running: FakeRest, invoke) -> None:
    running.logs["t0", "stdout", 1] = b"the first attempt\n"
    running.logs["t0", "stdout", 2] = b"the second attempt\n"

    def try_again() -> None:
        running.set_status("t0", "SUCCEEDED", jobs=2)

    running.on_ask["GET", "/trials/t0/logs"] = try_again
    result = invoke("trial", "log", "t0", "-f")
    assert result.stdout == "the first attempt\nthe second attempt\n"
    assert "attempt 2" in result.stderr


def test_a_followed_log_waits_for_a_machine_that_is_away_and_prints_every_line_once(running: FakeRest, invoke) -> None:
    running.logs["t0", "stdout", 1] = b"one\n"

    def cut() -> None:
        running.logs["t0", "stdout", 1] += b"two\n"
        running.away["t0", 1] = [f"node gpu-1 is silent: it hung up; tried again in {left} s" for left in (8, 3, 1)]
        running.on_ask["GET", "/trials/t0/logs"] = end  # also while the machine is away

    def end() -> None:
        running.set_status("t0", "SUCCEEDED")

    running.on_ask["GET", "/trials/t0/logs"] = cut
    result = invoke("trial", "log", "t0", "-f")
    assert result.exit_code == 0
    assert result.stdout == "one\ntwo\n"
    assert result.stderr == "waiting: node gpu-1 is silent: it hung up; tried again in 8 s\n"


def test_a_followed_log_does_not_wait_for_the_machine_of_an_attempt_before(running: FakeRest, invoke) -> None:
    running.logs["t0", "stdout", 2] = b"the second attempt\n"
    running.away["t0", 1] = ["node gpu-1 is lost"] * 1000
    running.on_ask["GET", "/trials/t0/logs"] = lambda: running.set_status("t0", "SUCCEEDED", jobs=2)
    result = invoke("trial", "log", "t0", "-f")
    assert result.exit_code == 0
    assert result.stdout == "the second attempt\n"
    assert "proctor trial log t0 -j 1" in result.stderr


def test_a_followed_log_ends_where_the_question_itself_is_wrong(running: FakeRest, invoke) -> None:
    running.on_ask["GET", "/trials/t0"] = lambda: running.trials.pop("t0")
    result = invoke("trial", "log", "t0", "-f")
    assert result.exit_code == 3
    assert "waiting" not in result.stderr


def test_the_managers_log_is_read_from_its_file_when_it_is_down(invoke, home: Path) -> None:
    (home / "log").mkdir(parents=True)
    (home / "log" / "manager.log").write_text("a\nb\nc\n")
    assert invoke("log", "manager", "--tail", "2").stdout == "b\nc\n"
    assert invoke("log", "stderr", "--head", "1").stdout == "a\n"


def test_the_last_lines_of_a_long_log_are_printed_without_reading_the_rest(
    running: FakeRest, invoke, home: Path
) -> None:
    text = b"".join(b"line %d\n" % number for number in range(300_000))
    running.logs["t1", "stdout", 1] = running.dispatcher_log = text
    for words in (("trial", "log", "t1"), ("log", "dispatcher")):
        assert invoke(*words, "--tail", "3").stdout_bytes == b"line 299997\nline 299998\nline 299999\n"
    assert running.log_bytes < len(text) // 50
    (home / "log").mkdir(parents=True, exist_ok=True)
    (home / "log" / "manager.log").write_bytes(text)
    assert invoke("log", "manager", "--tail", "1").stdout_bytes == b"line 299999\n"


def test_the_dispatchers_log_is_read_to_its_end(running: FakeRest, invoke) -> None:
    running.dispatcher_log = b"x" * 250 + b"\n"
    assert invoke("log", "dispatcher").stdout_bytes == running.dispatcher_log


def test_export_gives_what_import_takes(running: FakeRest, invoke, tmp_path: Path) -> None:
    file = tmp_path / "rows.json"
    assert invoke("experiment", "export", "-f", str(file)).exit_code == 0
    rows = json.loads(file.read_text())
    assert rows[0]["parameter"] == {"lr": 0.25, "layer": {"units": 8}}
    assert invoke("experiment", "import", "-f", str(file)).exit_code == 0
    assert running.requests("POST") == [("/experiments/e/import", rows)]


def test_export_as_csv_has_a_column_for_each_parameter(running: FakeRest, invoke) -> None:
    lines = invoke("experiment", "export", "-t", "csv").stdout.splitlines()
    assert lines[0].startswith("parameter.lr,parameter.layer.units,value,trial_id")
    assert lines[0].endswith("status,reason,latest_value")
    assert len(lines) == 2


def test_export_as_csv_has_a_column_for_each_key_of_a_metric(running: FakeRest, invoke) -> None:
    data = {"default": 0.75, "loss": 0.5, "accuracy": {"top5": 0.9}}
    running.add_trial("e", "t2", final_value=0.75, final_data=data)
    rows = list(csv.DictReader(io.StringIO(invoke("experiment", "export", "-t", "csv").stdout)))
    keys = ("value", "value.loss", "value.accuracy.top5")
    assert [[row[key] for key in keys] for row in rows] == [["0.5", "", ""], ["0.75", "0.5", "0.9"]]


def test_intermediate_metrics_are_exported_as_csv_with_a_line_for_each(
    running: FakeRest, invoke, tmp_path: Path
) -> None:
    running.add_metric("t1", "intermediate", 0.1, step=10)
    running.add_metric("t1", "intermediate", 0.2, step=20, data={"default": 0.2, "loss": 3.0})
    running.add_trial("e", "t2", parameters={"lr": 1.0, "model": {"_name": "mlp", "units": 8}})
    running.add_metric("t2", "intermediate", 0.3)
    running.add_trial("e", "t3")
    file = tmp_path / "curves.csv"
    result = invoke("experiment", "export", "--intermediate", "-t", "csv", "-f", str(file))
    assert f"Written to {file}: 3 intermediate metrics of 3 trials of experiment e" in result.stderr
    assert file.read_text().splitlines() == [
        "sequence_id,trial_id,status,parameter.lr,parameter.layer.units,parameter.model,parameter.model.units,sequence,step,"
        "value,value.loss",
        "1,t1,SUCCEEDED,0.25,8,,,0,10,0.1,",
        "1,t1,SUCCEEDED,0.25,8,,,1,20,0.2,3.0",
        "2,t2,SUCCEEDED,1.0,,mlp,8,0,,0.3,",
    ]
    rows = json.loads(invoke("experiment", "export", "--intermediate").stdout)
    assert [row["intermediate"] for row in rows] == [[0.1, {"default": 0.2, "loss": 3.0}], [0.3], []]
    assert [row["intermediate_steps"] for row in rows] == [[10, 20], [None], []]


def test_an_export_leaves_nothing_out_without_saying_so(running: FakeRest, invoke, tmp_path: Path) -> None:
    running.add_trial("e", "t2", status="FAILED", final_value=None, reason="exit code 1")
    running.add_trial("e", "t3", status="EARLY_STOPPED", final_value=None, latest_value=0.25)
    running.add_trial("e", "t4", status="WAITING", final_value=None)
    printed = invoke("experiment", "export")
    assert [row["status"] for row in json.loads(printed.stdout)] == ["SUCCEEDED", "FAILED", "EARLY_STOPPED"]
    assert printed.stderr == "Omitted 2 trials of experiment e that have not ended yet.\n"
    file = tmp_path / "rows.json"
    result = invoke("experiment", "export", "-f", str(file))
    assert result.stderr.splitlines() == [
        f"Written to {file}: 3 trials of experiment e (1 succeeded, 1 failed, 1 early stopped).",
        "Omitted 2 trials of experiment e that have not ended yet.",
    ]
    assert invoke("experiment", "import", "-f", str(file)).stderr == (
        "Imported 1 result into e; skipped 2 rows without a value.\n"
    )
    succeeded = invoke("experiment", "export", "--succeeded")
    assert [row["trial_id"] for row in json.loads(succeeded.stdout)] == ["t1"]
    assert succeeded.stderr == "Omitted 4 trials of experiment e that did not succeed.\n"


def test_import_skips_rows_outside_of_the_space_where_that_is_asked_for(
    running: FakeRest, invoke, tmp_path: Path
) -> None:
    (tmp_path / "rows.json").write_text('[{"parameter": {"outside": 1}, "value": 1}, {"parameter": {}, "value": 2}]')
    result = invoke("experiment", "import", "-f", str(tmp_path / "rows.json"), "--skip-outside")
    assert result.stderr == ("Imported 1 result into e; skipped 1 row outside of the search space.\n")


def test_import_takes_nan_as_python_writes_it(running: FakeRest, invoke, tmp_path: Path) -> None:
    (tmp_path / "rows.json").write_text(
        '[{"parameter": {"x": 1}, "value": NaN}, {"parameter": {}, "value": -Infinity}]'
    )
    assert invoke("experiment", "import", "-f", str(tmp_path / "rows.json")).exit_code == 0
    [(_, rows)] = running.requests("POST")
    assert [row["value"] for row in rows] == ["NaN", "-Infinity"]


def test_import_refuses_rows_without_values(running: FakeRest, invoke, tmp_path: Path) -> None:
    (tmp_path / "rows.json").write_text('[{"parameter": {}}]')
    result = invoke("experiment", "import", "-f", str(tmp_path / "rows.json"))
    assert result.exit_code == 2
    assert "`parameter` and `value`" in result.stderr


def test_delete_asks_first(rest: FakeRest, invoke) -> None:
    rest.add_experiment("e", status="STOPPED")
    assert invoke("experiment", "delete", "e", input="n\n").exit_code == 0
    assert "e" in rest.experiments
    assert invoke("experiment", "delete", "e", input="y\n").exit_code == 0
    assert "e" not in rest.experiments


@pytest.mark.parametrize("command", [("experiment", "delete", "e"), ("nodes", "forget", "gpu")])
def test_without_a_terminal_and_an_answer_the_option_is_named(rest: FakeRest, invoke, command: tuple[str, ...]) -> None:
    rest.add_experiment("e", status="STOPPED")
    rest.add_node("gpu", status="RELEASED")
    result = invoke(*command, input="")
    assert result.exit_code == 2
    assert result.stderr.splitlines()[-1] == "Error: not confirmed: there is no terminal to ask on; use -y"
    assert not rest.requests("DELETE") + rest.requests("POST")


def test_delete_stops_what_is_done_and_leaves_what_runs(rest: FakeRest, invoke) -> None:
    rest.add_experiment("done", status="DONE")
    rest.add_experiment("runs")
    assert invoke("experiment", "delete", "--all", "--yes").exit_code == 0
    assert list(rest.experiments) == ["runs"]


def test_stop_without_an_id_names_what_has_ended_and_keeps_machines(rest: FakeRest, invoke) -> None:
    rest.add_experiment("here", status="DONE")
    rest.add_experiment("there", status="DONE")
    rest.add_node("local", kind="local", experiments=["here"])
    assert "keeps its machines" not in invoke("stop").stderr
    for name in ("gpu-1", "gpu-2"):
        rest.add_node(name, experiments=["there"])
    result = invoke("stop")
    assert result.exit_code == 3
    assert "ended experiments keep their machines until they are stopped" in result.stderr
    assert "proctor stop there    # DONE, gpu-1, gpu-2" in result.stderr
    assert "proctor stop here" not in result.stderr
    assert rest.experiments["there"]["status"] == "DONE"  # only what was named is stopped


def test_pause_resume_and_view(running: FakeRest, invoke) -> None:
    assert invoke("pause").exit_code == 0
    assert running.experiments["e"]["status"] == "PAUSED"
    assert invoke("resume").exit_code == 0
    assert running.experiments["e"]["status"] == "RUNNING"
    running.experiments["e"]["status"] = "STOPPED"
    assert invoke("view", "e").stdout.startswith(f"{running.url}/experiments/e?token=")
    assert running.experiments["e"]["status"] == "VIEWED"


def test_webui_url_holds_the_token(running: FakeRest, invoke) -> None:
    assert invoke("webui", "url").stdout == f"{running.url}/?token=a-token-for-tests\n"


def test_nodes_show_their_gpus(rest: FakeRest, invoke) -> None:
    device = {
        "index": 0,
        "name": "H200",
        "memory_used_mb": 5,
        "memory_total_mb": 100,
        "utilization": 3,
        "held_by": ["trial 3", "trial 4"],
    }
    rest.add_node("local", kind="local", facts={"hostname": "gpu-3", "devices": [device, {**device, "held_by": []}]})
    output = invoke("nodes").stdout
    assert "gpu-3       0   1/2" in output
    assert output.splitlines()[-2:] == [
        "local    0  H200  5 of 100   3 %  trial 3, trial 4",
        "local    0  H200  5 of 100   3 %",
    ]


def test_top_without_a_terminal_is_one_screen(running: FakeRest, invoke) -> None:
    lines = invoke("top").stdout.splitlines()
    assert lines[1].startswith("e   name of e  RUNNING")
    assert lines[-1].split()[:3] == ["0", "t0", "RUNNING"]


def test_metrics_of_a_trial_are_listed(running: FakeRest, invoke) -> None:
    for value in (0.1, 0.2, 0.3, 0.4):
        running.add_metric("t0", "intermediate", value, step=int(value * 100))
    lines = invoke("trial", "show", "t0", "--metrics").stdout.splitlines()
    assert len(lines) == 5
    assert lines[-1].split()[-1] == "0.4"


def test_the_curve_of_a_trial_is_listed(running: FakeRest, invoke) -> None:
    running.add_metric("t0", "intermediate", 0.1)
    running.add_metric("t0", "intermediate", 0.2)
    running.add_metric("t0", "intermediate", 0.3, job=2, sequence=1)
    running.add_metric("t0", "final", 0.3, job=2)
    lines = invoke("trial", "show", "t0", "--curve").stdout.splitlines()
    assert [line.split()[-1] for line in lines[1:]] == ["0.1", "0.3"]
    assert invoke("trial", "show", "t0", "--curve", "--metrics").exit_code == 2


def test_metrics_name_the_rank_that_reported_them(running: FakeRest, invoke) -> None:
    running.add_metric("t0", "intermediate", 0.1, member=3, counts=False)
    header, line = invoke("trial", "show", "t0", "--metrics").stdout.splitlines()
    assert line.split()[header.split().index("RANK") + 1] == "3"  # a time has two words


def test_config_show_is_yaml_without_nothing_else(running: FakeRest, invoke, home: Path) -> None:
    output = invoke("config", "show").stdout
    assert output == f"trial_command: python trial.py\ntrial_code_directory: {home}\n"


def test_version_names_both_sides(rest: FakeRest, invoke) -> None:
    found = json.loads(invoke("version", "-o", "json").stdout)
    assert (found["version"], found["manager"]["version"]) == (version("proctor"), "0.1.0")
    assert invoke("--version").stdout == f"proctor {version('proctor')}\n"


def test_manager_status_without_a_manager_ends_with_6(invoke, home: Path) -> None:
    result = invoke("manager", "status", "-o", "json")
    assert result.exit_code == 6
    assert json.loads(result.stdout)["running"] is False


def test_manager_status_tells_where_it_is(rest: FakeRest, invoke) -> None:
    found = json.loads(invoke("manager", "status", "-o", "json").stdout)
    assert (found["url"], found["health"]) == (rest.url, "ok")


def test_manager_status_ends_with_6_if_the_manager_does_not_answer(home: Path, invoke) -> None:
    home.mkdir(parents=True, exist_ok=True)
    url = "http://127.0.0.1:1"  # nothing listens there
    write_address(Home(home), ManagerAddress.of_this_process(host="127.0.0.1", port=1, url=url))
    result = invoke("manager", "status", "-o", "json")
    assert (result.exit_code, json.loads(result.stdout)["health"]) == (6, "no answer")


@pytest.mark.parametrize(
    ("direction", "arguments", "expected"),
    [
        ("maximize", ("--sort", "best"), ["c", "b", "a"]),
        ("minimize", ("--sort", "best"), ["a", "b", "c"]),
        ("minimize", ("--sort", "best", "--head", "2"), ["a", "b"]),
        ("minimize", ("--sort", "best", "--tail", "2"), ["b", "c"]),
        ("minimize", ("--sort", "-best", "--head", "1"), ["c"]),
        ("minimize", ("--head", "1"), ["a"]),
    ],
)
def test_trials_are_listed_by_how_good_they_are(
    rest: FakeRest, invoke, direction: str, arguments: tuple[str, ...], expected: list[str]
) -> None:
    rest.add_experiment("e", objective={"metric": "default", "direction": direction})
    for identifier in "abc":
        rest.add_trial("e", identifier)
    result = invoke("trial", "ls", "e", *arguments, "-o", "json")
    assert [row["id"] for row in json.loads(result.stdout)] == expected


@pytest.mark.parametrize(
    ("direction", "arguments", "expected"),
    [
        ("maximize", ("--sort", "best"), ["failed", "c", "b", "a", "running", "lost"]),
        ("minimize", ("--sort", "value"), ["a", "b", "c", "failed", "running", "lost"]),
        ("maximize", ("--sort", "value", "--tail", "5"), ["a", "b", "c", "failed", "running"]),
        ("maximize", ("--head", "1"), ["failed"]),
        ("minimize", ("--tail", "3"), ["b", "c", "failed"]),
        ("minimize", ("--tail", "5"), ["a", "b", "c", "failed", "running"]),
        ("minimize", ("--best", "2"), ["a", "b"]),
        ("maximize", ("--best", "2"), ["c", "b"]),
        ("maximize", ("--best", "9"), ["c", "b", "a"]),
        ("maximize", ("--best", "9", "--status", "early_stopped"), ["b"]),
        ("maximize", ("--best", "9", "--status", "failed"), []),
    ],
)
def test_trials_without_a_value_come_last_and_only_those_that_may_be_the_best_are_among_them(
    rest: FakeRest, invoke, direction: str, arguments: tuple[str, ...], expected: list[str]
) -> None:
    rest.add_experiment("e", objective={"metric": "default", "direction": direction})
    for identifier, status in {"running": "RUNNING", "lost": "SYS_CANCELED"}.items():
        rest.add_trial("e", identifier, status=status, final_value=None)
    for identifier, status in {"a": "SUCCEEDED", "b": "EARLY_STOPPED", "c": "SUCCEEDED", "failed": "FAILED"}.items():
        rest.add_trial("e", identifier, status=status)
    result = invoke("trial", "ls", "e", *arguments, "-o", "json")
    assert [row["id"] for row in json.loads(result.stdout)] == expected


def test_trials_are_filtered_and_ordered_by_any_column(rest: FakeRest, invoke) -> None:
    rest.add_experiment("e")
    for identifier, status in {"a": "FAILED", "b": "SUCCEEDED", "c": "FAILED", "d": "FAILED"}.items():
        rest.add_trial("e", identifier, status=status)

    def listed(*arguments: str) -> list[str]:
        return [row["id"] for row in json.loads(invoke("trial", "ls", "e", *arguments, "-o", "json").stdout)]

    assert listed("--filter", "status = FAILED") == ["a", "c", "d"]
    assert listed("--filter", "status = FAILED", "--status", "succeeded") == []
    assert listed("--filter", "status = FAILED", "--sort", "-no", "--head", "2") == ["d", "c"]
    assert listed("--filter", "status = FAILED", "--sort", "no", "--tail", "2") == ["c", "d"]
    assert listed("--filter", "status = FAILED", "--sort", "time", "--tail", "1") == ["d"]
    assert listed("--filter", "status = SUCCEEDED", "--best", "2") == ["b"]
    nothing = invoke("trial", "ls", "e", "--filter", "status = LOST")
    assert nothing.stderr == "No trials in e that the filter lets through.\n"
    assert invoke("trial", "ls", "e", "--columns", "no,latest,origin").exit_code == 0


def test_a_filter_that_is_refused_is_shown_with_the_place(rest: FakeRest, invoke) -> None:
    rest.add_experiment("e")
    rest.add_trial("e", "a")
    result = invoke("trial", "ls", "e", "--filter", "lrr = 3")
    assert result.exit_code == 2
    assert result.stderr == "Error: filter: expected a column, found 'lrr' (position 0)\n"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--best", "3", "--head", "2"), "one of --head, --tail and --best"),
        (("--best", "3", "--sort", "value"), "--best has an order of its own"),
        (("--wide", "-o", "json"), "-o json has every field in full"),
        (("--columns", "id", "-o", "csv"), "-o csv has every field in full"),
        (("--columns", "id,lr"), "expected some of no, id, status, value, reports, time, node, parameters, reason"),
        (("--columns", "parameter.rl"), "parameter.layer.units, parameter.lr; found 'parameter.rl'"),
    ],
)
def test_options_of_a_list_of_trials_that_contradict_each_other_are_refused(
    running: FakeRest, invoke, arguments: tuple[str, ...], words: str
) -> None:
    result = invoke("trial", "ls", *arguments)
    assert result.exit_code == 2
    assert words in result.stderr


def test_the_columns_of_a_list_of_trials_are_chosen(running: FakeRest, invoke) -> None:
    nested = {"lr": 0.012648573, "model": {"_name": "mlp", "units": 64}}
    running.add_trial("e", "t2", parameters=nested, final_value=1.0, final_data={"default": 1.0, "loss": 2.0}, jobs=3)
    lines = invoke("trial", "ls", "--columns", "NO,parameter.lr, parameter.model.units,value.loss,jobs").stdout
    assert [line.split() for line in lines.splitlines()] == [
        ["NO.", "lr", "model.units", "loss", "JOBS"],
        ["0", "0.25", "-", "-", "1"],
        ["1", "0.25", "-", "-", "1"],
        ["2", "0.01265", "64", "2", "3"],
    ]
    running.trials.clear()
    assert invoke("trial", "ls", "--columns", "id,parameter.lr").exit_code == 0


def test_nested_choices_are_shown_by_the_name_of_the_choice(running: FakeRest, invoke) -> None:
    model = {"_name": "mlp", "lr": 0.012648573920184, "act": {"_name": "relu"}}
    parameters = {"model": model, "words": "a b", "none": None, "fast": True, "sizes": [1, 2], "empty": {}}
    running.add_trial("e", "t2", parameters=parameters)
    rest = 'model.act=relu words="a b" none=null fast=true sizes=[1, 2] empty={}'
    assert f"model=mlp model.lr=0.01265 {rest}\n" in invoke("trial", "ls").stdout
    assert f"model=mlp model.lr=0.0126486 {rest}\n" in invoke("trial", "show", "t2").stdout


def test_all_keys_of_a_metric_are_shown(running: FakeRest, invoke) -> None:
    data = {"default": 0.123456789, "loss": 0.5, "accuracy": {"top5": 0.9}}
    running.add_trial("e", "t2", final_value=0.123456789, final_data=data)
    running.add_metric("t2", "intermediate", 0.1, data={"default": 0.1, "loss": 0.7})
    running.add_metric("t2", "final", 0.123456789, data=data)
    shown = invoke("trial", "show", "t2").stdout
    assert re.search(r"^final metric +0\.123457$", shown, re.MULTILINE)
    assert re.search(r"^other metrics +loss=0\.5 accuracy\.top5=0\.9$", shown, re.MULTILINE)
    lines = invoke("trial", "show", "t2", "--metrics").stdout.splitlines()
    assert [line.split()[-3:] for line in lines] == [
        ["VALUE", "loss", "accuracy.top5"],
        ["0.1", "0.7", "-"],
        ["0.1235", "0.5", "0.9"],
    ]


def test_a_metric_that_is_no_finite_number_is_shown_as_it_was_reported(running: FakeRest, invoke) -> None:
    data = {"default": "NaN", "loss": "Infinity"}
    running.add_trial("e", "t2", final_value=None, final_data=data, latest_value=0.5)
    running.add_metric("t2", "intermediate", 0.1)
    running.add_metric("t2", "final", None, data=data)
    assert invoke("trial", "ls", "--tail", "3").stdout.splitlines()[-1].split()[3] == "NaN"
    shown = invoke("trial", "show", "t2").stdout
    assert re.search(r"^final metric +NaN\nother metrics +loss=Infinity$", shown, re.MULTILINE)
    lines = invoke("trial", "show", "t2", "--metrics").stdout.splitlines()
    assert [line.split()[-2:] for line in lines] == [["VALUE", "loss"], ["0.1", "-"], ["NaN", "Infinity"]]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("experiment", "list", "--status", "finished"), "expected INITIALIZED, RUNNING, PAUSED, NO_MORE_TRIAL, "),
        (("trial", "ls", "--status", "succeded"), "found 'succeded'. Did you mean SUCCEEDED?"),
        (("nodes", "-o", "jsn"), "expected table, json, yaml or csv; found 'jsn'. Did you mean json?"),
        (("experiment", "export", "-t", "xml"), "expected json, csv, parquet or html; found 'xml'."),
        (("completion", "tcsh"), "expected bash, zsh or fish; found 'tcsh'."),
    ],
)
def test_a_word_that_is_none_of_a_list_is_answered_with_the_list(
    running: FakeRest, invoke, arguments: tuple[str, ...], words: str
) -> None:
    result = invoke(*arguments)
    assert result.exit_code == 2
    assert words in result.stderr
    assert not running.asked


def test_statuses_are_written_in_any_case(running: FakeRest, invoke) -> None:
    running.add_experiment("f", status="DONE")
    assert [row["id"] for row in json.loads(invoke("experiment", "list", "--status", "done", "-o", "json").stdout)] == [
        "f"
    ]


@pytest.mark.parametrize(("direction", "short"), [("maximize", "0.5 max"), ("minimize", "0.5 min")])
def test_wherever_the_best_is_shown_so_is_what_is_better(rest: FakeRest, invoke, direction: str, short: str) -> None:
    best = {"trial_id": "t", "sequence_id": 3, "value": 0.5, "parameters": {}}
    rest.add_experiment("e", best=best, objective={"metric": "default", "direction": direction})
    assert short in invoke("experiment", "list").stdout
    assert short in invoke("top", "--once").stdout
    shown = invoke("experiment", "show", "e").stdout
    assert re.search(rf"^objective +{direction}$", shown, re.MULTILINE)
    assert f"0.5 (trial 3, {direction})" in shown


def test_a_check_names_the_direction_taken_and_refuses_two(invoke, tmp_path: Path) -> None:
    file = tmp_path / "e.yml"
    text = "searchSpace: {x: {_type: uniform, _value: [0, 1]}}\ntrialCommand: 'true'\ntrialConcurrency: 1\n"
    file.write_text(text + "trainingService: {platform: local}\ntuner: {name: TPE}\n")
    result = invoke("config", "check", str(file))
    assert (result.exit_code, "assuming minimize, as by TPE in NNI" in result.stderr) == (0, True)
    assert "TPE, minimize, local" in result.stderr
    file.write_text(file.read_text() + "assessor: {name: Medianstop}\nobjective: {direction: maximize}\n")
    result = invoke("config", "check", str(file))
    assert (result.exit_code, "Notice" in result.stderr, "maximize, local" in result.stderr) == (0, False, True)
    file.write_text(file.read_text().replace("{name: TPE}", "{name: TPE, classArgs: {optimize_mode: minimize}}"))
    result = invoke("config", "check", str(file))
    assert result.exit_code == 2
    assert f"{file}:5:47: tuner.classArgs.optimize_mode: expected maximize, as objective.direction" in result.stderr
    assert "(line 7, column 24)" in result.stderr


REMOTE = {
    "platform": "remote",
    "machineList": [
        {"host": "gpu-1", "user": "ada", "password": "hush", "gpuIndices": [0, 1]},
        {"host": "gpu-2", "sshPassphraseEnv": "PHRASE"},
    ],
}


@pytest.mark.parametrize("output", ["yaml", "json"])
@pytest.mark.parametrize("service", [{"platform": "local"}, REMOTE], ids=["local", "remote"])
def test_what_config_show_prints_passes_config_check(
    rest: FakeRest, invoke, tmp_path: Path, service: dict[str, Any], output: str
) -> None:
    (tmp_path / "space.json").write_text('{"x": {"_type": "choice", "_value": [1e-4, 2]}}')
    (tmp_path / "mine.py").write_text("class Tuner: ...\n")
    written = {
        "searchSpaceFile": "space.json",
        "trialCommand": "python trial.py",
        "trialConcurrency": 1,
        "maxTrialDuration": "10m",
        "assessor": {"name": "Medianstop"},
        "tuner": {"className": "mine.Tuner"},
        "trainingService": service,
    }
    canonical = load_experiment_mapping(written, tmp_path).config.canonical()
    assert canonical["shared_storage"] is None
    rest.add_experiment("e", config=canonical)
    shown = tmp_path / "elsewhere" / f"shown.{output}"
    shown.parent.mkdir()
    shown.write_text(invoke("config", "show", "e", "-o", output).stdout)
    result = invoke("config", "check", str(shown))
    assert result.exit_code == 0, result.stderr
    assert load_experiment(shown).config.canonical() == {**canonical, "search_space_file": None}


def test_a_configuration_written_by_nni_with_all_its_empty_keys_is_accepted(invoke, tmp_path: Path) -> None:
    (tmp_path / "nni.json").write_text(
        json.dumps(
            {
                "experimentName": None, "experimentType": "hpo", "searchSpaceFile": None,
                "searchSpace": {"x": {"_type": "uniform", "_value": [0, 1]}}, "trialCommand": "python trial.py",
                "trialCodeDirectory": str(tmp_path), "trialConcurrency": 1, "trialGpuNumber": None,
                "maxExperimentDuration": None, "maxTrialNumber": 3, "maxTrialDuration": None, "nniManagerIp": None,
                "useAnnotation": False, "debug": False, "logLevel": None, "experimentWorkingDirectory": None,
                "tunerGpuIndices": None, "assessor": None, "advisor": None, "sharedStorage": None,
                "tuner": {"name": "TPE", "className": None, "codeDirectory": None, "classArgs": None},
                "trainingService": {
                    "platform": "local", "trialCommand": "python trial.py", "trialGpuNumber": None,
                    "nniManagerIp": None, "debug": False, "useActiveGpu": None, "maxTrialNumberPerGpu": 1,
                    "gpuIndices": None, "reuseMode": None,
                },
            }
        )
    )  # fmt: skip
    result = invoke("config", "check", str(tmp_path / "nni.json"))
    assert result.exit_code == 0, result.stderr


def test_an_old_file_is_printed_with_the_present_keys(invoke, tmp_path: Path) -> None:
    old = tmp_path / "old.yml"
    old.write_text(
        "authorName: me\nmaxTrialNum: 3\ntrainingServicePlatform: local\nsearchSpacePath: space.json\n"
        "trialConcurrency: 1\ntrial: {command: python3 t.py, codeDir: .}\ntuner: {builtinTunerName: TPE}\n"
    )
    (tmp_path / "space.json").write_text('{"x": {"_type": "uniform", "_value": [0, 1e-3]}}')
    checked = invoke("config", "check", str(old))
    assert (checked.exit_code, checked.stderr.count("v1 name for")) == (0, 0)
    assert "converted 7 keys of NNI's first format (v1)" in checked.stderr
    result = invoke("config", "convert", str(old))
    assert result.exit_code == 0
    assert result.stdout == (
        "searchSpaceFile: space.json\ntrialCommand: python3 t.py\ntrialCodeDirectory: .\ntrialConcurrency: 1\n"
        "maxTrialNumber: 3\ntuner:\n  name: TPE\ntrainingService:\n  platform: local\n"
    )
    assert f"{old}:2:1: maxTrialNum: is NNI's v1 name for maxTrialNumber" in result.stderr.splitlines()
    new = tmp_path / "new.yml"
    new.write_text(result.stdout)
    assert "first format" not in invoke("config", "check", str(new)).stderr
    again = invoke("config", "convert", str(new))
    assert (again.stdout, again.stderr) == (
        result.stdout,
        f"{new}: has no old keys of NNI's; nothing to convert\n",
    )


def test_a_file_that_cannot_be_converted_is_refused(invoke, tmp_path: Path) -> None:
    (tmp_path / "old.yml").write_text("maxTrialNum: 3\nmaxTrialNumber: 4\n")
    result = invoke("config", "convert", str(tmp_path / "old.yml"))
    assert (result.exit_code, result.stdout) == (2, "")
    assert f"{tmp_path / 'old.yml'} cannot be converted:" in result.stderr
    assert "remove maxTrialNum" in result.stderr
    assert invoke("config", "convert", str(tmp_path / "nowhere.yml")).exit_code == 2

"""The remaining verbs: what they ask the manager, and what they say."""

import csv
import io
import json
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from importlib.metadata import version
from itertools import product
from pathlib import Path
from string import ascii_lowercase
from typing import Any

import pytest
from fakes.served_manager import NOW, ServedManager

from proctor.manager.api.routes import failures
from proctor.manager.config.loading import load_experiment, load_experiment_mapping
from proctor.manager.engine import importance
from proctor.manager.lifecycle.states import TrialStatus
from proctor.manager.process import daemon
from proctor.manager.process.instance import InstanceLock, ManagerAddress, write_address
from proctor.manager.settings import Home
from proctor.manager.store.rows import CheckpointRow
from proctor.manager.store.tables import experiments
from proctor.sdk.client import Client, result_calls
from proctor.sdk.client.experiment import Experiment
from proctor.training_services.base import EndReason, TrialJobForm
from proctor.training_services.in_memory.scripts import Raw, ScriptedExit
from proctor.training_services.nodes.pool import NodeStatus

OWN_TUNER = """
from proctor.sdk.tuner import Tuner

class Anything(Tuner):
    def generate_parameters(self, parameter_id, **_):
        return {"lr": 0.5}

    def update_search_space(self, search_space):
        pass

    def import_data(self, data):
        pass

    def receive_trial_result(self, *_, **__):
        pass
"""
TRIALS: tuple[Mapping[str, Any], ...] = ({"id": "t0", "status": "RUNNING"}, {"id": "t1", "final_value": 0.5})

CHECKPOINT = b'{"kind":"checkpoint","path":"output/checkpoints/1","step":1,"time":1.0}\n'


@pytest.fixture
def running(served: ServedManager) -> ServedManager:
    """An experiment as it was left while it ran: nothing of it changes by itself."""
    served.add_experiment(status="RUNNING", trials=TRIALS)
    return served


@pytest.fixture
def live(served: ServedManager, tmp_path: Path) -> ServedManager:
    """An experiment that runs, with a tuner that takes everything, and its first trial, which does."""
    (tmp_path / "everything.py").write_text(OWN_TUNER)
    served.create(tuner={"className": "everything.Anything", "codeDirectory": str(tmp_path)})
    served.until(lambda: served.read(lambda c: c.execute("SELECT id FROM trials WHERE status = 'RUNNING'").fetchone()))
    return served


def ids(served: ServedManager) -> list[str]:
    """Those of the trials, by their numbers."""
    return [row[0] for row in served.read(lambda c: c.execute("SELECT id FROM trials ORDER BY sequence_id").fetchall())]


@contextmanager
def connected(served: ServedManager, experiment_id: str = "e") -> Iterator[Experiment]:
    """An experiment as scripts have it."""
    experiment = Experiment.connect(id=experiment_id, home=served.home)
    with closing(experiment.client):
        yield experiment


def test_update_changes_one_limit(served: ServedManager, invoke) -> None:
    served.add_experiment(trial_concurrency=2, max_trial_number=30)
    said = {
        "concurrency e -v 5": "Concurrency of e is now 5 (was 2).",
        "trialnum e -v 99": "Trial limit of e is now 99 (was 30).",
        "trialnum e --value none": "Trial limit of e is now none (was 99).",
        "duration e -v 1.5h": "Time limit of e is now 1h 30m (was none).",
        "duration e -v none": "Time limit of e is now none (was 1h 30m).",
        "duration e -v 30s --trial": "Time limit of each trial of e is now 30s (was none).",
        "priority e --value -5": "Priority of e is now -5 (was 0).",
        "gpuhours e --value 12.5": "Limit of GPU-hours of e is now 12.5 (was none).",
        "gpuhours e --value none": "Limit of GPU-hours of e is now none (was 12.5).",
    }
    for words, sentence in said.items():
        result = invoke("update", *words.split())
        assert (result.exit_code, result.stderr) == (0, f"{sentence}\n")
    assert [body for _, body in served.requests("PATCH")] == [
        {"trial_concurrency": 5},
        {"max_trial_number": 99},
        {"max_trial_number": None},
        {"max_experiment_duration_seconds": 5400.0},
        {"max_experiment_duration_seconds": None},
        {"max_trial_duration_seconds": 30.0},
        {"priority": -5},
        {"max_gpu_hours": 12.5},
        {"max_gpu_hours": None},
    ]


def test_update_reads_a_search_space_of_any_kind_from_a_file(live: ServedManager, invoke, tmp_path: Path) -> None:
    known = {"lr": {"_type": "uniform", "_value": [0.0001, 1]}}
    for space in (known, [1, "two"], {}, "a name"):
        (tmp_path / "space.json").write_text(json.dumps(space))
        result = invoke("update", "searchspace", "-f", str(tmp_path / "space.json"), code=0)
        assert live.experiment().search_space == space
        assert space != known or result.stderr == "Changed the search space of e: lr.\n"


def test_a_trial_is_added_with_parameters_of_any_kind(live: ServedManager, invoke, tmp_path: Path) -> None:
    for parameters in ([1, {"x": 2}], "a text", 3, None, {"lr": 0.1}):
        (tmp_path / "parameters.json").write_text(json.dumps(parameters))
        for words in (("--parameters", json.dumps(parameters)), ("--filename", str(tmp_path / "parameters.json"))):
            assert live.trial(invoke("trial", "add", *words, code=0).stdout.strip()).parameters == parameters


def test_parameters_of_any_kind_are_shown(read_only: ServedManager, read) -> None:
    read_only.add_experiment("any", trials=[{"id": "any", "parameters": [1, "two"]}])
    assert '[1, "two"]' in read("trial", "ls", "any").stdout
    assert '[1, "two"]' in read("trial", "show", "any").stdout


def test_trials_are_paused_resumed_killed_and_retried(live: ServedManager, invoke) -> None:
    [first] = ids(live)
    waiting = invoke("trial", "add", "--parameters", "1").stdout.strip()
    paused = invoke("trial", "pause", waiting).stderr
    assert f"Trial 1 ({waiting}) is PAUSED; `proctor trial resume {waiting}` resumes it." in paused
    end = live.hold_stops()
    assert f"Trial 0 ({first}) is being paused; " in invoke("trial", "pause", first).stderr
    end()
    live.until(lambda: live.trial(first).status == "PAUSED")
    assert f"Trial 0 ({first}) is resumed (waiting: " in invoke("trial", "resume", "0").stderr
    assert invoke("trial", "kill", first).exit_code == 0
    live.until(lambda: live.trial(first).status == "USER_CANCELED")
    assert live.trial(invoke("trial", "retry", "0").stdout.strip()).origin_trial == first
    assert [path for path, _ in live.requests("POST")][2:] == [
        f"/trials/{first}/{verb}" for verb in ("pause", "resume", "kill", "retry")
    ]


def test_a_program_gets_all_of_a_trial_with_which_something_is_done(live: ServedManager, invoke) -> None:
    [first] = ids(live)

    def ask(*words: str) -> dict[str, Any]:
        found = json.loads(invoke("trial", *words, "-o", "json", code=0).stdout)
        assert {"id", "status", "parameters", "jobs"} <= found.keys()
        return dict(found)

    added = ask("add", "--parameters", "1")
    assert (added["parameters"], added["source"]) == (1, "customized")
    assert ask("pause", added["id"])["status"] == "PAUSED"
    assert ask("resume", added["id"])["status"] == "WAITING"
    assert ask("kill", first)["id"] == first
    live.until(lambda: live.trial(first).status == "USER_CANCELED")
    assert ask("retry", first)["origin_trial_id"] == first


def test_a_trial_is_cloned_with_other_parameters_and_retried_from_its_checkpoint(served: ServedManager, invoke) -> None:
    def save(form: TrialJobForm) -> list[Raw | ScriptedExit]:
        folder = Path(form.directory, "output", "checkpoints", "1")
        folder.mkdir(parents=True)
        (folder / "weights").write_text("1")
        return [Raw(0.0, CHECKPOINT), ScriptedExit(0.0)]

    served.script = save
    choices = {"kind": ["adam", "sgd"], "net": [[3], [4, 5]]}
    space = {name: {"_type": "choice", "_value": values} for name, values in choices.items()}
    served.create(maxTrialNumber=1, searchSpace={"lr": {"_type": "uniform", "_value": [0, 1]}, **space})
    served.until(lambda: served.experiment().status in ("DONE", "NO_MORE_TRIAL"))
    [first] = ids(served)
    result = invoke("trial", "clone", first, "--set", "lr=0.01", "--set", "kind=adam", "--set", "net=[4, 5]")
    assert "continues from the newest checkpoint of trial 0." in result.stderr
    assert served.trial(result.stdout.strip()).parameters == {"lr": 0.01, "kind": "adam", "net": [4, 5]}
    clone = invoke("trial", "clone", first, "--set", "lr=0.02", "-o", "json", code=0)
    assert json.loads(clone.stdout)["parameters"]["lr"] == 0.02
    again = invoke("trial", "retry", first, "--from-checkpoint")
    assert again.stderr.endswith(", from its newest checkpoint.\n")
    assert served.trial(again.stdout.strip()).origin_checkpoint


def test_a_change_without_a_name_or_a_value_is_refused(running: ServedManager, invoke) -> None:
    result = invoke("trial", "clone", "t0", "--set", "0.01", code=2)
    assert "--set expects NAME=VALUE, as in lr=0.01; found '0.01'" in result.stderr


def test_an_experiment_is_paused_and_resumed_with_its_trials(live: ServedManager, invoke) -> None:
    [first] = ids(live)
    assert "its trials are being paused; `proctor resume e --trials` resumes" in invoke("pause", "--trials").stderr
    live.until(lambda: live.trial(first).status == "PAUSED")
    assert live.experiment().status == "PAUSED"
    assert json.loads(invoke("trial", "show", first, "-o", "json").stdout)["paused_by"] == "EXPERIMENT"
    assert invoke("trial", "ls", "e", "--columns", "no,paused-by").stdout.split() == [
        "NO.",
        "PAUSED-BY",
        "0",
        "EXPERIMENT",
    ]
    assert invoke("resume", "--trials").exit_code == 0
    live.until(lambda: live.trial(first).status == "RUNNING")
    assert invoke("pause").exit_code == 0
    assert (live.experiment().status, live.trial(first).status) == ("PAUSED", "RUNNING")
    assert invoke("resume").exit_code == 0
    assert live.experiment().status == "RUNNING"


def test_a_list_without_trials_names_what_was_asked_for(running: ServedManager, invoke) -> None:
    assert invoke("trial", "ls", "e", "--status", "early_stopped").stderr == "No early stopped trials in e.\n"
    running.add_experiment("empty")
    assert invoke("trial", "ls", "empty", "--columns", "id,parameter.lr", code=0).stderr == "No trials in empty.\n"


def test_the_causes_of_failed_trials_are_listed(served: ServedManager, invoke) -> None:
    served.add_experiment("none")
    assert invoke("experiment", "failures", "none").stderr == "no trial of experiment none has failed\n"
    reason = "exit code 1: no such file\nmore"
    ended = {"status": "FAILED", "reason": reason, "job": {"end_reason": EndReason.EXITED_ERROR, "node_id": "gpu-3"}}
    elsewhere = {**ended, "job": {"end_reason": EndReason.EXITED_ERROR}}
    killed = {**ended, "reason": "killed", "job": {"end_reason": EndReason.SIGNALED}}
    served.add_experiment(trials=[*[ended] * 3, elsewhere, killed])
    listed = invoke("experiment", "failures", "e")
    assert listed.stdout.splitlines()[1].split() == [
        *("4", "EXITED_ERROR", "gpu-3:3", "-:1", "3", "exit", "code", "1:", "no", "such", "file")
    ]  # fmt: skip
    assert listed.stderr == ""
    causes = json.loads(invoke("experiment", "failures", "e", "-o", "json").stdout)
    assert [cause["trials"] for cause in causes] == [4, 1]
    with Client(home=served.home) as client:
        assert client.failures("e")["causes"] == causes
    with connected(served) as experiment:
        assert experiment.failures() == causes


def test_it_is_said_where_failures_or_their_causes_are_not_all_listed(
    served: ServedManager, invoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(failures, "MOST_TRIALS", 101)
    reasons = ["".join(pair) for pair in product(ascii_lowercase, "abcd")][:102]
    served.add_experiment(trials=[{"status": "FAILED", "reason": reason} for reason in reasons])
    assert invoke("experiment", "failures", "e").stderr == (
        "Counted are the newest 101 of 102 failed trials.\nThese are the most frequent of 101 causes.\n"
    )


def test_the_importance_of_parameters_is_listed_once_it_is_computed(
    running: ServedManager, invoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    shares = [{"name": "lr", "importance": 0.8125}, {"name": "model.width", "importance": 0.1875}]
    computed = {"trials": 40, "top": 4, "outside": 1, "parameters": shares, "reason": None}

    async def compute(data: bytes) -> dict[str, Any]:
        return computed

    monkeypatch.setattr(result_calls, "IMPORTANCE_POLL_SECONDS", 0)
    monkeypatch.setattr(importance, "compute", compute)
    listed = invoke("experiment", "importance", "e")
    assert [line.split() for line in listed.stdout.splitlines()[1:]] == [["lr", "81.2%"], ["model.width", "18.8%"]]
    assert listed.stderr == (
        "Of 40 trials with a value, the best 4 against all.\nLeft out 1 trial outside of the search space.\n"
    )
    assert len(running.requests("GET")) > 2  # the first answer is that it is being computed
    shown = json.loads(invoke("experiment", "importance", "e", "-o", "json").stdout)
    assert (shown["state"], shown["parameters"]) == ("CURRENT", shares)
    with connected(running) as experiment:
        assert experiment.importance() == {"lr": 0.8125, "model.width": 0.1875}
    running.add_experiment("few")
    computed = {**computed, "outside": 0, "parameters": [], "reason": "too few trials: 1 trial that succeeded has"}
    assert invoke("experiment", "importance", "few").stderr == "too few trials: 1 trial that succeeded has\n"


def test_tables_of_a_trial_scheduler_are_data_too_and_none_is_said(served: ServedManager, invoke) -> None:
    served.add_experiment("plain")
    assert invoke("experiment", "scheduler", "plain").stderr == "Experiment plain has no trial scheduler.\n"
    asha = {"trialScheduler": {"name": "ASHA"}}
    served.add_experiment("new", config=asha)
    assert invoke("experiment", "scheduler", "new").stderr == "ASHA has shown nothing yet.\n"
    rungs = {"title": "Rungs", "columns": ["milestone", "trials", "best"], "rows": [[1, 9, 0.712345], [3, 0, None]]}
    paused = {"title": "Paused trials", "columns": ["trial", "because it"], "rows": [[1, "waits for 2"]]}
    tables = [{**rungs, "trial_columns": []}, {**paused, "trial_columns": [0]}]
    served.add_experiment(config=asha, tables=tables, trials=TRIALS)
    assert json.loads(invoke("experiment", "scheduler", "e", "-o", "json").stdout)["tables"] == tables
    lines = invoke("experiment", "scheduler", "e", "-o", "csv").stdout.splitlines()
    assert lines[-1] == "Paused trials,,,,1,waits for 2"
    with Client(home=served.home) as client:
        assert client.scheduler("e")["trial_ids"] == {"1": "t1"}


def test_experiments_are_tagged_and_found_by_their_tags(running: ServedManager, invoke) -> None:
    running.add_experiment("other")
    assert "TAGS" not in invoke("experiment", "ls").stdout
    assert invoke("experiment", "tag", "e", "paper", "base line").stderr == "Tags of e: paper, base line.\n"
    assert invoke("experiment", "tag", "e", "paper", "--remove").stderr == "Tags of e: base line.\n"
    assert running.experiment().tags == ["base line"]
    listed = invoke("experiment", "ls", "--tag", "base line").stdout.splitlines()
    assert "TAGS" in listed[0]
    assert [line.split()[0] for line in listed[1:]] == ["e"]
    assert invoke("experiment", "ls", "--tag", "paper").stdout == ""


def test_archived_experiments_are_listed_only_when_asked_for(running: ServedManager, invoke) -> None:
    running.add_experiment("old", name="old one")
    said = invoke("experiment", "archive", "old", "e").stderr.splitlines()
    assert said == ["Archived experiment old.", "Archived experiment e; it is RUNNING, and listed until it has ended."]
    assert [row["id"] for row in json.loads(invoke("experiment", "ls", "-o", "json").stdout)] == ["e"]
    assert [row["id"] for row in json.loads(invoke("experiment", "ls", "--archived", "-o", "json").stdout)] == ["old"]
    assert "archived" in invoke("experiment", "show", "old one").stdout
    assert invoke("experiment", "unarchive", "old").stderr == "Experiment old is listed again.\n"
    assert {row["id"] for row in json.loads(invoke("experiment", "ls", "-o", "json").stdout)} == {"e", "old"}
    with connected(running, "old") as old:
        old.archive()
        old.update_tags("a", "b")
        assert len(old.get_all_experiments_metadata()) == 2
    with Client(home=running.home) as client:
        assert [row["id"] for row in client.experiments()] == ["e"]
        assert [row["id"] for row in client.experiments(archived=True, tags=["b"])] == ["old"]


def test_the_checkpoints_of_a_trial_are_listed(running: ServedManager, invoke) -> None:
    assert invoke("trial", "checkpoints", "t0").stderr == "Trial t0 has no checkpoint.\n"
    rows = [
        CheckpointRow(1, "t0", 1, 0, 0, 100, "output/checkpoints/1", 1, NOW, deleted_at=NOW),
        CheckpointRow(2, "t0", 1, 0, 1, 300, "output/checkpoints/2", 3, NOW, bytes=10_485_760, value=0.25),
    ]
    running.write_reports(lambda c: [insert_checkpoint(c, row) for row in rows])
    listed = invoke("trial", "checkpoints", "t0")
    assert "output/checkpoints/1" not in listed.stdout
    assert listed.stderr == "1 more was deleted; --all lists it.\n"
    lines = invoke("trial", "checkpoints", "t0", "--all").stdout.splitlines()
    assert lines[1].split()[:7] == ["1", "1", "0", "output/checkpoints/1", "100", "1", "-"]
    assert "deleted" in lines[1]
    assert lines[2].split()[:8] == ["2", "1", "0", "output/checkpoints/2", "300", "3", "10.5", "MB"]
    assert "newest" in lines[2]
    refused = invoke("trial", "checkpoints", "t0", "-d", "here")
    assert (refused.exit_code, "goes with --download ID" in refused.stderr) == (2, True)


def insert_checkpoint(connection: Any, row: CheckpointRow) -> None:
    values = row.to_columns()
    names = ", ".join(values)
    places = ", ".join(f":{name}" for name in values)
    connection.execute(f"INSERT INTO checkpoints ({names}) VALUES ({places})", values)


def test_a_log_is_printed_byte_by_byte_as_it_is(running: ServedManager, invoke) -> None:
    assert invoke("trial", "log", "t1").stderr == "Trial t1 has printed nothing yet.\n"
    text = "first line\nsecond \xff\nthird without end".encode("latin-1")
    running.write_file("t1", "stdout", text)
    assert invoke("trial", "log", "t1").stdout_bytes == text
    assert invoke("trial", "log", "t1", "--tail", "2").stdout_bytes == text[11:]
    assert invoke("trial", "log", "t1", "--head", "1").stdout_bytes == text[:11]
    nothing = invoke("log", "trial", "t1", "--stderr")
    assert (nothing.stdout_bytes, nothing.stderr) == (b"", "Trial t1 has printed nothing to stderr yet.\n")


def test_both_streams_of_a_trial_are_printed(running: ServedManager, invoke) -> None:
    running.write_file("t1", "stdout", b"one\ntwo")
    assert invoke("trial", "log", "t1").stderr == ""
    running.write_file("t1", "stderr", b"a warning\nan error\n")
    both = invoke("trial", "log", "t1")
    assert both.stdout == "one\ntwo\na warning\nan error\n"
    assert both.stderr == "==> stdout <==\n==> stderr <==\n"
    assert both.output.startswith("==> stdout <==\none\ntwo\n==> stderr <==\na warning\n")
    assert invoke("trial", "log", "t1", "--stdout").stdout == "one\ntwo"
    assert invoke("trial", "log", "t1", "--stdout", "--stderr").stdout == both.stdout
    assert invoke("trial", "log", "t1", "--stderr").output == "a warning\nan error\n"
    assert invoke("trial", "log", "t1", "-n", "1").stdout == "two\nan error\n"
    assert invoke("trial", "log", "t1", "--head", "1").stdout == "one\na warning\n"


def test_the_stderr_of_a_failed_trial_is_never_hidden(running: ServedManager, invoke) -> None:
    running.write_file("t1", "stdout", b"one\n")
    running.write_file("t1", "stderr", b"Traceback\n")
    assert invoke("trial", "log", "t1", "--stdout").stderr == ""
    running.change_trial("t1", status=TrialStatus.FAILED)
    for words in ((), ("-f",), ("--tail", "1"), ("-f", "--tail", "1")):
        assert "Traceback" in invoke("trial", "log", "t1", *words).stdout
        hidden = invoke("trial", "log", "t1", "--stdout", *words)
        assert hidden.stdout == "one\n"
        assert hidden.stderr == "It failed and wrote to stderr, too: proctor trial log t1 --stderr\n"


def test_a_followed_log_may_begin_with_its_last_lines(running: ServedManager, invoke) -> None:
    running.write_file("t0", "stdout", b"one\ntwo\nthree\n")
    running.write_file("t0", "stderr", b"a\nb\n")

    def add() -> None:
        running.write_file("t0", "stdout", b"four\n")
        running.write_file("t0", "stderr", b"c\n")
        running.change_trial("t0", status=TrialStatus.SUCCEEDED)

    running.on_ask["GET", "/trials/t0"] = lambda: running.on_ask.update({("GET", "/trials/t0"): add})
    result = invoke("trial", "log", "t0", "-f", "--tail", "1")
    assert result.output == ("==> stdout <==\nthree\n==> stderr <==\nb\n==> following both <==\nfour\nc\n")


def test_a_followed_log_goes_on_until_the_trial_has_ended_also_with_its_next_attempt(
    running: ServedManager, invoke
) -> None:
    running.write_file("t0", "stdout", b"one\n")

    def try_again() -> None:
        running.write_file("t0", "stdout", b"two\n")
        running.write_file("t0", "stdout", b"the second attempt\n", job=2)
        running.add_job("t0")
        running.change_trial("t0", status=TrialStatus.SUCCEEDED)

    running.on_ask["GET", "/trials/t0/logs"] = try_again
    result = invoke("trial", "log", "t0", "-f", code=0)
    assert result.stdout == "one\ntwo\nthe second attempt\n"
    assert "attempt 2" in result.stderr


def test_a_followed_log_waits_for_a_machine_that_is_away_and_prints_every_line_once(
    running: ServedManager, invoke
) -> None:
    running.write_file("t0", "stdout", b"one\n")

    def cut() -> None:
        running.write_file("t0", "stdout", b"two\n")
        running.away["t0.1"] = [f"node gpu-1 is silent: it hung up; tried again in {left} s" for left in (8, 3, 1)]
        running.on_ask["GET", "/trials/t0/logs"] = end  # also while the machine is away

    def end() -> None:
        running.change_trial("t0", status=TrialStatus.SUCCEEDED)

    running.on_ask["GET", "/trials/t0/logs"] = cut
    result = invoke("trial", "log", "t0", "-f", code=0)
    assert result.stdout == "one\ntwo\n"
    assert result.stderr == "waiting: node gpu-1 is silent: it hung up; tried again in 8 s\n"


def test_a_followed_log_does_not_wait_for_the_machine_of_an_attempt_before(running: ServedManager, invoke) -> None:
    running.write_file("t0", "stdout", b"the second attempt\n", job=2)
    running.away["t0.1"] = ["node gpu-1 is lost"] * 1000

    def try_again() -> None:
        running.add_job("t0")
        running.change_trial("t0", status=TrialStatus.SUCCEEDED)

    running.on_ask["GET", "/trials/t0/logs"] = try_again
    result = invoke("trial", "log", "t0", "-f", code=0)
    assert result.stdout == "the second attempt\n"
    assert "proctor trial log t0 -j 1" in result.stderr


def test_a_followed_log_ends_where_the_question_itself_is_wrong(running: ServedManager, invoke) -> None:
    running.on_ask["GET", "/trials/t0"] = lambda: running.write(lambda c: experiments.delete(c, "e", time=NOW))
    assert "waiting" not in invoke("trial", "log", "t0", "-f", code=3).stderr


def test_the_managers_log_is_read_from_its_file_when_it_is_down(invoke, home: Path) -> None:
    (home / "log").mkdir(parents=True)
    (home / "log" / "manager.log").write_text("a\nb\nc\n")
    assert invoke("log", "manager", "--tail", "2").stdout == "b\nc\n"
    assert invoke("log", "stderr", "--head", "1").stdout == "a\n"


def test_the_last_lines_of_a_long_log_are_printed_without_reading_the_rest(
    running: ServedManager, invoke, home: Path
) -> None:
    text = b"".join(b"line %d\n" % number for number in range(300_000))
    logs = [Home(home).dispatcher_log("e"), running.write_file("t1", "stdout", text)]
    for file in (logs[0], home / "log" / "manager.log"):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(text)
    for words in (("trial", "log", "t1"), ("log", "dispatcher")):
        assert invoke(*words, "--tail", "3").stdout_bytes == b"line 299997\nline 299998\nline 299999\n"
    assert running.sent_bytes < len(text) // 50
    assert invoke("log", "manager", "--tail", "1").stdout_bytes == b"line 299999\n"
    assert invoke("log", "dispatcher").stdout_bytes == text


def test_export_gives_what_import_takes(live: ServedManager, invoke, tmp_path: Path) -> None:
    live.add_experiment("done", trials=[{"id": "t1", "final_value": 0.5}])
    file = tmp_path / "rows.json"
    assert invoke("experiment", "export", "done", "-f", str(file)).exit_code == 0
    rows = json.loads(file.read_text())
    assert rows[0]["parameter"] == {"lr": 0.25, "layer": {"units": 8}}
    assert invoke("experiment", "import", "e", "-f", str(file)).exit_code == 0
    assert live.requests("POST") == [("/experiments/e/import", rows)]


def test_export_as_csv_has_a_column_for_each_parameter_and_each_key_of_a_metric(running: ServedManager, invoke) -> None:
    lines = invoke("experiment", "export", "-t", "csv").stdout.splitlines()
    assert lines[0].startswith("parameter.lr,parameter.layer.units,value,trial_id")
    assert lines[0].endswith("status,reason,latest_value")
    assert len(lines) == 2
    data = {"default": 0.75, "loss": 0.5, "accuracy": {"top5": 0.9}}
    running.add_experiment(
        "f", trials=[TRIALS[1] | {"id": "u1"}, {"id": "u2", "final_value": 0.75, "final_data": data}]
    )
    rows = list(csv.DictReader(io.StringIO(invoke("experiment", "export", "f", "-t", "csv").stdout)))
    keys = ("value", "value.loss", "value.accuracy.top5")
    assert [[row[key] for key in keys] for row in rows] == [["0.5", "", ""], ["0.75", "0.5", "0.9"]]


def test_intermediate_metrics_are_exported_as_csv_with_a_line_for_each(
    read_only: ServedManager, read, tmp_path: Path
) -> None:
    steps = [("intermediate", 0.1, {"step": 10}), ("intermediate", {"default": 0.2, "loss": 3.0}, {"step": 20})]
    nested = {"lr": 1.0, "model": {"_name": "mlp", "units": 8}}
    trials: list[dict[str, Any]] = [{"points": steps}, {"parameters": nested, "points": [("intermediate", 0.3)]}, {}]
    read_only.add_experiment("curves", trials=[{**each, "id": f"c{number}"} for number, each in enumerate(trials)])
    file = tmp_path / "curves.csv"
    result = read("experiment", "export", "curves", "--intermediate", "-t", "csv", "-f", str(file))
    assert f"Written to {file}: 3 intermediate metrics of 3 trials of experiment curves" in result.stderr
    assert file.read_text().splitlines() == [
        "sequence_id,trial_id,status,parameter.lr,parameter.layer.units,parameter.model,parameter.model.units,sequence,step,"
        "value,value.loss",
        "0,c0,SUCCEEDED,0.25,8,,,0,10,0.1,",
        "0,c0,SUCCEEDED,0.25,8,,,1,20,0.2,3.0",
        "1,c1,SUCCEEDED,1.0,,mlp,8,0,,0.3,",
    ]
    rows = json.loads(read("experiment", "export", "curves", "--intermediate").stdout)
    assert [row["intermediate"] for row in rows] == [[0.1, {"default": 0.2, "loss": 3.0}], [0.3], []]
    assert [row["intermediate_steps"] for row in rows] == [[10, 20], [None], []]


def test_an_export_leaves_nothing_out_without_saying_so(live: ServedManager, invoke, tmp_path: Path) -> None:
    statuses = {"RUNNING": {}, "SUCCEEDED": {"final_value": 0.5}, "FAILED": {}, "EARLY_STOPPED": {}, "WAITING": {}}
    live.add_experiment("f", trials=[{"status": status, **more} for status, more in statuses.items()])
    printed = invoke("experiment", "export", "f")
    assert [row["status"] for row in json.loads(printed.stdout)] == ["SUCCEEDED", "FAILED", "EARLY_STOPPED"]
    assert printed.stderr == "Omitted 2 trials of experiment f that have not ended yet.\n"
    file = tmp_path / "rows.json"
    result = invoke("experiment", "export", "f", "-f", str(file))
    assert result.stderr.splitlines() == [
        f"Written to {file}: 3 trials of experiment f (1 succeeded, 1 failed, 1 early stopped).",
        "Omitted 2 trials of experiment f that have not ended yet.",
    ]
    assert invoke("experiment", "import", "e", "-f", str(file)).stderr == (
        "Imported 1 result into e; skipped 2 rows without a value.\n"
    )
    succeeded = invoke("experiment", "export", "f", "--succeeded")
    assert [row["trial_id"] for row in json.loads(succeeded.stdout)] == ["t1"]
    assert succeeded.stderr == "Omitted 4 trials of experiment f that did not succeed.\n"


def test_import_takes_nan_as_python_writes_it_and_skips_rows_outside_where_that_is_asked_for(
    served: ServedManager, invoke, tmp_path: Path
) -> None:
    served.create()
    file = tmp_path / "rows.json"
    file.write_text('[{"parameter": {"outside": 1}, "value": 1}, {"parameter": {"lr": 0.5}, "value": 2}]')
    result = invoke("experiment", "import", "-f", str(file), "--skip-outside")
    assert result.stderr == ("Imported 1 result into e; skipped 1 row outside of the search space.\n")
    file.write_text('[{"parameter": {"lr": 0.5}, "value": NaN}, {"parameter": {"lr": 0.5}, "value": -Infinity}]')
    invoke("experiment", "import", "-f", str(file))
    assert [row["value"] for row in served.requests("POST")[-1][1]] == ["NaN", "-Infinity"]
    file.write_text('[{"parameter": {}}]')
    assert "`parameter` and `value`" in invoke("experiment", "import", "-f", str(file), code=2).stderr


def test_delete_asks_first(served: ServedManager, invoke) -> None:
    served.add_experiment()
    served.add_node("gpu", status=NodeStatus.RELEASED)
    for command in (("experiment", "delete", "e"), ("nodes", "forget", "gpu")):
        result = invoke(*command, input="", code=2)  # neither a terminal nor an answer
        assert result.stderr.splitlines()[-1] == "Error: not confirmed: there is no terminal to ask on; use -y"
    assert invoke("experiment", "delete", "e", input="n\n").exit_code == 0
    assert not served.requests("DELETE") + served.requests("POST")
    assert invoke("experiment", "delete", "e", input="y\n").exit_code == 0
    assert invoke("experiment", "list", "-o", "json").stdout == "[]\n"


def test_delete_stops_what_is_done_and_leaves_what_runs(live: ServedManager, invoke) -> None:
    live.script = lambda form: ()
    live.create("done", maxTrialNumber=1)
    live.until(lambda: live.experiment("done").status == "DONE")
    invoke("experiment", "delete", "--all", "--yes", code=0)
    assert [row["id"] for row in json.loads(invoke("experiment", "list", "-o", "json").stdout)] == ["e"]


def test_stop_without_an_id_names_what_has_ended_and_keeps_machines(
    served: ServedManager, invoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    used = {"local": ["here"]}
    monkeypatch.setattr(served.manager, "experiments_on", lambda node_id: used.get(node_id, []))
    for name in ("here", "there"):
        served.add_experiment(name, status="DONE")
    served.add_node("local", "local")
    assert "keeps its machines" not in invoke("stop").stderr
    for name in ("gpu-1", "gpu-2"):
        served.add_node(name)
        used[name] = ["there"]
    result = invoke("stop", code=3)
    assert "ended experiments keep their machines until they are stopped" in result.stderr
    assert "proctor stop there    # DONE, gpu-1, gpu-2" in result.stderr
    assert "proctor stop here" not in result.stderr
    assert not served.requests("POST")  # only what was named is stopped


def test_view_and_webui_give_addresses_that_hold_the_token(served: ServedManager, invoke) -> None:
    served.add_experiment()
    assert invoke("view", "e").stdout.startswith(f"{served.url}/experiments/e?token=")
    assert served.experiment().status == "VIEWED"
    assert invoke("webui", "url").stdout == f"{served.url}/?token=a-token-for-tests\n"


def test_top_without_a_terminal_is_one_screen(running: ServedManager, invoke) -> None:
    running.change_experiment(name="name of e")
    lines = invoke("top").stdout.splitlines()
    assert lines[1].startswith("e   name of e  RUNNING")
    assert lines[-1].split()[:3] == ["0", "t0", "RUNNING"]


def test_metrics_and_the_curve_of_a_trial_are_listed_with_the_rank_that_reported_them(
    read_only: ServedManager, read
) -> None:
    points = [("intermediate", value, {"step": int(value * 100)}) for value in (0.1, 0.2, 0.3, 0.4)]
    read_only.add_experiment("metrics", trials=[{"id": "m0", "points": points}])
    lines = read("trial", "show", "m0", "--metrics").stdout.splitlines()
    assert len(lines) == 5
    assert lines[-1].split()[-1] == "0.4"
    curve = [line.split()[-1] for line in read("trial", "show", "m0", "--curve").stdout.splitlines()[1:]]
    assert curve == ["0.1", "0.2", "0.3", "0.4"]
    assert read("trial", "show", "m0", "--curve", "--metrics").exit_code == 2
    read_only.add_experiment("ranks", trials=[{"id": "r0", "points": [("intermediate", 0.1, {"member": 3})]}])
    header, line = read("trial", "show", "r0", "--metrics").stdout.splitlines()
    assert line.split()[header.split().index("RANK") + 1] == "3"  # a time has two words


def test_version_names_both_sides(served: ServedManager, invoke) -> None:
    found = json.loads(invoke("version", "-o", "json").stdout)
    assert found["version"] == found["manager"]["version"] == version("proctor")
    assert found["manager"]["home"] == str(served.home)
    assert invoke("--version").stdout == f"proctor {version('proctor')}\n"


def test_manager_status_tells_where_it_is(served: ServedManager, invoke) -> None:
    found = json.loads(invoke("manager", "status", "-o", "json").stdout)
    assert (found["url"], found["health"]) == (served.url, "ok")


def test_manager_status_ends_with_6_if_no_manager_answers(home: Path, invoke) -> None:
    result = invoke("manager", "status", "-o", "json")
    assert (result.exit_code, json.loads(result.stdout)["running"]) == (6, False)
    home.mkdir(parents=True, exist_ok=True)
    url = "http://127.0.0.1:1"  # nothing listens there
    with InstanceLock(Home(home)):
        write_address(Home(home), ManagerAddress.of_this_process(host="127.0.0.1", port=1, url=url))
        result = invoke("manager", "status", "-o", "json")
    assert (result.exit_code, json.loads(result.stdout)["health"]) == (6, "no answer")


@pytest.mark.parametrize(
    ("count", "said"),
    [(0, "no trial was running"), (1, "1 running trial continues"), (2, "2 running trials continue")],
)
def test_stopping_the_manager_says_how_many_trials_continue(
    served: ServedManager, invoke, monkeypatch: pytest.MonkeyPatch, count: int, said: str
) -> None:
    monkeypatch.setattr(daemon, "stop_manager", lambda home, report: True)
    ended = [{"final_value": 0.5}]
    served.add_experiment(status="NO_MORE_TRIAL", trials=[*ended, *({"status": "RUNNING"} for _ in range(count))])
    assert invoke("manager", "stop").stderr == f"Manager stopped; {said}.\n"


def test_in_a_copy_of_a_home_no_manager_is_stopped_and_why_is_said(
    served: ServedManager, invoke, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(daemon, "stop_manager", lambda home, report: False)  # else a fault would end these tests
    copy = shutil.copytree(served.home, tmp_path / "copy")
    stopped = invoke("--home", copy, "manager", "stop")
    assert stopped.stderr.startswith("No manager was running: its manager.json names process ")
    assert stopped.stderr.endswith("the home was copied.\n")


@pytest.fixture(scope="module")
def directions(read_only: ServedManager) -> ServedManager:
    """An experiment for each direction, with the same trials."""
    statuses = {"running": "RUNNING", "lost": "SYS_CANCELED", "a": "SUCCEEDED", "b": "EARLY_STOPPED", "c": "SUCCEEDED"}
    values = {"a": 2.0, "b": 3.0, "c": 4.0, "failed": 5.0}
    for direction in ("maximize", "minimize"):
        trials = [
            {"id": f"{name}-{direction[:3]}", "status": status, "final_value": values.get(name)}
            for name, status in {**statuses, "failed": "FAILED"}.items()
        ]
        read_only.add_experiment(direction, config={"objective": {"direction": direction}}, trials=trials)
    return read_only


@pytest.mark.parametrize(
    ("direction", "words", "expected"),
    [
        ("maximize", "", "running lost a b c failed"),
        ("maximize", "--sort sequence_id --tail 2", "c failed"),
        ("maximize", "--sort -sequence_id --head 1", "failed"),
        ("maximize", "--sort best", "failed c b a running lost"),
        ("minimize", "--sort best", "a b c failed running lost"),
        ("minimize", "--sort best --head 2", "a b"),
        ("minimize", "--sort best --tail 3", "b c failed"),
        ("minimize", "--sort -best --head 1", "failed"),
        ("minimize", "--sort value", "a b c failed running lost"),
        ("maximize", "--sort value --tail 5", "a b c failed running"),
        ("maximize", "--head 1", "failed"),
        ("minimize", "--head 1", "a"),
        ("minimize", "--tail 3", "b c failed"),
        ("minimize", "--tail 5", "a b c failed running"),
        ("minimize", "--best 2", "a b"),
        ("maximize", "--best 2", "c b"),
        ("maximize", "--best 9", "c b a"),
        ("maximize", "--best 9 --status early_stopped", "b"),
        ("maximize", "--best 9 --status failed", ""),
    ],
)
def test_trials_without_a_value_come_last_and_only_those_that_may_be_the_best_are_among_them(
    directions: ServedManager, read, direction: str, words: str, expected: str
) -> None:
    result = read("trial", "ls", direction, *words.split(), "-o", "json")
    assert [row["id"].partition("-")[0] for row in json.loads(result.stdout)] == expected.split()


def test_trials_are_filtered_and_ordered_by_any_column(served: ServedManager, invoke) -> None:
    statuses = {"a": "FAILED", "b": "SUCCEEDED", "c": "FAILED", "d": "FAILED"}
    trials = [
        {"id": name, "status": status, "final_value": number / 2, "ended_at": NOW + number}
        for number, (name, status) in enumerate(statuses.items())
    ]
    served.add_experiment(trials=trials)

    def listed(*arguments: str) -> list[str]:
        return [row["id"] for row in json.loads(invoke("trial", "ls", "e", *arguments, "-o", "json").stdout)]

    assert listed("--filter", "status = FAILED") == ["a", "c", "d"]
    assert listed("--filter", "status = FAILED", "--status", "succeeded") == []
    assert listed("--filter", "status = FAILED", "--sort", "-no", "--head", "2") == ["d", "c"]
    assert listed("--filter", "status = FAILED", "--sort", "no", "--tail", "2") == ["c", "d"]
    assert listed("--filter", "status = FAILED", "--sort", "time", "--tail", "1") == ["d"]
    assert listed("--filter", "status = SUCCEEDED", "--best", "2") == ["b"]
    nothing = invoke("trial", "ls", "e", "--filter", "status = WAITING")
    assert nothing.stderr == "No trials in e that the filter lets through.\n"
    assert invoke("trial", "ls", "e", "--columns", "no,latest,origin").exit_code == 0
    refused = invoke("trial", "ls", "e", "--filter", "lrr = 3", code=2)
    assert refused.stderr.startswith("Error: filter: expected a column")
    assert "(position 0)" in refused.stderr


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
    directions: ServedManager, read, arguments: tuple[str, ...], words: str
) -> None:
    assert words in read("trial", "ls", "maximize", *arguments, code=2).stderr


def test_nested_choices_are_shown_by_the_name_of_the_choice(read_only: ServedManager, read) -> None:
    model = {"_name": "mlp", "lr": 0.012648573920184, "act": {"_name": "relu"}}
    parameters = {"model": model, "words": "a b", "none": None, "fast": True, "sizes": [1, 2], "empty": {}}
    read_only.add_experiment("nested", trials=[{"id": "nested", "parameters": parameters}])
    rest = 'model.act=relu words="a b" none=null fast=true sizes=[1, 2] empty={}'
    assert f"model=mlp model.lr=0.01265 {rest}\n" in read("trial", "ls", "nested").stdout
    assert f"model=mlp model.lr=0.0126486 {rest}\n" in read("trial", "show", "nested").stdout


def test_a_metric_that_is_no_finite_number_is_shown_as_it_was_reported(read_only: ServedManager, read) -> None:
    data = {"default": "NaN", "loss": "Infinity"}
    trial = {"id": "x", "final_data": data, "latest_value": 0.5, "points": [("intermediate", 0.1), ("final", data)]}
    running = {"id": "y", "latest_value": float("inf"), "status": "RUNNING"}
    read_only.add_experiment("infinite", trials=[trial, running])
    listed = [line.split() for line in read("trial", "ls", "infinite").stdout.splitlines()]
    assert [row[listed[0].index("VALUE")] for row in listed[1:]] == ["NaN", "~Infinity"]
    shown = read("trial", "show", "x").stdout
    assert re.search(r"^final metric +NaN\nother metrics +loss=Infinity$", shown, re.MULTILINE)
    lines = read("trial", "show", "x", "--metrics").stdout.splitlines()
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
    invoke, arguments: tuple[str, ...], words: str
) -> None:
    result = invoke(*arguments, code=2)  # without a manager: it is not asked
    assert words in result.stderr


def test_statuses_are_written_in_any_case(running: ServedManager, invoke) -> None:
    running.add_experiment("f", status="DONE")
    found = json.loads(invoke("experiment", "list", "--status", "done", "-o", "json").stdout)
    assert [row["id"] for row in found] == ["f"]


def test_a_check_names_the_direction_taken(invoke, tmp_path: Path) -> None:
    file = tmp_path / "e.yml"
    text = "searchSpace: {x: {_type: uniform, _value: [0, 1]}}\ntrialCommand: 'true'\ntrialConcurrency: 1\n"
    file.write_text(text + "trainingService: {platform: local}\ntuner: {name: TPE}\n")
    result = invoke("config", "check", str(file))
    assert (result.exit_code, "assuming minimize, as by TPE in NNI" in result.stderr) == (0, True)
    assert "TPE, minimize, local" in result.stderr
    file.write_text(file.read_text() + "objective: {direction: maximize}\n")
    said = invoke("config", "check", str(file), code=0).stderr
    assert ("Notice" in said, "maximize, local" in said) == (False, True)


REMOTE = {
    "platform": "remote",
    "machineList": [
        {"host": "gpu-1", "user": "ada", "password": "hush", "gpuIndices": [0, 1]},
        {"host": "gpu-2", "sshPassphraseEnv": "PHRASE"},
    ],
}


@pytest.mark.parametrize("service", [{"platform": "local"}, REMOTE], ids=["local", "remote"])
def test_what_config_show_prints_passes_config_check(
    served: ServedManager, invoke, tmp_path: Path, service: dict[str, Any]
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
    served.add_experiment()
    served.change_experiment(config=canonical)
    for output in ("yaml", "json"):
        shown = tmp_path / "elsewhere" / f"shown.{output}"
        shown.parent.mkdir(exist_ok=True)
        shown.write_text(invoke("config", "show", "e", "-o", output).stdout)
        invoke("config", "check", str(shown), code=0)
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
    invoke("config", "check", str(tmp_path / "nni.json"), code=0)


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
    result = invoke("config", "convert", str(old), code=0)
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

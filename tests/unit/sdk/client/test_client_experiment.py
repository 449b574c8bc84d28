"""NNI's Python API on a manager whose trials run in memory."""

import json
import math
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fakes.served_manager import CONFIG, TOKEN, ServedManager

from proctor.sdk.client import (
    AlgorithmConfig,
    CustomAlgorithmConfig,
    Experiment,
    ExperimentConfig,
    RemoteConfig,
    RemoteMachineConfig,
    RunMode,
)
from proctor.sdk.client import experiment as client_experiment
from proctor.sdk.client.config import read_duration
from proctor.sdk.client.errors import BadInput, Conflict, ManagerUnreachable
from proctor.sdk.client.experiment import ProgressReport, connect_or_start
from proctor.training_services.base import EndReason, TrialJobForm
from proctor.training_services.in_memory.scripts import one_report
from proctor.training_services.testing import Script, ScriptedExit, ScriptedReport, Step


@pytest.fixture
def experiment(served: ServedManager) -> Experiment:
    made = Experiment("local", "e", home=served.home)
    made.config.trial_command = "python trial.py"
    made.config.search_space = {"lr": {"_type": "uniform", "_value": [0, 1]}}
    made.config.tuner.name = "TPE"
    made.config.tuner.class_args["optimize_mode"] = "maximize"
    made.config.trial_concurrency = 2
    made.config.max_trial_number = 3
    return made


def fail(form: TrialJobForm) -> Iterator[Step]:
    yield ScriptedExit(reason=EndReason.EXITED_ERROR, code=1)


def test_the_quickstart_of_nni_starts_an_experiment(served: ServedManager, experiment: Experiment) -> None:
    experiment.start(run_mode=RunMode.Detach)
    [(path, body)] = served.requests("POST")
    assert path == "/experiments"
    assert body["config"] == {
        "trial_command": "python trial.py",
        "search_space": {"lr": {"_type": "uniform", "_value": [0, 1]}},
        "tuner": {"name": "TPE", "class_args": {"optimize_mode": "maximize"}},
        "trial_concurrency": 2,
        "max_trial_number": 3,
        "training_service": {"platform": "local"},
    }
    assert body["directory"] == str(Path.cwd())
    assert experiment.id == "e"


@pytest.mark.parametrize(("script", "outcome", "status"), [(one_report, True, "DONE"), (fail, False, "ERROR")])
def test_run_waits_for_the_end(
    served: ServedManager, experiment: Experiment, script: Script, outcome: bool, status: str
) -> None:
    served.script = script
    assert experiment.run() is outcome
    assert experiment.get_status() == status


def test_run_ends_when_somebody_else_stops_the_experiment(served: ServedManager, experiment: Experiment) -> None:
    served.on_ask["GET", "/experiments/e"] = lambda: served.call(served.manager.stop_experiment("e"))
    assert experiment.run() is False
    assert experiment.get_status() == "STOPPED"


def test_run_without_waiting_leaves_it_running(served: ServedManager, experiment: Experiment) -> None:
    assert experiment.run(wait_completion=False) is None
    served.until(lambda: served.experiment().status == "RUNNING")
    assert experiment.get_status() == "RUNNING"


def test_ctrl_c_in_run_stops_the_experiment(served: ServedManager, experiment: Experiment, monkeypatch) -> None:
    def interrupt(*_: object) -> bool:
        raise KeyboardInterrupt

    monkeypatch.setattr(Experiment, "wait", interrupt)
    with pytest.raises(KeyboardInterrupt):
        experiment.run()
    served.until(lambda: served.experiment().status == "STOPPED")


def test_a_refused_configuration_leaves_no_file_behind(served: ServedManager, experiment: Experiment) -> None:
    experiment.config.trial_command = " "
    with pytest.raises(BadInput) as caught:
        experiment.start()
    assert caught.value.problems == ("trial_command: expected text, found the text ' '",)
    assert not list((served.home / "incoming").iterdir())


def test_a_yaml_file_starts_with_paths_from_its_own_folder(served: ServedManager, tmp_path: Path) -> None:
    written = {**CONFIG, "trialCodeDirectory": ".", "seed": 100.0}
    (tmp_path / "e.yml").write_text(json.dumps(written).replace("100.0", "1e2"))  # JSON is YAML
    Experiment(tmp_path / "e.yml", "e", home=served.home).start(run_mode=RunMode.Detach)
    [(_, body)] = served.requests("POST")
    assert (body["config"], body["directory"]) == (written, str(tmp_path))
    row = served.experiment()
    assert (row.config["trial_code_directory"], row.seed) == (str(tmp_path), 100)


def test_questions_have_nnis_answers(served: ServedManager) -> None:
    reports = [("intermediate", 0.5), ("final", math.nan), ("lost", 3)]
    served.add_experiment(
        trials=[
            {"id": "a", "status": "FAILED"},
            {"id": "b", "final_data": "NaN", "points": reports[:2]},
            {"id": "c"},
            {"id": "d", "final_value": 2.5, "final_data": 2.5},
        ]
    )
    experiment = Experiment.connect(id="e", home=served.home)
    counts = {each["trialJobStatus"]: each["trialJobNumber"] for each in experiment.get_job_statistics()}
    assert {status: number for status, number in counts.items() if number} == {"FAILED": 1, "SUCCEEDED": 3}
    job = experiment.get_trial_job("b")
    assert (job.status, job.sequenceId, job.hyperParameters[0].parameters["lr"]) == ("SUCCEEDED", 1, 0.25)
    assert math.isnan(job.finalMetricData[0].data)
    assert job.startTime == 1767323045000
    assert job.stderrPath == f"{job.logPath}/jobs/1/stderr"
    assert job.hyperParameters[0].parameter_index == 0
    assert [trial.trialJobId for trial in experiment.list_trial_jobs()] == ["a", "b", "c", "d"]
    metrics = experiment.get_job_metrics()
    assert metrics["a"] == []
    assert [(item.type, item.sequence) for item in metrics["b"]] == [("PERIODICAL", 0), ("FINAL", 0)]
    assert [result.trialJobId for result in experiment.export_data()] == ["b", "d"]
    best = experiment.best() or {}
    assert (best["trial_id"], best["value"]) == ("d", 2.5)


def test_changes_reach_the_manager(served: ServedManager) -> None:
    served.create()
    served.until(lambda: served.experiment().next_sequence_id == 1)
    experiment = Experiment.connect(home=served.home)
    (trial,) = experiment.list_trial_jobs()
    experiment.update_trial_concurrency(1)
    experiment.update_max_experiment_duration("2h")
    experiment.update_max_trial_number(None)
    experiment.update_max_gpu_hours(40)
    experiment.update_priority(5)
    experiment.update_search_space({"x": {"_type": "uniform", "_value": [0, 1]}})
    row = served.experiment()
    assert (row.trial_concurrency, row.max_experiment_seconds, row.max_trial_number) == (1, 7200.0, None)
    assert (row.max_gpu_hours, row.priority, list(row.search_space)) == (40, 5, ["x"])
    experiment.kill_trial_job(trial.trialJobId)
    served.until(lambda: served.trial(trial.trialJobId).status == "USER_CANCELED")
    experiment.stop()
    served.until(lambda: served.experiment().status == "STOPPED")


def test_stop_leaves_an_ended_experiment_alone(served: ServedManager) -> None:
    served.add_experiment()
    Experiment(None, "e", home=served.home).stop()
    assert not served.requests("POST")


def test_resume_waits_for_the_end_of_a_stop(served: ServedManager, capsys: pytest.CaptureFixture[str]) -> None:
    run_until_asked(served)
    experiment = Experiment(None, "e", home=served.home)
    assert experiment.resume(wait_completion=False) is None
    assert experiment.get_status() in ("INITIALIZED", "RUNNING")
    waiting, *_, resumed = capsys.readouterr().err.splitlines()
    assert waiting.startswith("Experiment e is still being stopped (")
    assert waiting.endswith("); waiting")
    assert resumed == f"Experiment e: {served.url}/experiments/e?token={TOKEN}"


def run_until_asked(served: ServedManager) -> None:
    """An experiment that is being stopped until somebody asks for it."""
    served.create()
    served.until(lambda: served.experiment().next_sequence_id == 1)
    served.stop_slowly()


@pytest.mark.parametrize("is_stopping", [False, True])
def test_a_stopped_experiment_is_viewed_until_it_is_stopped_again(served: ServedManager, is_stopping: bool) -> None:
    if is_stopping:
        run_until_asked(served)
    else:
        served.add_experiment()
    experiment = Experiment(None, "e", home=served.home)
    assert experiment.view(non_blocking=True) is experiment
    assert experiment.get_status() == "VIEWED"
    experiment.stop()
    assert experiment.get_status() == "STOPPED"


def test_viewing_a_running_experiment_leaves_it_running(
    served: ServedManager, capsys: pytest.CaptureFixture[str]
) -> None:
    served.create()
    served.until(lambda: served.experiment().status == "RUNNING")
    experiment = Experiment(None, "e", home=served.home).view()
    assert experiment.get_status() == "RUNNING"
    assert capsys.readouterr().out == f"Experiment e: {experiment.url}\n"


def test_run_prints_the_page_and_its_progress(
    served: ServedManager, experiment: Experiment, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = threading.Event()
    served.on_ask["GET", "/experiments/e"] = asked.set

    def report_once_asked(form: TrialJobForm) -> Iterator[Step]:
        while not asked.is_set():
            yield ScriptedReport(0.01, 0.5)
        yield from one_report(form)

    served.script = report_once_asked
    assert experiment.run() is True
    best = experiment.best() or {}
    printed = capsys.readouterr()
    page, first, *_, last = printed.err.splitlines()
    assert page == f"Experiment e: {served.url}/experiments/e?token={TOKEN}"
    assert ": 0 of 3 trials ended" in first
    done = "Experiment e is DONE: 3 of 3 trials ended (3 succeeded); best "
    assert last == f"{done}{best['value']:.6g} (trial {best['sequence_id']}); maxTrialNumber 3 is reached"
    assert printed.out == ""


def test_progress_that_changes_often_is_printed_now_and_then(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    times = iter([0.0, 9.0, 11.0, 12.0])
    monkeypatch.setattr("proctor.sdk.client.experiment.time.monotonic", lambda: next(times))
    show = ProgressReport()
    resource = {"id": "e", "status": "RUNNING", "max_trial_number": None, "best": None, "reason": ""}
    for counts in ({"RUNNING": 1}, {"RUNNING": 2}, {"RUNNING": 3}, {"RUNNING": 3}):
        show({**resource, "trial_counts": counts})
    assert capsys.readouterr().err.splitlines() == [
        "Experiment e is RUNNING: 0 trials ended (1 running)",
        "Experiment e is RUNNING: 0 trials ended (3 running)",
    ]


def test_connect_names_the_running_experiments(served: ServedManager) -> None:
    for experiment_id in ("a", "b"):
        served.create(experiment_id)
    with pytest.raises(Conflict, match="2 are running: b, a"):
        Experiment.connect(home=served.home)


def test_waiting_too_long_raises(served: ServedManager) -> None:
    served.create()
    served.until(lambda: served.experiment().status == "RUNNING")
    with pytest.raises(TimeoutError, match="still RUNNING"):
        Experiment(None, "e", home=served.home).wait(0.001)


def test_what_was_not_started_says_so(served: ServedManager) -> None:
    with pytest.raises(ValueError, match="has not been started"):
        Experiment("local", home=served.home).get_status()


def test_results_are_trials_with_numbers(served: ServedManager) -> None:
    points = [("intermediate", 0.1, {"step": 0}), ("intermediate", 0.2, {"step": 10})]
    served.add_experiment(
        config={"objective": {"direction": "minimize"}},
        trials=[
            {"id": "a", "status": "FAILED", "reason": "exit code 1", "job": {"cpu_seconds": 3600.0}},
            {"id": "b", "final_value": 1.0, "final_data": 1.0, "points": points},
        ],
    )
    experiment = Experiment.connect(id="e", home=served.home)
    results = experiment.results()
    assert (experiment.direction, results.direction) == ("minimize", "minimize")
    assert [trial.trial_id for trial in results] == ["a", "b"]
    assert [(trial.gpu_hours, trial.cpu_hours) for trial in results] == [(0.0, 1.0), (0.0, None)]
    assert (results.gpu_hours, results.cpu_hours) == (0.0, 1.0)
    assert results.best() is results[1]
    assert [trial.reason for trial in results.errors] == ["exit code 1"]
    assert results.curves() == {"a": [], "b": [(0, 0.1), (10, 0.2)]}
    assert [best_value for _, best_value in results.best_so_far()] == [1.0]
    assert repr(results) == "<Results of experiment e: 2 trials, best: trial 1 with 1 (minimize)>"


def test_a_data_frame_needs_pandas_and_says_so(served: ServedManager, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    served.add_experiment()
    with pytest.raises(ImportError, match="pip install pandas"):
        Experiment.connect(id="e", home=served.home).results().to_dataframe()


def test_a_data_frame_has_all_parameters_and_all_keys_of_metrics(served: ServedManager, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", SimpleNamespace(DataFrame=list))
    model = {"_name": "mlp", "units": 8}
    data = {"default": "NaN", "loss": 0.5, "accuracy": {"top5": 1.0}}
    served.add_experiment(
        trials=[
            {"id": "a", "parameters": {"lr": 0.1, "model": model}, "final_data": data},
            {"id": "b", "final_value": 2.0, "final_data": 2.0},
            {"id": "c", "status": "RUNNING", "ended_at": None},
        ]
    )
    a, b, c = Experiment.connect(id="e", home=served.home).results().to_dataframe()
    assert {name: a[name] for name in a if "." in name} == {
        "parameter.lr": 0.1,
        "parameter.model": "mlp",
        "parameter.model.units": 8,
        "value.loss": 0.5,
        "value.accuracy.top5": 1.0,
    }
    assert math.isnan(a["value"])
    assert (b["value"], c["value"]) == (2.0, None)
    assert not any(name.startswith("value.") for name in (*b, *c))


def test_configurations_leave_out_what_was_not_set() -> None:
    machine = RemoteMachineConfig(host="h", user="u", ssh_key_file=Path("/key"))
    config = ExperimentConfig(
        RemoteConfig(machine_list=[machine]),
        tuner=CustomAlgorithmConfig("mine.Tuner", Path("code"), {"n": None}),
        assessor=AlgorithmConfig("Medianstop"),
        max_trial_number=0,
    )
    assert config.to_mapping() == {
        "training_service": {
            "platform": "remote",
            "machine_list": [{"host": "h", "user": "u", "ssh_key_file": "/key"}],
        },
        "tuner": {"class_name": "mine.Tuner", "code_directory": "code", "class_args": {"n": None}},
        "assessor": {"name": "Medianstop"},
        "max_trial_number": 0,
    }


def remote_config(**machine: str) -> ExperimentConfig:
    config = ExperimentConfig(RemoteConfig(machine_list=[RemoteMachineConfig("gpu-1", **machine)]))
    config.trial_command, config.search_space = "true", {"lr": {"_type": "uniform", "_value": [0, 1]}}
    config.trial_concurrency, config.tuner.name = 1, "Random"
    return config


def test_a_password_from_the_environment_is_handed_over_and_kept_from_trials(
    served: ServedManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GPU_PASSWORD", "swordfish")
    handed_over: dict[str, Any] = {}
    served.before["POST", "/experiments"] = lambda body: handed_over.update(
        json.loads((served.home / "incoming" / body["handover"]).read_text())
    )
    Experiment(remote_config(password_env="GPU_PASSWORD"), home=served.home).start(run_mode=RunMode.Detach)
    assert handed_over["secrets"] == {"training_service.machine_list.0.password": "swordfish"}
    assert "GPU_PASSWORD" not in handed_over["environment"]
    assert "swordfish" not in json.dumps(served.requests("POST"))


def test_a_password_that_is_not_there_starts_nothing(served: ServedManager, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GPU_PASSWORD", raising=False)
    with pytest.raises(ValueError, match="password of gpu-1 is expected in the environment variable GPU_PASSWORD"):
        Experiment(remote_config(password_env="GPU_PASSWORD"), home=served.home).start()
    assert served.asked == []


@pytest.mark.parametrize(
    ("text", "seconds"), [("90", 90), ("90s", 90), ("10m", 600), ("1.5h", 5400), ("2d", 172800), (5, 5), (None, None)]
)
def test_durations_are_read(text: object, seconds: float | None) -> None:
    assert read_duration(text) == seconds  # type: ignore[arg-type]


@pytest.mark.parametrize("text", ["", "x", "-1s", "0", "inf", "1w", "nan"])
def test_durations_that_are_none_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="expected a duration"):
        read_duration(text)


@pytest.mark.parametrize("space", [{}, [], [1, {"a": None}], "text"])
def test_a_search_space_of_any_kind_is_kept(space: object) -> None:
    config = ExperimentConfig("local", search_space=space, tuner=CustomAlgorithmConfig("mine.Tuner"))
    assert config.to_mapping()["search_space"] == space


def test_parameters_of_any_kind_are_read(served: ServedManager) -> None:
    served.add_experiment(trials=[{"id": "a", "parameters": [1, "NaN"]}])
    experiment = Experiment.connect(id="e", home=served.home)
    assert experiment.get_trial_job("a").hyperParameters[0].parameters == [1, "NaN"]
    (trial,) = experiment.results()
    assert trial.parameters[0] == 1
    assert math.isnan(trial.parameters[1])


def test_a_manager_is_started_where_none_runs_and_none_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[tuple[Path, int | None]] = []
    monkeypatch.setattr(client_experiment, "start_manager", lambda home, port: started.append((home, port)))
    with pytest.raises(ManagerUnreachable, match="no manager is running"):
        connect_or_start(tmp_path, port=5)  # this one did not come up
    assert started == [(tmp_path, 5)]
    monkeypatch.setenv("PROCTOR_URL", "http://127.0.0.1:1")
    with pytest.raises(ManagerUnreachable, match="no manager answers"):
        connect_or_start(tmp_path)
    assert len(started) == 1

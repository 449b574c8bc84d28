"""NNI's Python API on the fake manager."""

import json
import math
from pathlib import Path

import pytest
from fakes.rest import FakeRest

from proctor.sdk.client import (
    AlgorithmConfig,
    CustomAlgorithmConfig,
    Experiment,
    ExperimentConfig,
    ObjectiveConfig,
    RemoteConfig,
    RemoteMachineConfig,
    RunMode,
)
from proctor.sdk.client.config import read_duration
from proctor.sdk.client.credentials import take_secrets
from proctor.sdk.client.errors import BadInput, Conflict
from proctor.sdk.client.experiment import ProgressReport


@pytest.fixture
def experiment(rest: FakeRest) -> Experiment:
    made = Experiment("local", "e", home=rest.home)
    made.config.trial_command = "python trial.py"
    made.config.search_space = {"lr": {"_type": "uniform", "_value": [0, 1]}}
    made.config.tuner.name = "TPE"
    made.config.tuner.class_args["optimize_mode"] = "maximize"
    made.config.trial_concurrency = 2
    return made


def test_the_quickstart_of_nni_starts_an_experiment(rest: FakeRest, experiment: Experiment) -> None:
    experiment.start(run_mode=RunMode.Detach)
    [(path, body)] = rest.requests("POST")
    assert path == "/experiments"
    assert body["config"] == {
        "trial_command": "python trial.py",
        "search_space": {"lr": {"_type": "uniform", "_value": [0, 1]}},
        "tuner": {"name": "TPE", "class_args": {"optimize_mode": "maximize"}},
        "trial_concurrency": 2,
        "training_service": {"platform": "local"},
    }
    assert body["directory"] == str(Path.cwd())
    assert experiment.id == "e"


@pytest.mark.parametrize(("status", "outcome"), [("DONE", True), ("ERROR", False), ("STOPPED", False)])
def test_run_waits_for_the_end(rest: FakeRest, experiment: Experiment, status: str, outcome: bool) -> None:
    rest.on_ask["GET", "/experiments/e"] = lambda: rest.set_status("e", status)
    assert experiment.run() is outcome


def test_run_without_waiting_leaves_it_running(rest: FakeRest, experiment: Experiment) -> None:
    assert experiment.run(wait_completion=False) is None
    assert experiment.get_status() == "RUNNING"


def test_ctrl_c_in_run_stops_the_experiment(rest: FakeRest, experiment: Experiment, monkeypatch) -> None:
    def interrupt(*_: object) -> bool:
        raise KeyboardInterrupt

    monkeypatch.setattr(Experiment, "wait", interrupt)
    with pytest.raises(KeyboardInterrupt):
        experiment.run()
    assert rest.experiments["e"]["status"] == "STOPPED"


def test_a_refused_configuration_leaves_no_file_behind(rest: FakeRest, experiment: Experiment) -> None:
    experiment.config.trial_command = "refuse"
    with pytest.raises(BadInput) as caught:
        experiment.start()
    assert caught.value.problems == ("3: trialCommand: expected something better",)
    assert not list((rest.home / "incoming").iterdir())


def test_a_yaml_file_starts_with_paths_from_its_own_folder(rest: FakeRest, tmp_path: Path) -> None:
    (tmp_path / "e.yml").write_text("trialCommand: python t.py\nseed: 1e2\n")
    Experiment(tmp_path / "e.yml", home=rest.home).start(run_mode=RunMode.Detach)
    [(_, body)] = rest.requests("POST")
    assert body["config"] == {"trialCommand": "python t.py", "seed": 100.0}
    assert body["directory"] == str(tmp_path)


def test_questions_have_nnis_answers(rest: FakeRest) -> None:
    rest.add_experiment("e", best={"trial_id": "b", "sequence_id": 1, "value": math.inf, "parameters": {}})
    rest.add_trial("e", "a", status="FAILED", final_value=None)
    rest.add_trial("e", "b", final_value=math.nan)
    rest.add_trial("e", "c", final_value=None)
    rest.add_metric("b", "intermediate", 0.5)
    rest.add_metric("b", "final", math.nan)
    rest.add_metric("b", "lost", 3)
    experiment = Experiment.connect(id="e", home=rest.home)
    assert experiment.get_job_statistics() == [
        {"trialJobStatus": "FAILED", "trialJobNumber": 1},
        {"trialJobStatus": "SUCCEEDED", "trialJobNumber": 2},
    ]
    job = experiment.get_trial_job("b")
    assert (job.status, job.sequenceId, job.hyperParameters[0].parameters["lr"]) == ("SUCCEEDED", 1, 0.25)
    assert math.isnan(job.finalMetricData[0].data)
    assert job.startTime == 1767323045000
    assert job.stderrPath == f"{job.logPath}/jobs/1/stderr"
    assert job.hyperParameters[0].parameter_index == 0
    assert [trial.trialJobId for trial in experiment.list_trial_jobs()] == ["a", "b", "c"]
    metrics = experiment.get_job_metrics()
    assert metrics["a"] == []
    assert [(item.type, item.sequence) for item in metrics["b"]] == [("PERIODICAL", 0), ("FINAL", 0)]
    [result] = experiment.export_data()
    assert result.trialJobId == "b"
    best = experiment.best()
    assert best is not None
    assert best["value"] == math.inf


def test_wishes_reach_the_manager(rest: FakeRest) -> None:
    rest.add_experiment("e")
    rest.add_trial("e", "t")
    experiment = Experiment.connect(home=rest.home)
    experiment.update_trial_concurrency(7)
    experiment.update_max_experiment_duration("2h")
    experiment.update_max_trial_number(None)
    experiment.update_max_gpu_hours(40)
    experiment.update_priority(5)
    experiment.update_search_space({"x": {}})
    experiment.kill_trial_job("t")
    experiment.stop()
    assert [body for _, body in rest.requests("PATCH")] == [
        {"trial_concurrency": 7},
        {"max_experiment_duration_seconds": 7200.0},
        {"max_trial_number": None},
        {"max_gpu_hours": 40},
        {"priority": 5},
        {"search_space": {"x": {}}},
    ]
    assert [path for path, _ in rest.requests("POST")] == ["/trials/t/kill", "/experiments/e/stop"]


def test_stop_leaves_an_ended_experiment_alone(rest: FakeRest) -> None:
    rest.add_experiment("e", status="DONE")
    Experiment(None, "e", home=rest.home).stop()
    assert not rest.requests("POST")


def test_resume_waits_for_the_end_of_a_stop(rest: FakeRest, capsys: pytest.CaptureFixture[str]) -> None:
    rest.add_experiment("e", status="STOPPING", reason="waits for trial 3 to save")
    rest.on_ask["GET", "/experiments/e"] = lambda: rest.set_status("e", "STOPPED", reason="")
    experiment = Experiment(None, "e", home=rest.home)
    assert experiment.resume(wait_completion=False) is None
    assert rest.experiments["e"]["status"] == "RUNNING"
    waiting, resumed = capsys.readouterr().err.splitlines()
    assert waiting == "Experiment e is still being stopped (waits for trial 3 to save); waiting"
    assert resumed == f"Experiment e: {rest.url}/experiments/e?token=a-token-for-tests"


@pytest.mark.parametrize("status", ["STOPPED", "STOPPING"])
def test_a_stopped_experiment_is_viewed_until_it_is_stopped_again(rest: FakeRest, status: str) -> None:
    rest.add_experiment("e", status=status)
    if status == "STOPPING":
        rest.on_ask["GET", "/experiments/e"] = lambda: rest.set_status("e", "STOPPED")
    experiment = Experiment(None, "e", home=rest.home)
    assert experiment.view(non_blocking=True) is experiment
    assert experiment.get_status() == "VIEWED"
    experiment.stop()
    assert experiment.get_status() == "STOPPED"


def test_viewing_a_running_experiment_leaves_it_running(rest: FakeRest, capsys: pytest.CaptureFixture[str]) -> None:
    rest.add_experiment("e")
    experiment = Experiment(None, "e", home=rest.home).view()
    assert experiment.get_status() == "RUNNING"
    assert capsys.readouterr().out == f"Experiment e: {experiment.url}\n"


def test_run_prints_the_page_and_its_progress(
    rest: FakeRest, experiment: Experiment, capsys: pytest.CaptureFixture[str]
) -> None:
    def finish() -> None:
        rest.add_trial("e", "t", final_value=0.5)
        rest.experiments["e"]["best"] = {"trial_id": "t", "sequence_id": 0, "value": 0.5, "parameters": {}}
        rest.set_status("e", "DONE", reason="maxTrialNumber 1 is reached")

    rest.on_ask["GET", "/experiments/e"] = finish
    assert experiment.run() is True
    printed = capsys.readouterr()
    assert printed.err.splitlines() == [
        f"Experiment e: {rest.url}/experiments/e?token=a-token-for-tests",
        "Experiment e is RUNNING: 0 of 10 trials ended",
        "Experiment e is DONE: 1 of 10 trials ended (1 succeeded); best 0.5 (trial 0); maxTrialNumber 1 is reached",
    ]
    assert printed.out == ""


def test_progress_that_changes_often_is_printed_now_and_then(
    rest: FakeRest, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    times = iter([0.0, 9.0, 11.0, 12.0])
    monkeypatch.setattr("proctor.sdk.client.experiment.time.monotonic", lambda: next(times))
    show = ProgressReport()
    resource = rest.add_experiment("e", max_trial_number=None)
    for counts in ({"RUNNING": 1}, {"RUNNING": 2}, {"RUNNING": 3}, {"RUNNING": 3}):
        show({**resource, "trial_counts": counts})
    assert capsys.readouterr().err.splitlines() == [
        "Experiment e is RUNNING: 0 trials ended (1 running)",
        "Experiment e is RUNNING: 0 trials ended (3 running)",
    ]


def test_connect_names_the_running_experiments(rest: FakeRest) -> None:
    rest.add_experiment("a")
    rest.add_experiment("b")
    with pytest.raises(Conflict, match="2 are running: b, a"):
        Experiment.connect(home=rest.home)


def test_waiting_too_long_raises(rest: FakeRest) -> None:
    rest.add_experiment("e")
    with pytest.raises(TimeoutError, match="still RUNNING"):
        Experiment(None, "e", home=rest.home).wait(0.001)


def test_what_was_not_started_says_so(rest: FakeRest) -> None:
    with pytest.raises(ValueError, match="has not been started"):
        Experiment("local", home=rest.home).get_status()


def test_results_are_trials_with_numbers(rest: FakeRest) -> None:
    rest.add_experiment("e", best={"trial_id": "b", "sequence_id": 1, "value": 1.0, "parameters": {}})
    rest.add_trial("e", "a", status="FAILED", final_value=None, reason="exit code 1")
    usage = {"gpu_hours": 0.5, "cpu_hours": 1.0, "unmeasured_jobs": 1}
    rest.add_trial("e", "b", usage=usage)
    rest.add_metric("b", "intermediate", 0.1, job=1)
    rest.add_metric("b", "intermediate", 0.15, job=1)
    rest.add_metric("b", "intermediate", 0.2, job=2, step=10, sequence=1)  # it continues after the first point
    results = Experiment.connect(id="e", home=rest.home).results()
    assert len(results) == 2
    assert [trial.trial_id for trial in results] == ["a", "b"]
    assert (results.gpu_hours, results.cpu_hours) == (6.5, 13.25)
    assert [(trial.gpu_hours, trial.cpu_hours) for trial in results] == [(6.5, 13.25), (0.5, None)]
    best = results.best()
    assert best is results[1]
    assert [trial.reason for trial in results.errors] == ["exit code 1"]
    assert results.curves() == {"a": [], "b": [(0, 0.1), (10, 0.2)]}
    assert math.isnan(results.best_so_far()[0][1])
    assert repr(results) == "<Results of experiment e: 2 trials, best: trial 1 with 1 (maximize)>"


def test_an_experiment_says_which_values_are_better(rest: FakeRest) -> None:
    rest.add_experiment("e", objective={"metric": "default", "direction": "minimize"})
    experiment = Experiment.connect(id="e", home=rest.home)
    assert (experiment.direction, experiment.results().direction) == ("minimize", "minimize")


@pytest.mark.parametrize("objective", [ObjectiveConfig("minimize"), {"direction": "minimize"}])
def test_the_objective_is_sent_where_it_is_set(
    rest: FakeRest, experiment: Experiment, objective: ObjectiveConfig | dict[str, str]
) -> None:
    experiment.config.objective = objective
    experiment.start(run_mode=RunMode.Detach)
    [(_, body)] = rest.requests("POST")
    assert body["config"]["objective"] == {"direction": "minimize"}


def test_a_data_frame_needs_pandas_and_says_so(rest: FakeRest, monkeypatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "pandas", None)
    rest.add_experiment("e")
    with pytest.raises(ImportError, match="pip install pandas"):
        Experiment.connect(id="e", home=rest.home).results().to_dataframe()


def test_a_data_frame_has_all_parameters_and_all_keys_of_metrics(rest: FakeRest, monkeypatch) -> None:
    import sys
    from types import SimpleNamespace

    monkeypatch.setitem(sys.modules, "pandas", SimpleNamespace(DataFrame=list))
    rest.add_experiment("e")
    model = {"_name": "mlp", "units": 8}
    data = {"default": "NaN", "loss": 0.5, "accuracy": {"top5": 1.0}}
    rest.add_trial("e", "a", parameters={"lr": 0.1, "model": model}, final_value=None, final_data=data)
    rest.add_trial("e", "b", final_value=2.0, final_data=2.0)
    rest.add_trial("e", "c", status="RUNNING", final_value=None, ended_at=None)
    a, b, c = Experiment.connect(id="e", home=rest.home).results().to_dataframe()
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


def test_an_attribute_that_is_misspelt_is_an_error() -> None:
    with pytest.raises(AttributeError):
        ExperimentConfig("local").trial_comand = "x"  # type: ignore[attr-defined]


def remote_config(**machine: str) -> ExperimentConfig:
    config = ExperimentConfig(RemoteConfig(machine_list=[RemoteMachineConfig("gpu-1", **machine)]))
    config.trial_command, config.search_space = "true", {}
    return config


def test_a_password_from_the_environment_is_handed_over_and_kept_from_trials(
    rest: FakeRest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GPU_PASSWORD", "swordfish")
    Experiment(remote_config(password_env="GPU_PASSWORD"), home=rest.home).start(run_mode=RunMode.Detach)
    assert rest.handed_over["secrets"] == {"training_service.machine_list.0.password": "swordfish"}
    assert "GPU_PASSWORD" not in rest.handed_over["environment"]
    assert "swordfish" not in json.dumps(rest.requests("POST"))


def test_a_password_that_is_not_there_starts_nothing(rest: FakeRest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GPU_PASSWORD", raising=False)
    with pytest.raises(ValueError, match="password of gpu-1 is expected in the environment variable GPU_PASSWORD"):
        Experiment(remote_config(password_env="GPU_PASSWORD"), home=rest.home).start()
    assert rest.asked == []


def test_secrets_are_taken_out_by_their_canonical_path() -> None:
    config = {
        "trainingService": {"platform": "remote", "machineList": [{"host": "h"}, {"sshPassphrase": "s1"}]},
        "training_service": {"machine_list": [{"password": "s2"}]},
        "tuner": {"classArgs": {"password": "not a secret of ours"}},
    }
    kept, secrets = take_secrets(config)
    assert secrets == {
        "training_service.machine_list.1.ssh_passphrase": "s1",
        "training_service.machine_list.0.password": "s2",
    }
    assert "s1" not in json.dumps(kept)
    assert "s2" not in json.dumps(kept)
    assert kept["tuner"] == config["tuner"]


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


def test_parameters_of_any_kind_are_read(rest: FakeRest) -> None:
    rest.add_experiment("e")
    rest.add_trial("e", "a", parameters=[1, "NaN"])
    experiment = Experiment.connect(id="e", home=rest.home)
    assert experiment.get_trial_job("a").hyperParameters[0].parameters == [1, "NaN"]
    (trial,) = experiment.results()
    assert trial.parameters[0] == 1
    assert math.isnan(trial.parameters[1])

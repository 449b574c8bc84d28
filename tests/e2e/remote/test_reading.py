"""Logs and files of trials on other machines: while they run, when they have ended, when their machine is gone."""

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from fakes.machines.scene import TRIAL, Scene

pytestmark = pytest.mark.slow

WRITING = TRIAL.replace(
    'print("trial begins", flush=True)',
    'print("trial begins", flush=True)\n'
    'print("a word of warning", file=sys.stderr, flush=True)\n'
    'os.makedirs("made", exist_ok=True)\n'
    'output = os.environ["PROCTOR_OUTPUT_DIR"]\n'
    'os.makedirs(os.path.join(output, "deep"), exist_ok=True)\n'
    'open(os.path.join(output, "deep", "model.bin"), "wb").write(bytes(range(256)) * 40000)',
).replace('write(what="end", step=step)', 'print("trial ends", flush=True)\nwrite(what="end", step=step)')
MODEL = bytes(range(256)) * 40000


def find_model(scene: Scene, trial: str) -> str:
    """The path under which the trial's model is shown, once it has its full size."""

    def read_state() -> str | None:
        files = list(scene.manager.client.files(trial))
        return next(
            (str(file["path"]) for file in files if "model" in file["path"] and file["size_bytes"] == len(MODEL)), None
        )

    return scene.manager.poll_for(read_state, "the model")


def test_logs_and_files_of_a_running_trial_are_read_where_it_runs(stage: Callable[..., Scene], tmp_path: Path) -> None:
    scene = stage(1)
    experiment = scene.create(script=WRITING, maxTrialNumber=1)
    [trial] = scene.until_running(experiment, 1)
    path = find_model(scene, trial["id"])
    scene.manager.command_line("trial", "download", trial["id"], "--path", path, "-d", tmp_path / "saved")
    assert (tmp_path / "saved" / path).read_bytes() == MODEL
    assert "model.bin" in scene.manager.command_line("trial", "files", trial["id"])
    assert scene.manager.command_line("trial", "log", trial["id"]).startswith("trial begins")
    assert "a word of warning" in scene.manager.command_line("trial", "log", trial["id"], "--stderr")
    follower = scene.manager.spawn("trial", "log", "-f", trial["id"], stdout=subprocess.PIPE)
    try:
        assert follower.stdout is not None
        assert [follower.stdout.readline() for _ in range(2)] == ["trial begins\n", "a word of warning\n"]
        scene.release_trials()
        output, _ = follower.communicate(timeout=90)
        assert output == "trial ends\n"
        assert follower.returncode == 0
    finally:
        follower.kill()
        follower.wait()
    scene.manager.until_status(experiment, "DONE")
    scene.leave()


def test_what_was_collected_is_read_when_the_machine_is_gone(stage: Callable[..., Scene], tmp_path: Path) -> None:
    scene = stage(1)
    [machine] = scene.machines
    experiment = scene.create(script=WRITING, seconds=0.1, maxTrialNumber=1)
    scene.manager.until_status(experiment, "DONE")
    [trial] = scene.manager.trials(experiment)
    kept = Path(trial["directory"])
    scene.manager.poll_for(
        lambda: [path for path in kept.rglob("model.bin") if path.stat().st_size == len(MODEL)], "the collected files"
    )
    machine.power_off()
    scene.until_node(machine, "FAILED", "LOST", "SILENT", "CONNECTING")
    path = find_model(scene, trial["id"])
    scene.manager.command_line("trial", "download", trial["id"], "--path", path, "-d", tmp_path / "saved")
    assert (tmp_path / "saved" / path).read_bytes() == MODEL
    assert scene.manager.command_line("trial", "log", trial["id"]) == ("trial begins\ntrial ends\na word of warning\n")
    machine.power_on()
    scene.leave()


def test_the_log_of_a_running_trial_whose_machine_is_away_says_so(stage: Callable[..., Scene]) -> None:
    scene = stage(1)
    [machine] = scene.machines
    experiment = scene.create(maxTrialNumber=1)
    [trial] = scene.until_running(experiment, 1)
    machine.cut()
    node = scene.until_node(machine, "SILENT", "FAILED", "CONNECTING", "LOST")
    printed = scene.manager.attempt("trial", "log", trial["id"])
    assert printed.returncode != 0
    assert node["id"] in printed.stderr
    machine.heal()
    scene.until_node(machine, "CONNECTED")
    assert scene.manager.command_line("trial", "log", trial["id"]) == "trial begins\n"
    scene.release_trials()
    scene.manager.until_status(experiment, "DONE")
    scene.leave()


def test_code_that_lies_on_the_machine_is_run_in_place(stage: Callable[..., Scene]) -> None:
    scene = stage(1)
    [machine] = scene.machines
    code = machine.home() / "project"
    code.mkdir()
    (code / "trial.py").write_text(TRIAL)
    service = {"code": {"pathOnNode": "/run/home/trial/project"}}
    experiment = scene.create(
        script="raise SystemExit('not this one')", seconds=0.1, maxTrialNumber=1, trainingService=service
    )
    assert scene.manager.until_status(experiment, "DONE")["trial_counts"] == {"SUCCEEDED": 1}
    scene.remove(experiment)
    scene.manager.poll_for(lambda: not (machine.home() / ".proctor").exists(), "the machine to be left")
    assert (code / "trial.py").read_text() == TRIAL

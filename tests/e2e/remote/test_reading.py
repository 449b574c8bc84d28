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


def expect_model(scene: Scene, trial: str, folder: Path) -> None:
    """The trial's model is shown and downloaded, once it has its full size."""

    def find() -> str | None:
        files = list(scene.manager.client.files(trial))
        return next(
            (str(file["path"]) for file in files if "model" in file["path"] and file["size_bytes"] == len(MODEL)), None
        )

    path = scene.manager.poll_for(find, "the model")
    assert "model.bin" in scene.manager.command_line("trial", "files", trial)
    scene.manager.command_line("trial", "download", trial, "--path", path, "-d", folder)
    assert (folder / path).read_bytes() == MODEL


def test_logs_and_files_are_read_where_a_trial_runs_and_here_when_its_machine_is_gone(
    stage: Callable[..., Scene], tmp_path: Path
) -> None:
    scene = stage(1)
    [machine] = scene.machines
    experiment = scene.create(script=WRITING, maxTrialNumber=1)
    [trial] = scene.until_running(experiment, 1)
    expect_model(scene, trial["id"], tmp_path / "running")
    assert scene.manager.command_line("trial", "log", trial["id"]).startswith("trial begins")
    assert "a word of warning" in scene.manager.command_line("trial", "log", trial["id"], "--stderr")

    machine.cut()
    node = scene.until_node(machine, "SILENT", "FAILED", "CONNECTING", "LOST")
    printed = scene.manager.attempt("trial", "log", trial["id"])
    assert printed.returncode != 0
    assert node["id"] in printed.stderr
    machine.heal()
    scene.reconnect(machine)

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
    kept = Path(trial["directory"])
    scene.manager.poll_for(
        lambda: [path for path in kept.rglob("model.bin") if path.stat().st_size == len(MODEL)], "the collected files"
    )
    machine.power_off()
    scene.until_node(machine, "FAILED", "LOST", "SILENT", "CONNECTING")
    expect_model(scene, trial["id"], tmp_path / "gone")
    assert scene.manager.command_line("trial", "log", trial["id"]) == "trial begins\ntrial ends\na word of warning\n"
    machine.power_on()
    scene.leave()


@pytest.mark.thorough
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
    scene.until_left()

"""The example of platform remote, and the tutorial's second machine, as a user runs them."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from fakes.documentation import blocks_of
from fakes.machines.scene import Scene
from ruamel.yaml import YAML

pytestmark = pytest.mark.slow

EXAMPLE = Path(__file__).resolve().parents[3] / "examples" / "remote"


def test_the_example_finds_the_bottom_of_its_bowl_on_two_machines(stage: Callable[..., Scene], tmp_path: Path) -> None:
    scene = stage(2)
    folder = tmp_path / "example"
    shutil.copytree(EXAMPLE, folder)
    config, yaml = folder / "config.yml", YAML()
    document = yaml.load(config)
    assert [entry["host"] for entry in document["trainingService"]["machineList"]] == ["gpu-1", "gpu-2"]
    document["trainingService"]["machineList"] = scene.group.machine_list()
    yaml.dump(document, config)
    experiment, _, outcome = scene.manager.command_line("create", "--config", config, "--foreground").partition("\n")
    trials = scene.manager.trials(experiment)
    assert [trial["status"] for trial in trials] == ["SUCCEEDED"] * 12
    for trial in trials:
        x, y = trial["parameters"]["x"], trial["parameters"]["y"]
        assert trial["final_value"] == pytest.approx((x * x + y * y) * 0.8**20)
    assert f"({min(trials, key=lambda trial: trial['final_value'])['id']})" in outcome
    scene.manager.command_line("stop", experiment)
    scene.manager.until_status(experiment, "STOPPED")
    scene.leave()


@pytest.mark.thorough
def test_the_tutorial_runs_on_a_second_machine(stage: Callable[..., Scene], tmp_path: Path) -> None:
    scene = stage(2)
    folder = tmp_path / "tutorial"
    folder.mkdir()
    blocks = blocks_of("docs/tutorial.md")
    for block in blocks:
        if block.mark == "file":
            (folder / block.detail).write_text(block.text)
    yaml = YAML()
    document = yaml.load(folder / "experiment.yml")
    service = yaml.load(next(block.text for block in blocks if "machineList" in block.text))
    service["trainingService"]["machineList"] = scene.group.machine_list()
    config = folder / "two-machines.yml"
    yaml.dump({**document, **service, "maxTrialNumber": 6}, config)
    assert scene.manager.command_line("doctor", "--config", config)
    experiment = scene.manager.command_line("create", "--config", config, "--foreground").partition("\n")[0]
    trials = scene.manager.trials(experiment)
    assert {trial["status"] for trial in trials} <= {"SUCCEEDED", "EARLY_STOPPED"}
    assert len(trials) == 6
    assert len({trial["node_id"] for trial in trials}) == 2
    scene.leave()

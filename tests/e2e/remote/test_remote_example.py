"""The example of platform remote, as a user runs it."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
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
    scene.expect_nothing_left()

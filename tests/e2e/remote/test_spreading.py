"""Which machine gets how many trials when none of them is connected yet."""

import json
import time
from collections import Counter
from collections.abc import Callable
from datetime import datetime

import pytest
from fakes.machines.scene import Scene

pytestmark = pytest.mark.slow

ARRIVAL_SECONDS = 15.0  # for so long trials wait for machines that are being connected


@pytest.mark.thorough
def test_trials_of_a_new_experiment_do_not_all_go_to_the_machine_that_connects_first(
    stage: Callable[..., Scene],
) -> None:
    scene = stage(3)
    began = time.time()
    experiment = scene.create(trialConcurrency=6, maxTrialNumber=6)
    trials = scene.until_running(experiment, 6)
    used = Counter(scene.machine_of(trial).name for trial in trials)
    for machine in scene.machines:
        scene.until_node(machine, "CONNECTED")
    scene.release_trials()
    assert scene.manager.until_status(experiment, "DONE")["trial_counts"] == {"SUCCEEDED": 6}
    connected = last_connected(scene)
    scene.leave()
    if connected - began >= ARRIVAL_SECONDS:
        pytest.skip(f"this computer needs more than {ARRIVAL_SECONDS:g} s to connect three machines")
    assert sum(used.values()) == 6
    assert max(used.values()) <= 3, used


def last_connected(scene: Scene) -> float:
    """When the last of three machines was there for the first time, by the manager's log."""
    lines = [json.loads(line) for line in (scene.manager.home / "log/manager.log").read_text().splitlines()]
    nodes = {scene.node(machine)["id"] for machine in scene.machines}
    moments: dict[str, float] = {}
    for line in lines:
        if line.get("action") == "node.connect" and line["node_id"] in nodes:
            moments.setdefault(line["node_id"], datetime.fromisoformat(line["time"]).timestamp())
    assert len(moments) == 3
    return max(moments.values())

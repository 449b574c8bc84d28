"""One bad machine aborts nothing: it is shown with its reason, and used once it is mended."""

from collections.abc import Callable

import pytest
from fakes.machines.scene import Scene

pytestmark = [pytest.mark.slow, pytest.mark.thorough]


def test_machines_that_cannot_be_used_are_named_by_create_and_used_once_mended(stage: Callable[..., Scene]) -> None:
    scene = stage(3, disk_mb=90)
    bare, full, good = scene.machines
    bare.hide_python()
    full.fill_disk()
    none = scene.write_config(machines=[bare.entry(), full.entry(pythonPath="/opt/gone/bin")], maxTrialNumber=1)
    refused = scene.manager.attempt("create", "--config", none)
    assert refused.returncode == 100, refused.stderr
    assert "No trial can run until one of them is usable" in refused.stderr
    assert "pythonPath /opt/gone/bin has no Python that can be executed" in refused.stderr
    [unusable] = scene.manager.client.experiments()
    scene.remove(unusable["id"])

    done = scene.manager.attempt("create", "--config", scene.write_config(trialConcurrency=3, maxTrialNumber=3))
    assert done.returncode == 0, done.stderr
    experiment = done.stdout.strip()
    assert "2 of 3 machines cannot be used now:" in done.stderr
    scene.until_node(bare, "FAILED", reason="Python")
    scene.until_node(full, "FAILED", reason="full")
    running = scene.until_running(experiment, 3)
    assert {scene.machine_of(trial).name for trial in running} == {good.name}

    def names_them() -> bool:
        reason = scene.manager.client.experiment(experiment)["reason"]
        return "2 of its 3 machines cannot be used now (node " in reason and "disk is full" in reason

    scene.manager.poll_for(names_them, "the reason to name both machines")  # they are tried again meanwhile
    bare.show_python()
    full.empty_disk()
    for machine in (bare, full):
        scene.manager.command_line("nodes", "check", scene.node(machine)["id"])
        assert scene.node(machine)["status"] == "CONNECTED"
    scene.release_trials()
    assert scene.manager.until_status(experiment, "DONE")["trial_counts"] == {"SUCCEEDED": 3}
    scene.leave()


@pytest.mark.thorough
def test_a_disk_that_fills_up_while_trials_run_loses_no_trial(stage: Callable[..., Scene]) -> None:
    scene = stage(2, disk_mb=90)
    full, _ = scene.machines
    experiment, _ = scene.spread(2, maxTrialNumber=4)
    full.fill_disk()
    scene.release_trials()
    free = scene.manager.poll_for(
        lambda: [row for row in scene.manager.trials(experiment) if row["status"] == "SUCCEEDED"], "a trial that ends"
    )
    assert free
    full.empty_disk()
    assert scene.manager.until_status(experiment, "DONE")["trial_counts"] == {"SUCCEEDED": 4}
    scene.expect_all_reports(experiment)
    scene.leave()

"""Experiments of a real manager in one namespace of a real control plane: GPUs, kills of the manager, what is left."""

import json
import socket
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fakes.armed_places import ArmedPlaces
from fakes.kubernetes.cluster import Cluster
from fakes.real_manager import RealManager, real_manager

from proctor.training_services.files.collection import CollectionNote

TRIAL = """
import sys, time, proctor
x = proctor.get_next_parameter()["x"]
for step in range(3):
    proctor.report_intermediate_result(x + step)
    time.sleep(float(sys.argv[1]))
proctor.report_final_result(x)
"""
SAVING = """
import os, sys, time, proctor
start = proctor.get_checkpoint()
begun = int(open(start + "/step").read()) if start else 0
for step in range(begun + 1, 7):
    os.makedirs("state", exist_ok=True)
    with open("state/step", "w") as file:
        file.write(str(step))
    proctor.report(step, checkpoint="state")
    time.sleep(0.5)
proctor.report_final_result(begun)
"""


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


@pytest.fixture
def manager(cluster: Cluster, tmp_path: Path) -> Iterator[RealManager]:
    """A manager that pods reach."""
    with real_manager(tmp_path, environment=reachable(cluster)) as made:
        yield made


def reachable(cluster: Cluster) -> dict[str, str]:
    """The environment of a manager that pods reach."""
    port = free_port()
    listen = {"PROCTOR_KEEPER_LISTEN": f"127.0.0.1:{port}", "PROCTOR_KEEPER_URL": f"https://127.0.0.1:{port}"}
    return {**listen, "KUBECONFIG": str(cluster.kubeconfig)}


def service(**keys: Any) -> dict[str, Any]:
    return {"platform": "kubernetes", "image": "example/trial:1", "terminationGracePeriod": 3, **keys}


def objects(cluster: Cluster) -> list[str]:
    """What the cluster has of ours."""
    plurals = ("jobs", "pods", "secrets", "configmaps")
    names = [f"{plural}/{each['metadata']['name']}" for plural in plurals for each in cluster.list(plural)]
    return [name for name in names if "/proctor-" in name]


@pytest.mark.thorough
def test_sixty_trials_of_three_experiments_on_twelve_gpus_outlive_two_kills_of_the_manager(
    cluster: Cluster, manager: RealManager
) -> None:
    for number in range(3):
        cluster.add_node(f"gpu-{number}", gpus=4)
    experiments = [
        manager.create(
            TRIAL, 0.1, trainingService=service(), trialGpuNumber=gpus, trialConcurrency=6, maxTrialNumber=20
        )
        for gpus in (1, 2, 4)
    ]
    for finished in (8, 30):
        manager.poll_for(lambda: count(manager, experiments)["SUCCEEDED"] >= finished, f"{finished} trials")  # noqa: B023
        manager.kill()
        time.sleep(0.5)
        manager.start()
    for experiment_id in experiments:
        manager.until_status(experiment_id, "DONE")
    assert count(manager, experiments) == {"SUCCEEDED": 60}
    for experiment_id in experiments:
        for trial in manager.trials(experiment_id):
            values = [point["value"] for point in manager.client.trial_curve(trial["id"])]
            assert len(values) == 3, trial
            assert len(list(manager.client.jobs(trial["id"]))) == 1, "no kill of the manager costs an attempt"
    for experiment_id in experiments:
        manager.client.stop_experiment(experiment_id)
    manager.poll_for(lambda: not objects(cluster), "an empty namespace")


def count(manager: RealManager, experiments: list[str]) -> Counter[str]:
    return Counter(trial["status"] for each in experiments for trial in manager.trials(each))


def test_a_trial_whose_pod_is_evicted_continues_from_its_checkpoint(cluster: Cluster, manager: RealManager) -> None:
    cluster.add_node("node")
    experiment_id = manager.create(SAVING, trainingService=service(), maxTrialNumber=1)
    manager.until(lambda: any(each["intermediate_count"] >= 2 for each in manager.trials(experiment_id)), "two reports")
    (job,) = manager.home.glob(f"experiments/{experiment_id}/trials/*/jobs/1")
    manager.poll_for(lambda: CollectionNote.read(job).whole, "a checkpoint on the manager's machine")
    (pod,) = cluster.list("pods")
    cluster.evict(pod["metadata"]["name"])
    manager.until_status(experiment_id, "DONE")
    (trial,) = manager.trials(experiment_id)
    assert trial["status"] == "SUCCEEDED"
    assert trial["final_value"] >= 1, "it began where the first one had saved"
    first, *_ = manager.client.jobs(trial["id"])
    assert first["end_reason"] == "PREEMPTED"


@pytest.mark.thorough
@pytest.mark.parametrize("side", ["before", "after"])
def test_a_manager_that_dies_between_the_deletion_of_jobs_and_of_their_anchor_leaves_nothing_in_the_end(
    cluster: Cluster, tmp_path: Path, side: str
) -> None:
    cluster.add_node("node")
    places = ArmedPlaces(tmp_path / "armed")
    places.arm(f"manager.anchor.delete.{side}")
    with real_manager(tmp_path, environment={**reachable(cluster), **places.environment}) as manager:
        experiment_id = manager.create(TRIAL, 60, trainingService=service(), trialConcurrency=2, maxTrialNumber=2)
        manager.until(lambda: count(manager, [experiment_id])["RUNNING"] == 2, "two trials")
        manager.client.stop_experiment(experiment_id)
        manager.until_killed()
        manager.poll_for(lambda: not cluster.list("jobs"), "the end of the Jobs")
        assert side == "after" or objects(cluster), "the anchor is still to be deleted"
        manager.start()
        manager.until_status(experiment_id, "STOPPED")
        manager.poll_for(lambda: not objects(cluster), "an empty namespace")


@pytest.mark.thorough
def test_doctor_and_platform_clean_look_at_the_cluster_of_a_configuration(
    cluster: Cluster, manager: RealManager
) -> None:
    node = cluster.add_node("node")
    (manager.code / "trial.py").write_text(TRIAL)
    config = manager.code / "experiment.yml"
    config.write_text(
        json.dumps(  # JSON is YAML
            {
                "searchSpace": {"x": {"_type": "uniform", "_value": [0, 1]}},
                "trialCommand": f"{sys.executable} -S trial.py 60",
                "trialConcurrency": 1,
                "maxTrialNumber": 1,
                "tuner": {"name": "Random"},
                "trainingService": service(),
            }
        )
    )
    rows = json.loads(manager.command_line("doctor", "--config", config, "-o", "json"))
    found = {row["name"]: row for row in rows if row["machine"]}
    assert {name: row["verdict"] for name, row in found.items()} == dict.fromkeys(
        ("cluster", "rights", "manager", "objects", "pod"), "ok"
    )
    assert found["pod"]["found"].startswith(f"a pod on node {node.name} has connected after ")
    manager.poll_for(lambda: not objects(cluster), "an empty namespace")

    experiment_id = manager.command_line("create", "--config", config).strip()
    manager.until(lambda: count(manager, [experiment_id])["RUNNING"] == 1, "a trial")
    leave_anchor(cluster, "gone")
    refused = manager.attempt("platform", "clean", config, "-o", "json")
    assert refused.returncode == 1, refused.stderr
    assert [(row["verdict"], row["found"]) for row in json.loads(refused.stdout)] == [
        ("fail", f"experiment {experiment_id} uses it"),
        ("ok", "removed what experiments gone had there"),
    ]
    assert count(manager, [experiment_id])["RUNNING"] == 1
    manager.client.stop_experiment(experiment_id)
    manager.until_status(experiment_id, "STOPPED")
    manager.poll_for(lambda: not objects(cluster), "an empty namespace")
    assert "nothing was left there" in manager.command_line("platform", "clean", config)


def leave_anchor(cluster: Cluster, experiment_id: str) -> None:
    """As another experiment of the same manager whose objects were not removed."""
    (anchor,) = (
        each
        for each in cluster.list("configmaps", labelSelector="app.kubernetes.io/component=experiment")
        if "ownerReferences" not in each["metadata"]
    )
    metadata = {"name": "proctor-left", "labels": anchor["metadata"]["labels"]}
    metadata["annotations"] = {"proctor/experiment-id": experiment_id}
    cluster.create(cluster.path("configmaps"), {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata})

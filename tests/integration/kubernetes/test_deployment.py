"""A manager as deploy/kubernetes describes it, in a real cluster: its objects are taken, and its rights are enough."""

import json
import os
import secrets
import socket
import sys
from pathlib import Path

import pytest
from fakes.documentation import ROOT
from fakes.kubernetes.api import Object
from fakes.kubernetes.cluster import OWNER_LABEL, Cluster
from ruamel.yaml import YAML

from proctor.sdk.client import Client
from proctor.sdk.client.errors import ClientError

FOLDER = ROOT / "deploy" / "kubernetes"
HOME = "/var/lib/proctor"
TRIAL = """
import proctor
proctor.report_final_result(proctor.get_next_parameter()["x"])
"""
TOKENS = {"token": secrets.token_hex(16), "readonly-token": secrets.token_hex(16)}
CONFIG = {
    "searchSpace": {"x": {"_type": "uniform", "_value": [0, 1]}},
    "trialCommand": "python3 trial.py",
    "trialCodeDirectory": ".",
    "trialConcurrency": 2,
    "maxTrialNumber": 2,
    "tuner": {"name": "Random"},
    "trainingService": {"platform": "kubernetes", "image": "example/trial:1"},
}
POD = "manager"


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


def write_overlay(folder: Path, namespace: str) -> None:
    """The base and the Ingress in a namespace. kustomize takes relative paths only."""
    deploy = os.path.relpath(FOLDER, folder.resolve())
    overlay = {
        "namespace": namespace,
        "resources": [f"{deploy}/base"],
        "components": [f"{deploy}/components/ingress"],
    }
    with (folder / "kustomization.yaml").open("w") as file:
        YAML().dump(overlay, file)


def add_volume(cluster: Cluster) -> Path:
    """What the claim of the home is bound to, as a provisioner makes it; the folder that it stands for."""
    folder = cluster.folder / "home"
    folder.mkdir()
    spec = {
        "capacity": {"storage": "20Gi"},
        "accessModes": ["ReadWriteOnce"],
        "hostPath": {"path": str(folder)},
        "claimRef": {"namespace": cluster.namespace, "name": "proctor-home"},
    }
    metadata = {"name": f"home-{cluster.namespace}", "labels": {OWNER_LABEL: cluster.namespace}}
    cluster.create("/api/v1/persistentvolumes", {"metadata": metadata, "spec": spec})
    return folder


def start_pod(cluster: Cluster, deployment: Object, port: int, keeper_port: int) -> None:
    """The pod of the Deployment, whose controller does not run here. Its image is this machine, whose interpreter
    belongs to root, and all pods share one network without names: that much is changed."""
    spec = deployment["spec"]["template"]["spec"]
    spec["restartPolicy"] = "Never"
    spec["securityContext"] = {"runAsUser": 0}
    (container,) = spec["containers"]
    container["command"] = [sys.executable, "-P", "-m", "proctor.manager.cli.main", "manager", "run"]
    changed = {
        "PROCTOR_HOME": HOME,  # this and the next ones are the image's
        "PROCTOR_HOST": "127.0.0.1",
        "PROCTOR_PORT": str(port),
        "PROCTOR_KEEPER_LISTEN": f"127.0.0.1:{keeper_port}",
        "PROCTOR_KEEPER_URL": f"https://127.0.0.1:{keeper_port}",
    }
    kept = [row for row in container["env"] if row["name"] not in changed]
    container["env"] = [*kept, *({"name": name, "value": value} for name, value in changed.items())]
    metadata = {"name": POD, "labels": deployment["spec"]["template"]["metadata"]["labels"]}
    cluster.create(cluster.path("pods"), {"metadata": metadata, "spec": spec})


def answers(client: Client) -> bool:
    """Whether the manager serves."""
    try:
        return client.health()["status"] == "ok"
    except ClientError:
        return False


def phase(cluster: Cluster) -> str:
    """Of the manager's pod."""
    return str(cluster.get(cluster.path("pods", POD))["status"]["phase"])


def experiment_that_ended(client: Client, experiment_id: str) -> Object | None:
    """The experiment, once it is over."""
    found: Object = client.experiment(experiment_id)
    return found if found["status"] in ("DONE", "ERROR") else None


def test_a_manager_in_the_cluster_runs_trials_with_the_rights_of_its_role(cluster: Cluster, tmp_path: Path) -> None:
    cluster.add_node("node")
    home = add_volume(cluster)
    (home / "code").mkdir()  # on the manager's claim alone
    (home / "code" / "trial.py").write_text(TRIAL)
    literals = [f"--from-literal={key}={value}" for key, value in TOKENS.items()]
    cluster.kubectl("create", "secret", "generic", "proctor-tokens", *literals)
    write_overlay(tmp_path, cluster.namespace)
    cluster.kubectl("apply", "-k", str(tmp_path))
    deployment = json.loads(cluster.kubectl("get", "deployment", "proctor-manager", "-o", "json"))
    port = free_port()
    start_pod(cluster, deployment, port, free_port())
    with Client(f"http://127.0.0.1:{port}/proctor", TOKENS["token"]) as client:
        cluster.until(lambda: answers(client) or phase(cluster) == "Failed")
        assert answers(client), cluster.log(POD)
        created = client.create_experiment(CONFIG, directory=f"{HOME}/code")
        found = cluster.until(lambda: experiment_that_ended(client, created["id"]))
        assert found["status"] == "DONE", (found["reason"], cluster.log(POD))
        assert [row["status"] for row in client.trials(created["id"])] == ["SUCCEEDED", "SUCCEEDED"]
    with Client(f"http://127.0.0.1:{port}/proctor", TOKENS["readonly-token"]) as reader:
        assert len(list(reader.trials(created["id"]))) == 2
        with pytest.raises(ClientError, match="read-only"):
            reader.stop_experiment(created["id"])
    assert (home / "token").read_text().strip() == TOKENS["token"]
    cluster.until(lambda: not cluster.list("jobs"))

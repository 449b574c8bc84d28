"""The objects that are created for an experiment and for a trial job."""

import re
from typing import Any

import pytest

from proctor.training_services.base import TrialJobForm
from proctor.training_services.kubernetes.manifests import ExperimentManifests, Names, manager_selector
from proctor.training_services.kubernetes.settings import KubernetesSettings

OWNER = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "anchor", "uid": "anchor-uid"}}
NAMES = Names("manager")


def form(job_id: str = "_Ab.1", gpus: int | None = None) -> TrialJobForm:
    return TrialJobForm(
        job_id=job_id,
        token="token",
        experiment_id="_E",
        trial_id="_Ab",
        sequence_id=0,
        number=1,
        parameter_id=0,
        parameter_file='{"lr": 0.1}',
        command="python secret.py",
        code_directory="/code",
        directory="/job",
        gpu_number=gpus,
    )


def make_job(settings: dict[str, Any] | None = None, *, gpus: int | None = None) -> dict[str, Any]:
    chosen = KubernetesSettings.read({"image": "digits:3", **(settings or {})})
    manifests = ExperimentManifests(NAMES, "_E", chosen, "1.0")
    return manifests.job(form(gpus=gpus), keeper_id="job-_Ab.1", keeper_sha256="f" * 64, owner=OWNER)


def pod_of(job: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = job["spec"]["template"]["spec"]
    return found


def test_names_and_label_values_are_valid_and_tell_ids_apart_that_differ_by_case() -> None:
    names = {NAMES.job("Ab.1"), NAMES.job("aB.1"), Names("other").job("Ab.1"), NAMES.anchor("_E")}
    assert len(names) == 4
    job = make_job()
    values = [job["metadata"]["name"], *job["metadata"]["labels"].values()]
    assert all(re.fullmatch("[a-z0-9]([a-z0-9.-]{0,61}[a-z0-9])?", value) for value in values)
    assert job["metadata"]["annotations"]["proctor/job-id"] == "_Ab.1"


def test_the_label_of_a_local_version_is_valid() -> None:
    manifests = ExperimentManifests(NAMES, "_E", KubernetesSettings.read({"image": "i"}), "0.3.0+lab.1")
    assert manifests.anchor("endpoint")["metadata"]["labels"]["app.kubernetes.io/version"] == "0.3.0_lab.1"


def test_nothing_of_the_trial_is_in_its_job() -> None:
    assert "secret.py" not in str(make_job())
    assert "0.1}" not in str(make_job())


def test_a_job_has_one_pod_and_is_owned_by_the_anchor() -> None:
    job = make_job()
    assert job["metadata"]["ownerReferences"][0]["uid"] == "anchor-uid"
    assert (job["spec"]["backoffLimit"], pod_of(job)["restartPolicy"]) == (0, "Never")
    assert job["spec"]["podReplacementPolicy"] == "Failed"
    assert "activeDeadlineSeconds" not in job["spec"]
    assert job["spec"]["ttlSecondsAfterFinished"] == 7 * 86400


def test_the_managers_selector_finds_it() -> None:
    labels = make_job()["metadata"]["labels"]
    assert all(labels[key] == value for key, value in (each.split("=") for each in manager_selector(NAMES).split(",")))


@pytest.mark.parametrize(
    ("settings", "gpus", "resources"),
    [
        ({}, None, {"requests": {}, "limits": {}}),
        ({}, 2, {"requests": {"nvidia.com/gpu": "2"}, "limits": {"nvidia.com/gpu": "2"}}),
        ({"gpu_resource": "amd.com/gpu"}, 1, {"requests": {"amd.com/gpu": "1"}, "limits": {"amd.com/gpu": "1"}}),
        ({"gpu_resource": "amd.com/gpu"}, 0, {"requests": {}, "limits": {}}),
        (
            {"cpu_number": 0.5, "memory_size": "16Gi"},
            None,
            {"requests": {"memory": "16Gi", "cpu": "0.5"}, "limits": {"memory": "16Gi"}},
        ),
    ],
)
def test_resources(settings: dict[str, Any], gpus: int | None, resources: dict[str, Any]) -> None:
    assert pod_of(make_job(settings, gpus=gpus))["containers"][0]["resources"] == resources


def test_claims_secrets_and_config_maps_are_mounted() -> None:
    mounts = [
        {"path": "/data", "claim": "datasets", "read_only": True, "sub_path": "v2"},
        {"path": "/keys", "secret": "keys"},
        {"path": "/lists", "config_map": "lists"},
    ]
    pod = pod_of(make_job({"mounts": mounts}))
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    assert volumes["mount-0"]["persistentVolumeClaim"] == {"claimName": "datasets", "readOnly": True}
    assert volumes["mount-1"]["secret"] == {"secretName": "keys"}
    assert volumes["mount-2"]["configMap"] == {"name": "lists"}
    container = pod["containers"][0]
    seen = [mount for mount in container["volumeMounts"] if mount["name"].startswith("mount-")]
    assert seen[0] == {"name": "mount-0", "mountPath": "/data", "subPath": "v2", "readOnly": True}
    assert [mount["mountPath"] for mount in seen] == ["/data", "/keys", "/lists"]


def test_kueue_and_volcano_are_labels_annotations_and_the_name_of_a_scheduler() -> None:
    settings = {
        "labels": {"kueue.x-k8s.io/queue-name": "ml"},
        "annotations": {"scheduling.volcano.sh/queue-name": "ml"},
        "scheduler_name": "volcano",
    }
    job = make_job(settings)
    for metadata in (job["metadata"], job["spec"]["template"]["metadata"]):
        assert metadata["labels"]["kueue.x-k8s.io/queue-name"] == "ml"
        assert metadata["annotations"]["scheduling.volcano.sh/queue-name"] == "ml"
    assert pod_of(job)["schedulerName"] == "volcano"


def test_the_users_lines_are_laid_over_ours_but_for_the_labels_by_which_pods_are_found() -> None:
    template = {
        "metadata": {"labels": {"team": "vision", "proctor/job": "other"}},
        "spec": {"containers": [{"securityContext": {"runAsUser": 1000}}], "priority": 3},
    }
    job = make_job({"pod_template": template})
    labels = job["spec"]["template"]["metadata"]["labels"]
    assert (labels["team"], labels["proctor/job"]) == ("vision", job["metadata"]["name"])
    pod = pod_of(job)
    assert (pod["priority"], pod["containers"][0]["securityContext"]) == (3, {"runAsUser": 1000})
    assert pod["containers"][0]["command"][0] == "python3"


def test_a_pod_has_no_token_of_the_cluster_unless_it_has_a_service_account() -> None:
    assert pod_of(make_job())["automountServiceAccountToken"] is False
    pod = pod_of(make_job({"service_account": "trials"}))
    assert pod["serviceAccountName"] == "trials"
    assert "automountServiceAccountToken" not in pod


def test_a_pod_leaves_a_node_that_is_away_after_the_node_timeout() -> None:
    pod = pod_of(make_job({"node_timeout_seconds": 600.0, "tolerations": [{"key": "gpu", "operator": "Exists"}]}))
    assert [each.get("tolerationSeconds") for each in pod["tolerations"]] == [None, 600, 600]


@pytest.mark.parametrize(
    ("given", "seconds"),
    [
        ([{"key": "gpu", "operator": "Exists"}], [None, 300, 300]),
        ([{"key": "node.kubernetes.io/not-ready", "operator": "Exists", "tolerationSeconds": 5}], [5, 300]),
        ([{"operator": "Exists"}], [None]),
        ([{"operator": "Exists", "effect": "NoSchedule"}], [None, 300, 300]),
        (None, [300, 300]),
    ],
)
def test_tolerations_of_the_pod_template_leave_the_node_timeout(given: Any, seconds: list[int | None]) -> None:
    pod = pod_of(make_job({"pod_template": {"spec": {"tolerations": given}}}))
    assert [each.get("tolerationSeconds") for each in pod["tolerations"]] == seconds


def test_the_secret_is_owned_by_its_job() -> None:
    manifests = ExperimentManifests(NAMES, "_E", KubernetesSettings.read({"image": "digits"}), "1.0")
    owner = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": NAMES.job("_Ab.1"), "uid": "job-uid"}}
    secret = manifests.secret(form(), "secret", owner)
    assert secret["metadata"]["ownerReferences"][0]["kind"] == "Job"
    assert secret["metadata"]["name"] == NAMES.job("_Ab.1")

"""The objects that are created for an experiment and for a trial job."""

import base64
import json
import re
from dataclasses import fields
from typing import Any

import pytest
from fakes.kubernetes.pod_security import violations

from proctor.training_services.base import TrialJobForm
from proctor.training_services.kubernetes.manifests import ExperimentManifests, Names, manager_selector
from proctor.training_services.kubernetes.settings import KubernetesSettings

OWNER = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "anchor", "uid": "anchor-uid"}}
NAMES = Names("manager")
DEFAULT = {"cpu": "500m", "memory": "512Mi"}
"""What is requested for a trial whose section does not say it."""


def form(job_id: str = "_Ab.1", gpus: int | None = None) -> TrialJobForm:
    return TrialJobForm(
        job_id=job_id,
        token="token",
        experiment_id="_E",
        trial_id="_Ab",
        sequence_id=0,
        number=1,
        parameter_id=0,
        parameter_file='{"hidden": "hidden"}',
        command="python hidden.py",
        code_directory="/hidden/code",
        directory="/hidden/job",
        environment_file="/hidden/environment.json",
        environment={"HIDDEN": "hidden"},
        gpu_number=gpus,
    )


def make_job(settings: dict[str, Any] | None = None, *, gpus: int | None = None) -> dict[str, Any]:
    chosen = KubernetesSettings.read({"image": "digits:3", **(settings or {})})
    manifests = ExperimentManifests(NAMES, "_E", chosen, "1.0")
    return manifests.job(form(gpus=gpus), keeper_id="job-_Ab.1", keeper_sha256="f" * 64, owner=OWNER)


def pod_of(job: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = job["spec"]["template"]["spec"]
    return found


def command_of(job: dict[str, Any]) -> list[str]:
    found: list[str] = pod_of(job)["containers"][0]["command"]
    return found


def make_objects(settings: dict[str, Any] | None = None) -> dict[str, dict[str, Any]]:
    """All objects of an experiment with one job, and the pod of the job."""
    chosen = KubernetesSettings.read({"image": "digits:3", **(settings or {})})
    manifests = ExperimentManifests(NAMES, "_E", chosen, "1.0")
    job = make_job(settings)
    return {
        "anchor": manifests.anchor("endpoint"),
        "keeper": manifests.keeper("f" * 64, b"archive", OWNER),
        "secret": manifests.secret(form(), "secret", OWNER),
        "job": job,
        "pod": job["spec"]["template"],
    }


def test_names_and_label_values_are_valid_and_tell_ids_apart_that_differ_by_case() -> None:
    names = {NAMES.job("Ab.1"), NAMES.job("aB.1"), Names("other").job("Ab.1"), NAMES.anchor("_E")}
    assert len(names) == 4
    job = make_job()
    assert re.fullmatch("[a-z0-9]([a-z0-9.-]{0,61}[a-z0-9])?", job["metadata"]["name"])
    values = job["metadata"]["labels"].values()
    assert all(re.fullmatch("[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?", value) for value in values)
    assert job["metadata"]["annotations"]["proctor/job-id"] == "_Ab.1"


def test_the_label_of_a_local_version_is_valid() -> None:
    manifests = ExperimentManifests(NAMES, "_E", KubernetesSettings.read({"image": "i"}), "0.3.0+lab.1")
    assert manifests.anchor("endpoint")["metadata"]["labels"]["app.kubernetes.io/version"] == "0.3.0_lab.1"


def test_every_object_has_the_labels_by_which_people_and_the_manager_find_it() -> None:
    for name, made in make_objects({"labels": {"team": "vision", "app.kubernetes.io/name": "other"}}).items():
        is_of_a_trial = name not in ("anchor", "keeper")
        of_a_trial = {"team": "vision", "proctor/job": NAMES.job("_Ab.1"), "proctor/trial-id": "Ab"}
        assert made["metadata"]["labels"] == {
            "app.kubernetes.io/name": "proctor",
            "app.kubernetes.io/instance": NAMES.anchor("_E"),
            "app.kubernetes.io/component": "trial" if is_of_a_trial else "experiment",
            "app.kubernetes.io/part-of": "proctor",
            "app.kubernetes.io/version": "1.0",
            "app.kubernetes.io/managed-by": "proctor",
            "proctor/manager": NAMES.manager,
            "proctor/experiment": NAMES.experiment("_E"),
            "proctor/experiment-id": "E",
            **(of_a_trial if is_of_a_trial else {}),
        }, name


def test_the_keepers_file_and_the_secret_are_immutable_and_the_anchor_is_not() -> None:
    objects = make_objects()
    assert {name for name, made in objects.items() if made.get("immutable")} == {"keeper", "secret"}
    assert objects["anchor"]["data"] == {"endpoint": "endpoint"}
    assert base64.b64decode(objects["keeper"]["binaryData"]["keeper.pyz"]) == b"archive"
    assert base64.b64decode(objects["secret"]["data"]["secret"]) == b"secret"


def test_nothing_of_the_trial_is_in_its_job() -> None:
    for name, made in make_objects().items():
        assert "hidden" not in json.dumps(made).lower(), name


def test_a_job_has_one_pod_and_is_owned_by_the_anchor() -> None:
    job = make_job()
    assert job["metadata"]["ownerReferences"] == [
        {"apiVersion": "v1", "kind": "ConfigMap", "name": "anchor", "uid": "anchor-uid"}
    ]
    del job["spec"]["template"]
    assert job["spec"] == {
        "backoffLimit": 0,
        "podReplacementPolicy": "Failed",
        "completions": 1,
        "parallelism": 1,
        "ttlSecondsAfterFinished": 7 * 86400,
    }


def test_a_pod_has_no_more_than_the_keeper_needs_unless_the_section_says_so() -> None:
    pod = pod_of(make_job())
    [container] = pod.pop("containers")
    volumes, mounts = pod.pop("volumes"), container.pop("volumeMounts")
    away = {"operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300}
    assert pod == {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 60,
        "enableServiceLinks": False,
        "automountServiceAccountToken": False,
        "securityContext": {"seccompProfile": {"type": "RuntimeDefault"}},
        "tolerations": [{"key": f"node.kubernetes.io/{taint}", **away} for taint in ("not-ready", "unreachable")],
    }
    assert container == {
        "name": "trial",
        "image": "digits:3",
        "command": [
            *("python3", "-I", "-S", "-X", "utf8", "/proctor/keeper/keeper.pyz", "pod"),
            *("--directory", "/proctor/work", "--node-id", "job-_Ab.1", "--pointer", "/proctor/manager/endpoint"),
            *("--secret-file", "/proctor/secret/secret", "--instance", "$(POD_UID)", "--grace-seconds", "60"),
            *("--linger-seconds", "600"),
        ],
        "env": [{"name": "POD_UID", "valueFrom": {"fieldRef": {"fieldPath": "metadata.uid"}}}],
        "resources": {"requests": {"cpu": "500m", "memory": "512Mi"}, "limits": {}},
        "securityContext": {"allowPrivilegeEscalation": False},
    }
    assert volumes == [
        {"name": "proctor-keeper", "configMap": {"name": NAMES.keeper("_E", "f" * 64)}},
        {"name": "proctor-manager", "configMap": {"name": NAMES.anchor("_E")}},
        {"name": "proctor-secret", "secret": {"secretName": NAMES.job("_Ab.1"), "defaultMode": 0o444}},
        {"name": "proctor-work", "emptyDir": {}},
    ]
    assert mounts == [
        {"name": "proctor-keeper", "mountPath": "/proctor/keeper", "readOnly": True},
        {"name": "proctor-manager", "mountPath": "/proctor/manager", "readOnly": True},
        {"name": "proctor-secret", "mountPath": "/proctor/secret", "readOnly": True},
        {"name": "proctor-work", "mountPath": "/proctor/work"},
    ]


TOLERATION = {"key": "gpu", "operator": "Exists", "effect": "NoSchedule"}
RENDERED: list[tuple[str, Any, tuple[str | int, ...], Any]] = [
    ("image", "digits:4", ("spec", "containers", 0, "image"), "digits:4"),
    ("cpu_number", 0.5, ("spec", "containers", 0, "resources", "requests", "cpu"), "0.5"),
    ("memory_size", "16Gi", ("spec", "containers", 0, "resources", "limits", "memory"), "16Gi"),
    ("ephemeral_storage", "9Gi", ("spec", "containers", 0, "resources", "limits", "ephemeral-storage"), "9Gi"),
    (
        "shared_memory",
        "2Gi",
        ("spec", "volumes", -1),
        {"name": "proctor-shared-memory", "emptyDir": {"medium": "Memory", "sizeLimit": "2Gi"}},
    ),
    ("run_as_user", 10001, ("spec", "securityContext", "runAsUser"), 10001),
    ("fs_group", 10002, ("spec", "securityContext", "fsGroup"), 10002),
    ("environment", {"A": "$(B) $C"}, ("spec", "containers", 0, "env", -1), {"name": "A", "value": "$$(B) $$C"}),
    ("gpu_resource", "amd.com/gpu", ("spec", "containers", 0, "resources", "limits", "amd.com/gpu"), "2"),
    ("node_selector", {"disk": "ssd"}, ("spec", "nodeSelector"), {"disk": "ssd"}),
    ("tolerations", [TOLERATION], ("spec", "tolerations", 0), TOLERATION),
    ("service_account", "trials", ("spec", "serviceAccountName"), "trials"),
    ("image_pull_secrets", ["lab", "hub"], ("spec", "imagePullSecrets"), [{"name": "lab"}, {"name": "hub"}]),
    ("image_pull_policy", "Always", ("spec", "containers", 0, "imagePullPolicy"), "Always"),
    ("priority_class", "low", ("spec", "priorityClassName"), "low"),
    ("scheduler_name", "volcano", ("spec", "schedulerName"), "volcano"),
    ("labels", {"team": "vision"}, ("metadata", "labels", "team"), "vision"),
    ("annotations", {"team": "vision"}, ("metadata", "annotations", "team"), "vision"),
    (
        "mounts",
        [{"path": "/data", "claim": "data"}],
        ("spec", "volumes", -1),
        {"name": "mount-0", "persistentVolumeClaim": {"claimName": "data", "readOnly": False}},
    ),
    (
        "environment_secrets",
        ["wandb", "s3"],
        ("spec", "containers", 0, "envFrom"),
        [{"secretRef": {"name": "wandb"}}, {"secretRef": {"name": "s3"}}],
    ),
    ("python", "/opt/python", ("spec", "containers", 0, "command", 0), "/opt/python"),
    ("pod_template", {"spec": {"hostNetwork": True}}, ("spec", "hostNetwork"), True),
    ("node_timeout_seconds", 600.0, ("spec", "tolerations", -1, "tolerationSeconds"), 600),
    ("termination_grace_seconds", 90.0, ("spec", "terminationGracePeriodSeconds"), 90),
    ("linger_seconds", 1800.0, ("spec", "containers", 0, "command", -1), "1800"),
]
"""Each key of the section with a value, the part of the pod's template that it becomes, and what stands there."""
OF_THE_MANAGER = {
    *("namespace", "context", "kubeconfig", "manager_url"),
    *("pending_timeout_seconds", "collect_limit_mb", "checkpoint_limit_mb"),
}
"""The keys by which only the manager is guided."""


@pytest.mark.parametrize(("key", "value", "place", "expected"), RENDERED, ids=[row[0] for row in RENDERED])
def test_a_key_of_the_section_is_in_the_pod(key: str, value: Any, place: tuple[str | int, ...], expected: Any) -> None:
    found: Any = make_job({key: value}, gpus=2)["spec"]["template"]
    for step in place:
        found = found[step]
    assert found == expected


def test_no_key_of_the_section_is_forgotten() -> None:
    assert {row[0] for row in RENDERED} | OF_THE_MANAGER == {item.name for item in fields(KubernetesSettings)}


@pytest.mark.parametrize("seconds", [5.0, 60.0, 600.0])
def test_the_keeper_has_as_long_to_end_as_its_pod(seconds: float) -> None:
    job = make_job({"termination_grace_seconds": seconds})
    words = command_of(job)
    assert float(words[words.index("--grace-seconds") + 1]) == seconds
    assert pod_of(job)["terminationGracePeriodSeconds"] == seconds


def test_the_managers_selector_finds_it() -> None:
    labels = make_job()["metadata"]["labels"]
    assert all(labels[key] == value for key, value in (each.split("=") for each in manager_selector(NAMES).split(",")))


@pytest.mark.parametrize(
    ("settings", "gpus", "resources"),
    [
        ({}, None, {"requests": DEFAULT, "limits": {}}),
        ({}, 2, {"requests": {**DEFAULT, "nvidia.com/gpu": "2"}, "limits": {"nvidia.com/gpu": "2"}}),
        ({"gpu_resource": "a.com/gpu"}, 1, {"requests": {**DEFAULT, "a.com/gpu": "1"}, "limits": {"a.com/gpu": "1"}}),
        ({"gpu_resource": "a.com/gpu"}, 0, {"requests": DEFAULT, "limits": {}}),
        (
            {"cpu_number": 0.5, "memory_size": "16Gi"},
            None,
            {"requests": {"memory": "16Gi", "cpu": "0.5"}, "limits": {"memory": "16Gi"}},
        ),
        (
            {"ephemeral_storage": "20Gi"},
            None,
            {"requests": {**DEFAULT, "ephemeral-storage": "20Gi"}, "limits": {"ephemeral-storage": "20Gi"}},
        ),
        # a default must not be more than a limit of the user's, and null means none
        (
            {"pod_template": {"spec": {"containers": [{"resources": {"limits": {"cpu": "200m"}}}]}}},
            None,
            {"requests": {"memory": "512Mi"}, "limits": {"cpu": "200m"}},
        ),
        (
            {"pod_template": {"spec": {"containers": [{"resources": {"requests": {"cpu": None, "memory": "1Gi"}}}]}}},
            None,
            {"requests": {"memory": "1Gi"}, "limits": {}},
        ),
        (
            {"pod_template": {"spec": {"resources": {"limits": {"cpu": "1", "memory": "256Mi"}}}}},
            None,
            {"requests": {}, "limits": {}},
        ),
        (
            {"pod_template": {"spec": {"containers": [{"name": "other", "resources": {"limits": {"cpu": "1"}}}]}}},
            None,
            {"requests": DEFAULT, "limits": {}},
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
    wanted = {"allowPrivilegeEscalation": False, "runAsUser": 1000}
    assert (pod["priority"], pod["containers"][0]["securityContext"]) == (3, wanted)
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


def violations_of(settings: dict[str, Any]) -> str:
    return violations(pod_of(make_job(settings)), "restricted")


def test_a_pod_violates_the_level_restricted_only_as_long_as_it_may_run_as_root() -> None:
    assert violations_of({}).count(" (") == 2  # runAsNonRoot, and capabilities
    assert violations_of({"run_as_user": 10001}) == ""
    claim = {"path": "/data", "claim": "data"}
    assert violations_of({"run_as_user": 1, "fs_group": 2, "shared_memory": "1Gi", "mounts": [claim]}) == ""


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ({"allowPrivilegeEscalation": True}, {"allowPrivilegeEscalation": True}),
        ({"allowPrivilegeEscalation": None}, {}),
        ({"privileged": True}, {"privileged": True}),  # which the API refuses beside allowPrivilegeEscalation: false
        ({"capabilities": {"add": ["SYS_ADMIN"]}}, {"capabilities": {"add": ["SYS_ADMIN"]}}),
        (
            {"capabilities": {"add": ["SYS_PTRACE"]}},
            {"allowPrivilegeEscalation": False, "capabilities": {"add": ["SYS_PTRACE"]}},
        ),
        ("nonsense", "nonsense"),
    ],
)
def test_the_users_security_context_takes_precedence(lines: Any, expected: Any) -> None:
    pod = pod_of(make_job({"pod_template": {"spec": {"containers": [{"securityContext": lines}]}}}))
    assert pod["containers"][0].get("securityContext") == expected


def test_the_users_security_context_of_the_pod_takes_precedence() -> None:
    context = {"seccompProfile": {"type": "Unconfined"}, "runAsUser": 7}
    pod = pod_of(make_job({"run_as_user": 10001, "pod_template": {"spec": {"securityContext": context}}}))
    assert pod["securityContext"] == {**context, "runAsNonRoot": True}
    assert "seccompProfile" not in pod_of(make_job({"pod_template": {"spec": {"securityContext": None}}}))

"""The objects in the cluster: for each experiment an anchor, which owns everything else, and the keeper's file; for
each trial job a Job and a Secret.

Names and label values are hashes, because ids of trials are case-sensitive and may begin with `_`; the ids themselves
are annotations. A Job holds nothing about its trial: the keeper receives the launch over its connection.
"""

import base64
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from proctor.training_services.base import TrialJobForm
from proctor.training_services.kubernetes.client import KubernetesObject
from proctor.training_services.kubernetes.pod_template import (
    KEEPER_ROOT,
    POD_UID,
    SHARED_MEMORY_FOLDER,
    TRIAL_CONTAINER,
    lines_of_trial_container,
    merge,
)
from proctor.training_services.kubernetes.settings import KubernetesSettings, Mount

__all__ = [
    "ENDPOINT_KEY",
    "EXPERIMENT_ANNOTATION",
    "JOB_ANNOTATION",
    "JOB_LABEL",
    "MANAGER_LABEL",
    "SOCKET",
    "TOKEN_ANNOTATION",
    "ExperimentManifests",
    "Names",
    "manager_selector",
    "relay_command",
]

EXPERIMENT_ANNOTATION = "proctor/experiment-id"
JOB_ANNOTATION = "proctor/job-id"
TOKEN_ANNOTATION = "proctor/job-token"
MANAGER_LABEL = "proctor/manager"
EXPERIMENT_LABEL = "proctor/experiment"
JOB_LABEL = "proctor/job"
EXPERIMENT_NAME_LABEL = "proctor/experiment-id"
TRIAL_NAME_LABEL = "proctor/trial-id"
MANAGED_BY = "app.kubernetes.io/managed-by"

ENDPOINT_KEY = "endpoint"
SECRET_KEY = "secret"
KEEPER_KEY = "keeper.pyz"
KEEPER_FOLDER = f"{KEEPER_ROOT}/keeper"
ENDPOINT_FOLDER = f"{KEEPER_ROOT}/manager"
SECRET_FOLDER = f"{KEEPER_ROOT}/secret"
WORK_FOLDER = f"{KEEPER_ROOT}/work"
SOCKET = f"{WORK_FOLDER}/manager.sock"
"""The socket at which keepers find a manager that is connected by exec streams."""
ENDED_JOB_SECONDS = 7 * 86400
"""When the cluster deletes an ended Job by itself, should the manager never return."""
DEFAULT_REQUESTS = {"cpu": "500m", "memory": "512Mi"}
"""Without a request a pod would be the first to be evicted, and nodes would get more pods than they can run."""
_HASH_LENGTH = 24
_LONGEST_LABEL = 63
_LONGEST_MESSAGE = 1000


@dataclass(frozen=True)
class Names:
    """The names of a manager's objects.

    :param manager_id: random, from the home, so that managers can share a namespace.
    """

    manager_id: str

    @property
    def manager(self) -> str:
        """The value of the label that marks this manager's objects."""
        return _hash(self.manager_id)

    def experiment(self, experiment_id: str) -> str:
        """The hash of an experiment's id, for labels."""
        return _hash(self.manager_id, experiment_id)

    def anchor(self, experiment_id: str) -> str:
        """The ConfigMap that owns everything of an experiment."""
        return f"proctor-{self.experiment(experiment_id)}"

    def keeper(self, experiment_id: str, sha256: str) -> str:
        """The ConfigMap with the keeper's file."""
        return f"{self.anchor(experiment_id)}-keeper-{sha256[:12]}"

    def job(self, job_id: str) -> str:
        """The Job of a trial job, and its Secret."""
        return f"proctor-{_hash(self.manager_id, 'job', job_id)}"


def relay_command(python: str) -> list[str]:
    """The command in a pod that carries its keeper's connections."""
    return [*_keeper_words(python), "relay"]


def _keeper_words(python: str) -> list[str]:
    return [python, "-I", "-S", "-X", "utf8", f"{KEEPER_FOLDER}/{KEEPER_KEY}"]


def manager_selector(names: Names) -> str:
    """The label selector of a manager's objects."""
    return f"{MANAGED_BY}=proctor,{MANAGER_LABEL}={names.manager}"


def _hash(*words: str) -> str:
    return hashlib.sha256("\0".join(words).encode()).hexdigest()[:_HASH_LENGTH]


@dataclass(frozen=True)
class ExperimentManifests:
    """The objects of one experiment.

    :param version: Proctor's version, for the recommended label.
    :param deadline_seconds: the cluster ends its pods this long after their Jobs were created, whether the manager is
        there or not, and deletes the Jobs as long after that; None: it lets them run.
    """

    names: Names
    experiment_id: str
    settings: KubernetesSettings
    version: str
    deadline_seconds: int | None = None

    def anchor(self, endpoint: str) -> KubernetesObject:
        """The ConfigMap that owns the experiment's objects. It holds the manager's address for keepers; after a change
        pods see the new one within a minute or two."""
        metadata = self._metadata(self.names.anchor(self.experiment_id), "experiment")
        return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {ENDPOINT_KEY: endpoint}}

    def keeper(self, sha256: str, archive: bytes, owner: KubernetesObject) -> KubernetesObject:
        """The ConfigMap with the keeper's single file; immutable."""
        metadata = self._metadata(self.names.keeper(self.experiment_id, sha256), "experiment", owner)
        data = {KEEPER_KEY: base64.b64encode(archive).decode()}
        return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "immutable": True, "binaryData": data}

    def secret(self, form: TrialJobForm, secret: str, owner: KubernetesObject) -> KubernetesObject:
        """The Secret of a trial job's keeper."""
        metadata = self._metadata(self.names.job(form.job_id), "trial", owner, form)
        data = {SECRET_KEY: base64.b64encode(secret.encode()).decode()}
        return {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "immutable": True, "data": data}

    def job(
        self, form: TrialJobForm, *, keeper_id: str, keeper_sha256: str, owner: KubernetesObject
    ) -> KubernetesObject:
        """The Job of a trial job."""
        name = self.names.job(form.job_id)
        metadata = self._metadata(name, "trial", owner, form)
        own = {key: metadata[key] for key in ("labels", "annotations")}
        template = {
            "metadata": own,
            "spec": self._pod(form, keeper_id, self.names.keeper(self.experiment_id, keeper_sha256)),
        }
        merged = merge(template, self.settings.pod_template)
        merged["metadata"] = merge(merged["metadata"], own)  # by which it is found
        merged["spec"]["tolerations"] = self._with_node_tolerations(merged["spec"].get("tolerations") or ())
        deadline = {} if self.deadline_seconds is None else {"activeDeadlineSeconds": self.deadline_seconds}
        return {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": metadata,
            "spec": {
                "backoffLimit": 0,
                "podReplacementPolicy": "Failed",  # servers before 1.29 drop the field and may start a second pod early
                "completions": 1,
                "parallelism": 1,
                "ttlSecondsAfterFinished": self.deadline_seconds or ENDED_JOB_SECONDS,
                **deadline,
                "template": merged,
            },
        }

    def event(self, form: TrialJobForm, uid: str, *, reason: str, message: str, time: datetime) -> KubernetesObject:
        """An event of the Job of a trial job.

        :param uid: the Job's.
        :param reason: one word; a Job has one event with it.
        """
        name, moment = self.names.job(form.job_id), time.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        return {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": self._metadata(f"{name}.{reason.lower()}", "trial", None, form),
            "involvedObject": {"apiVersion": "batch/v1", "kind": "Job", "name": name, "uid": uid},
            "type": "Normal",
            "reason": reason,
            "message": message[:_LONGEST_MESSAGE],
            "source": {"component": "proctor"},
            "firstTimestamp": moment,
            "lastTimestamp": moment,
            "count": 1,
        }

    def _metadata(
        self, name: str, component: str, owner: KubernetesObject | None = None, form: TrialJobForm | None = None
    ) -> dict[str, Any]:
        labels = {
            "app.kubernetes.io/name": "proctor",
            "app.kubernetes.io/instance": self.names.anchor(self.experiment_id),
            "app.kubernetes.io/component": component,
            "app.kubernetes.io/part-of": "proctor",
            "app.kubernetes.io/version": self.version.replace("+", "_"),  # of a local version
            MANAGED_BY: "proctor",
            MANAGER_LABEL: self.names.manager,
            EXPERIMENT_LABEL: self.names.experiment(self.experiment_id),
            **_readable(EXPERIMENT_NAME_LABEL, self.experiment_id),
        }
        annotations = {EXPERIMENT_ANNOTATION: self.experiment_id}
        if form is not None:
            job = self.names.job(form.job_id)
            labels = {**self.settings.labels, **labels, JOB_LABEL: job, **_readable(TRIAL_NAME_LABEL, form.trial_id)}
            annotations = {**self.settings.annotations, **annotations}
            annotations |= {JOB_ANNOTATION: form.job_id, TOKEN_ANNOTATION: form.token}
        metadata: dict[str, Any] = {"name": name, "labels": labels, "annotations": annotations}
        if owner is not None:
            metadata["ownerReferences"] = [_reference(owner)]
        return metadata

    def _pod(self, form: TrialJobForm, keeper_id: str, keeper: str) -> dict[str, Any]:
        settings, name = self.settings, self.names.job(form.job_id)
        volumes: list[dict[str, Any]] = [
            {"name": "proctor-keeper", "configMap": {"name": keeper}},
            {"name": "proctor-manager", "configMap": {"name": self.names.anchor(self.experiment_id)}},
            {"name": "proctor-secret", "secret": {"secretName": name, "defaultMode": 0o444}},
            {"name": "proctor-work", "emptyDir": {}},
        ]
        mounts: list[dict[str, Any]] = [
            {"name": "proctor-keeper", "mountPath": KEEPER_FOLDER, "readOnly": True},
            {"name": "proctor-manager", "mountPath": ENDPOINT_FOLDER, "readOnly": True},
            {"name": "proctor-secret", "mountPath": SECRET_FOLDER, "readOnly": True},
            {"name": "proctor-work", "mountPath": WORK_FOLDER},
        ]
        if settings.shared_memory is not None:
            memory = {"medium": "Memory", "sizeLimit": settings.shared_memory}
            volumes.append({"name": "proctor-shared-memory", "emptyDir": memory})
            mounts.append({"name": "proctor-shared-memory", "mountPath": SHARED_MEMORY_FOLDER})
        for index, mount in enumerate(settings.mounts):
            volumes.append(_volume(f"mount-{index}", mount))
            mounts.append(_without_none(
                name=f"mount-{index}", mountPath=mount.path, subPath=mount.sub_path, readOnly=mount.read_only or None
            ))  # fmt: skip
        container = _without_none(
            name=TRIAL_CONTAINER,
            image=settings.image,
            imagePullPolicy=settings.image_pull_policy,
            command=self._command(keeper_id),
            env=[
                {"name": POD_UID, "valueFrom": {"fieldRef": {"fieldPath": "metadata.uid"}}},
                *({"name": key, "value": _literal(text)} for key, text in settings.environment.items()),
            ],
            envFrom=[{"secretRef": {"name": each}} for each in settings.environment_secrets] or None,
            resources=self._resources(form.gpu_number or 0),
            securityContext=self._container_security() or None,
            volumeMounts=mounts,
        )
        return _without_none(
            restartPolicy="Never",
            terminationGracePeriodSeconds=round(settings.termination_grace_seconds),
            enableServiceLinks=False,
            automountServiceAccountToken=None if settings.service_account else False,
            serviceAccountName=settings.service_account,
            nodeSelector=dict(settings.node_selector) or None,
            securityContext=self._pod_security(),
            tolerations=list(settings.tolerations),
            priorityClassName=settings.priority_class,
            schedulerName=settings.scheduler_name,
            imagePullSecrets=[{"name": each} for each in settings.image_pull_secrets] or None,
            containers=[container],
            volumes=volumes,
        )

    def _command(self, keeper_id: str) -> list[str]:
        options = {
            "directory": WORK_FOLDER,
            "node-id": keeper_id,
            "pointer": f"{ENDPOINT_FOLDER}/{ENDPOINT_KEY}",
            "secret-file": f"{SECRET_FOLDER}/{SECRET_KEY}",
            "instance": f"$({POD_UID})",
            "grace-seconds": f"{self.settings.termination_grace_seconds:g}",
            "linger-seconds": f"{self.settings.linger_seconds:g}",
        }
        words = [word for name, value in options.items() for word in (f"--{name}", value)]
        return [*_keeper_words(self.settings.python), "pod", *words]

    def _resources(self, gpu_number: int) -> dict[str, Any]:
        """CPUs are only requested, so idle ones may be used too; memory, disk and GPUs are also limited. What
        `podTemplate` has a line about has no default, which may be more than its limit."""
        settings = self.settings
        limits = {settings.gpu_resource: str(gpu_number)} if gpu_number else {}
        if settings.memory_size is not None:
            limits["memory"] = settings.memory_size
        if settings.ephemeral_storage is not None:
            limits["ephemeral-storage"] = settings.ephemeral_storage
        requests = {**limits} if settings.cpu_number is None else {**limits, "cpu": f"{settings.cpu_number:g}"}
        lines = (lines_of_trial_container(settings.pod_template), settings.pod_template.get("spec"))
        given = {
            name
            for each in lines
            for part in _mapping(_mapping(each).get("resources")).values()
            for name in _mapping(part)
        }
        defaults = {name: amount for name, amount in DEFAULT_REQUESTS.items() if name not in given}
        return {"requests": {**defaults, **requests}, "limits": limits}

    def _pod_security(self) -> dict[str, Any]:
        """What Pod Security demands at level `restricted`, but for a user who is not root."""
        user, group = self.settings.run_as_user, self.settings.fs_group
        return _without_none(
            seccompProfile={"type": "RuntimeDefault"},
            runAsUser=user,
            runAsNonRoot=None if user is None else True,
            fsGroup=group,
            fsGroupChangePolicy=None if group is None else "OnRootMismatch",
        )

    def _container_security(self) -> dict[str, Any]:
        """The same of the container. The API refuses privileges that may not be escalated, so those of `podTemplate`
        take precedence."""
        given = _mapping(lines_of_trial_container(self.settings.pod_template).get("securityContext"))
        added = _mapping(given.get("capabilities")).get("add")
        is_privileged = given.get("privileged") is True or "SYS_ADMIN" in str(added)
        return _without_none(
            allowPrivilegeEscalation=None if is_privileged else False,
            capabilities=None if self.settings.run_as_user is None else {"drop": ["ALL"]},
        )

    def _with_node_tolerations(self, tolerations: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
        """The user's, and how long a pod stays on a node that is away before the cluster gives it up, unless they say
        that."""
        wanted = {"operator": "Exists", "effect": "NoExecute"}
        seconds = round(self.settings.node_timeout_seconds)
        given = {each.get("key") or "" for each in tolerations if (each.get("effect") or "NoExecute") == "NoExecute"}
        keys = (f"node.kubernetes.io/{taint}" for taint in ("not-ready", "unreachable"))
        ours = [{"key": key, **wanted, "tolerationSeconds": seconds} for key in keys if not given & {key, ""}]
        return [*tolerations, *ours]


def _reference(owner: KubernetesObject) -> dict[str, Any]:
    metadata = owner["metadata"]
    return {"apiVersion": owner["apiVersion"], "kind": owner["kind"], "name": metadata["name"], "uid": metadata["uid"]}


def _volume(name: str, mount: Mount) -> dict[str, Any]:
    if mount.claim is not None:
        return {"name": name, "persistentVolumeClaim": {"claimName": mount.claim, "readOnly": mount.read_only}}
    if mount.secret is not None:
        return {"name": name, "secret": {"secretName": mount.secret}}
    return {"name": name, "configMap": {"name": mount.config_map}}


def _mapping(found: Any) -> Mapping[str, Any]:
    """A part of `podTemplate` that should be a mapping; the cluster reports one that is not."""
    return found if isinstance(found, Mapping) else {}


def _readable(label: str, found: str) -> dict[str, str]:
    """A label for people with an id, less what a label's value cannot begin or end with."""
    value = found[:_LONGEST_LABEL].strip("-_.")
    return {label: value} if value else {}


def _literal(text: str) -> str:
    """A value in which the cluster replaces no variables."""
    return text.replace("$", "$$")


def _without_none(**members: Any) -> dict[str, Any]:
    return {key: value for key, value in members.items() if value is not None}

"""From the state of a Job and its pods to that of the trial job: why it waits, where it runs, how it ended.

Messages of the scheduler and the kubelet are passed on unchanged. The one-word reasons are those of Kubernetes 1.20 to
1.37.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime

from proctor.training_services.job_keeper_service import PlatformJob, PlatformStatus
from proctor.training_services.kubernetes.client import KubernetesObject
from proctor.training_services.kubernetes.manifests import (
    EXPERIMENT_ANNOTATION,
    JOB_ANNOTATION,
    JOB_LABEL,
    TOKEN_ANNOTATION,
)
from proctor.training_services.kubernetes.pod_template import TRIAL_CONTAINER
from proctor.trial_keeper.protocol import EndReason

__all__ = ["ClusterJob", "ClusterPod", "created_at", "describe", "is_refused_for_good", "read_job", "read_pod"]

_TAKEN_AWAY = frozenset(
    {
        "DeletionByTaintManager",
        "Evicted",
        "NodeAffinity",
        "NodeShutdown",
        "Preempted",
        "Preempting",
        "Shutdown",
        "Terminated",
        "TopologyAffinityError",
        "UnexpectedAdmissionError",
    }
)
"""Reasons for which a kubelet ends or rejects a pod through no fault of the trial."""
_TAKEN_AWAY_PREFIXES = ("OutOf", "EvictionBy", "PreemptionBy", "TerminationBy")
"""The beginnings of more such reasons, as of OutOfcpu and EvictionByEvictionAPI."""
_LOST = frozenset({"NodeLost", "ContainerStatusUnknown", "DeletionByPodGC"})
"""Reasons of a pod whose node is gone."""
_NODE_AWAY = "NodeNotReady"
"""The beginning of the warning about a pod whose node is not reachable."""
_NEVER = ("no PriorityClass with name", "error looking up service account", "violates PodSecurity", "RuntimeClass")
"""Parts of the sentences with which a cluster refuses a pod that it will not start unless someone changes something: a
quota or a limit, in contrast, may be free again."""
_MOST_DETAIL = 600


@dataclass(frozen=True, slots=True)
class ClusterJob:
    """What is kept of a Job."""

    name: str
    uid: str
    job_id: str
    token: str
    experiment_id: str
    created_at: float
    is_suspended: bool
    failure: str
    """The reason and message of its condition Failed, as a clause."""


@dataclass(frozen=True, slots=True)
class ClusterPod:
    """What is kept of a pod."""

    name: str
    uid: str
    job_name: str
    created_at: float
    phase: str
    node: str
    is_going: bool
    """It is being deleted: by a user, an eviction, a drain, a preemption."""
    end_due: float
    """When its grace period ends, if it is being deleted, in Unix time."""
    is_overdue: bool = field(default=False, kw_only=True)
    """It should have ended some time ago; its kubelet is not responding."""
    reason: str
    """Why it ended or is being deleted: the one-word reason of Kubernetes."""
    message: str
    """The message that belongs to the reason."""
    waiting: str
    """Why it does not run yet, as a clause."""
    exit_code: int | None
    termination: str
    """The termination message of its container."""


def read_job(found: KubernetesObject) -> ClusterJob | None:
    """The facts that are kept of a Job; None if it is not one of ours."""
    metadata, status = found["metadata"], found.get("status") or {}
    ids = metadata.get("annotations") or {}
    if JOB_ANNOTATION not in ids:
        return None
    failed = next((each for each in _conditions(status) if each["type"] == "Failed" and each["status"] == "True"), {})
    return ClusterJob(
        name=metadata["name"],
        uid=metadata["uid"],
        job_id=ids[JOB_ANNOTATION],
        token=ids.get(TOKEN_ANNOTATION, ""),
        experiment_id=ids.get(EXPERIMENT_ANNOTATION, ""),
        created_at=created_at(found),
        is_suspended=bool(found.get("spec", {}).get("suspend")),
        failure=_clause(failed.get("reason"), failed.get("message")),
    )


def read_pod(found: KubernetesObject) -> ClusterPod:
    """The facts that are kept of a pod."""
    metadata, status = found["metadata"], found.get("status") or {}
    disruption = next(
        (each for each in _conditions(status) if (each["type"], each["status"]) == ("DisruptionTarget", "True")), {}
    )
    container = _trial(status.get("containerStatuses"))
    ended = (container.get("state") or {}).get("terminated") or {}
    reason = status.get("reason") or disruption.get("reason") or ended.get("reason") or ""
    return ClusterPod(
        name=metadata["name"],
        uid=metadata["uid"],
        job_name=(metadata.get("labels") or {}).get(JOB_LABEL, ""),
        created_at=created_at(found),
        phase=status.get("phase", "Pending"),
        node=found["spec"].get("nodeName", ""),
        is_going="deletionTimestamp" in metadata,
        end_due=_time(metadata["deletionTimestamp"]) if "deletionTimestamp" in metadata else 0.0,
        reason=reason,
        message=status.get("message") or disruption.get("message") or "",
        waiting=_waiting(status),
        exit_code=ended.get("exitCode"),
        termination=ended.get("message") or "",
    )


def describe(job: ClusterJob, pods: Sequence[ClusterPod], warning: str) -> PlatformJob:
    """The state of a trial job.

    :param pods: all pods that were started for it, in order of creation, including deleted ones.
    :param warning: the cluster's last warning about the Job or its pod.
    """
    if not pods:
        detail = job.failure or warning or ("its Job is suspended" if job.is_suspended else "its Job has no pod yet")
        status = PlatformStatus.ENDED if job.failure else PlatformStatus.PENDING
        return replace(_seen(job, status, detail=detail), is_impossible=is_refused_for_good(warning))
    first, instances = pods[0], tuple(pod.uid for pod in pods)
    if first.phase in ("Succeeded", "Failed") or first.exit_code is not None:  # other containers may still be running
        reason, detail = _how_it_ended(first)
        return _seen(job, PlatformStatus.ENDED, first, instances, detail=detail, reason=reason)
    if len(pods) > 1:  # the cluster replaces a pod as soon as it is to end
        is_lost = not first.is_going or first.reason in _LOST or warning.startswith(_NODE_AWAY)
        reason = EndReason.NODE_LOST if is_lost else EndReason.PREEMPTED
        return _seen(job, PlatformStatus.RUNNING, first, instances, detail=_leaving(first), reason=reason)
    if first.is_overdue:
        detail = f"the pod on node {first.node} was deleted and has not ended in time, so its node is lost"
        return _seen(job, PlatformStatus.RUNNING, first, instances, detail=detail, reason=EndReason.NODE_LOST)
    if first.phase == "Pending":
        return _seen(job, PlatformStatus.PENDING, first, instances, detail=first.waiting or warning)
    detail = ""
    if first.is_going:
        detail = _leaving(first)
    elif warning.startswith(_NODE_AWAY):  # other warnings are about what it was waiting for earlier
        detail = warning
    return _seen(job, PlatformStatus.RUNNING, first, instances, detail=detail)


def is_refused_for_good(sentence: str) -> bool:
    """Whether a cluster has refused a pod, in this sentence, for what does not change by itself."""
    return "is forbidden" in sentence and any(part in sentence for part in _NEVER)


def _seen(
    job: ClusterJob,
    status: PlatformStatus,
    pod: ClusterPod | None = None,
    instances: tuple[str, ...] = (),
    *,
    detail: str,
    reason: EndReason | None = None,
) -> PlatformJob:
    return PlatformJob(
        job.job_id,
        job.token,
        job.experiment_id,
        status,
        job.created_at,
        detail=detail[:_MOST_DETAIL],
        node=pod.node if pod is not None else "",
        instances=instances,
        reason=reason,
        exit_code=pod.exit_code if pod is not None else None,
    )


def _how_it_ended(pod: ClusterPod) -> tuple[EndReason | None, str]:
    """Why the cluster ended a pod; no reason where the keeper knows it."""
    where = f" on node {pod.node}" if pod.node else ""
    said = _clause(pod.reason, pod.message)
    if pod.reason == "OOMKilled":
        return EndReason.OUT_OF_MEMORY, f"the pod{where} used more memory than its limit (OOMKilled)"
    if pod.reason in _LOST:
        return EndReason.NODE_LOST, f"the pod{where} is lost: {said}"
    if pod.reason in _TAKEN_AWAY or pod.reason.startswith(_TAKEN_AWAY_PREFIXES):
        return EndReason.PREEMPTED, f"the pod{where} was ended by the cluster: {said}"
    if pod.is_going:
        return EndReason.PREEMPTED, f"the pod{where} was deleted"
    code = "" if pod.exit_code is None else f"exit code {pod.exit_code} of the pod{where}"
    return None, _join(code, said if pod.reason not in ("Completed", "Error") else pod.message)


def _leaving(pod: ClusterPod) -> str:
    said = _clause(pod.reason, pod.message)
    return f"its pod is being ended{f' ({said})' if said else ''}"


def _waiting(status: KubernetesObject) -> str:
    """Why a pod does not run yet, in the scheduler's or the kubelet's words."""
    for condition in _conditions(status):
        if condition["type"] == "PodScheduled" and condition["status"] == "False":
            return str(condition.get("message") or condition.get("reason") or "")
    for each in [*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())]:
        waiting = (each.get("state") or {}).get("waiting") or {}
        if waiting.get("reason") not in (None, "ContainerCreating", "PodInitializing"):
            said = _clause(waiting["reason"], waiting.get("message"))
            is_of_image = "Image" in waiting["reason"] or waiting["reason"] == "RegistryUnavailable"
            return f"the image {each['image']} cannot be used: {said}" if is_of_image else said
    return ""


def _trial(statuses: Sequence[KubernetesObject] | None) -> KubernetesObject:
    return next((each for each in statuses or () if each["name"] == TRIAL_CONTAINER), {})


def _conditions(status: KubernetesObject) -> Sequence[KubernetesObject]:
    return status.get("conditions") or ()


def _clause(reason: str | None, message: str | None) -> str:
    return ": ".join(part.strip() for part in (reason, message) if part and part.strip())


def _join(*clauses: str) -> str:
    return "; ".join(clause for clause in clauses if clause)


def created_at(found: KubernetesObject) -> float:
    """The Unix time at which an object was created."""
    return _time(found["metadata"]["creationTimestamp"])


def _time(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()

"""What the state of a Job and its pods means, in the forms in which clusters from 1.20 to 1.37 report it."""

from dataclasses import replace
from typing import Any

import pytest

from proctor.training_services.base import EndReason
from proctor.training_services.job_keeper_service import PlatformStatus
from proctor.training_services.kubernetes.pods import ClusterJob, ClusterPod, describe, read_job, read_pod

JOB: dict[str, Any] = {
    "metadata": {
        "name": "proctor-1",
        "uid": "job-uid",
        "creationTimestamp": "2026-11-24T00:00:00Z",
        "annotations": {"proctor/job-id": "T.1", "proctor/job-token": "t", "proctor/experiment-id": "_E"},
    },
    "spec": {},
}


def job(**status: Any) -> ClusterJob:
    found = read_job({**JOB, "status": status})
    assert found is not None
    return found


def pod(uid: str = "pod-1", *, is_going: bool = False, **status: Any) -> ClusterPod:
    metadata: dict[str, Any] = {
        "name": f"proctor-1-{uid}",
        "uid": uid,
        "creationTimestamp": "2026-11-24T00:00:01Z",
        "labels": {"proctor/job": "proctor-1"},
    }
    if is_going:
        metadata["deletionTimestamp"] = "2026-11-24T00:01:00Z"
    return read_pod({"metadata": metadata, "spec": {"nodeName": "node-1"}, "status": status})


def ended(reason: str, code: int, **status: Any) -> ClusterPod:
    terminated = {"reason": reason, "exitCode": code}
    return pod(phase="Failed", containerStatuses=[{"name": "trial", "state": {"terminated": terminated}}], **status)


def waits(reason: str, message: str) -> dict[str, Any]:
    waiting = {"reason": reason, "message": message}
    status = {"name": "trial", "image": "digits:3", "state": {"waiting": waiting}}
    return {"phase": "Pending", "containerStatuses": [status]}


UNSCHEDULABLE = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/3 nodes"}


@pytest.mark.parametrize(
    ("pods", "warning", "detail"),
    [
        ([], "", "its Job has no pod yet"),
        ([], "FailedCreate: exceeded quota: gpus", "FailedCreate: exceeded quota: gpus"),
        ([pod(phase="Pending", conditions=[UNSCHEDULABLE])], "", "0/3 nodes"),
        (
            [pod(**waits("ImagePullBackOff", "Back-off pulling x"))],
            "",
            "the image digits:3 cannot be used: ImagePullBackOff: Back-off pulling x",
        ),
        ([pod(**waits("CreateContainerError", "no such user"))], "", "CreateContainerError: no such user"),
        ([pod(**waits("ContainerCreating", ""))], "FailedMount: no secret", "FailedMount: no secret"),
        ([pod(phase="Pending")], "", ""),
    ],
)
def test_a_job_that_waits_says_why_in_the_words_of_the_cluster(
    pods: list[ClusterPod], warning: str, detail: str
) -> None:
    seen = describe(job(), pods, warning)
    assert (seen.status, seen.detail) == (PlatformStatus.PENDING, detail)


def test_a_pod_that_should_have_ended_long_ago_is_lost_with_its_node() -> None:
    going = pod(is_going=True, phase="Running")
    assert describe(job(), [going], "").reason is None
    seen = describe(job(), [replace(going, is_overdue=True)], "")
    assert (seen.status, seen.reason) == (PlatformStatus.RUNNING, EndReason.NODE_LOST)
    assert seen.detail == "the pod on node node-1 was deleted and has not ended in time, so its node is lost"


def test_a_suspended_job_waits_for_its_queue() -> None:
    found = read_job({**JOB, "spec": {"suspend": True}})
    assert found is not None
    assert describe(found, (), "").detail == "its Job is suspended"


@pytest.mark.parametrize(
    ("state", "reason", "word"),
    [
        (ended("OOMKilled", 137), EndReason.OUT_OF_MEMORY, "memory"),
        (pod(phase="Failed", reason="Evicted", message="low on disk"), EndReason.PREEMPTED, "low on disk"),
        (pod(phase="Failed", reason="Terminated", message="node shutdown"), EndReason.PREEMPTED, "node shutdown"),
        (pod(phase="Failed", reason="OutOfnvidia.com/gpu", message="no GPU"), EndReason.PREEMPTED, "no GPU"),
        (pod(phase="Failed", reason="NodeLost", message="gone"), EndReason.NODE_LOST, "gone"),
        (ended("ContainerStatusUnknown", 137), EndReason.NODE_LOST, "node-1"),
        (pod(phase="Failed", is_going=True), EndReason.PREEMPTED, "deleted"),
        (
            pod(
                phase="Failed",
                conditions=[
                    {
                        "type": "DisruptionTarget",
                        "status": "True",
                        "reason": "EvictionByEvictionAPI",
                        "message": "drain",
                    }
                ],
            ),
            EndReason.PREEMPTED,
            "drain",
        ),
        (ended("Error", 1), None, "exit code 1"),
        (
            ended("Error", 1, conditions=[{"type": "DisruptionTarget", "status": "False", "reason": "EvictionByX"}]),
            None,
            "exit code 1",
        ),
        (pod(phase="Failed", reason="DeletionByTaintManager", message="a taint"), EndReason.PREEMPTED, "a taint"),
        (ended("Completed", 0), None, "exit code 0"),
        (replace(ended("OOMKilled", 137), phase="Running"), EndReason.OUT_OF_MEMORY, "memory"),  # beside a sidecar
    ],
)
def test_how_a_pod_ended_is_the_clusters_reason_where_it_has_one(
    state: ClusterPod, reason: EndReason | None, word: str
) -> None:
    seen = describe(job(), [state], "")
    assert (seen.status, seen.reason) == (PlatformStatus.ENDED, reason)
    assert word in seen.detail


@pytest.mark.parametrize(
    ("first", "warning", "reason"),
    [
        (pod(phase="Running", is_going=True), "", EndReason.PREEMPTED),
        (pod(phase="Running", is_going=True), "NodeNotReady: Node is not ready", EndReason.NODE_LOST),
        (pod(phase="Running"), "", EndReason.NODE_LOST),
    ],
)
def test_a_second_pod_says_what_became_of_the_first(first: ClusterPod, warning: str, reason: EndReason) -> None:
    seen = describe(job(), [first, pod("pod-2", phase="Pending")], warning)
    assert (seen.instances, seen.reason) == (("pod-1", "pod-2"), reason)


@pytest.mark.parametrize(
    ("warning", "detail"),
    [("FailedScheduling: 0/3 nodes", ""), ("NodeNotReady: Node is not ready", "NodeNotReady: Node is not ready")],
)
def test_a_pod_that_runs_no_longer_says_what_it_waited_for(warning: str, detail: str) -> None:
    seen = describe(job(), [pod(phase="Running")], warning)
    assert (seen.status, seen.detail) == (PlatformStatus.RUNNING, detail)


def test_a_job_without_our_annotation_is_not_ours() -> None:
    assert read_job({**JOB, "metadata": {**JOB["metadata"], "annotations": {}}}) is None


def test_ids_and_times_are_read() -> None:
    found = job()
    assert (found.job_id, found.token, found.experiment_id, found.created_at) == ("T.1", "t", "_E", 1795478400.0)

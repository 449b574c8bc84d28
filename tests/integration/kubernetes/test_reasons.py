"""Why a trial waits and how it ended on Kubernetes, on a real control plane: the rows of docs/kubernetes.md."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from fakes.kubernetes.cluster import Cluster
from integration.kubernetes.harness import KubernetesHarness, Scene

from proctor.training_services.base import EndReason, TrialJobStatus
from proctor.training_services.testing import COMMANDS, VALUES, Behavior, serving

pytestmark = pytest.mark.anyio


@pytest.fixture
async def harness(cluster: Cluster, tmp_path: Path, anyio_backend: str) -> AsyncIterator[KubernetesHarness]:
    async with KubernetesHarness(cluster, tmp_path).opened() as made:
        yield made


async def in_thread(call: Any, *arguments: Any, **options: Any) -> Any:
    return await asyncio.to_thread(call, *arguments, **options)


async def test_a_trial_waits_for_gpus_in_the_words_of_the_scheduler_and_another_one_runs(
    harness: KubernetesHarness,
) -> None:
    harness.cluster.add_node("gpu", gpus=1)
    scene = Scene(harness)
    async with serving(harness.service):
        big = await scene.submit(harness.form_of("true", "big", gpus=2))
        small = await scene.submit(harness.form_of('echo "$NVIDIA_VISIBLE_DEVICES" | grep -q GPU-', "small", gpus=1))
        await scene.waits(big, "Insufficient nvidia.com/gpu")
        assert (await scene.ends(small))[0] is EndReason.EXITED_OK
        await harness.service.cancel_trial_job(big.job_id)
        assert await scene.ends(big) == (EndReason.CANCELED, "stopped before it was started")


async def test_a_trial_waits_for_an_image_that_cannot_be_pulled_and_runs_once_it_can(
    harness: KubernetesHarness,
) -> None:
    harness.cluster.add_node("node")
    harness.cluster.lose_image("example/trial:1", "repository does not exist")
    scene = Scene(harness)
    async with serving(harness.service):
        form = await scene.submit(harness.form(Behavior.REPORT))
        await scene.waits(form, "ErrImagePull", "repository does not exist")
        harness.cluster.find_image("example/trial:1")
        assert (await scene.ends(form))[0] is EndReason.EXITED_OK


async def test_a_trial_waits_for_a_quota(harness: KubernetesHarness) -> None:
    harness.cluster.add_node("node")
    await in_thread(harness.cluster.set_quota, pods="0")
    scene = Scene(harness)
    async with serving(harness.service):
        form = await scene.submit(harness.form(Behavior.REPORT))
        await scene.waits(form, "exceeded quota")
        await harness.service.cancel_trial_job(form.job_id)
        await scene.ends(form)


async def test_a_trial_waits_for_a_claim_that_is_missing_and_then_sees_what_is_in_it(
    cluster: Cluster, tmp_path: Path
) -> None:
    cluster.add_node("node")
    harness = KubernetesHarness(cluster, tmp_path, mounts=[{"path": "/data", "claim": "datasets"}])
    async with harness.opened(), serving(harness.service):
        scene = Scene(harness)
        form = await scene.submit(harness.form_of("grep -q cats /data/list"))
        await scene.waits(form, 'persistentvolumeclaim "datasets" not found')
        (await in_thread(cluster.add_claim, "datasets") / "list").write_text("cats\n")
        assert (await scene.ends(form))[0] is EndReason.EXITED_OK


async def test_a_trial_waits_at_most_for_the_pending_timeout(harness: KubernetesHarness) -> None:
    await harness.service.set_cluster_metadata("pending_timeout_seconds", 1.0)
    scene = Scene(harness)
    async with serving(harness.service):
        form = await scene.submit(harness.form(Behavior.REPORT))
        reason, detail = await scene.ends(form)
    assert reason is EndReason.UNPLACEABLE
    assert detail.startswith("it waited for 1 s, which is pendingTimeout: ")
    await harness.service.clean_up()
    assert await harness.leftovers() == []


async def test_a_pod_that_does_not_reach_the_manager_says_so(harness: KubernetesHarness) -> None:
    node = harness.cluster.add_node("node")
    node.agent.without_network.append("proctor-")
    scene = Scene(harness)
    async with serving(harness.service):
        form = await scene.submit(harness.form(Behavior.REPORT))
        url = harness.settings["manager_url"]
        await scene.waits(
            form, "its keeper was started on node", "has not connected to this manager", url, "is unreachable"
        )
        await harness.service.cancel_trial_job(form.job_id)
        await scene.ends(form)


async def test_a_keeper_that_never_comes_up_ends_its_trial_with_the_end_of_its_log(
    cluster: Cluster, tmp_path: Path
) -> None:
    cluster.add_node("node")
    harness = KubernetesHarness(cluster, tmp_path, python="/bin/ls")
    async with harness.opened(), serving(harness.service):
        scene = Scene(harness)
        form = await scene.submit(harness.form(Behavior.REPORT))
        reason, detail = await scene.ends(form)
    assert reason is EndReason.LAUNCH_FAILED
    assert "its keeper ended before it had connected" in detail
    assert "it printed last: /bin/ls: " in detail


async def test_a_trial_that_the_kernel_kills_for_memory_is_out_of_memory(harness: KubernetesHarness) -> None:
    node = harness.cluster.add_node("node")
    scene = Scene(harness)
    async with serving(harness.service):
        form = await scene.run()
        node.oom_kill(await harness.pod(form))
        assert await scene.ends(form) == (
            EndReason.OUT_OF_MEMORY,
            f"the pod on node {node.name} used more memory than its limit (OOMKilled)",
        )


@pytest.mark.parametrize("how", ["evict", "run_out", "drain", "delete"])
async def test_a_pod_that_is_taken_away_costs_its_trial_nothing(harness: KubernetesHarness, how: str) -> None:
    node = harness.cluster.add_node("node")
    scene = Scene(harness)
    async with serving(harness.service):
        form = await scene.run()
        pod = await harness.pod(form)
        match how:
            case "evict":
                await in_thread(harness.cluster.evict, pod)
            case "run_out":
                node.run_out(pod)
            case "drain":
                await in_thread(node.drain)
            case "delete":
                await in_thread(harness.cluster.delete, harness.cluster.path("pods", pod))
        reason, detail = await scene.ends(form)
        assert reason is EndReason.PREEMPTED, detail
        assert detail
        assert not await harness.processes()


async def test_a_node_that_is_gone_is_lost(cluster: Cluster, tmp_path: Path) -> None:
    cluster.add_node("node")
    cluster.add_node("other")
    harness = KubernetesHarness(cluster, tmp_path, node_timeout_seconds=1.0)
    async with harness.opened(), serving(harness.service):
        scene = Scene(harness)
        form = await scene.run()
        node = await in_thread(cluster.node_of, await harness.pod(form))
        await in_thread(node.power_off)
        reason, detail = await scene.ends(form)
        assert reason is EndReason.NODE_LOST, detail
        again = await scene.submit(harness.form(Behavior.REPORT, "again"))
        assert (await scene.ends(again))[0] is EndReason.EXITED_OK


async def test_a_second_pod_never_runs_the_job(harness: KubernetesHarness) -> None:
    harness.cluster.add_node("node")
    harness.cluster.add_node("other")
    scene = Scene(harness)
    async with serving(harness.service):
        form = await scene.run()
        await in_thread(harness.cluster.add_second_pod, harness.job_name(form))
        reason, _ = await scene.ends(form)
        assert reason in {EndReason.NODE_LOST, EndReason.PREEMPTED}  # as the cluster says
        await harness.until(lambda: not harness.cluster.list("jobs"))
    assert scene.recorder.statuses(form.job_id).count(TrialJobStatus.RUNNING) == 1


@pytest.mark.parametrize(("is_reachable", "start_was_stored"), [(True, True), (False, True), (False, False)])
async def test_after_a_restart_a_second_pod_does_not_run_the_job_of_a_first_one_that_the_cluster_has_forgotten(
    cluster: Cluster, tmp_path: Path, is_reachable: bool, start_was_stored: bool
) -> None:
    cluster.add_node("node")
    cluster.add_node("other")
    runs = await in_thread(cluster.add_claim, "runs") / "runs"
    harness = KubernetesHarness(cluster, tmp_path, mounts=[{"path": "/runs", "claim": "runs"}])
    async with harness.opened():
        async with serving(harness.service):
            form = await Scene(harness).submit(harness.form_of("echo run >> /runs/runs; sleep 600"))
            await harness.until(runs.exists)
            pod = await harness.pod(form)
        await harness.close()
        node = await in_thread(cluster.node_of, pod)
        if not is_reachable:
            os.kill(node.container(pod).pid, signal.SIGSTOP)
        await in_thread(cluster.add_second_pod, harness.job_name(form))
        await in_thread(cluster.delete, cluster.path("pods", pod), {"gracePeriodSeconds": 0})
        assert await harness.pod(form) != pod
        await harness.open()
        scene = Scene(harness)
        # as the manager announces it
        harness.hub.expect(form.job_id, form.token, form.experiment_id, started=start_was_stored)
        await harness.service.reattach([form], [])
        await harness.reattached()
        async with serving(harness.service):
            reason, detail = await scene.ends(form)
            await harness.until(lambda: not cluster.list("jobs"))
    assert reason in {EndReason.NODE_LOST, EndReason.PREEMPTED}, detail
    assert runs.read_text() == "run\n"


async def test_trials_are_unaffected_while_the_api_server_is_away(harness: KubernetesHarness) -> None:
    harness.cluster.add_node("node")
    scene = Scene(harness)
    async with serving(harness.service):
        form = await scene.submit(harness.form_of("sleep 2"))
        await scene.recorder.start_of(form.job_id)
        harness.cluster.gate.close()
        waiting = await scene.submit(harness.form(Behavior.REPORT, "second"))
        assert (await scene.ends(form))[0] is EndReason.EXITED_OK
        await scene.waits(waiting, "cannot be reached")
        harness.cluster.gate.open()
        assert (await scene.ends(waiting))[0] is EndReason.EXITED_OK
        await harness.until(lambda: not harness.cluster.list("jobs"))


async def test_rights_that_are_taken_away_are_named_and_nothing_is_lost(cluster: Cluster, tmp_path: Path) -> None:
    cluster.add_node("node")
    shared = await in_thread(cluster.add_claim, "data")
    everything = [{"apiGroups": ["", "batch"], "resources": ["*"], "verbs": ["*"]}]
    await in_thread(cluster.grant, "person", everything)
    harness = KubernetesHarness(cluster, tmp_path, context="person", mounts=[{"claim": "data", "path": "/data"}])
    async with harness.opened(), serving(harness.service):
        scene, report = Scene(harness), COMMANDS[Behavior.REPORT]
        form = await scene.submit(harness.form_of(f"{report}; until [ -e /data/go ]; do sleep 0.05; done; {report}"))
        await scene.recorder.until(lambda: len(scene.recorder.records(form.job_id)) == len(VALUES) + 1)
        await in_thread(cluster.grant, "person", [])
        await harness.until(lambda: not cluster.is_allowed("person", "watch", "jobs"))
        cluster.gate.close()  # a watch that runs is not asked again
        cluster.gate.open()
        second = await scene.submit(harness.form(Behavior.REPORT, "second"))
        await scene.waits(second, 'cannot get resource "configmaps"')
        (shared / "go").touch()
        assert (await scene.ends(form))[0] is EndReason.EXITED_OK
        await in_thread(cluster.grant, "person", everything)
        assert (await scene.ends(second))[0] is EndReason.EXITED_OK
        assert scene.recorder.statuses(form.job_id) == [TrialJobStatus.RUNNING, TrialJobStatus.ENDED]
        assert len(scene.recorder.records(form.job_id)) == 2 * (len(VALUES) + 1)
        await harness.until(lambda: not cluster.list("jobs"))

"""A manager that no pod reaches: it comes to the pods through the API server."""

import asyncio
from pathlib import Path

import pytest
from fakes.kubernetes.cluster import Cluster
from integration.kubernetes.harness import KubernetesHarness, Scene

from proctor.training_services.base import EndReason
from proctor.training_services.testing import COMMANDS, FINAL_VALUE, VALUES, Behavior, serving

pytestmark = [pytest.mark.anyio, pytest.mark.thorough]
REPORTED = [*(("intermediate", value) for value in VALUES), ("final", FINAL_VALUE)]


async def test_a_trial_outlives_its_manager_and_the_api_server(cluster: Cluster, tmp_path: Path) -> None:
    """It reports before its manager is killed, and again when the next one serves and `go` is there."""
    node = cluster.add_node("node")
    node.agent.without_network.append("proctor-")
    shared = cluster.add_claim("data")
    mounts = [{"claim": "data", "path": "/data"}]
    report = COMMANDS[Behavior.REPORT]
    async with KubernetesHarness(cluster, tmp_path, is_direct=False, mounts=mounts).opened() as harness:
        scene = Scene(harness)
        async with serving(harness.service):
            form = await scene.submit(
                harness.form_of(f"{report}; until [ -e /data/go ]; do sleep 0.05; done; {report}; sleep 3600")
            )
            await scene.recorder.until(lambda: scene.recorder.records(form.job_id) == REPORTED)
            pod = await harness.pod(form)
            process = node.container(pod).pid
            cluster.gate.close()
        service = await harness.restart()
        scene.recorder.listen(service)
        harness.hub.expect(form.job_id, form.token, form.experiment_id, started=True)
        await service.reattach([form], [])
        await harness.reattached()
        async with serving(service):
            cluster.gate.open()
            await asyncio.to_thread((shared / "go").touch)
            await scene.recorder.until(lambda: scene.recorder.records(form.job_id) == [*REPORTED, *REPORTED])
            assert (await harness.pod(form), node.container(pod).pid) == (pod, process)
            await service.cancel_trial_job(form.job_id)
            assert (await scene.ends(form))[0] is EndReason.CANCELED
            ended = await scene.submit(harness.form(Behavior.REPORT, "ended"))
            assert (await scene.ends(ended))[0] is EndReason.EXITED_OK
        await service.clean_up()
        assert await harness.leftovers() == []


async def test_a_cluster_that_does_not_allow_exec_is_named(cluster: Cluster, tmp_path: Path) -> None:
    cluster.add_node("node")
    resources = ["jobs", "pods", "pods/log", "configmaps", "secrets", "events"]
    cluster.grant("person", [{"apiGroups": ["", "batch"], "resources": resources, "verbs": ["*"]}])
    harness = KubernetesHarness(cluster, tmp_path, is_direct=False, context="person")
    async with harness.opened(), serving(harness.service):
        scene = Scene(harness)
        form = await scene.submit(harness.form(Behavior.REPORT))
        needed = "needs the rights to create and get pods/exec"
        await scene.waits(form, "cannot be reached through the API server", needed)

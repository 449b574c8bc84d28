"""Why a trial waits and how it ended on Kubernetes, on a real control plane: the rows of docs/kubernetes.md."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from fakes.documentation import documents_of
from fakes.kubernetes.cluster import Cluster
from integration.kubernetes.harness import KubernetesHarness, Scene

from proctor.manager.config.loading import load_experiment_mapping
from proctor.training_services.base import EndReason, TrialJobStatus
from proctor.training_services.testing import COMMANDS, VALUES, Behavior, serving

PAGE = "docs/kubernetes.md"
EXPERIMENT = {
    "searchSpace": {"x": {"_type": "uniform", "_value": [0, 1]}},
    "trialCommand": "python train.py",
    "trialConcurrency": 1,
    "tuner": {"name": "Random"},
}

pytestmark = [pytest.mark.anyio, pytest.mark.thorough]


@pytest.fixture
async def harness(cluster: Cluster, tmp_path: Path, anyio_backend: str) -> AsyncIterator[KubernetesHarness]:
    async with KubernetesHarness(cluster, tmp_path).opened() as made:
        yield made


async def in_thread(call: Any, *arguments: Any, **options: Any) -> Any:
    return await asyncio.to_thread(call, *arguments, **options)


async def test_a_trial_waits_in_the_words_of_the_cluster_and_at_most_for_the_pending_timeout(
    harness: KubernetesHarness,
) -> None:
    cluster, service = harness.cluster, harness.service
    cluster.add_node("gpu", gpus=1)
    scene = Scene(harness)
    async with serving(service):
        big = await scene.submit(harness.form_of("true", "big", gpu_number=2))
        small = await scene.submit(
            harness.form_of('echo "$NVIDIA_VISIBLE_DEVICES" | grep -q GPU-', "small", gpu_number=1)
        )
        await scene.waits(big, "Insufficient nvidia.com/gpu")
        assert (await scene.ends(small))[0] is EndReason.EXITED_OK  # another one that fits runs
        await service.cancel_trial_job(big.job_id)
        assert await scene.ends(big) == (EndReason.CANCELED, "stopped before it was started")

        cluster.lose_image("example/trial:1", "repository does not exist")
        pulling = await scene.submit(harness.form(Behavior.REPORT, "pulling"))
        await scene.waits(pulling, "ErrImagePull", "repository does not exist")
        cluster.find_image("example/trial:1")
        assert (await scene.ends(pulling))[0] is EndReason.EXITED_OK

        await in_thread(cluster.set_quota, pods="0")
        refused = await scene.submit(harness.form(Behavior.REPORT, "refused"))
        await scene.waits(refused, "exceeded quota")
        await service.cancel_trial_job(refused.job_id)
        await scene.ends(refused)
        await service.set_cluster_metadata("pending_timeout_seconds", 1.0)
        late = await scene.submit(harness.form(Behavior.REPORT, "late"))
        reason, detail = await scene.ends(late)
    assert reason is EndReason.UNPLACEABLE
    assert detail.startswith("it waited for 1 s, which is pendingTimeout: ")
    await service.clean_up()
    assert await harness.leftovers() == []


async def test_a_trial_without_rights_runs_on_a_root_file_system_that_it_cannot_write(
    cluster: Cluster, tmp_path: Path
) -> None:
    """The section of docs/kubernetes.md. Another Python than the tests', whose folder is root's."""
    cluster.add_node("node")
    (section,) = (each for each in documents_of(PAGE) if "runAsUser" in each.get("trainingService", ()))
    settings = load_experiment_mapping({**EXPERIMENT, **section}, tmp_path).config.canonical()["training_service"]
    own = {"platform", "image", "namespace", "kubeconfig", "manager_url"}
    settings = {key: value for key, value in settings.items() if key not in own}
    harness = KubernetesHarness(cluster, tmp_path, **settings | {"python": "/usr/bin/python3"})
    async with harness.opened(), serving(harness.service):
        scene = Scene(harness)
        checks = [
            'test "$(id -u)" = 10001',
            "! touch /etc/here",
            "! touch /here",
            "touch /tmp/here",
            'test "$HOME" = /tmp',
        ]
        form = await scene.submit(harness.form_of(" && ".join(checks)))
        reason, detail = await scene.ends(form)
    assert reason is EndReason.EXITED_OK, detail


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


async def test_a_trial_whose_service_account_is_missing_ends_with_the_reason_and_others_see_its_events(
    cluster: Cluster, tmp_path: Path
) -> None:
    cluster.add_node("node")
    harness = KubernetesHarness(cluster, tmp_path, service_account="gone")
    async with harness.opened(), serving(harness.service):
        reason, detail = await Scene(harness).ends(await Scene(harness).submit(harness.form(Behavior.REPORT)))
        assert reason is EndReason.UNPLACEABLE
        assert 'serviceaccount "gone" not found' in detail
    account = {"metadata": {"name": "gone"}}
    await in_thread(cluster.create, cluster.path("serviceaccounts"), account)
    async with harness.opened(), serving(harness.service):
        form = await Scene(harness).run(Behavior.REPORT, "second")
        name = harness.job_name(form)
        events = f"involvedObject.name={name},source=proctor"
        await harness.until(lambda: len(cluster.list("events", fieldSelector=events)) == 2)
        reasons = {each["reason"] for each in cluster.list("events", fieldSelector=events)}
        assert reasons == {"TrialStarted", "TrialEnded"}


async def test_what_someone_has_deleted_of_an_experiment_is_made_again(harness: KubernetesHarness) -> None:
    cluster = harness.cluster
    node = cluster.add_node("node")
    scene = Scene(harness)
    async with serving(harness.service):
        first = await scene.submit(harness.form(Behavior.REPORT, "first"))
        assert (await scene.ends(first))[0] is EndReason.EXITED_OK
        await in_thread(cluster.delete, await in_thread(keeper_file_of, cluster))
        await in_thread(node.cordon)
        second = await scene.submit(harness.form(Behavior.REPORT, "second"))
        secret = cluster.path("secrets", harness.job_name(second))
        await harness.until(lambda: secret in [cluster.path("secrets", name) for name in names_of(cluster, "secrets")])
        await in_thread(cluster.delete, secret)
        await in_thread(cluster.delete, await in_thread(keeper_file_of, cluster))
        await in_thread(node.cordon, is_unschedulable=False)
        assert (await scene.ends(second))[0] is EndReason.EXITED_OK


def names_of(cluster: Cluster, plural: str) -> list[str]:
    return [each["metadata"]["name"] for each in cluster.list(plural)]


def keeper_file_of(cluster: Cluster) -> str:
    """The path of the ConfigMap with the keeper's file."""
    (name,) = (each for each in names_of(cluster, "configmaps") if "-keeper-" in each)
    return cluster.path("configmaps", name)


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


async def test_a_pod_that_is_taken_away_costs_its_trial_nothing_and_one_that_takes_too_much_memory_does(
    harness: KubernetesHarness,
) -> None:
    cluster = harness.cluster
    node, drained = cluster.add_node("node"), cluster.add_node("drained")
    await in_thread(drained.cordon)
    scene = Scene(harness)
    async with serving(harness.service):
        names = ("evicted", "run_out", "deleted", "killed", "drained")
        forms = {name: await scene.run(name=name) for name in names[:-1]}
        await in_thread(node.cordon)
        await in_thread(drained.cordon, is_unschedulable=False)
        forms["drained"] = await scene.run(name="drained")
        pods = {name: await harness.pod(form) for name, form in forms.items()}
        await in_thread(cluster.evict, pods["evicted"])
        node.run_out(pods["run_out"])
        await in_thread(cluster.delete, cluster.path("pods", pods["deleted"]))
        node.oom_kill(pods["killed"])
        await in_thread(drained.drain)
        ends = {name: await scene.ends(form) for name, form in forms.items()}
        out_of_memory = f"the pod on node {node.name} used more memory than its limit (OOMKilled)"
        assert ends.pop("killed") == (EndReason.OUT_OF_MEMORY, out_of_memory)
        assert {reason for reason, _ in ends.values()} == {EndReason.PREEMPTED}, ends
        assert all(detail for _, detail in ends.values()), ends
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


RESTARTS = {"reachable": True, "silent": True, "not-stored": False}
"""Jobs, and whether the manager has stored their start. All but the first one's keepers are silent."""


async def test_after_a_restart_a_second_pod_does_not_run_the_job_of_a_first_one_that_the_cluster_has_forgotten(
    cluster: Cluster, tmp_path: Path
) -> None:
    runs = await in_thread(cluster.add_claim, "runs")
    harness = KubernetesHarness(cluster, tmp_path, mounts=[{"path": "/runs", "claim": "runs"}])
    forms = {name: harness.form_of(f"echo run >> /runs/{name}; sleep 600", name) for name in RESTARTS}
    async with harness.opened():
        pods = {}
        async with serving(harness.service):
            for name, form in forms.items():  # each on a node of its own, which is cut off later
                node = cluster.add_node(name)
                await Scene(harness).submit(form)
                await harness.until((runs / name).exists)
                pods[name] = await harness.pod(form)
                await in_thread(node.cordon)
        await harness.close()
        cluster.add_node("other")
        for name, form in forms.items():
            if name != "reachable":
                os.kill(cluster.nodes[name].container(pods[name]).pid, signal.SIGSTOP)
            await in_thread(cluster.add_second_pod, harness.job_name(form))
            await in_thread(cluster.delete, cluster.path("pods", pods[name]), {"gracePeriodSeconds": 0})
        for name, form in forms.items():
            assert await harness.pod(form) != pods[name]
        await harness.open()
        scene = Scene(harness)
        for name, form in forms.items():  # as the manager announces it
            harness.hub.expect(form.job_id, form.token, form.experiment_id, started=RESTARTS[name])
        await harness.service.reattach(list(forms.values()), [])
        await harness.reattached()
        async with serving(harness.service):
            ends = {name: await scene.ends(form) for name, form in forms.items()}
            await harness.until(lambda: not cluster.list("jobs"))
    assert {reason for reason, _ in ends.values()} <= {EndReason.NODE_LOST, EndReason.PREEMPTED}, ends
    assert [(runs / name).read_text() for name in RESTARTS] == ["run\n"] * len(RESTARTS)


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

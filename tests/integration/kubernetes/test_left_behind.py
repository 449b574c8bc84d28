"""What managers and people have left in a namespace: looked at by doctor, removed where the database explains it."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest
from fakes.kubernetes.api import Object
from fakes.kubernetes.cluster import Cluster
from integration.kubernetes.harness import KubernetesHarness, Scene

from proctor.training_services.base import TrialJobForm
from proctor.training_services.errors import ServiceUnavailable
from proctor.training_services.job_keeper_service import PlatformJob, PlatformStatus
from proctor.training_services.job_keepers.platform import LeftReport
from proctor.training_services.kubernetes.checks import RIGHTS, RIGHTS_FOR_EXEC
from proctor.training_services.kubernetes.client import ApiRefused
from proctor.training_services.kubernetes.client import Cluster as ApiServer
from proctor.training_services.kubernetes.manifests import ExperimentManifests
from proctor.training_services.kubernetes.namespaces import NamespaceView
from proctor.training_services.kubernetes.pods import read_pod
from proctor.training_services.kubernetes.probing import PATIENCE_SECONDS, needs_change
from proctor.training_services.kubernetes.service import TORN_READS
from proctor.training_services.kubernetes.settings import KubernetesSettings
from proctor.training_services.providers import CheckStep
from proctor.training_services.testing import COMMANDS, FINAL_VALUE, VALUES, Behavior, serving
from proctor.trial_keeper.pod_output import (
    FinalMetric,
    TerminationMessage,
    format_records,
    format_termination,
    format_whole,
)
from proctor.trial_keeper.protocol import Chunk, End, EndReason, Exit, JobReport, ReportHeader

pytestmark = [pytest.mark.anyio, pytest.mark.thorough]


@pytest.fixture
async def harness(cluster: Cluster, tmp_path: Path, anyio_backend: str) -> AsyncIterator[KubernetesHarness]:
    made = KubernetesHarness(cluster, tmp_path)
    await made.open()
    try:
        yield made
    finally:
        await made.close()


def leave(harness: KubernetesHarness, experiment_id: str) -> None:
    """As an experiment whose objects were not removed."""
    manifests = ExperimentManifests(harness.provider.names, experiment_id, KubernetesSettings.read({"image": "i"}), "1")
    harness.cluster.create(harness.cluster.path("configmaps"), manifests.anchor("endpoint"))


async def anchors(harness: KubernetesHarness) -> set[str]:
    """The experiments that have an anchor."""
    found = await asyncio.to_thread(harness.cluster.list, "configmaps")
    ids = [(each["metadata"].get("annotations") or {}).get("proctor/experiment-id") for each in found]
    return {each for each in ids if each}


async def test_what_deleted_experiments_have_left_is_removed_and_what_no_database_knows_is_reported(
    harness: KubernetesHarness,
) -> None:
    async def explained(unknown: Sequence[JobReport]) -> set[str]:
        return {each.job_id for each in unknown if each.experiment_id == "deleted"}

    for experiment_id in ("deleted", "stranger", "doctor.0123abcd", harness.experiment_id):
        leave(harness, experiment_id)
    async with serving(harness.service):
        await harness.hub.mark_reattached(explained)
        async with asyncio.timeout(30):
            while await anchors(harness) != {"stranger", harness.experiment_id}:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
    assert [job.experiment_id for _, job in harness.hub.unknown_jobs()] == ["stranger"]


async def test_cleaning_leaves_experiments_that_run(harness: KubernetesHarness) -> None:
    await harness.reattached()
    harness.cluster.add_node("node")
    scene = Scene(harness)
    async with serving(harness.service):
        await scene.run()
        leave(harness, "other")
        steps = await harness.provider.clean(harness.settings, {})
        assert [(step.verdict.value, step.found) for step in steps] == [
            ("fail", f"experiment {harness.experiment_id} uses it"),
            ("ok", "removed what experiments other had there"),
        ]
        assert await anchors(harness) == {harness.experiment_id}
    await harness.service.clean_up()
    assert [step.found for step in await harness.provider.clean(harness.settings, {})] == ["nothing was left there"]


def found(steps: Sequence[CheckStep]) -> dict[str, tuple[str, str]]:
    return {step.name: (step.verdict.value, step.found) for step in steps}


@pytest.mark.parametrize("is_direct", [True, False])
async def test_a_check_sends_a_pod_that_connects_and_leaves_nothing_of_an_earlier_check_either(
    cluster: Cluster, tmp_path: Path, is_direct: bool
) -> None:
    node = cluster.add_node("node")
    async with KubernetesHarness(cluster, tmp_path, is_direct=is_direct).opened() as harness:
        leave(harness, "doctor.0123abcd")
        steps = found(await harness.provider.inspect(harness.settings, {}, trial_gpu_number=0))
        assert {name: verdict for name, (verdict, _) in steps.items()} == dict.fromkeys(
            ("cluster", "rights", "manager", "objects", "pod"), "ok"
        ), steps
        assert steps["pod"][1].startswith(f"a pod on node {node.name} has connected after ")
        assert await harness.leftovers() == []


async def test_a_check_names_what_keeps_the_pod_from_running(
    harness: KubernetesHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    await harness.reattached()
    harness.cluster.add_node("node", gpus=1)
    harness.cluster.lose_image("example/trial:1", "repository does not exist")
    steps = found(await harness.provider.inspect(harness.settings, {}, trial_gpu_number=0))  # it does not wait
    assert steps["pod"][0] == "fail", steps
    assert steps["pod"][1].startswith("it cannot run: the image example/trial:1 cannot be used: ImagePullBackOff: ")
    harness.cluster.find_image("example/trial:1")
    monkeypatch.setattr("proctor.training_services.kubernetes.probing.PATIENCE_SECONDS", 3.0)
    steps = found(await harness.provider.inspect(harness.settings, {}, trial_gpu_number=2))
    assert steps["pod"][0] == "note", steps
    assert "Insufficient nvidia.com/gpu" in steps["pod"][1]
    steps = found(await harness.provider.inspect({**harness.settings, "python": "/bin/ls"}, {}, trial_gpu_number=0))
    assert steps["pod"][0] == "fail"
    assert "/bin/ls: " in steps["pod"][1]
    missing = {**harness.settings, "mounts": [{"path": "/keys", "secret": "keys"}]}
    steps = found(await harness.provider.inspect(missing, {}, trial_gpu_number=0))
    assert steps["pod"][0] == "fail", steps
    assert 'secret "keys" not found' in steps["pod"][1]
    refused = {**harness.settings, "priority_class": "high"}
    steps = found(await harness.provider.inspect(refused, {}, trial_gpu_number=0))
    assert steps["objects"][0] == "fail", steps
    assert "no PriorityClass with name high was found" in steps["objects"][1]
    assert "pod" not in steps
    await asyncio.to_thread(harness.cluster.set_quota, pods="0")
    steps = found(await harness.provider.inspect(harness.settings, {}, trial_gpu_number=0))
    assert steps["pod"][0] == "note", steps
    assert "exceeded quota" in steps["pod"][1]
    assert await harness.leftovers() == []


@pytest.mark.parametrize(
    ("detail", "is_needed"),
    [
        ("ImagePullBackOff: Back-off pulling image", True),
        ("InvalidImageName: Failed to apply default image tag", True),
        ("CreateContainerConfigError: secret not found", True),
        ('FailedMount: MountVolume.SetUp failed for volume "mount-0" : configmap "c" not found', True),
        ('FailedCreate: pods "p" is forbidden: violates PodSecurity "baseline"', True),
        ('FailedCreate: pods "p" is forbidden: error looking up service account a/b', True),
        ('FailedCreate: pods "p" is forbidden: exceeded quota: q', False),
        ("0/3 nodes are available: 3 Insufficient nvidia.com/gpu.", False),
        ("its Job is suspended", False),
    ],
)
def test_what_a_pod_waits_for_comes_by_itself_or_needs_a_change(detail: str, is_needed: bool) -> None:
    assert needs_change(detail) is is_needed


async def test_a_check_is_left_alone_while_it_runs_and_removes_its_objects_when_it_is_canceled_if_it_can(
    harness: KubernetesHarness,
) -> None:
    await harness.reattached()
    async with asyncio.TaskGroup() as group:
        check = group.create_task(harness.provider.inspect(harness.settings, {}, trial_gpu_number=0), name="check")
        (job,) = await harness.until(lambda: harness.cluster.list("jobs"))
        assert job["spec"]["activeDeadlineSeconds"] > PATIENCE_SECONDS
        steps = await harness.provider.clean(harness.settings, {})
        assert [(step.verdict.value, step.found) for step in steps] == [("fail", "`proctor doctor` is using it")]
        assert len(await anchors(harness)) == 1
        check.cancel()
    assert await harness.leftovers() == []
    async with asyncio.TaskGroup() as group:
        check = group.create_task(harness.provider.inspect(harness.settings, {}, trial_gpu_number=0), name="check")
        await harness.until(lambda: harness.cluster.list("jobs"))
        check.cancel()
        harness.cluster.gate.close()  # it ends all the same
    harness.cluster.gate.open()
    assert check.cancelled()


async def test_a_check_names_the_verbs_that_are_missing(harness: KubernetesHarness) -> None:
    await harness.reattached()
    harness.cluster.add_node("node")
    settings = {**harness.settings, "context": "person"}
    steps = found(await harness.provider.inspect(settings, {}))
    wanted = [f"{verb} {right.resource}" for right in RIGHTS for verb in right.verbs]
    assert steps["rights"][0] == "fail"
    assert all(words in steps["rights"][1] for words in wanted)
    assert "pod" not in steps
    rules = [
        {"apiGroups": [right.group], "resources": [right.resource], "verbs": list(right.verbs)}
        for right in (*RIGHTS, *RIGHTS_FOR_EXEC)
        if right.is_needed
    ]
    await asyncio.to_thread(harness.cluster.grant, "person", rules)
    steps = found(await harness.provider.inspect(settings, {}))
    assert steps["rights"][0] == "note"
    assert "create pods, create events, list events, watch events" in steps["rights"][1]


END = Exit(EndReason.EXITED_OK, 0, None, 1.0, 2.0)
METADATA = {"name": "pod", "uid": "1", "creationTimestamp": "2026-11-24T00:00:00Z"}


class EndedPod:
    """A pod in whose termination message an end and a final metric are, and whose log answers as a test wants it."""

    def __init__(self, harness: KubernetesHarness, monkeypatch: pytest.MonkeyPatch) -> None:
        self.harness = harness
        self.log: bytes | int = 404
        """Its content, or the status with which reading it is refused."""
        message = format_termination(TerminationMessage("T.1", END, {"0": FinalMetric(500, b"[]")})).decode()
        ended = {"name": "trial", "state": {"terminated": {"message": message, "exitCode": 0}}}
        self.pod = read_pod({"metadata": METADATA, "spec": {}, "status": {"containerStatuses": [ended]}})
        monkeypatch.setattr(NamespaceView, "first_pod", lambda *_: self.pod)
        monkeypatch.setattr(ApiServer, "read_log", self._read_log)

    async def read(self) -> LeftReport | None:
        """What the service finds."""
        seen = PlatformJob("T.1", "t", self.harness.experiment_id, PlatformStatus.ENDED, 0.0)
        return await self.harness.service.read_left_report(seen, is_last=False)

    async def _read_log(self, *_: object, **__: object) -> bytes:
        if isinstance(self.log, int):
            raise ApiRefused(self.log, "", "not now")
        return self.log


@pytest.fixture
def ended(harness: KubernetesHarness, monkeypatch: pytest.MonkeyPatch) -> EndedPod:
    return EndedPod(harness, monkeypatch)


@pytest.mark.parametrize("has_chunks", [True, False])
async def test_what_is_missing_in_a_log_that_stays_cut_is_lost_and_the_end_with_its_result_is_not(
    ended: EndedPod, has_chunks: bool
) -> None:
    chunks = [Chunk("T.1", "t", "0", 100, 3)] if has_chunks else []
    header = ReportHeader("", chunks, [], [End("T.1", "t", END)])
    records = list(format_records(header, [b"{}\n"] if has_chunks else []))
    ended.log = "\n".join([*records, format_whole(7)]).encode()  # the first ones are gone
    with pytest.raises(ServiceUnavailable):
        await ended.read()
    ended.harness.service.leave_keeper("T.1")  # it is removed: how often its log was read is forgotten
    for _ in range(TORN_READS):
        with pytest.raises(ServiceUnavailable, match="the log of pod pod is cut"):
            await ended.read()
    left = await ended.read()
    assert left is not None
    assert left.header.chunks == [*chunks, Chunk("T.1", "t", "0", 500, 3)]
    assert (left.body, left.is_cut) == (b"{}\n[]\n" if has_chunks else b"[]\n", True)
    assert left.header.ends[0].exit.detail == "reports may be lost: the log of its pod was cut or is gone"


async def test_where_a_log_is_gone_the_termination_message_has_the_end_and_the_result(ended: EndedPod) -> None:
    left = await ended.read()
    assert left is not None
    assert (left.header.chunks, left.body) == ([Chunk("T.1", "t", "0", 500, 3)], b"[]\n")
    assert (left.header.ends[0].exit.reason, left.is_cut) == (EndReason.EXITED_OK, True)


async def test_reports_in_a_log_that_cannot_be_read_now_are_not_given_up(ended: EndedPod) -> None:
    ended.pod = read_pod({"metadata": METADATA, "spec": {}})
    for ended.log in (429, 500):
        with pytest.raises(ServiceUnavailable):
            await ended.read()
    for ended.log in (404, 400):  # it is gone
        assert await ended.read() is None


RECORD = """echo '{"kind":"%s","value":%s,"time":1.0}' >> "$PROCTOR_JOB_DIR/journal"; """
BEGIN = RECORD % ("intermediate", "0.0") + "until [ -e /shared/go ]; do sleep 0.05; done; "
"""What trials report and do until the manager is away."""
ENDINGS = {
    "whole": COMMANDS[Behavior.REPORT],
    "rotated": RECORD % ("final", FINAL_VALUE) + "exit 3",
}
"""How they continue, by what becomes of the log of their pod."""


async def test_what_ended_while_the_manager_was_away_is_read_from_log_and_termination_message(
    cluster: Cluster, tmp_path: Path
) -> None:
    node, go = cluster.add_node("node"), cluster.add_claim("shared") / "go"
    mounts = [{"path": "/shared", "claim": "shared"}]
    first, final = ("intermediate", 0.0), ("final", FINAL_VALUE)
    async with KubernetesHarness(cluster, tmp_path, linger_seconds=3.0, mounts=mounts).opened() as harness:
        scene = Scene(harness)
        records = scene.recorder.records
        forms = [harness.form_of(BEGIN + ending, name) for name, ending in ENDINGS.items()]
        whole, rotated = forms
        async with serving(harness.service):
            for form in forms:
                await scene.submit(form)
            await scene.recorder.until(lambda: all(records(form.job_id) == [first] for form in forms))
            pod = await harness.pod(rotated)
        await harness.close()
        await asyncio.to_thread(go.touch)
        await harness.until(lambda: {each["status"]["phase"] for each in cluster.list("pods")} == {"Succeeded"})
        node.container(pod).log.unlink()
        await harness.open()
        scene.recorder.listen(harness.service)
        for form in forms:
            harness.hub.expect(form.job_id, form.token, harness.experiment_id, started=True)
        await harness.service.reattach(forms, [])
        await harness.reattached()
        async with serving(harness.service):
            assert await scene.ends(whole) == (EndReason.EXITED_OK, "")
            lost = "exit code 3; reports may be lost: the log of its pod was cut or is gone"
            assert await scene.ends(rotated) == (EndReason.EXITED_ERROR, lost)
    assert records(whole.job_id) == [first, *(("intermediate", value) for value in VALUES), final]
    assert records(rotated.job_id) == [first, final]


def made_job(harness: KubernetesHarness, name: str) -> tuple[TrialJobForm, Object]:
    """A form, and its Job as the API server shows it."""
    form = harness.form_of("true", name)
    settings = KubernetesSettings.read({"image": "i"})
    manifests = ExperimentManifests(harness.provider.names, harness.experiment_id, settings, "1")
    anchor = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "anchor", "uid": "1"}}
    job = manifests.job(form, keeper_id="k", keeper_sha256="0" * 64, owner=anchor)
    job["metadata"] |= {"uid": name, "creationTimestamp": "2026-11-24T00:00:00Z"}
    return form, job


async def test_what_changes_between_a_list_and_its_watch_is_not_missed(harness: KubernetesHarness) -> None:
    view = await harness.provider.view(KubernetesSettings.read(harness.settings), harness.experiment_id)
    assert await harness.service.list_keepers() == []
    form, job = made_job(harness, "first")
    view.note_created(job)
    async for seen in harness.service.watch_keepers():
        assert (seen.job_id, seen.status) == (form.job_id, PlatformStatus.PENDING)
        break


async def test_a_service_that_is_canceled_while_a_job_changes_ends_at_once(harness: KubernetesHarness) -> None:
    view = await harness.provider.view(KubernetesSettings.read(harness.settings), harness.experiment_id)
    assert await harness.service.list_keepers() == []

    async def follow() -> None:
        async for _ in harness.service.watch_keepers():
            pass

    for turns in range(4):
        async with asyncio.TaskGroup() as group:
            following = group.create_task(follow(), name="changes on the platform")
            await asyncio.sleep(0.05)
            view.note_created(made_job(harness, f"job{turns}")[1])
            for _ in range(turns):
                await asyncio.sleep(0)
            following.cancel()
            _, pending = await asyncio.wait({following}, timeout=10)
            following.cancel()
        assert not pending


def watches() -> list[str]:
    return [task.get_name() for task in asyncio.all_tasks() if task.get_name().startswith("watch of ")]


async def test_a_namespace_is_watched_as_long_as_an_experiment_is_there(harness: KubernetesHarness) -> None:
    settings = KubernetesSettings.read(harness.settings)
    view = await harness.provider.view(settings, "one")
    assert await harness.provider.view(settings, "two") is view
    assert await view.list() == []
    await harness.provider.forget("one")
    assert len(watches()) == 3
    await harness.provider.forget("two")
    async with asyncio.timeout(30):
        while watches():  # noqa: ASYNC110 - no event tells of it
            await asyncio.sleep(0.01)
    again = await harness.provider.view(settings, "one")
    assert again is not view
    assert await again.list() == []


async def test_a_cluster_that_cannot_be_closed_does_not_leave_others_open(
    harness: KubernetesHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed: list[str] = []
    close = ApiServer.close

    async def fail(cluster: ApiServer) -> None:
        await close(cluster)
        closed.append(cluster.context)
        raise OSError("no")

    for context in ("admin", "person"):
        await harness.provider.view(
            KubernetesSettings.read({**harness.settings, "context": context}), harness.experiment_id
        )
    monkeypatch.setattr(ApiServer, "close", fail)
    with pytest.raises(ExceptionGroup):
        await harness.close()
    assert sorted(closed) == ["admin", "person"]

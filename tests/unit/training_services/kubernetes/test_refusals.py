"""What a cluster of today refuses, warns of or does not allow, and how users learn of it."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from fakes.kubernetes.played_api import Fault, PlayedApi
from fakes.kubernetes.played_experiment import PlayedExperiment

from proctor.training_services.base import EndReason, TrialJobStatus
from proctor.training_services.providers import CheckVerdict

pytestmark = pytest.mark.anyio


@pytest.fixture
async def api(tmp_path: Path, anyio_backend: str) -> AsyncIterator[PlayedApi]:
    async with PlayedApi().serving(tmp_path) as made:
        yield made


async def preview(api: PlayedApi, folder: Path, **settings: Any) -> dict[CheckVerdict, list[str]]:
    """What `create` finds out, by verdict."""
    found: dict[CheckVerdict, list[str]] = {}
    async with PlayedExperiment(api, folder, **settings).opened() as experiment:
        for step in await experiment.service._provider.preview(experiment.settings, {}):
            found.setdefault(step.verdict, []).append(f"{step.found}; {step.advice}")
    assert not api.objects.keys() - {("serviceaccounts", "there")}  # it was only asked
    return found


async def test_a_cluster_that_accepts_trials_says_so_and_nothing_is_created(api: PlayedApi, tmp_path: Path) -> None:
    assert list(await preview(api, tmp_path)) == [CheckVerdict.OK]
    api.level = "restricted"
    assert list(await preview(api, tmp_path, run_as_user=10001)) == [CheckVerdict.OK]


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({}, ("violates PodSecurity", "runAsNonRoot != true", "give trainingService.runAsUser, such as 10001")),
        (
            {
                "run_as_user": 10001,
                "pod_template": {"spec": {"volumes": [{"name": "disk", "hostPath": {"path": "/"}}]}},
            },
            ("violates PodSecurity", 'volume "disk"', "see docs/kubernetes.md#pod-security"),
        ),
        ({"run_as_user": 1, "priority_class": "high"}, ("no PriorityClass with name high was found", "priorityClass")),
        ({"run_as_user": 1, "service_account": "gone"}, ('serviceaccount "gone" not found', "serviceAccount")),
        ({"run_as_user": 1, "pod_template": {"spec": {"nodeNmae": "x"}}}, ("'nodeNmae' was unexpected", "podTemplate")),
        ({"namespace": "gone"}, ('namespaces "gone" not found', "check trainingService.namespace")),
    ],
    ids=["user", "volume", "priority", "account", "field", "namespace"],
)
async def test_what_trials_can_never_do_is_found_before_the_first_one(
    api: PlayedApi, tmp_path: Path, settings: dict[str, Any], words: tuple[str, ...]
) -> None:
    api.level = "restricted"
    found = await preview(api, tmp_path, **settings)
    [sentence] = found[CheckVerdict.FAIL]
    assert all(word in sentence for word in words), sentence


async def test_without_the_right_to_try_pods_the_servers_warnings_are_shown(api: PlayedApi, tmp_path: Path) -> None:
    api.level = "restricted"
    api.forbidden.add(("create", "pods"))
    found = await preview(api, tmp_path)
    [sentence] = found.pop(CheckVerdict.NOTE)
    assert sentence.startswith(
        'the cluster warns of the objects of trials: would violate PodSecurity "restricted:latest"'
    )
    assert "; the pod of a trial could not be tried: pods is forbidden" in sentence
    assert not found
    api.level = "privileged"
    [sentence] = (await preview(api, tmp_path))[CheckVerdict.OK]
    assert sentence.startswith(
        "the cluster accepts the Job of a trial; the pod of a trial could not be tried: pods is forbidden"
    )


async def test_what_may_be_free_again_is_a_notice(api: PlayedApi, tmp_path: Path) -> None:
    api.quota_is_used_up = True
    found = await preview(api, tmp_path)
    [sentence] = found.pop(CheckVerdict.NOTE)
    assert sentence.startswith("trials will wait: ")
    assert "exceeded quota" in sentence
    assert not found


async def test_a_cluster_that_is_away_is_a_notice_and_no_obstacle_to_an_experiment(tmp_path: Path) -> None:
    async with PlayedApi().serving(tmp_path) as api:
        experiment = PlayedExperiment(api, tmp_path)
    async with experiment.opened():
        [step] = await experiment.service._provider.preview(experiment.settings, {})
        assert step.verdict is CheckVerdict.NOTE
        assert step.found.startswith("the objects of trials were not checked: ")
        assert api.url in step.found


async def test_a_cluster_that_does_not_answer_in_time_is_a_notice(
    api: PlayedApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("proctor.training_services.kubernetes.provider.PREVIEW_SECONDS", 0.0)
    [sentence] = (await preview(api, tmp_path))[CheckVerdict.NOTE]
    assert sentence.startswith("the objects of trials were not checked: the cluster has not answered within 0 s; ")


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"priority_class": "high"}, "no PriorityClass with name high was found"),
        ({"service_account": "gone"}, 'serviceaccount "gone" not found'),
        ({}, 'violates PodSecurity "restricted:latest"'),
    ],
    ids=["priority", "account", "user"],
)
async def test_a_job_whose_pod_is_refused_for_good_ends_with_the_reason(
    api: PlayedApi, tmp_path: Path, settings: dict[str, Any], words: str
) -> None:
    api.level = "privileged" if settings else "restricted"
    async with PlayedExperiment(api, tmp_path, **settings).serving() as experiment:
        form = await experiment.submit("first")
        end = await experiment.recorder.end_of(form.job_id)
        assert end.exit is not None
        assert end.exit.reason is EndReason.UNPLACEABLE
        assert words in end.detail
        await experiment.until(lambda: not api.all("jobs"))


async def test_a_job_that_exceeds_a_quota_waits_and_runs_once_there_is_room(api: PlayedApi, tmp_path: Path) -> None:
    api.quota_is_used_up = True
    async with PlayedExperiment(api, tmp_path).serving() as experiment:
        form = await experiment.submit("first")
        waits = experiment.recorder.of
        await experiment.recorder.until(lambda: any("exceeded quota" in each.detail for each in waits(form.job_id)))
        api.quota_is_used_up = False
        api.act()
        await experiment.until_running(1)


async def test_a_right_that_is_missing_is_a_notice_once(api: PlayedApi, tmp_path: Path) -> None:
    api.forbidden |= {("list", "events"), ("create", "events")}
    async with PlayedExperiment(api, tmp_path).serving() as experiment:
        await experiment.submit("first")
        await experiment.until_running(1)
        await experiment.until(lambda: bool(experiment.service._seen and experiment.service._seen.refusals))
        [notice] = experiment.service.take_notices()
        assert "reasons such as a quota or a missing Secret are not shown, because a right is missing" in notice
        assert 'cannot list resource "events"' in notice
        assert notice.endswith("give its user the Role of docs/kubernetes.md#rights")
        assert not experiment.service.take_notices()


async def test_the_missing_right_to_read_logs_is_a_notice_once_one_is_needed(api: PlayedApi, tmp_path: Path) -> None:
    api.forbidden.add(("get", "pods/log"))
    async with PlayedExperiment(api, tmp_path).serving() as experiment:
        await experiment.submit("first")
        await experiment.until_running(1)
        api.end_pod(api.one("pods")["metadata"]["name"])
        await experiment.until(lambda: bool(experiment.service._seen and experiment.service._seen.refusals))
        [notice] = experiment.service.take_notices()
        assert "why a keeper has failed, and what it left, cannot be read, because a right is missing" in notice


async def test_the_job_of_a_trial_has_events_of_its_start_and_its_end(api: PlayedApi, tmp_path: Path) -> None:
    async with PlayedExperiment(api, tmp_path).serving() as experiment:
        form = await experiment.submit("first")
        await experiment.until_running(1)
        job = api.one("jobs")
        service = experiment.service
        for _ in range(2):  # such changes come again with each new reason
            await service.deliver_change(service.news(form, TrialJobStatus.RUNNING, detail="it is silent"))
        await experiment.until(lambda: any(each["type"] == "Normal" for each in api.all("events")))
        api.end_pod(api.one("pods")["metadata"]["name"])
        await experiment.recorder.end_of(form.job_id)
        await experiment.until(lambda: sum(each["type"] == "Normal" for each in api.all("events")) == 2)
        started, ended = (each for each in api.all("events") if each["type"] == "Normal")
        assert started["message"].startswith("trial first (job first.1) of experiment E has started; it is silent")
        assert ended["message"].startswith("trial first (job first.1) of experiment E has ended: ")
        assert [each["reason"] for each in (started, ended)] == ["TrialStarted", "TrialEnded"]
        assert started["involvedObject"]["uid"] == job["metadata"]["uid"]


async def test_an_event_that_the_server_could_not_take_is_sent_again(api: PlayedApi, tmp_path: Path) -> None:
    api.faults.append(Fault("POST", "/events", 500))
    async with PlayedExperiment(api, tmp_path).serving() as experiment:
        form = await experiment.submit("first")
        await experiment.until_running(1)
        service = experiment.service
        await service.deliver_change(service.news(form, TrialJobStatus.RUNNING))
        await experiment.until(lambda: any(each["reason"] == "TrialStarted" for each in api.all("events")))
        assert not api.faults


@pytest.mark.parametrize(("verb", "resource"), [("list", "events"), ("create", "events"), ("get", "pods/log")])
async def test_a_right_that_was_granted_meanwhile_is_no_notice_of_a_new_experiment(
    api: PlayedApi, tmp_path: Path, verb: str, resource: str
) -> None:
    api.forbidden.add((verb, resource))
    async with PlayedExperiment(api, tmp_path).serving() as experiment:
        service = experiment.service
        for trial in ("first", "second"):
            form = await experiment.submit(trial)
            await experiment.until_running(1)
            await service.deliver_change(service.news(form, TrialJobStatus.RUNNING))
            (pod,) = (each for each in api.all("pods") if each["status"].get("phase") == "Running")
            api.end_pod(pod["metadata"]["name"])
            await experiment.until(lambda: bool(service._seen and service._seen.refusals) == bool(api.forbidden))
            api.forbidden.clear()
            await experiment.recorder.end_of(form.job_id)
        assert service.take_notices() == []

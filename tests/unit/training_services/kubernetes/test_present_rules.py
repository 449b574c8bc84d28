"""The rules of Kubernetes that the control plane of the tests is too old for, played by an API server in memory."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from fakes.kubernetes.played_api import FINALIZER, Fault, PlayedApi
from fakes.kubernetes.played_experiment import PlayedExperiment

from proctor.training_services.base import EndReason

pytestmark = pytest.mark.anyio


@pytest.fixture
async def experiment(tmp_path: Path, anyio_backend: str) -> AsyncIterator[PlayedExperiment]:
    async with PlayedApi().serving(tmp_path) as api, PlayedExperiment(api, tmp_path).serving() as made:
        yield made


async def test_a_suspended_job_says_so_and_runs_once_its_queue_admits_it(experiment: PlayedExperiment) -> None:
    experiment.api.suspends_jobs = True
    form = await experiment.submit("first")
    said = experiment.recorder.of
    await experiment.recorder.until(lambda: any("its Job is suspended" in each.detail for each in said(form.job_id)))
    assert not experiment.api.all("pods")
    experiment.api.resume_jobs()
    await experiment.until_running(1)


async def test_a_pod_that_is_evicted_is_not_replaced_while_it_may_save(experiment: PlayedExperiment) -> None:
    api = experiment.api
    form = await experiment.submit("first")
    await experiment.until_running(1)
    name = api.one("pods")["metadata"]["name"]
    api.evict(name)
    assert (api.one("pods")["metadata"]["name"], api.one("pods")["metadata"]["finalizers"]) == (name, [FINALIZER])
    api.end_pod(name)
    end = await experiment.recorder.end_of(form.job_id)
    assert end.exit is not None
    assert end.exit.reason is EndReason.PREEMPTED
    assert "EvictionByEvictionAPI: Eviction API: evicting" in end.detail
    await experiment.until(lambda: not api.all("jobs"))
    assert not api.all("pods")  # the finalizer is taken away once the pod is counted


FAULTS = {
    "busy": [
        Fault("POST", "/jobs", 429, {"Retry-After": "0"}),
        Fault("POST", "/configmaps", 429, {"Retry-After": "0"}),
    ],
    "failing": [Fault("POST", "/jobs", 500), Fault("POST", "/secrets", 500), Fault("GET", "/jobs", 500)],
    "torn": [Fault("POST", "/jobs"), Fault("GET", "/jobs"), Fault("GET", "/pods"), Fault("POST", "/configmaps")],
}


@pytest.mark.slow
@pytest.mark.parametrize("faults", FAULTS.values(), ids=FAULTS)
async def test_a_trial_starts_and_its_end_is_seen_in_spite_of_a_server_that_fails(
    tmp_path: Path, faults: list[Fault]
) -> None:
    async with PlayedApi().serving(tmp_path) as api:
        api.faults = [*faults]
        async with PlayedExperiment(api, tmp_path).serving() as experiment:
            form = await experiment.submit("first")
            await experiment.until_running(1)
            assert not api.faults
            assert len(api.all("jobs")) == 1
            api.end_pod(api.one("pods")["metadata"]["name"])
            await experiment.recorder.end_of(form.job_id)


async def test_what_happens_while_the_server_forgets_its_changes_is_seen(experiment: PlayedExperiment) -> None:
    api = experiment.api
    form = await experiment.submit("first")
    await experiment.until_running(1)
    api.end_pod(api.one("pods")["metadata"]["name"])
    api.forget_changes()
    await experiment.recorder.end_of(form.job_id)

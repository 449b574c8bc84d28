"""The objects of an experiment, while others delete some of them or several jobs are started at once."""

from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest
from fakes.kubernetes.played_api import PlayedApi
from fakes.kubernetes.played_experiment import PlayedExperiment

from proctor.training_services.kubernetes.manifests import ExperimentManifests
from proctor.training_services.kubernetes.settings import KubernetesSettings
from proctor.trial_keeper.protocol import JobReport

pytestmark = pytest.mark.anyio

MAPS = "/api/v1/namespaces/ml/configmaps"


@pytest.fixture
async def experiment(tmp_path: Path, anyio_backend: str) -> AsyncIterator[PlayedExperiment]:
    async with PlayedApi().serving(tmp_path) as api, PlayedExperiment(api, tmp_path).serving() as made:
        yield made


async def test_jobs_that_are_started_together_send_the_keepers_file_once(experiment: PlayedExperiment) -> None:
    forms = [await experiment.submit(f"trial{number}") for number in range(8)]
    await experiment.until(lambda: len(experiment.api.all("secrets")) == len(forms))
    assert experiment.api.asked("POST", MAPS) == 2  # the anchor, and the file


async def test_a_keepers_file_that_someone_has_deleted_is_made_again_for_the_next_job(
    experiment: PlayedExperiment,
) -> None:
    await experiment.submit("first")
    await experiment.until_running(1)
    experiment.api.remove("configmaps", experiment.keeper_file)
    await experiment.submit("second")
    await experiment.until_running(2)


@pytest.mark.parametrize("plural", ["configmaps", "secrets"])
async def test_what_a_waiting_pod_lacks_is_made_again(experiment: PlayedExperiment, plural: str) -> None:
    api = experiment.api
    api.has_nodes = False
    form = await experiment.submit("first")
    await experiment.until(lambda: bool(api.all("secrets") and api.all("pods")))
    api.has_nodes = True
    api.remove(plural, experiment.keeper_file if plural == "configmaps" else experiment.names.job(form.job_id))
    await experiment.until_running(1)


async def test_what_a_waiting_pod_lacks_is_made_again_when_events_cannot_be_read(
    experiment: PlayedExperiment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("proctor.training_services.kubernetes.service.REVIEW_SECONDS", 0.1)
    api = experiment.api
    api.forbidden |= {("list", "events"), ("watch", "events")}
    api.has_nodes = False
    form = await experiment.submit("first")
    await experiment.until(lambda: bool(api.all("secrets") and api.all("pods")))
    api.has_nodes = True
    api.remove("secrets", experiment.names.job(form.job_id))
    await experiment.until_running(1)


async def test_a_job_that_waits_for_a_node_is_not_requested_again(experiment: PlayedExperiment) -> None:
    api = experiment.api
    api.has_nodes = False
    await experiment.submit("first")
    await experiment.until(lambda: bool(api.all("secrets") and api.all("pods")))
    await experiment.service.list_keepers()
    await experiment.submit("second")
    await experiment.until(lambda: len(api.all("secrets")) == 2)
    assert api.asked("POST", "/jobs") == 2


async def test_what_a_deleted_experiment_has_left_stays_once_its_id_is_in_use_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the manager asks which experiments were deleted, another one is created with such an id."""
    async with PlayedApi().serving(tmp_path) as api, PlayedExperiment(api, tmp_path).opened() as experiment:
        names, service = experiment.names, experiment.service
        for experiment_id in ("gone", "again"):
            manifests = ExperimentManifests(names, experiment_id, KubernetesSettings.read({"image": "i"}), "1")
            api.add(manifests.anchor("endpoint"))

        async def removable_jobs(place: str, reports: Sequence[JobReport], *, experiment_id: str) -> set[str]:
            service._provider.hold("again")
            return {report.job_id for report in reports}

        monkeypatch.setattr(service._hub, "removable_jobs", removable_jobs)
        await service._remove_left_anchors()
        assert {each["metadata"]["name"] for each in api.all("configmaps")} == {names.anchor("again")}

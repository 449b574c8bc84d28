"""Every object that is created is valid, strictly, in each version of Kubernetes that is in use today."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from fakes.documentation import documents_of
from fakes.kubernetes.pod_security import violations
from fakes.kubernetes.schemas import VERSIONS, check

from proctor.manager.config.keys import KEYS, KUBERNETES
from proctor.manager.config.loading import load_experiment_mapping
from proctor.training_services.kubernetes.manifests import ExperimentManifests, Names
from proctor.training_services.kubernetes.probing import DEADLINE_SECONDS, make_form
from proctor.training_services.kubernetes.settings import KubernetesSettings

PREFIX = "trainingService."
EXPERIMENT = {
    "searchSpace": {"x": {"_type": "uniform", "_value": [0, 1]}},
    "trialCommand": "python train.py",
    "trialConcurrency": 1,
    "tuner": {"name": "Random"},
}
PAGE = [each["trainingService"] for each in documents_of("docs/kubernetes.md") if "trainingService" in each]
ALL_KEYS = {
    "platform": "kubernetes",
    **{
        key.path.removeprefix(PREFIX): key.example
        for key in KEYS
        if key.section == KUBERNETES and "[]" not in key.path and key.path.startswith(PREFIX)
    },
    "mounts": [
        {"path": "/data", "claim": "datasets", "subPath": "v2", "readOnly": True},
        {"path": "/keys", "secret": "keys"},
        {"path": "/lists", "configMap": "lists"},
    ],
}
"""A section with each key's example."""
SECTIONS = {
    "least": {"platform": "kubernetes", "image": "digits:3"},
    "all keys": ALL_KEYS,
    **{f"page {number}": section for number, section in enumerate(PAGE)},
}


def read(section: dict[str, Any], folder: Path) -> KubernetesSettings:
    config = load_experiment_mapping({**EXPERIMENT, "trainingService": section}, folder).config
    return KubernetesSettings.read(config.canonical()["training_service"])


def render(settings: KubernetesSettings) -> list[dict[str, Any]]:
    """All objects of an experiment with one trial, and the pod of its Job."""
    manifests = ExperimentManifests(Names("manager"), "_E", settings, "1.0", DEADLINE_SECONDS)
    form, anchor = make_form("_E", 2), manifests.anchor("endpoint")
    job = manifests.job(form, keeper_id="job-E", keeper_sha256="f" * 64, owner=_created(anchor))
    event = manifests.event(form, "uid", reason="TrialEnded", message="it has ended", time=datetime.now(UTC))
    pod = {"apiVersion": "v1", "kind": "Pod", **job["spec"]["template"]}
    keeper = manifests.keeper("f" * 64, b"keeper", _created(anchor))
    return [anchor, keeper, manifests.secret(form, "secret", _created(job)), job, pod, event]


def _created(made: dict[str, Any]) -> dict[str, Any]:
    return {**made, "metadata": {**made["metadata"], "uid": "uid"}}


@pytest.mark.parametrize("section", SECTIONS.values(), ids=SECTIONS)
def test_every_object_is_valid_in_each_version(section: dict[str, Any], tmp_path: Path) -> None:
    objects = render(read(section, tmp_path))
    problems = [(version, found["kind"], check(found, version)) for version in VERSIONS for found in objects]
    assert [problem for problem in problems if problem[-1]] == []


def test_each_version_refuses_what_it_does_not_know() -> None:
    *_, job, _, _ = render(KubernetesSettings(image="i", pod_template={"spec": {"nodeNmae": "node-1"}}))
    assert all("'nodeNmae' was unexpected" in check(job, version) for version in VERSIONS)
    assert VERSIONS == ("1.29", "1.30", "1.31", "1.32", "1.33", "1.34", "1.35", "1.36", "1.37")


def test_the_section_of_the_page_for_restricted_namespaces_violates_nothing(tmp_path: Path) -> None:
    (section,) = (each for each in PAGE if "runAsUser" in each)
    *_, pod, _ = render(read(section, tmp_path))
    assert violations(pod["spec"], "restricted") == ""
    assert pod["spec"]["containers"][0]["securityContext"]["readOnlyRootFilesystem"] is True

"""Platforms that installed packages bring, named in a configuration."""

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from proctor.manager.config.errors import ConfigError
from proctor.manager.config.experiment import ExperimentConfig
from proctor.manager.config.loading import load_experiment_mapping

Install = Callable[[str, str], None]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """Installs a package with the entry points of its text, in a folder of its own."""
    before = set(sys.modules)

    def put(name: str, entry_points: str) -> None:
        folder = tmp_path / "site" / name
        information = folder / f"{name}-1.0.dist-info"
        information.mkdir(parents=True)
        (information / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        (information / "entry_points.txt").write_text(f"[proctor.training_services]\n{entry_points}\n")
        monkeypatch.syspath_prepend(str(folder))

    yield put
    for module in set(sys.modules) - before:
        if module.startswith("some_cluster"):
            del sys.modules[module]


def load(mapping: dict[str, Any], directory: Path, **section: Any) -> ExperimentConfig:
    return load_experiment_mapping({**mapping, "trainingService": section}, directory).config


def problem(mapping: dict[str, Any], directory: Path, **section: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        load(mapping, directory, **section)
    [found] = caught.value.problems
    return str(found)


def test_a_platform_of_an_installed_package_is_named_with_keys_of_its_own(
    install: Install, small_mapping: dict[str, Any], directory: Path
) -> None:
    install("some_cluster", "cluster = some_cluster:Service")
    nested = {"queueName": "long", "limits": [1, 2.5]}
    config = load(small_mapping, directory, platform="cluster", maxNodes=4, partition="gpu", queue=nested)
    service = config.canonical()["training_service"]
    assert service == {"platform": "cluster", "max_nodes": 4, "partition": "gpu", "queue": nested}
    assert ExperimentConfig.from_canonical(json.loads(json.dumps(config.canonical()))) == config


def test_a_saved_configuration_is_read_though_its_package_is_gone(
    small_mapping: dict[str, Any], directory: Path
) -> None:
    canonical = load(small_mapping, directory, platform="local").canonical()
    canonical["training_service"] = {"platform": "gone", "max_nodes": 4}
    assert ExperimentConfig.from_canonical(canonical).canonical() == canonical


def test_keys_of_the_experiment_are_taken_out_of_a_packages_section(
    install: Install, small_mapping: dict[str, Any], directory: Path
) -> None:
    install("some_cluster", "cluster = some_cluster:Service")
    config = load(small_mapping, directory, platform="cluster", trialGpuNumber=2)
    assert config.trial_gpu_number == 2
    assert config.canonical()["training_service"] == {"platform": "cluster"}


def test_an_unknown_platform_is_an_error_that_lists_what_is_known(
    install: Install, small_mapping: dict[str, Any], directory: Path
) -> None:
    install("some_cluster", "cluster = some_cluster:Service\nlocal = some_cluster:Service")
    printed = problem(small_mapping, directory, platform="moonbase")
    assert "expected local or remote or kubernetes or cluster, found the text 'moonbase'" in printed
    assert "entry point of the group proctor.training_services" in printed
    assert "did you mean cluster" in problem(small_mapping, directory, platform="clustre")
    assert "did you mean local" in problem(small_mapping, directory, platform="locall")


def test_a_package_may_offer_a_platform_that_proctor_does_not(
    install: Install, small_mapping: dict[str, Any], directory: Path
) -> None:
    assert "aml is not offered" in problem(small_mapping, directory, platform="aml")
    install("some_cluster", "aml = some_cluster:Service")
    assert load(small_mapping, directory, platform="aml").training_service.platform == "aml"


def test_a_package_may_offer_a_platform_that_would_be_read_as_kubernetes(
    install: Install, small_mapping: dict[str, Any], directory: Path
) -> None:
    worker = {"replicas": 3, "dockerImage": "digits"}
    assert "expected 1, found the number 3" in problem(small_mapping, directory, platform="kubeflow", worker=worker)
    install("some_cluster", "kubeflow = some_cluster:Service")
    service = load(small_mapping, directory, platform="kubeflow", worker=worker).canonical()["training_service"]
    assert service == {"platform": "kubeflow", "worker": worker}


def test_two_packages_with_one_name_that_would_be_read_as_kubernetes_are_an_error(
    install: Install, small_mapping: dict[str, Any], directory: Path
) -> None:
    install("some_cluster", "kubeflow = some_cluster:Service")
    install("some_other", "kubeflow = some_other:Service")
    assert "two installed packages" in problem(
        small_mapping, directory, platform="kubeflow", worker={"image": "digits"}
    )


def test_two_packages_with_one_name_are_an_error(
    install: Install, small_mapping: dict[str, Any], directory: Path
) -> None:
    install("some_cluster", "cluster = some_cluster:Service")
    install("some_other", "cluster = some_other:Service")
    assert "two installed packages register platform 'cluster'" in problem(small_mapping, directory, platform="cluster")


def test_a_key_that_is_given_twice_or_cannot_be_written_is_told(
    install: Install, small_mapping: dict[str, Any], directory: Path
) -> None:
    install("some_cluster", "cluster = some_cluster:Service")
    assert "each key once" in problem(small_mapping, directory, platform="cluster", maxNodes=4, max_nodes=4)
    assert "a finite number" in problem(small_mapping, directory, platform="cluster", limit=float("nan"))

"""Platform `kubernetes` keeps the contract of training services, on a real control plane whose pods are processes."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from fakes.kubernetes.cluster import Cluster
from integration.kubernetes.harness import KubernetesHarness

from proctor.training_services.testing import TrainingServiceContract

pytestmark = [pytest.mark.slow, pytest.mark.thorough]


@pytest.fixture
async def harness(cluster: Cluster, tmp_path: Path, anyio_backend: str) -> AsyncIterator[KubernetesHarness]:
    cluster.add_node("node")
    async with KubernetesHarness(cluster, tmp_path).opened() as made:
        yield made


class TestKubernetes(TrainingServiceContract):
    """The suite, on the fixture above."""

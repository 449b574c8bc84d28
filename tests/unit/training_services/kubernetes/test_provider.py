"""Experiments on several clusters, the login of one of which hangs, is canceled or fails."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable
from pathlib import Path

import pytest

from proctor.training_services.errors import ServiceUnavailable
from proctor.training_services.keepers.hub import KeeperHub
from proctor.training_services.kubernetes.client import Cluster, open_cluster
from proctor.training_services.kubernetes.namespaces import NamespaceView
from proctor.training_services.kubernetes.provider import KubernetesProvider
from proctor.training_services.kubernetes.settings import KubernetesSettings
from proctor.training_services.nodes.pool import NodePool
from proctor.training_services.providers import ProviderContext

pytestmark = pytest.mark.anyio


class Stage:
    """A provider, and a kubeconfig file whose context `slow` has a login that hangs until `login_ends` is set."""

    def __init__(self, folder: Path) -> None:
        pool = NodePool()
        context = ProviderContext("manager", folder / "nodes", folder / "socket", pool, KeeperHub(pool))
        self.provider = KubernetesProvider(context)
        self.login_began = asyncio.Event()
        self.login_ends = asyncio.Event()
        self.failures: list[ServiceUnavailable] = []  # of the next logins that end
        self.opened: list[str | None] = []
        self._kubeconfig = folder / "kubeconfig"
        contexts = [{"name": name, "context": {"cluster": "c", "user": "u"}} for name in ("slow", "fast", "other")]
        clusters = [{"name": "c", "cluster": {"server": "http://127.0.0.1:1"}}]
        users = [{"name": "u", "user": {"token": "secret"}}]
        self._kubeconfig.write_text(json.dumps({"contexts": contexts, "clusters": clusters, "users": users}))

    async def open_cluster(self, kubeconfig: str | None, context: str | None) -> Cluster:
        if context == "slow":
            self.login_began.set()
            await self.login_ends.wait()
        if self.failures:
            raise self.failures.pop()
        self.opened.append(context)
        return await open_cluster(kubeconfig, context)

    async def view(self, context: str, experiment_id: str = "E") -> NamespaceView:
        options = {"image": "i", "kubeconfig": str(self._kubeconfig), "context": context}
        return await self.provider.view(KubernetesSettings.read(options), experiment_id)


async def failure_of(opening: Awaitable[object]) -> str:
    with pytest.raises(ServiceUnavailable) as caught:
        await opening
    return str(caught.value)


@pytest.fixture
async def stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Stage]:
    made = Stage(tmp_path)
    monkeypatch.setattr("proctor.training_services.kubernetes.provider.open_cluster", made.open_cluster)
    async with asyncio.timeout(30), asyncio.TaskGroup() as group:
        running = group.create_task(made.provider.run())
        yield made
        running.cancel()


async def test_a_login_that_hangs_does_not_delay_other_clusters(stage: Stage) -> None:
    opened = await stage.view("fast")
    async with asyncio.TaskGroup() as group:
        slow = group.create_task(stage.view("slow"))
        await stage.login_began.wait()
        async with asyncio.timeout(10):
            assert await stage.view("fast", "another") is opened
            assert (await stage.view("other")).cluster.context == "other"
        assert not slow.done()
        stage.login_ends.set()
    assert slow.result().cluster.context == "slow"


async def test_a_cluster_is_opened_once_for_all_that_wait_for_it(stage: Stage) -> None:
    async with asyncio.TaskGroup() as group:
        views = [group.create_task(stage.view("slow", name)) for name in "AB"]
        await stage.login_began.wait()
        stage.login_ends.set()
    assert views[0].result() is views[1].result()
    assert stage.opened == ["slow"]


@pytest.mark.parametrize("is_canceled", [True, False])
async def test_after_a_login_that_was_canceled_or_has_failed_the_next_one_is_tried(
    stage: Stage, is_canceled: bool
) -> None:
    async with asyncio.TaskGroup() as group:
        first = group.create_task(failure_of(stage.view("slow", "A")))
        await stage.login_began.wait()
        second = group.create_task(stage.view("slow", "B"))
        if is_canceled:
            first.cancel()
        else:
            stage.failures.append(ServiceUnavailable("not now"))
        stage.login_ends.set()
    assert first.cancelled() if is_canceled else first.result() == "not now"
    assert second.result().cluster.context == "slow"
    assert stage.opened == ["slow"]

"""A manager that comes back makes the providers that still have to do with nodes, and no others."""

import json
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest
from fakes.node_provider import FakeProvider

from proctor.training_services import providers
from proctor.training_services.keepers.hub import KeeperHub
from proctor.training_services.nodes.pool import NodePool
from proctor.training_services.providers import ProviderContext, Providers

pytestmark = pytest.mark.anyio


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.setattr(providers, "BUILT_IN", {"remote": "none:None", "other": "none:None"})
    return []


def make(folder: Path, made: list[str] | None = None) -> Providers:
    """The providers of a manager; without a list, only those that packages bring."""
    pool = NodePool()

    def factory(context: ProviderContext) -> FakeProvider:
        assert made is not None
        made.append("remote")
        return FakeProvider(context)

    context = ProviderContext("m1", folder / "nodes", folder / "socket", pool, KeeperHub(pool))
    return Providers(context) if made is None else Providers(context, {"remote": factory})


def record(folder: Path, node_id: str, body: Any) -> None:
    path = folder / "nodes" / node_id
    path.mkdir(parents=True)
    (path / "node.json").write_text(body if isinstance(body, str) else json.dumps(body))


async def test_a_node_on_record_has_its_provider_made(tmp_path: Path, made: list[str]) -> None:
    record(tmp_path, "gpu-1", {"kind": "remote"})
    record(tmp_path, "gpu-2", {"kind": "remote"})
    async with make(tmp_path, made).serve():
        assert made == ["remote"]


async def test_nothing_on_record_or_nothing_that_can_be_read_makes_none(tmp_path: Path, made: list[str]) -> None:
    for node_id, body in {"a": "{", "b": [1], "c": {"kind": "unheard of"}, "d": {}}.items():
        record(tmp_path, node_id, body)
    (tmp_path / "nodes" / "local").mkdir()
    async with make(tmp_path, made).serve():
        assert made == []


async def test_a_provider_whose_libraries_are_gone_keeps_no_manager_from_starting(
    tmp_path: Path, made: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    record(tmp_path, "gpu-1", {"kind": "other"})
    async with make(tmp_path, made).serve():
        assert "other nodes are on record and cannot be cleaned" in caplog.text


async def test_nodes_of_a_packages_provider_are_found_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = EntryPoint("slurm", "fakes.node_provider:FakeProvider", providers.ENTRY_POINT_GROUP)
    monkeypatch.setattr("importlib.metadata.entry_points", lambda group: [found] if group == found.group else [])
    record(tmp_path, "gpu-1", {"kind": "slurm"})
    async with make(tmp_path).serve() as served:
        assert [type(provider) for provider in served._made.values()] == [FakeProvider]


async def test_a_packages_provider_that_cannot_be_made_keeps_no_manager_from_starting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    found = EntryPoint("slurm", "fakes.node_provider:Nothing", providers.ENTRY_POINT_GROUP)
    monkeypatch.setattr("importlib.metadata.entry_points", lambda group: [found])
    record(tmp_path, "gpu-1", {"kind": "slurm"})
    async with make(tmp_path).serve():
        assert "slurm nodes are on record and cannot be cleaned: its provider could not be made" in caplog.text

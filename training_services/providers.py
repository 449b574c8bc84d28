"""What the experiments of a manager share on one kind of platform: connections, and what was claimed there.

A training service whose nodes are not simply there (platform `remote`) has a `NodeProvider` behind it. Experiments
claim nodes and release them; a node without a claim is cleaned, but files that could not be collected stay on it until
a user has them collected. Platforms that choose the machines themselves have a plain `Provider`. One is made when it is
first asked for, so that a manager whose experiments are all local never loads its libraries.
"""

import asyncio
import contextlib
import importlib
import json
import logging
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

from proctor.training_services.errors import UnknownNode, UnknownPlatform
from proctor.training_services.keepers.hub import KeeperHub
from proctor.training_services.nodes.pool import NodePool

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

__all__ = [
    "CheckStep",
    "CheckVerdict",
    "FileCollection",
    "NodeProvider",
    "Provider",
    "ProviderContext",
    "ProviderFactory",
    "Providers",
    "UncollectedFiles",
    "read_secrets",
]

ENTRY_POINT_GROUP = "proctor.providers"
"""Entry points by which packages bring providers: the name is the platform, the value a `ProviderFactory`."""
SECRETS_FILE = "secrets.json"
"""In the folder of an experiment: the secrets of its configuration by their path in it, for a provider's logins and
the storage of checkpoints."""
RECORD_FILE = "node.json"
"""In the folder of a node that a provider still has to do with: a JSON object whose `kind` names the provider."""

log = logging.getLogger(__name__)

BUILT_IN: Mapping[str, str] = {
    "remote": "proctor.training_services.remote.machines.provider:RemoteProvider",
    "kubernetes": "proctor.training_services.kubernetes.provider:KubernetesProvider",
}


def read_secrets(experiment_directory: Path) -> dict[str, str]:
    """The secrets of the experiment in this folder, by path in its configuration."""
    try:
        found = json.loads((experiment_directory / SECRETS_FILE).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    return {str(path): str(secret) for path, secret in found.items()}


class CheckVerdict(StrEnum):
    """What a step of a check has found."""

    OK = "ok"  # as it should be
    NOTE = "note"  # works; worth knowing
    FAIL = "fail"  # trials cannot run there
    SKIPPED = "skipped"  # an earlier step failed


@dataclass(frozen=True)
class CheckStep:
    """One hop on the way to one machine: what was checked, what was found, what to do about it."""

    machine: str  # as the user named it
    name: str
    verdict: CheckVerdict
    found: str
    advice: str = ""


@dataclass(frozen=True)
class UncollectedFiles:
    """Files of an experiment that has released a node before all of them were collected. They stay on the node until
    they are collected, or the experiment is deleted, or the node is forgotten."""

    experiment_id: str
    node_id: str
    place: str  # where they are, for people: "on bob@gpu-3:2222 in ~/.proctor/nodes/…"
    why: str  # a clause


@dataclass
class FileCollection:
    """The files of one experiment that are being collected from a node: how many were copied so far, of those that are
    not here. `problem` says why not all of them could be, once `ended` is set."""

    experiment_id: str = ""
    files: int = 0
    total_files: int = 0
    bytes: int = 0
    total_bytes: int = 0
    problem: str = ""
    ended: asyncio.Event = field(default_factory=asyncio.Event)


@dataclass(frozen=True)
class ProviderContext:
    """What a provider is made from. All of it belongs to the manager."""

    manager_id: str  # random, kept in the home: tells the managers on one machine from each other
    nodes_directory: Path  # <home>/nodes: one folder for each node
    socket_pointer: Path  # the file that holds the path of the manager's Unix socket
    pool: NodePool
    hub: KeeperHub
    endpoint_pointer: Path | None = None
    """The file with the URL and the certificate for keepers on other networks; only there while the manager listens for
    them (`--keeper-listen`)."""
    has_keeper_url: bool = False
    """Whether its URL was given (`PROCTOR_KEEPER_URL`), so that keepers can be expected to reach it."""


class Provider(ABC):
    """What the experiments of a manager share on one kind of platform."""

    @abstractmethod
    async def run(self) -> None:
        """Serve until canceled: connect, again after every loss. On cancellation keepers and trials keep running."""

    def uncollected(self) -> Sequence[UncollectedFiles]:
        """The files that released nodes still have, as far as is known. Returns at once."""
        return ()

    async def end_collections(self, experiment_id: str) -> None:  # noqa: B027
        """An experiment is about to be resumed or deleted: when this returns, nothing of it is being collected. What
        was not collected stays on its node."""

    async def forget(self, experiment_id: str, *, keep: Collection[str] = ()) -> None:  # noqa: B027
        """Release what an experiment has claimed and collect nothing, because it is about to be deleted, or because
        none of its jobs ran there. From now on nothing is written to its folder.

        :param keep: the nodes for which that is not so.
        """

    def hold(self, experiment_id: str) -> None:  # noqa: B027
        """Keep the nodes that an experiment had claimed when the manager was last running, as they are written down:
        the experiment is not loaded, and its jobs keep running, or it is still to be cleaned up after. Does nothing
        without a record of them. Idempotent."""

    @abstractmethod
    async def inspect(
        self, settings: Mapping[str, Any], secrets: Mapping[str, str], *, trial_gpu_number: int | None = None
    ) -> Sequence[CheckStep]:
        """Try everything that trials of a configuration need there. Changes nothing that stays.

        :param settings: the `trainingService` section, keys in snake_case.
        :param secrets: what was taken out of it, by path ("training_service.machine_list.0.password").
        :param trial_gpu_number: how many GPUs each trial needs: places that could never run one are reported.
        """

    async def preview(
        self, settings: Mapping[str, Any], secrets: Mapping[str, str], *, trial_gpu_number: int | None = None
    ) -> Sequence[CheckStep]:
        """Find out, before an experiment is created, what its trials would be refused for: a FAIL step if they could
        never run, a NOTE for what is worth knowing. Starts nothing, takes some seconds at most, and says nothing of a
        place that cannot be reached now. Parameters as for `inspect`."""
        return ()

    async def render(
        self, settings: Mapping[str, Any], *, trial_gpu_number: int | None = None
    ) -> Sequence[Mapping[str, Any]]:
        """The objects that an experiment and its first trial would be there, as JSON, without what is secret or long.
        Nothing is asked or created. Empty where trials are no objects."""
        return ()

    @abstractmethod
    async def clean(self, settings: Mapping[str, Any], secrets: Mapping[str, str]) -> Sequence[CheckStep]:
        """Remove everything of this manager from the place of a configuration: keepers, their jobs, folders, objects.
        What an experiment uses is left alone, with a FAIL step that names the experiment."""


class NodeProvider(Provider):
    """Keeps keepers running on the nodes that experiments claim, and cleans those that are released. A check has steps
    for every hop to every node, and a cleaning one for each node, in their order."""

    @abstractmethod
    def claim(self, experiment_id: str, settings: Mapping[str, Any], secrets: Mapping[str, str]) -> tuple[str, ...]:
        """An experiment wants its nodes; returns their ids, in order. Does not wait for them. Idempotent.

        :param settings: the `trainingService` section, keys in snake_case.
        :param secrets: what was taken out of it, by path ("training_service.machine_list.0.password").
        """

    @abstractmethod
    def node_ids_of(self, settings: Mapping[str, Any]) -> tuple[str, ...]:
        """The node ids of a configuration's machines, in their order, one for each entry. Claims nothing."""

    @abstractmethod
    async def release(self, experiment_id: str) -> None:
        """An experiment without jobs no longer needs its nodes. Files of it that are only there are
        collected first, from the nodes that are connected; see `uncollected` for the others. Does not wait until the
        nodes are cleaned; does nothing without a claim."""

    def collect(self, node_id: str, experiment_id: str) -> FileCollection:
        """Begin to collect the files of an experiment that are `uncollected` on a node, then remove them there; when
        it is being done already, that. Returns at once. Raises UnknownNode where it has none, ServiceUnavailable."""
        raise UnknownNode(f"node {node_id} has no files that were not collected")

    @abstractmethod
    def has(self, node_id: str) -> bool:
        """Whether the node is one of this provider's."""

    @abstractmethod
    def check(self, node_id: str) -> None:
        """Try to reach a node now rather than after its pause. Raises UnknownNode."""

    @abstractmethod
    def abandon(self, node_id: str) -> None:
        """Forget a node that no experiment claims and that was not cleaned yet, because it is gone for good: what is
        there stays there, and files that were not collected are abandoned. Raises UnknownNode, NodeInUse."""

    def address(self, node_id: str) -> str:
        """How one of its nodes is reached, as the user wrote it: "bob@gpu-3:2222". Raises UnknownNode."""
        return node_id


ProviderFactory = Callable[[ProviderContext], Provider]


class Providers:
    """The providers of a manager, each made when it is first asked for. Opened by the composition root."""

    def __init__(self, context: ProviderContext, factories: Mapping[str, ProviderFactory] | None = None) -> None:
        """:param factories: makers of providers by kind, beside the built-in ones and before them."""
        self._context = context
        self._factories = dict(factories or {})
        self._made: dict[str, Provider] = {}
        self._group: asyncio.TaskGroup | None = None
        self._tasks: list[asyncio.Task[None]] = []

    @asynccontextmanager
    async def serve(self) -> AsyncIterator["Providers"]:
        """Run the providers, those included that are made later. On leaving keepers and trials keep running."""
        self._recover_providers()
        async with asyncio.TaskGroup() as group:
            self._group = group
            self._tasks = [self._start(group, kind, provider) for kind, provider in self._made.items()]
            try:
                yield self
            finally:
                self._group = None
                for task in self._tasks:
                    task.cancel()

    def get(self, kind: str) -> Provider:
        """The provider of a platform. Raises UnknownPlatform where there is none, ImportError with the package
        to install, or with what is wrong with the one that brings it."""
        if kind not in self._made:
            try:
                provider = self._factory(kind)(self._context)
            except (UnknownPlatform, ImportError):
                raise
            except Exception as error:
                raise ImportError(f"its provider could not be made: {error!r}") from error
            self._made[kind] = provider
            if self._group is not None:
                self._tasks.append(self._start(self._group, kind, provider))
        return self._made[kind]

    def hold(self, experiment_id: str) -> None:
        """Keep the nodes of an experiment that is not loaded."""
        for provider in self._made.values():
            provider.hold(experiment_id)

    async def end_collections(self, experiment_id: str) -> None:
        """An experiment is about to be resumed."""
        for provider in self._made.values():
            await provider.end_collections(experiment_id)

    async def forget(self, experiment_id: str, *, keep: Collection[str] = ()) -> None:
        """An experiment is about to be deleted, or none of its jobs ran on its nodes: see `NodeProvider.forget`."""
        for provider in self._made.values():
            await provider.forget(experiment_id, keep=keep)

    def uncollected(self, *, experiment_id: str = "", node_id: str = "") -> list[UncollectedFiles]:
        """What released nodes still have of an experiment, or what one node still has of all."""
        found = (each for provider in self._made.values() for each in provider.uncollected())
        return [each for each in found if experiment_id == each.experiment_id or node_id == each.node_id]

    def of_node(self, node_id: str) -> NodeProvider:
        """The provider of a node. Raises UnknownNode where there is none, as for node `local`."""
        for provider in self._made.values():
            if isinstance(provider, NodeProvider) and provider.has(node_id):
                return provider
        raise UnknownNode(f"node {node_id} is not reached over a network; there is nothing to connect to")

    def _factory(self, kind: str) -> ProviderFactory:
        if kind in self._factories:
            return self._factories[kind]
        plug_ins = _plug_ins()
        if kind not in BUILT_IN and kind in plug_ins:
            return plug_ins[kind].load()  # type: ignore[no-any-return]
        if kind not in BUILT_IN:
            known = ", ".join(dict.fromkeys((*BUILT_IN, *self._factories, *plug_ins)))
            raise UnknownPlatform(f"platform {kind!r} has no machines to reach; those that have: {known}")
        module, _, name = BUILT_IN[kind].partition(":")
        return getattr(importlib.import_module(module), name)  # type: ignore[no-any-return]

    def _recover_providers(self) -> None:
        """Make the providers that have nodes on record: some may still have to be cleaned."""
        kinds = _kinds_on_record(self._context.nodes_directory)
        for kind in kinds and kinds & {*BUILT_IN, *self._factories, *_plug_ins()}:  # looking for plug-ins takes time
            try:
                self.get(kind)
            except ImportError as error:
                log.error(
                    "%s nodes are on record and cannot be cleaned: %s", kind, error, extra={"action": "node.fail"}
                )

    def _start(self, group: asyncio.TaskGroup, kind: str, provider: Provider) -> asyncio.Task[None]:
        return group.create_task(provider.run(), name=f"provider of platform {kind}")


def _plug_ins() -> "dict[str, EntryPoint]":
    from importlib.metadata import entry_points  # here, because it costs every start

    return {entry.name: entry for entry in entry_points(group=ENTRY_POINT_GROUP)}


def _kinds_on_record(nodes_directory: Path) -> set[str]:
    """The kinds of nodes that providers have on record, each in its folder's node.json."""
    kinds = set()
    for path in nodes_directory.glob(f"*/{RECORD_FILE}"):
        with contextlib.suppress(OSError, ValueError, TypeError, KeyError):
            kinds.add(str(json.loads(path.read_text(encoding="utf-8"))["kind"]))
    return kinds

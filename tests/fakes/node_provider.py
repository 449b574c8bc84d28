"""A provider of nodes that reaches nothing: it remembers what it was asked and answers what a test has put in."""

import asyncio
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from proctor.training_services.errors import NodeInUse, UnknownNode
from proctor.training_services.providers import (
    CheckStep,
    CheckVerdict,
    FileCollection,
    NodeProvider,
    ProviderContext,
    UncollectedFiles,
)


class FakeProvider(NodeProvider):
    """Its nodes are what a test adds to `addresses`."""

    def __init__(self, context: ProviderContext) -> None:
        self.context = context
        self.addresses: dict[str, str] = {}
        self.checked: list[str] = []
        self.used: set[str] = set()
        """Nodes that an experiment needs."""
        self.forgotten: list[str] = []
        self.asked: list[tuple[str, Mapping[str, Any], Mapping[str, str]]] = []
        self.trial_gpu_number: int | None = None
        self.left: list[UncollectedFiles] = []
        """Files that were not collected."""
        self.collections: dict[tuple[str, str], FileCollection] = {}
        """By node and experiment: what is being collected."""
        self.ended_collections: list[str] = []
        self.verdicts: dict[str, CheckVerdict] = {}
        """By host: what its last step finds."""
        self.steps: dict[str, Sequence[CheckStep]] = {}
        """By host: all its steps, in place of the usual one."""
        self.previewed: Sequence[CheckStep] = ()
        """What is found out before an experiment is created."""

    def add(self, node_id: str, address: str) -> None:
        """A node of this provider."""
        self.addresses[node_id] = address
        self.context.pool.add(node_id, "remote")

    async def preview(
        self, settings: Mapping[str, Any], secrets: Mapping[str, str], *, trial_gpu_number: int | None = None
    ) -> Sequence[CheckStep]:
        return self.previewed

    async def run(self) -> None:
        await asyncio.Event().wait()

    def claim(self, experiment_id: str, settings: Mapping[str, Any], secrets: Mapping[str, str]) -> tuple[str, ...]:
        return tuple(self.addresses)

    def node_ids_of(self, settings: Mapping[str, Any]) -> tuple[str, ...]:
        return tuple(str(machine["host"]) for machine in settings["machine_list"])

    async def release(self, experiment_id: str) -> None:
        return

    async def forget(self, experiment_id: str, *, keep: Collection[str] = ()) -> None:
        self.left = [each for each in self.left if each.experiment_id != experiment_id or each.node_id in keep]
        if not keep:
            self.forgotten.append(experiment_id)

    def uncollected(self) -> Sequence[UncollectedFiles]:
        return self.left

    def collect(self, node_id: str, experiment_id: str) -> FileCollection:
        return self.collections.setdefault((node_id, experiment_id), FileCollection(experiment_id))

    async def end_collections(self, experiment_id: str) -> None:
        self.ended_collections.append(experiment_id)

    def has(self, node_id: str) -> bool:
        return node_id in self.addresses

    def address(self, node_id: str) -> str:
        if node_id not in self.addresses:
            raise UnknownNode(node_id)
        return self.addresses[node_id]

    def check(self, node_id: str) -> None:
        self.checked.append(node_id)

    def abandon(self, node_id: str) -> None:
        if node_id in self.used:
            raise NodeInUse(f"node {node_id} is used by experiment E1; stop it first: proctor stop E1")
        del self.addresses[node_id]
        self.context.pool.remove(node_id)

    async def inspect(
        self, settings: Mapping[str, Any], secrets: Mapping[str, str], *, trial_gpu_number: int | None = None
    ) -> Sequence[CheckStep]:
        self.trial_gpu_number = trial_gpu_number
        return self._steps("inspect", settings, secrets, "login")

    async def clean(self, settings: Mapping[str, Any], secrets: Mapping[str, str]) -> Sequence[CheckStep]:
        return self._steps("clean", settings, secrets, "clean")

    def _steps(
        self, verb: str, settings: Mapping[str, Any], secrets: Mapping[str, str], name: str
    ) -> Sequence[CheckStep]:
        self.asked.append((verb, settings, secrets))
        hosts = [str(machine["host"]) for machine in settings["machine_list"]]
        usual = {host: self.verdicts.get(host, CheckVerdict.OK) for host in hosts}
        found = (self.steps.get(host) or [CheckStep(host, name, usual[host], f"{verb} of {host}")] for host in hosts)
        return [step for steps in found for step in steps]

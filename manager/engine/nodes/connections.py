"""Nodes that are reached over a network: tried again, forgotten, and what stopped experiments have left there."""

from proctor.manager.actors import USER, Actor
from proctor.manager.engine.nodes.records import NodeRecords
from proctor.manager.engine.supervisor import ExperimentSupervisor
from proctor.manager.errors import Conflict
from proctor.training_services.errors import UnknownNode
from proctor.training_services.nodes.pool import Node, NodePool
from proctor.training_services.providers import FileCollection, NodeProvider, Providers, UncollectedFiles


class NodeConnections:
    """Asks the provider that reaches a node, if there is one. An event says who has requested it."""

    def __init__(
        self, pool: NodePool, providers: Providers | None, supervisor: ExperimentSupervisor, records: NodeRecords
    ) -> None:
        self._pool = pool
        self._providers = providers
        self._supervisor = supervisor
        self._records = records

    async def check(self, node_id: str, *, actor: Actor = USER) -> Node:
        """Try to reach a node now rather than after its pause. Raises UnknownNode, and Conflict for one that is not
        reached over a network."""
        node = self._pool.node(node_id)
        self._provider(node_id).check(node_id)
        await self._records.add_request(node, "check", actor)
        return node

    async def forget(self, node_id: str, *, actor: Actor = USER) -> None:
        """Forget a node that no experiment needs and that could not be left: what is there is abandoned. Raises
        UnknownNode, NodeInUse, and Conflict for one that is not reached over a network."""
        node = self._pool.node(node_id)
        if leaving := self._supervisor.leaving((node_id,)):
            raise Conflict(
                f"node {node_id} is in use: {'; '.join(leaving.values())}; try again after it has released the node"
            )
        self._provider(node_id).abandon(node_id)
        await self._records.add_request(node, "forget", actor)

    async def collect(
        self, node_id: str, experiment_id: str | None = None, *, actor: Actor = USER
    ) -> list[FileCollection]:
        """Begin to collect what stopped experiments, or one of them, still have on a node, or join in; empty where that
        is nothing. Raises UnknownNode, NotFound, Unavailable, and Conflict for an experiment that uses the node."""
        node = self._pool.node(node_id)
        if experiment_id is not None:
            await self._supervisor.experiment(experiment_id)
            if experiment_id in self._supervisor.users_of(node_id):
                text = f"experiment {experiment_id} uses node {node_id}; its files are collected when it is stopped"
                raise Conflict(text)
        found = [each.experiment_id for each in self.uncollected(node_id=node_id)]
        wanted = [name for name in found if experiment_id in (None, name)]
        collections = [self._provider(node_id).collect(node_id, name) for name in wanted]
        if collections:
            await self._records.add_request(node, "collect", actor)
        return collections

    def uncollected(self, **of: str) -> list[UncollectedFiles]:
        """What nodes still have of a stopped experiment (`experiment_id`), or what a node (`node_id`) has of all."""
        return [] if self._providers is None else self._providers.uncollected(**of)

    def address(self, node_id: str) -> str:
        """How a node is reached, such as bob@gpu-3:2222; "" for one that is simply there."""
        try:
            return "" if self._providers is None else self._providers.of_node(node_id).address(node_id)
        except UnknownNode:
            return ""

    def _provider(self, node_id: str) -> NodeProvider:
        if self._providers is None:
            raise Conflict(f"node {node_id} is not reached over a network; there is nothing to connect to")
        try:
            return self._providers.of_node(node_id)
        except UnknownNode as error:
            raise Conflict(str(error)) from error

"""Which machines an experiment can use, and whether any of them could ever run its trials. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from proctor.manager.placement import Impossible, PlacementRequest, obstacle, place
from proctor.training_services.capacity import Candidate
from proctor.training_services.nodes.pool import Node, NodeStatus

MOST_NAMED = 5


@dataclass(frozen=True)
class Outlook:
    """The machines that an experiment may use, as they are now."""

    total: int
    unusable: Mapping[str, str] = field(default_factory=dict)
    """By node id a clause that names the node and says why; not those that are being connected."""
    pending: tuple[str, ...] = ()
    """The ids of those that are being connected, or will be in a moment."""
    never: str = ""
    """Why none of them could ever run a trial of the experiment, as far as their resources are known; or ""."""

    @property
    def clause(self) -> str:
        """What is worse than it should be, for people; "" for nothing."""
        if self.never:
            return f"no trial can ever run: {self.never}"
        if not self.unusable:
            return ""
        named = list(self.unusable.values())[:MOST_NAMED]
        more = len(self.unusable) - len(named)
        ending = f"; and {more} more" if more else ""
        if self.total == 1:
            subject = "its only machine cannot be used now"
        elif len(self.unusable) == self.total:
            subject = f"none of its {self.total} machines can be used now"
        else:
            subject = f"{len(self.unusable)} of its {self.total} machines cannot be used now"
        return f"{subject} ({'; '.join(named)}{ending})"


def assess(request: PlacementRequest, candidates: Sequence[Candidate], nodes: Mapping[str, Node]) -> Outlook:
    """What is known about these nodes.

    :param candidates: what placement knows of them.
    :param nodes: those that the pool knows, by id.
    """
    decision = place(request, candidates)
    unusable: dict[str, str] = {}
    pending: list[str] = []
    for candidate in candidates:
        node_id = candidate.node.node_id
        if why := obstacle(request, candidate):
            unusable[node_id] = why
        elif candidate.node.ready:
            continue
        elif (node := nodes.get(node_id)) is None or (node.status is NodeStatus.CONNECTING and not node.hold):
            pending.append(node_id)
        else:
            unusable[node_id] = candidate.node.reason
    never = decision.reason if isinstance(decision, Impossible) else ""
    return Outlook(len(candidates), unusable, tuple(pending), never)

"""Taking everything of this manager away from the machines of a configuration, for `proctor platform clean`."""

import asyncio
from collections.abc import Callable, Sequence

from proctor.training_services.errors import TrainingServiceError
from proctor.training_services.providers import CheckStep, CheckVerdict
from proctor.training_services.remote.bootstrap import NodeConnection, Site
from proctor.training_services.remote.claims import Claim
from proctor.training_services.remote.door import open_door
from proctor.training_services.remote.means import Means
from proctor.training_services.remote.node_folder import keeper_folder
from proctor.training_services.remote.visit import leave

__all__ = ["clean_machines"]


async def clean_machines(
    claims: Sequence[Claim],
    node_ids: Sequence[str],
    means: Means,
    *,
    holders: Callable[[str], Sequence[str]],
    forget: Callable[[str], None],
) -> tuple[CheckStep, ...]:
    """One step for each machine, all at once, in their order.

    :param holders: the experiments that claim a node; such a node is left alone.
    :param forget: called with a node that nobody claims, when nothing of ours is there any more.
    """
    async with asyncio.TaskGroup() as group:
        tasks = [
            group.create_task(
                _clean(claim, node_id, means, holders=holders, forget=forget), name=f"cleaning of {node_id}"
            )
            for claim, node_id in zip(claims, node_ids, strict=True)
        ]
    return tuple(task.result() for task in tasks)


async def _clean(
    claim: Claim,
    node_id: str,
    means: Means,
    *,
    holders: Callable[[str], Sequence[str]],
    forget: Callable[[str], None],
) -> CheckStep:
    name = claim.machine.address
    if holders(node_id):
        return _in_use(name, holders(node_id))
    try:
        async with means.connect(claim, None) as connection, means.doors[node_id], means.gate:
            if holders(node_id):  # claimed meanwhile
                return _in_use(name, holders(node_id))
            taken, left = await _take_away(connection, claim, node_id, means)
            if not left and not holders(node_id):
                forget(node_id)
    except (TrainingServiceError, OSError) as error:
        found, _, advice = str(error).rpartition("; ")
        return CheckStep(name, "clean", CheckVerdict.FAIL, found or advice, advice if found else "")
    if left:
        return CheckStep(name, "clean", CheckVerdict.FAIL, f"something could not be removed: {'; '.join(left)}")
    found = f"{' and '.join(taken)} removed" if taken else "nothing of this manager was there"
    return CheckStep(name, "clean", CheckVerdict.OK, found)


def _in_use(name: str, experiments: Sequence[str]) -> CheckStep:
    found = f"experiment {', '.join(experiments)} uses it; it was left as it is"
    return CheckStep(name, "clean", CheckVerdict.FAIL, found, f"stop it first: proctor stop {experiments[0]}")


async def _take_away(
    connection: NodeConnection, claim: Claim, node_id: str, means: Means
) -> tuple[list[str], list[str]]:
    """What was removed there and what is left. A check of a manager that was killed may have left a folder too."""
    python_path, archive = claim.machine.python_path, await means.archive()
    manager_id = means.context.manager_id
    key = keeper_folder(manager_id, node_id)
    async with open_door(connection, key, python_path=python_path, now=means.now) as door:
        keys = [key] if door.facts.exists else []
        keys += await door.list_folders(f"{manager_id}-check-")
    left = []
    for key in keys:
        site = Site(node_id, key, python_path, archive)
        if said := await leave(connection, site, now=means.now):
            left.append(said)
    return [f"~/.proctor/nodes/{key}" for key in keys], left

"""What a machine owes: files of an experiment that has let it go before all of them were collected, because the machine
was away, or our disk full. They are collected before the machine is left; an experiment that is deleted wants none."""

import asyncio
from collections.abc import Iterable

from proctor.training_services.collected_files import NodeFiles
from proctor.training_services.remote.claims import Claim
from proctor.training_services.remote.collection import collect_rest, name_files
from proctor.training_services.remote.errors import RemoteError
from proctor.training_services.remote.job_places import JobPlaces

__all__ = ["collect_debt", "find_void", "name_experiments"]


async def find_void(owed: Iterable[Claim]) -> frozenset[str]:
    """The experiments whose folders are gone: nothing is owed to them."""
    return frozenset(
        [claim.experiment_id for claim in owed if not await asyncio.to_thread(claim.experiment_directory.is_dir)]
    )


async def collect_debt(files: NodeFiles, node_id: str, claim: Claim) -> None:
    """Bring everything of an experiment's jobs into its folder, where it would lie had it been collected in time.

    Raises ServiceUnavailable, CollectionFailed, OSError; RemoteError for files that can never be copied.
    """
    places = JobPlaces(claim.experiment_id, claim.experiment_directory)
    if left := await collect_rest(files, node_id, places):
        raise RemoteError(
            f"{name_files(left)} cannot be copied, the manager's log says why; help them there, or give them up with "
            f"proctor experiment delete {claim.experiment_id}"
        )


def name_experiments(owed: Iterable[Claim]) -> str:
    """For people: "experiment a, b"."""
    return "experiment " + ", ".join(claim.experiment_id for claim in owed)

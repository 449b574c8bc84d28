"""What must be on a machine before a job can be launched there: the trial code, and the checkpoint to continue from."""

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass

from proctor.sdk.disk_errors import is_full
from proctor.training_services.base import TrialJobForm
from proctor.training_services.errors import SubmissionRefused, TrainingServiceError
from proctor.training_services.nodes import NodePool
from proctor.training_services.remote.checkpoint_places import Beginning, CheckpointPlaces
from proctor.training_services.remote.code_archive import CodeArchive, CodeArchives
from proctor.training_services.remote.copies import Copies, Copy, Progress, Tell
from proctor.training_services.remote.errors import NoRoom
from proctor.training_services.remote.presence import until_present

__all__ = ["CodeCopier", "NoRoomForJob", "PreparationFailed", "Prepared", "Preparer"]

log = logging.getLogger(__name__)

FIRST_PAUSE_SECONDS = 1.0
LONGEST_PAUSE_SECONDS = 30.0
ATTEMPTS = 8
"""So often in a row a machine that answers may fail: then the job runs elsewhere."""

CodeCopier = Callable[[str, CodeArchive, Progress], Awaitable[None]]
"""Has code unpacked on a node; at once if it is there."""


class PreparationFailed(TrainingServiceError):
    """A machine answers and cannot be made ready for a job."""


class NoRoomForJob(TrainingServiceError):
    """A machine has no room for what a job needs. The text is a clause about its disk."""


@dataclass(frozen=True)
class Prepared:
    """A machine is ready for a job. Paths as its keeper understands them."""

    code_directory: str
    beginning: Beginning


class Preparer:
    """Makes machines ready for one experiment's jobs.

    :param code: a job's code here; None: it lies at `code_on_node` on every machine.
    :param codes: the names of the code that a node has.
    """

    def __init__(
        self,
        pool: NodePool,
        *,
        code: Callable[[TrialJobForm], CodeArchives | None],
        code_on_node: str | None,
        codes: Callable[[str], Collection[str]],
        copy_code: CodeCopier,
        copies: Copies,
        checkpoints: CheckpointPlaces,
    ) -> None:
        self._pool = pool
        self._code = code
        self._code_on_node = code_on_node
        self._codes = codes
        self._copy_code = copy_code
        self._copies = copies
        self._checkpoints = checkpoints
        self._in_use: Counter[str] = Counter()  # archives that are being copied, by name

    async def prepare(self, form: TrialJobForm, node_id: str, tell: Tell) -> Prepared:
        """Make a node ready, however long it stays away; `tell` is called with clauses that say what is waited for.

        Raises SubmissionRefused for code that can never travel; NoRoomForJob; PreparationFailed when a node that
        answers has failed time and again. While the manager's own disk is full, it waits.
        """
        failures = pauses = 0
        while True:
            await until_present(self._pool, node_id)
            try:
                return Prepared(
                    await self._bring_code(form, node_id, tell), await self._checkpoints.find(form, node_id, tell)
                )
            except SubmissionRefused:
                raise
            except (TrainingServiceError, OSError) as error:
                if self._pool.absence(node_id):
                    continue  # the pool says why, and when it is back
                if shortage := self._shortage(node_id, error):
                    raise NoRoomForJob(shortage) from error
                failures += not (is_full(error) or is_full(error.__cause__))  # our own disk is not the node's fault
                clause = f"node {node_id} cannot be made ready: {error}"
                if failures == ATTEMPTS:
                    raise PreparationFailed(clause) from error
                pause = min(FIRST_PAUSE_SECONDS * 2**pauses, LONGEST_PAUSE_SECONDS)
                pauses += 1
                log.info("%s", clause, extra={"action": "job.prepare", "job_id": form.job_id, "node_id": node_id})
                tell(f"{clause}; tried again in {pause:.0f} s")
                await asyncio.sleep(pause)

    def _shortage(self, node_id: str, error: Exception) -> str:
        """Why the node has no room, if that is what an error comes from."""
        return str(error) if isinstance(error, NoRoom) else self._pool.node(node_id).shortage()

    async def _bring_code(self, form: TrialJobForm, node_id: str, tell: Tell) -> str:
        """Where the code is on the node."""
        code = self._code(form)
        if code is None:
            assert self._code_on_node is not None
            return self._code_on_node
        archive = await code.newest()
        if archive.name not in self._codes(node_id):

            async def carry_out(progress: Progress) -> None:
                await self._copy_code(node_id, archive, progress)

            self._in_use[archive.name] += 1
            try:
                await self._copies.make(Copy((node_id, archive.name), "the code", node_id, carry_out), tell)
            finally:
                self._in_use[archive.name] -= 1
            await code.keep_only({name for name, jobs in self._in_use.items() if jobs})
        return f"code/{archive.name}"

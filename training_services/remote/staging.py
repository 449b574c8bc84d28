"""What must be on a machine before a job can be launched there: the trial code, and the checkpoint to resume from.

A job continues from the first of the checkpoints it is offered that is whole. Each is looked for where it costs least:
on the job's own machine; in a home that this shares with the machine on which it was saved; among the collected files,
from which it is copied; on the machine on which it was saved, from which it is fetched. It is verified where it is
found. Without one, the job starts from the beginning.

This module uses the machines of the provider, so it is above `machines`, and `files` below that.
"""

import asyncio
import logging
import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from proctor.sdk.disk_errors import is_full
from proctor.sdk.process_limits import is_short
from proctor.sdk.protocol import is_url
from proctor.training_services.base import CheckpointOffer, TrialJobForm, describe_start
from proctor.training_services.errors import (
    KeeperOutdated,
    NoRoomForJob,
    PreparationFailed,
    ServiceUnavailable,
    SubmissionRefused,
    TrainingServiceError,
)
from proctor.training_services.files.code import CodeArchives
from proctor.training_services.files.collection import Collector
from proctor.training_services.files.paths import ExperimentPaths, ResumePoint, StagedJob
from proctor.training_services.hub_service import reporting_wait
from proctor.training_services.keepers.hub import KeeperHub
from proctor.training_services.nodes.pool import NodePool
from proctor.training_services.remote.files.transfer import Copy, Notify, TransferQueue
from proctor.training_services.ssh.errors import NoRoom
from proctor.training_services.stored_checkpoints import await_verified
from proctor.training_services.trial_processes import verify_on_this_machine
from proctor.trial_keeper.linux.backoff import growing_pause

if TYPE_CHECKING:  # it imports the SSH library
    from proctor.training_services.remote.machines.provider import RemoteProvider

__all__ = ["CheckpointLocator", "Staging"]

log = logging.getLogger(__name__)

FIRST_PAUSE_SECONDS = 1.0
LONGEST_PAUSE_SECONDS = 30.0
ATTEMPTS = 8
"""After so many failures in a row of a machine that answers, the job runs elsewhere."""


@dataclass(frozen=True)
class _Place:
    """Where on a job's machine a checkpoint is: its path for the keeper, and how it came there, as in `describe_start`.
    Or what is in the way, as a clause."""

    path: str = ""
    how: str = ""
    problem: str = ""


class CheckpointLocator:
    """Finds the checkpoints of one experiment's jobs, and copies them where necessary."""

    def __init__(
        self,
        hub: KeeperHub,
        pool: NodePool,
        paths: ExperimentPaths,
        *,
        provider: "RemoteProvider",
        collector: Collector,
        transfers: TransferQueue,
    ) -> None:
        self._hub = hub
        self._pool = pool
        self._paths = paths
        self._provider = provider
        self._collector = collector
        self._transfers = transfers
        self._copies: dict[str, set[str]] = {}  # by path on a machine: the nodes it was copied to

    async def delete(self, form: TrialJobForm, node_id: str, path: str) -> None:
        """Delete a checkpoint of a job that ran on this node: there, here, and where this manager has copied it to.
        Raises ServiceUnavailable: a node is away; OSError."""
        directory = Path(form.directory)
        if os.path.isabs(path):
            await self._hub.remove_checkpoint(node_id, path)
            return
        await self._collector.delete(directory, path)
        target = self._target(directory / path)
        for copied_to in self._copies.pop(target, ()):
            with suppress(TrainingServiceError):  # it is away: the copy goes when the experiment leaves the machine
                await self._hub.remove_folder(copied_to, target)
        await self._hub.remove_checkpoint(node_id, f"{self._paths.job(form)}/{path}")
        await self._collector.delete(directory, path)  # again: it may just have been collected

    async def find(self, form: TrialJobForm, node_id: str, notify: Notify) -> ResumePoint:
        """Where the job begins on this node: with the first of its checkpoints that is whole; copies it there where
        necessary.

        Raises ServiceUnavailable, RemoteError and OSError: try again.
        """
        passed_over = form.passed_over
        for offer in form.checkpoints:
            name = offer.name(form.trial_id)
            place = await self._bring(offer, name, form, node_id, notify)
            if not place.problem:
                return ResumePoint(describe_start(form.trial_id, offer, passed_over, place.how), place.path)
            passed_over.append((offer, place.problem))
        return ResumePoint(describe_start(form.trial_id, None, passed_over) if passed_over else None)

    async def _bring(
        self, offer: CheckpointOffer, name: str, form: TrialJobForm, node_id: str, notify: Notify
    ) -> _Place:
        if is_url(offer.path):
            problem = await await_verified(offer, form.environment, notify)
            return _Place(offer.path, problem=problem)
        here, there, saved_on = Path(offer.path), self._paths.on_machine(offer.path), offer.node_id
        problem = "it is gone"
        if there is None:
            if not (problem := await self._verify(node_id, offer.path, offer, name, notify)):
                return _Place(offer.path, ", in the folder that the nodes share")
        elif saved_on is not None:
            is_same = saved_on == node_id
            path = there if is_same else f"../{self._provider.keeper_folder(saved_on)}/{there}"
            problem = await self._verify(node_id, path, offer, name, notify)
            if not problem:
                how = ", which is on this node" if is_same else f" of node {saved_on}, whose home this node shares"
                return _Place(path, how)
        how = ", copied from the manager's machine"
        if not await asyncio.to_thread(self._collector.has_all, here):
            if there is None or saved_on in {None, node_id}:
                return _Place(problem=problem)
            if problem := await self._fetch(offer, name, there, here, notify):
                return _Place(problem=problem)
            how = f", fetched from node {saved_on}"
        with reporting_wait(notify, f"{name} is being verified"):
            problem = await verify_on_this_machine(offer)
        if problem:
            return _Place(problem=problem)
        return _Place(await self._copy(here, name, node_id, notify), how)

    async def _verify(self, node_id: str, path: str, offer: CheckpointOffer, name: str, notify: Notify) -> str:
        """What is wrong with a checkpoint on a node, as a clause. Raises ServiceUnavailable while that is
        disconnected."""
        try:
            with reporting_wait(notify, f"{name} is being verified on {node_id}"):
                return await self._hub.verify_checkpoint(node_id, path, offer.manifest)
        except (ServiceUnavailable, KeeperOutdated):
            raise
        except TrainingServiceError as error:
            return f"it cannot be verified: {error}"

    async def _fetch(self, offer: CheckpointOffer, name: str, there: str, here: Path, notify: Notify) -> str:
        """Collect it from the node on which it was saved, if it is whole there. A clause that says why it is not
        available, or ""."""
        saved_on = str(offer.node_id)
        try:
            if problem := await self._verify(saved_on, there, offer, name, notify):
                return problem
            notify(f"{name} is being fetched from {saved_on}")
            if await self._collector.fetch(saved_on, there, here):
                return ""
        except FileNotFoundError:
            pass
        except ServiceUnavailable:
            if absence := self._pool.absence(saved_on):
                return f"it was saved on a machine that cannot be read: {absence}"
            raise
        return f"it is gone from node {saved_on}"

    async def _copy(self, here: Path, name: str, node_id: str, notify: Notify) -> str:
        target = self._target(here)
        self._copies.setdefault(target, set()).add(node_id)
        machine = self._provider.machine(node_id)
        run = partial(machine.ensure_folder_copy, here, target)
        await self._transfers.make(Copy((node_id, target), name, node_id, run), notify)
        return target

    def _target(self, here: Path) -> str:
        """Where a copy of a checkpoint is put on a machine."""
        return f"{self._paths.checkpoints}/{here.relative_to(self._paths.directory).as_posix()}"


class Staging:
    """Makes machines ready for one experiment's jobs.

    :param code: a job's code here; None: it is at `code_on_node` on every machine.
    """

    def __init__(
        self,
        pool: NodePool,
        *,
        provider: "RemoteProvider",
        code: Callable[[TrialJobForm], CodeArchives | None],
        code_on_node: str | None,
        transfers: TransferQueue,
        checkpoints: CheckpointLocator,
    ) -> None:
        self._pool = pool
        self._provider = provider
        self._code = code
        self._code_on_node = code_on_node
        self._transfers = transfers
        self._checkpoints = checkpoints

    async def prepare(self, form: TrialJobForm, node_id: str, notify: Notify) -> StagedJob:
        """Make a node ready, however long it is disconnected; `notify` is called with clauses on what it waits for.

        Raises SubmissionRefused for code that cannot be archived; NoRoomForJob; PreparationFailed when a node that
        answers has failed `ATTEMPTS` times. While the manager's own disk is full, it waits.
        """
        failures = pauses = 0
        while True:
            await self._pool.wait_connected(node_id)
            try:
                return StagedJob(
                    await self._copy_code(form, node_id, notify), await self._checkpoints.find(form, node_id, notify)
                )
            except (SubmissionRefused, KeeperOutdated):
                raise
            except (TrainingServiceError, OSError) as error:
                if self._pool.absence(node_id):
                    continue  # wait until it is connected again
                shortage = str(error) if isinstance(error, NoRoom) else self._pool.node(node_id).shortage()
                if shortage:
                    raise NoRoomForJob(shortage) from error
                is_ours = is_full(error) or is_full(error.__cause__) or is_short(error)
                failures += not is_ours  # the node has not failed
                clause = f"node {node_id} cannot be made ready: {error}"
                if failures == ATTEMPTS:
                    raise PreparationFailed(clause) from error
                pauses += 1
                pause = growing_pause(pauses, FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS)
                log.info("%s", clause, extra={"action": "job.prepare", "job_id": form.job_id, "node_id": node_id})
                notify(f"{clause}; tried again in {pause:.0f} s")
                await asyncio.sleep(pause)

    async def _copy_code(self, form: TrialJobForm, node_id: str, notify: Notify) -> str:
        """Where the code is on the node."""
        code = self._code(form)
        if code is None:
            assert self._code_on_node is not None
            return self._code_on_node
        archive = await code.newest()
        machine = self._provider.machine(node_id)
        if archive.name not in machine.codes:
            run = partial(machine.ensure_code, archive)
            async with code.hold(archive):
                await self._transfers.make(Copy((node_id, archive.name), "the code", node_id, run), notify)
        return f"code/{archive.name}"

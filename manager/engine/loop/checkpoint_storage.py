"""The place where an experiment's checkpoints are stored instead of in the jobs' folders, and its ownership.

`create` claims `<location>/<experiment id>` with a mark, and the deletion of the experiment deletes what has its mark:
see `proctor.sdk.checkpoints.ownership`. An earlier version left no marks. What it has stored is marked by the first
manager that runs after the update, where the registered checkpoints prove it.
"""

import asyncio
import logging
import os
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from proctor.manager.engine.context import read_config
from proctor.manager.engine.transient_errors import error_clause
from proctor.manager.errors import BadRequest, Unavailable
from proctor.manager.store import database_identity
from proctor.manager.store.database import Database
from proctor.manager.store.errors import DatabaseUnusable
from proctor.manager.store.rows import ExperimentRow
from proctor.manager.store.tables import checkpoints, experiments
from proctor.sdk import files
from proctor.sdk.checkpoints import ownership
from proctor.sdk.checkpoints.ownership import FolderPlace, Owner, StoredProof
from proctor.sdk.checkpoints.storage import NOT_SHARED
from proctor.sdk.client.credentials import STORAGE_SECRETS
from proctor.sdk.protocol import is_url
from proctor.training_services.errors import ServiceUnavailable
from proctor.training_services.providers import read_secrets
from proctor.training_services.shared_storage import MarkNote, new_mark
from proctor.training_services.stored_checkpoints import claim_place, delete_place, probe_storage, release_place

if TYPE_CHECKING:
    from proctor.manager.config.experiment import CheckpointStorageConfig, ExperimentConfig

log = logging.getLogger(__name__)
T = TypeVar("T")

_ADVICE = {
    False: "choose another id or location, or move it away",
    True: "delete that experiment with --keep-checkpoints first, or load this one without --keep-storage",
}
"""Advice where a place is another's: for a new experiment (False), and for one that adopts a place (True)."""
MOST_PROOFS = 100
"""Maximum number of checkpoints, the newest ones, that are offered as proof; one that is found is enough."""


@dataclass(frozen=True)
class CheckpointStorage:
    """A place for the checkpoints of many experiments: below `location`, a folder or a URL, with what must be in the
    environment of whoever reads or writes there."""

    location: str
    environment: Mapping[str, str] = field(repr=False)

    @classmethod
    def of(cls, config: "ExperimentConfig", directory: Path) -> "CheckpointStorage | None":
        """Return the storage of the experiment in this folder, if it has one."""
        found = config.checkpoint_storage
        if found is None:
            return None
        return cls.with_secrets(found, read_secrets(directory) if found.environment else {})

    @classmethod
    def with_secrets(cls, config: "CheckpointStorageConfig", secrets: Mapping[str, str]) -> "CheckpointStorage":
        """Return the storage of an experiment whose secrets were handed over: those that are missing are left out."""
        found = {name: secrets.get(f"{STORAGE_SECRETS}.{name}") for name in config.environment}
        return cls(config.location, {name: value for name, value in found.items() if value is not None})

    def of_experiment(self, experiment_id: str) -> str:
        """Return the folder or URL of an experiment's checkpoints."""
        return f"{self.location}/{experiment_id}"

    def of_job(self, experiment_id: str, trial_id: str, number: int) -> str:
        """Return the folder or URL of a job's checkpoints."""
        return f"{self.of_experiment(experiment_id)}/{trial_id}/{number}"


async def owner_of(control: Database, experiment_id: str, created_at: float) -> Owner:
    """Return an experiment of the manager whose control database this is, as an owner."""
    return Owner((await control.read(database_identity.read)).id, experiment_id, created_at)


async def check_storage(config: "ExperimentConfig", secrets: Mapping[str, str]) -> None:
    """Raise BadRequest where checkpoints cannot be stored where the experiment wants them, as far as this machine can
    tell: a folder is tried where trials run here; a URL always, unless what it needs was not handed over."""
    if config.checkpoint_storage is None:
        return
    storage = CheckpointStorage.with_secrets(config.checkpoint_storage, secrets)
    if is_url(storage.location):
        if len(storage.environment) < len(config.checkpoint_storage.environment):
            return
        problem = await probe_storage(storage.location, storage.environment)
        if "is not installed" in problem or "Please install" in problem:
            problem += "; the manager needs `pip install 'proctor[storage]'` and what this kind of URL needs"
        elif problem and NOT_SHARED not in problem:
            problem += "; credentials are looked for in the variables that checkpointStorage.environment names"
    else:
        is_local = config.training_service.platform == "local"
        problem = await asyncio.to_thread(_folder_problem, storage.location) if is_local else ""
    if problem:
        raise _refused(problem)


def _folder_problem(folder: str) -> str:
    try:
        with tempfile.TemporaryFile(dir=folder, prefix=files.UNFINISHED_PREFIX):
            return ""
    except OSError as error:
        return f"nothing can be stored in {folder}: {error.strerror}; create it, or give its owner the right to write"


def _refused(problem: str) -> BadRequest:
    text = f"checkpointStorage: {problem}"
    return BadRequest(f"the configuration is not valid: {text}", [text])


@dataclass(frozen=True)
class ExperimentPlace:
    """The place of one experiment in a `CheckpointStorage`. Its methods raise ServiceUnavailable."""

    storage: CheckpointStorage
    owner: Owner

    def __str__(self) -> str:
        return self.storage.of_experiment(self.owner.experiment)

    @property
    def is_here(self) -> bool:
        """Whether this machine has it: a folder may be mounted on the nodes alone."""
        return is_url(self.storage.location) or os.path.isdir(self.storage.location)

    async def claim(self, *, proofs: Iterable[StoredProof] = (), adopts: bool = False, mark: str = "") -> str:
        """Claim the place, see `ownership.claim`."""
        if is_url(self.storage.location):
            where = (str(self), self.owner, self.storage.environment)
            return await claim_place(*where, proofs=proofs, adopts=adopts, mark=mark)
        return await self._in_folder(
            lambda place: ownership.claim(place, self.owner, proofs=proofs, adopts=adopts, mark=mark), "written"
        )

    async def release(self) -> None:
        """Release the place, see `ownership.release`."""
        if is_url(self.storage.location):
            await release_place(str(self), self.owner, self.storage.environment)
        else:
            await self._in_folder(lambda place: ownership.release(place, self.owner), "written")

    async def delete(self) -> str:
        """Delete the place, see `ownership.delete`."""
        if is_url(self.storage.location):
            return await delete_place(str(self), self.owner, self.storage.environment)
        return await self._in_folder(lambda place: ownership.delete(place, self.owner), "deleted")

    async def _in_folder(self, act: Callable[[FolderPlace], T], participle: str) -> T:
        try:
            return await asyncio.to_thread(act, FolderPlace(str(self)))
        except OSError as error:
            raise ServiceUnavailable(f"{self} cannot be {participle}: {error.strerror or error}") from error


@asynccontextmanager
async def claimed(place: ExperimentPlace | None, *, adopts: bool = False) -> AsyncIterator[MarkNote | None]:
    """Claim the place of a new experiment, and release it where the experiment does not come to be. The value is what
    the experiment notes of its mark, if it has one. Raises BadRequest where something else is there, or it cannot be
    written.

    :param adopts: what is there without an owner is the experiment's, by its user's word. It gets no mark: nodes that
        were used before may have other places.
    """
    note = None if place is None or adopts else MarkNote()
    if place is None or not place.is_here:
        yield note
        return
    if note is not None:
        note = MarkNote(new_mark(), "the manager's machine")
    try:
        if why := await place.claim(adopts=adopts, mark="" if note is None else note.mark):
            raise _refused(f"{place} cannot be used: {why}; {_ADVICE[adopts]}")
    except ServiceUnavailable as error:
        raise _refused(str(error)) from error
    try:
        yield note
    except BaseException:
        with suppress(ServiceUnavailable):
            await place.release()
        raise


class CheckpointPlaces:
    """The places of this manager's experiments.

    :param metrics: the metrics database of the experiment of an id.
    """

    def __init__(self, control: Database, metrics: Callable[[str], Awaitable[Database]]) -> None:
        self._control = control
        self._metrics = metrics

    async def new(
        self, config: "ExperimentConfig", secrets: Mapping[str, str], experiment_id: str, created_at: float
    ) -> ExperimentPlace | None:
        """Return the place of an experiment that is being made; None where it stores in its jobs' folders."""
        if config.checkpoint_storage is None:
            return None
        storage = CheckpointStorage.with_secrets(config.checkpoint_storage, secrets)
        return await self._place(storage, experiment_id, created_at)

    async def of(self, row: ExperimentRow) -> ExperimentPlace | None:
        """Return the place of an experiment; None where it stores in its jobs' folders."""
        storage = CheckpointStorage.of(await read_config(row), Path(row.directory))
        return None if storage is None else await self._place(storage, row.id, row.created_at)

    async def _place(self, storage: CheckpointStorage, experiment_id: str, created_at: float) -> ExperimentPlace:
        return ExperimentPlace(storage, await owner_of(self._control, experiment_id, created_at))

    async def give_up(self, row: ExperimentRow, *, keep_checkpoints: bool) -> list[str]:
        """Delete what an experiment has stored, or leave it to the next one that claims it. Returns what was left that
        should have been deleted, a sentence each. Raises Unavailable with what to do."""
        place = await self.of(row)
        if place is None:
            return []
        if keep_checkpoints:
            with suppress(ServiceUnavailable):  # then its mark stays, too
                await place.release()
            return []
        if not place.is_here:
            return [f"{place} was left: there is no {place.storage.location} on this machine"]
        try:
            with suppress(DatabaseUnusable):  # its metrics are gone, and with them what would prove it
                await self._mark_earlier(row)
            why = await place.delete()
        except ServiceUnavailable as error:
            raise Unavailable(
                f"the checkpoints of experiment {row.id} cannot be deleted: {error}; delete the experiment again, or "
                "leave them where they are (`proctor experiment delete --keep-checkpoints`)"
            ) from error
        return [f"{place} was left: {why}"] if why else []

    async def mark_earlier(self) -> None:
        """Mark what experiments have stored before places were marked, where it is proven; the control database knows
        which ones these are. What cannot be looked at now is left to the next manager."""
        try:
            for row in await self._control.read(experiments.unmarked):
                try:
                    await self._mark_earlier(row)
                except Exception as error:
                    text = "cannot look at what experiment %s of an earlier version has stored: %s"
                    log.warning(text, row.id, error_clause(error), extra={"action": "storage.claim"})
        except DatabaseUnusable as error:
            text = "cannot look for what an earlier version has stored: %s"
            log.warning(text, error_clause(error), extra={"action": "storage.claim"})

    async def _mark_earlier(self, row: ExperimentRow) -> None:
        if row.id not in {found.id for found in await self._control.read(experiments.unmarked)}:
            return
        place = await self.of(row)
        if place is not None:
            if not place.is_here:
                return
            if why := await place.claim(proofs=await self._proofs(place)):
                text = "%s is not deleted with its experiment: %s"
                log.warning(text, place, why, extra={"action": "storage.claim"})
        await self._control.write(lambda c: experiments.settle_mark(c, row.id))

    async def _proofs(self, place: ExperimentPlace) -> list[StoredProof]:
        metrics = await self._metrics(place.owner.experiment)
        newest = await metrics.read(lambda c: checkpoints.newest_stored(c, f"{place}/", limit=MOST_PROOFS))
        return [StoredProof(row.path.removeprefix(f"{place}/"), row.manifest) for row in newest if row.manifest]

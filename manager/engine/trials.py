"""What a user does with single trials: add, pause, resume, kill, retry and clone them, and look at their checkpoints.

Each is checked here, with the trial's status in the error; what changes is done by the experiment's loop.
"""

import sqlite3
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from proctor.manager.actors import USER, Actor
from proctor.manager.engine.context import read_config
from proctor.manager.engine.imported_data import read_changed_parameters, read_parameters
from proctor.manager.engine.loop import messages as m
from proctor.manager.engine.loop.context import JobFormBuilder
from proctor.manager.engine.loop.placing import CheckpointStores, find_offers
from proctor.manager.engine.loop.retention import gather_facts, keep_rule
from proctor.manager.engine.supervisor import ExperimentSupervisor
from proctor.manager.errors import BadRequest, Conflict, NotFound
from proctor.manager.lifecycle.checkpoints import KeepReason, retain
from proctor.manager.lifecycle.states import TrialStatus
from proctor.manager.lifecycle.trial import PausedBy
from proctor.manager.store.database import Database
from proctor.manager.store.errors import RowNotFound
from proctor.manager.store.rows import CheckpointRow, TrialJobRow, TrialRow
from proctor.manager.store.tables import checkpoints, jobs, metrics, trials
from proctor.sdk.client.flattening import change_flat, flatten


class Trials:
    """The trials of all experiments."""

    def __init__(self, supervisor: ExperimentSupervisor, control: Database) -> None:
        self._supervisor = supervisor
        self._control = control

    async def get(self, trial_id: str) -> TrialRow:
        """One trial's row. Raises NotFound."""
        try:
            return await self._control.read(lambda c: trials.get(c, trial_id))
        except RowNotFound:
            raise NotFound(f"there is no trial {trial_id!r}") from None

    async def kill(self, trial_id: str, *, actor: Actor = USER) -> None:
        """End a live trial by the user's command. Returns when its stop is written down."""
        row = await self.get(trial_id)
        if row.status.is_terminal:
            raise Conflict(f"trial {trial_id} is {row.status} already; there is nothing to kill")
        await self._supervisor.ask(row.experiment_id, m.CancelTrial(trial_id), actor)

    async def pause(self, trial_id: str, *, actor: Actor = USER) -> None:
        """Stop a live trial, which may save first, and keep it PAUSED, without a place, until a user resumes it; one
        that is PAUSED for another reason is from now on the user's. Returns when this is written down. Idempotent."""
        row = await self.get(trial_id)
        if row.status.is_terminal:
            raise Conflict(f"trial {trial_id} is {row.status}; only a WAITING or RUNNING trial can be paused")
        if (row.status, row.paused_by) != (TrialStatus.PAUSED, PausedBy.USER):
            await self._supervisor.ask(row.experiment_id, m.PauseByUser(trial_id), actor)

    async def resume(self, trial_id: str, *, actor: Actor = USER) -> None:
        """Have a PAUSED trial run again, from its newest checkpoint if it has one, when there is a place. Raises
        Conflict for one that its trial scheduler has paused."""
        row = await self.get(trial_id)
        if row.status.is_terminal:
            raise Conflict(f"trial {trial_id} is {row.status}; only a PAUSED trial can be resumed")
        await self._supervisor.ask(row.experiment_id, m.ResumeByUser(trial_id), actor)

    async def retry(self, trial_id: str, *, from_checkpoint: bool = False, actor: Actor = USER) -> TrialRow:
        """Run an ended trial's parameters again, as a new trial. Returns it. Where the search space has been changed
        since, and they are outside of it, a notice says so.

        :param from_checkpoint: from the trial's newest checkpoint instead of from the start; from the one that it
            began with, if it has registered none. Raises Conflict if there is neither.
        """
        row = await self.get(trial_id)
        if not row.status.is_terminal:
            raise Conflict(f"trial {trial_id} is {row.status}; only an ended trial can be run again")
        experiment = await self._supervisor.experiment(row.experiment_id)
        _, outside = read_changed_parameters(experiment, row.parameters, changed=())
        origin = await self._origin(row) if from_checkpoint else m.TrialOrigin(row)
        command = m.AddTrial(row.parameters, source="retry", origin=origin, outside=outside)
        return await self._supervisor.ask(row.experiment_id, command, actor)  # type: ignore[no-any-return]

    async def clone(self, trial_id: str, changes: Mapping[str, Any], *, actor: Actor = USER) -> TrialRow:
        """Continue from a trial's newest checkpoint, or from the one that it began with if it has registered none, as a
        new trial with some other parameters. Returns it. Raises Conflict if there is neither, BadRequest where a new
        value is outside of the search space; the others may be, as for a retry.

        :param changes: the new values by name, of what is in a nested choice as tables name it (`model.lr`); the other
            parameters are those of the trial.
        """
        row = await self.get(trial_id)
        if not isinstance(row.parameters, Mapping):
            raise Conflict(f"the parameters of trial {trial_id} have no names, so none of them can be changed")
        try:
            changed = change_flat(row.parameters, changes)
        except KeyError as error:
            known = ", ".join(sorted(flatten(dict(row.parameters))))
            unknown = f"trial {trial_id} has no parameter {error.args[0]}"
            raise BadRequest(f"{unknown}; its parameters are {known}") from error
        experiment = await self._supervisor.experiment(row.experiment_id)
        parameters, outside = read_changed_parameters(experiment, changed, changed=changes)
        command = m.AddTrial(parameters, source="clone", origin=await self._origin(row), outside=outside)
        return await self._supervisor.ask(row.experiment_id, command, actor)  # type: ignore[no-any-return]

    async def _origin(self, trial: TrialRow) -> m.TrialOrigin:
        """A trial with the checkpoint from which it would be resumed now. Raises Conflict if there is none."""
        database = await self._supervisor.metrics(trial.experiment_id)
        experiment = await self._supervisor.experiment(trial.experiment_id)
        forms = JobFormBuilder(await read_config(experiment), Path(experiment.directory))
        stores = CheckpointStores(self._control, database, forms, experiment.report_from)
        loop = self._supervisor.loop(experiment.id) if self._supervisor.has(experiment.id) else None
        offers = await find_offers(stores, trial, deleting=() if loop is None else loop.state.deleting, most=1)
        registered = await stores.row_of(offers[0]) if offers else None
        has_saved = bool(offers) or await database.read(lambda c: bool(metrics.checkpoints(c, trial.id, limit=1)))
        if has_saved and (not offers or (registered is not None and registered.deleted_at is not None)):
            raise Conflict(f"all checkpoints of trial {trial.id} were deleted (keepCheckpoints, checkpointQuotaMb)")
        if not offers:
            raise Conflict(f"trial {trial.id} has registered no checkpoint to continue from")
        return m.TrialOrigin(trial, offers[0], None if registered is None else registered.id)

    async def checkpoint(self, trial: TrialRow, checkpoint_id: int) -> CheckpointRow:
        """A checkpoint of a trial. Raises NotFound, with the reason where it was deleted."""
        database = await self._supervisor.metrics(trial.experiment_id)
        try:
            found = await database.read(lambda c: checkpoints.get(c, checkpoint_id))
        except RowNotFound:
            found = None
        if found is None or found.trial_id != trial.id:
            raise NotFound(f"trial {trial.id} has no checkpoint {checkpoint_id}")
        if found.deleted_at is not None:
            when = datetime.fromtimestamp(found.deleted_at, UTC)
            raise NotFound(
                f"checkpoint {checkpoint_id} of trial {trial.id} ({found.path} of job {found.job}) was deleted at "
                f"{when:%Y-%m-%d %H:%M:%S} UTC, because keepCheckpoints or checkpointQuotaMb of the experiment says so"
            )
        return found

    async def reasons_to_keep(self, trial: TrialRow) -> Mapping[int, Sequence[KeepReason]]:
        """Why each checkpoint of a trial that was not deleted is kept; one without a reason is about to be deleted."""
        experiment = await self._supervisor.experiment(trial.experiment_id)
        config = await read_config(experiment)
        forms = JobFormBuilder(config, Path(experiment.directory))
        database = await self._supervisor.metrics(trial.experiment_id)
        rows = await database.read(lambda c: checkpoints.kept(c, trial.id))

        def read(connection: sqlite3.Connection) -> tuple[TrialJobRow | None, set[tuple[str, str]]]:
            job = jobs.get(connection, f"{trial.id}.{trial.jobs}") if trial.jobs > 0 else None
            is_live = job is not None and not job.status.is_terminal
            return job if is_live else None, trials.origins(connection, [trial.id])

        job, origins = await self._control.read(read)
        loop = self._supervisor.loop(experiment.id) if self._supervisor.has(experiment.id) else None
        copying = loop.state.copying if loop is not None else ()
        facts = gather_facts(trial, rows, forms, job=job, origins=origins, copying=copying)
        return retain(facts, keep_rule(config), has_ended=trial.status.is_terminal).reasons

    async def add(self, experiment_id: str, parameters: Any, *, actor: Actor = USER) -> TrialRow:
        """Run a trial with the user's own parameters. Returns it. Raises BadRequest where they are outside of the
        search space; a tuner of the user's takes everything."""
        command = m.AddTrial(read_parameters(await self._supervisor.experiment(experiment_id), parameters))
        return await self._supervisor.ask(experiment_id, command, actor)  # type: ignore[no-any-return]

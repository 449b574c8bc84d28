"""Preparing a job with a keeper of its own before its launch: the trial code, and a checkpoint to continue from, are
sent over the keeper's link (decision 0044).

A job continues from the first intact one of the checkpoints that it is offered: on the manager's machine, or on that of
a job that is still running, from which it is fetched. Without one, it starts from the beginning.
"""

import asyncio
import logging
import tempfile
from functools import partial
from pathlib import Path

from proctor.sdk.failpoints import failpoint
from proctor.sdk.files import make_folder
from proctor.sdk.protocol import is_url
from proctor.training_services.base import CheckpointOffer, TrialJobForm, describe_start
from proctor.training_services.errors import (
    KeeperOutdated,
    PreparationFailed,
    ServiceUnavailable,
    SubmissionRefused,
    TrainingServiceError,
)
from proctor.training_services.files.code import ExperimentCode, pack_folder
from proctor.training_services.files.collection import Collector
from proctor.training_services.files.mirror import size_text
from proctor.training_services.files.paths import ExperimentPaths, ResumePoint, StagedJob
from proctor.training_services.hub_service import HubTrainingService, reporting_wait
from proctor.training_services.job_keepers.departures import Departures
from proctor.training_services.keepers.hub import KeeperHub
from proctor.training_services.keepers.sessions import job_keeper_id
from proctor.training_services.trial_processes import verify_on_this_machine
from proctor.trial_keeper.linux.backoff import growing_pause

log = logging.getLogger(__name__)

FIRST_PAUSE_SECONDS = 1.0
LONGEST_PAUSE_SECONDS = 30.0
ATTEMPTS = 8
"""After this many failures of a keeper that answers, the job ends, and its trial gets another one."""
PACKED_AT_ONCE = 2
_OUTGOING_FOLDER = "checkpoint-archives"


class JobStaging:
    """Prepares the jobs of one experiment."""

    def __init__(
        self,
        service: HubTrainingService,
        hub: KeeperHub,
        paths: ExperimentPaths,
        *,
        collector: Collector,
        departures: Departures,
    ) -> None:
        self._service = service
        self._hub = hub
        self._paths = paths
        self._collector = collector
        self._departures = departures
        self.code = ExperimentCode(paths.directory)
        self._packing = asyncio.Semaphore(PACKED_AT_ONCE)

    async def prepare(self, form: TrialJobForm, code_place: str | None) -> StagedJob:
        """Prepare a job's machine, however long its keeper is disconnected; waits while the manager's own disk is full.
        Raises SubmissionRefused for code that cannot be archived; PreparationFailed when a keeper that answers has
        failed `ATTEMPTS` times.

        :param code_place: the folder in which the code already is; None: it is sent.
        """
        failures = pauses = 0
        while True:
            await self._service.wait_connected(form)
            try:
                code = code_place or await self._send_code(form)
                return StagedJob(code, await self._find_checkpoint(form))
            except (SubmissionRefused, KeeperOutdated):
                raise
            except (TrainingServiceError, OSError) as error:
                failures += not isinstance(
                    error, (ServiceUnavailable, OSError)
                )  # else the keeper is away, or our disk is full
                clause = f"its machine cannot be made ready: {error}"
                if failures == ATTEMPTS:
                    raise PreparationFailed(clause) from error
                pauses += 1
                pause = growing_pause(pauses, FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS)
                log.info("%s", clause, extra={"action": "job.prepare", "job_id": form.job_id})
                self._service.report_waiting(form, f"{clause}; tried again in {pause:.0f} s")
                await asyncio.sleep(pause)

    def remove_leftovers(self) -> None:
        """Remove checkpoint archives left by a manager that was killed. Blocks."""
        for path in (self._paths.directory / _OUTGOING_FOLDER).glob("*"):
            path.unlink(missing_ok=True)

    async def _send_code(self, form: TrialJobForm) -> str:
        code = self.code.of(form.code_directory)
        archive = await code.newest()
        folder = f"code/{archive.name}"
        async with code.hold(archive):
            await self._send(form, f"the code ({size_text(archive.size)})", archive.path, archive.file_sha256, folder)
        return folder

    async def _send(self, form: TrialJobForm, what: str, archive: Path, sha256: str, folder: str) -> None:
        with reporting_wait(partial(self._service.report_waiting, form), f"{what} is being sent to its machine"):
            failpoint("manager.job_keeper.send.before")
            await self._hub.fetch_archive(self._service.keeper_of(form), archive, sha256, folder)
            failpoint("manager.job_keeper.send.after")

    async def _find_checkpoint(self, form: TrialJobForm) -> ResumePoint:
        """Find the checkpoint from which the job continues, the first intact one, and send it. Raises
        ServiceUnavailable and OSError: try again."""
        passed_over = form.passed_over
        for offer in form.checkpoints:
            if is_url(offer.path) or self._paths.on_machine(offer.path) is None:
                problem = await self._service.verify(form, offer)
                path, how = offer.path, "" if is_url(offer.path) else ", in the folder that is mounted on its machine"
            else:
                problem = await self._bring_here(form, offer)
                path, how = "", ", sent from the manager's machine"
            if not problem:
                start = describe_start(form.trial_id, offer, passed_over, how)
                return ResumePoint(start, path or await self._send_checkpoint(form, offer))
            passed_over.append((offer, problem))
        return ResumePoint(describe_start(form.trial_id, None, passed_over) if passed_over else None)

    async def _bring_here(self, form: TrialJobForm, offer: CheckpointOffer) -> str:
        """Why a checkpoint is not intact on the manager's machine, as a clause, or ""; one of a job that is still
        running is fetched first."""
        name, notify = offer.name(form.trial_id), partial(self._service.report_waiting, form)
        with reporting_wait(notify, f"{name} is being fetched from the machine of job {offer.job_id}"):
            await self._departures.wait(offer.job_id)
        problem = await self._verify_here(form, offer)
        if problem and offer.job_id in {job.id for job in await self._service.list_trial_jobs()}:
            with reporting_wait(notify, f"{name} is being fetched from the machine of job {offer.job_id}"):
                problem = await self._fetch(offer) or await self._verify_here(form, offer)
        return problem

    async def _verify_here(self, form: TrialJobForm, offer: CheckpointOffer) -> str:
        here = Path(offer.path)
        if not here.is_dir() or (offer.manifest is None and not await asyncio.to_thread(self._collector.has_all, here)):
            return "it was lost with its machine, before it was copied to the manager's"
        clause = f"{offer.name(form.trial_id)} is being verified"
        with reporting_wait(partial(self._service.report_waiting, form), clause):
            return await verify_on_this_machine(offer)

    async def _fetch(self, offer: CheckpointOffer) -> str:
        """Fetch a checkpoint from the machine of a running job. Returns why that is not possible, or ""."""
        keeper_id, there = job_keeper_id(offer.job_id), self._paths.on_machine(offer.path)
        assert there is not None
        try:
            if await self._collector.fetch(keeper_id, there, Path(offer.path)):
                return ""
        except FileNotFoundError:
            pass
        except ServiceUnavailable as error:
            return f"it was saved on a machine that cannot be read: {error}"
        return "it is gone from the machine on which it was saved"

    async def _send_checkpoint(self, form: TrialJobForm, offer: CheckpointOffer) -> str:
        """Returns its path on the job's machine."""
        here, outgoing = Path(offer.path), self._paths.directory / _OUTGOING_FOLDER
        target = f"{self._paths.checkpoints}/{here.relative_to(self._paths.directory).as_posix()}"
        async with self._packing:
            make_folder(str(outgoing))
            with tempfile.NamedTemporaryFile(dir=outgoing, suffix=".tar.gz") as packed:
                sha256 = await asyncio.to_thread(pack_folder, here, Path(packed.name))
                await self._send(form, offer.name(form.trial_id), Path(packed.name), sha256, target)
        return target

"""The jobs of this node: launching, adopting, stopping, ending and forgetting them.

Whatever is decided is written down (`records`) before it is done, so a keeper that is killed at any instant is followed
by one that comes to the same end: `_find_out` looks at what is written and at who lives, and continues from there.
"""

import asyncio
import contextlib
import logging
import os
import socket
import time
from dataclasses import replace

from proctor.sdk.checkpoints.saving import checkpoint_folder
from proctor.sdk.failpoints import failpoint
from proctor.sdk.files import remove_tree, remove_unfinished
from proctor.sdk.process_limits import describe_shortage, is_short
from proctor.sdk.protocol import ENV_CHECKPOINT_STORAGE, boot_time, is_url
from proctor.trial_keeper.jobs.cleanup import (
    can_save,
    end_leftovers,
    end_lost_job,
    end_strays,
    find_reaper,
    is_running,
    signal_reaper,
    unknown_exit,
)
from proctor.trial_keeper.jobs.disk_space import DiskWatch
from proctor.trial_keeper.jobs.job import Job
from proctor.trial_keeper.jobs.journal_watch import JournalWatcher
from proctor.trial_keeper.jobs.launching import RequestBuilder, Spawner, failed_exit, release_room, write_down
from proctor.trial_keeper.jobs.lost_reports import Losses, find_losses, is_reserve_used, remove_reserve
from proctor.trial_keeper.jobs.outbox import Outbox, SettledReport
from proctor.trial_keeper.jobs.records import (
    JobRecord,
    RecordFolder,
    StopRecord,
    parse_exit,
    parse_failure,
    parse_process,
    read_exit,
    sync_exit,
    with_stop,
    write_exit,
    write_stop,
)
from proctor.trial_keeper.linux.identity import boot_id, describe_stop, open_pidfd
from proctor.trial_keeper.linux.tasks import TaskGroup
from proctor.trial_keeper.protocol import Cancel, EndReason, Exit, Launch, Update

_MOST_ATTEMPTS = 3
_DEADLINE_GRACE_SECONDS = 5.0
_DAMAGED_GRACE_SECONDS = 2.0
_LEAST_PAUSE_SECONDS = 0.05
_START_BYTES = 4096
_END_BYTES = 256 * 1024
_OWN_ENDS = (EndReason.EXITED_OK, EndReason.EXITED_ERROR, EndReason.SIGNALED)
_CLAIM_PAUSES = (0.01, 0.05, 0.25, 0.5)
_SHORTAGE_RETRY_SECONDS = 0.5

log = logging.getLogger(__name__)


class JobTable:
    """All jobs the keeper has to do with, until the manager has stored their ends.

    `place_taken` is set when a job did not get its GPUs because another user of the machine holds them.
    """

    def __init__(
        self,
        folder: RecordFolder,
        *,
        requests: RequestBuilder,
        spawner: Spawner,
        outbox: Outbox,
        tasks: TaskGroup,
        disk: DiskWatch,
    ) -> None:
        self._folder = folder
        self._requests = requests
        self._spawner = spawner
        self._outbox = outbox
        self._tasks = tasks
        self._disk = disk
        self._boot_id = boot_id()
        self._jobs: dict[str, Job] = {}
        self._clearing: set[str] = set()  # ended jobs whose leftovers are being removed; until then their records stay
        self._unwanted: dict[str, str] = {}  # jobs whose records are to be removed, with their directories, if known
        self._is_removing = False
        self._writing = asyncio.Lock()
        self._ended_lately: set[tuple[str, str]] = set()
        self._held: dict[str, Job] = {}  # not given to the spawner, because that is suspended
        self.watch = JournalWatcher(outbox.queue)
        self.place_taken = asyncio.Event()

    def __len__(self) -> int:
        return len(self._jobs)

    def all(self) -> list[Job]:
        """The jobs to report to the manager."""
        return [job for job in self._jobs.values() if not job.record.forgotten]

    def running(self) -> list[Job]:
        """The jobs that have not ended."""
        return [job for job in self._jobs.values() if job.exit is None]

    async def adopt(self) -> None:
        """Take over the jobs that an earlier keeper has left."""
        records, problems = await asyncio.to_thread(self._folder.read_all)
        for problem in problems:
            log.error(problem)
        for job_id in await asyncio.to_thread(self._folder.lost):
            log.error("ending the processes of job %s: its record could not be read", job_id)
            await asyncio.to_thread(end_lost_job, self._folder, job_id)
        for record in records:
            job = Job(record, of_earlier_boot=record.boot_id != self._boot_id)
            self._jobs[job.job_id] = job
            if not await self._recognize(job):
                self._tasks.start(self._find_out(job), f"find out {job.job_id}")

    async def launch(self, launches: list[Launch]) -> None:
        """Write the launches down, then start them. A job that is known, or has ended before, is not started again."""
        fresh = {}
        for launch in launches:
            if launch.job_id in self._jobs:
                self._outbox.queue(self._jobs[launch.job_id])
            else:
                fresh[launch.job_id] = Job(JobRecord(launch, self._boot_id))
        self._jobs.update(fresh)
        async with self._writing:
            jobs = list(fresh.values())
            failures = await asyncio.to_thread(write_down, [job.record for job in jobs], self._folder, self._disk)
        for job, failure in zip(jobs, failures, strict=True):
            if failure is not None:
                self._end(job, failure, Losses())
            else:
                self._start(job)

    async def cancel(self, command: Cancel) -> None:
        """Stop a job on the manager's command, softly if it says so."""
        job = self._known(command.job_id, command.token)
        if job is None or job.exit is not None:
            return
        seconds = command.save_seconds if job.process is not None else 0.0  # what has not begun has nothing to save
        if seconds > 0 and command.only_if_able and not await asyncio.to_thread(can_save, job.record.launch):
            seconds = 0.0
        stop = StopRecord.after_saving(
            EndReason.CANCELED,
            command.grace_seconds,
            command.reason,
            request=command.request,
            save_seconds=seconds,
        )
        await self.stop(job, stop)

    async def update(self, command: Update) -> None:
        """Change a job's duration limit, one that is over already ends the job now; and its milestone. A milestone
        alone needs no sync: control.json is as good as the record until the machine is restarted, and then the job has
        ended."""
        job = self._known(command.job_id, command.token)
        if job is None or job.exit is not None:
            return
        before = job.record.launch
        job.record = replace(job.record, launch=command.applied_to(before))
        if has_moved := job.record.launch.milestone != before.milestone:
            job.show_milestone()
        if not has_moved or job.record.launch.max_duration_seconds != before.max_duration_seconds:
            await self._write_again(job)
            self._set_deadline(job)

    async def stop(self, job: Job, stop: StopRecord) -> None:
        """Write the decision down, tell the trial through control.json, let it save if it may, have the reaper end
        everything. A second stop may shorten the time to save."""
        if job.exit is not None:
            return
        job.record = with_stop(job.record, stop)
        await self._write_again(job)
        if self._held.pop(job.job_id, None) is not None:
            await self._go_on_without_reaper(job)
        else:
            self._begin_stop(job)

    def settle(self, report: SettledReport) -> None:
        """The manager has answered a report."""
        for job in report.stored:
            self.forget(job)
        for job in report.fenced:
            self.disown(job)

    def forget(self, job: Job) -> None:
        """The manager has stored the job's end."""
        job.close()
        self._outbox.drop(job)
        self._jobs.pop(job.job_id, None)
        self._unwanted[job.job_id] = job.directory
        if not self._is_removing:
            self._is_removing = True
            self._tasks.start(self._remove_records(), "removing records")

    def disown(self, job: Job) -> None:
        """The job is no longer the manager's: stop it and forget it."""
        self._outbox.drop(job)
        if job.exit is not None:
            self.forget(job)
        elif not job.record.forgotten:
            job.record = replace(job.record, forgotten=True)
            stop = StopRecord(EndReason.CANCELED.value, _DEADLINE_GRACE_SECONDS, "the manager no longer knows this job")
            self._tasks.start(self.stop(job, stop), f"disown {job.job_id}")

    async def sweep(self) -> None:
        """End processes that carry the tag of a job that has ended but did not descend from it."""
        ended, self._ended_lately = self._ended_lately, set()
        try:
            if ended:
                await asyncio.to_thread(end_strays, ended - {job.tag for job in self.running()})
        except OSError as error:
            if not is_short(error):
                raise
            self._ended_lately |= ended  # with the next sweep
        if self._unwanted:  # what the disk has not let go
            await self._remove_records()

    def find_suspended(self) -> dict[str, str]:
        """What is stuck because a process of ours is suspended, and what to do, as clauses: by job id; with ""
        what concerns all new jobs. Starts what was held up by that, once it continues."""
        found = {}
        spawner = self._spawner.describe_stop()
        if not spawner:
            held, self._held = self._held, {}
            for job in held.values():
                self._start(job)
        for job in self.running():
            if job.process is not None:
                reaper = job.process.reaper
                if clause := describe_stop(reaper.pid, reaper.started):
                    found[job.job_id] = f"its end cannot be noticed: its reaper {clause}"
            elif spawner:
                found[job.job_id] = f"it cannot be started: {spawner}"
        return {"": f"no trial can be started: {spawner}", **found} if spawner else found

    def find_waiting(self) -> dict[str, str]:
        """Which trials stand still until their trial scheduler has decided, as clauses by job id. Writes
        to control.json what the disk had no room for."""
        now, running = boot_time(), self.running()
        for job in running:
            if job.milestone_unwritten:
                job.show_milestone()
        return {job.job_id: clause for job in running if (clause := job.describe_wait(now))}

    def close(self) -> None:
        """Let go of everything; the jobs keep running under their reapers."""
        self.watch.close()
        self._spawner.close(has_reapers=bool(self.running()))
        for job in self._jobs.values():
            job.close()
            self._unwatch_reaper(job)

    def _known(self, job_id: str, token: str) -> Job | None:
        job = self._jobs.get(job_id)
        if job is None or job.token != token:
            log.warning("job %s with this token is not here; the command is ignored", job_id)
            return None
        return job

    async def _write_again(self, job: Job) -> None:
        """A full disk must not keep a job from being stopped: then the decision lives as long as this keeper."""
        async with self._writing:
            try:
                await asyncio.to_thread(self._folder.write, [job.record])
                job.stop_unwritten = False
            except OSError as error:
                log.error("the record of job %s cannot be written: %s", job.job_id, error)
                job.stop_unwritten = job.record.stop is not None
        if job.job_id not in self._jobs:  # it has ended and was stored meanwhile
            await self._remove_records(job.job_id)

    async def _remove_records(self, *more: str) -> None:
        """In a thread, for the disk may be slow; a job that was launched again meanwhile keeps its new record. What
        cannot be removed (a read-only disk) is tried again with the next sweep."""
        async with self._writing:
            self._is_removing = False
            unwanted = {**self._unwanted, **dict.fromkeys(more, "")}
            self._unwanted = {job_id: place for job_id, place in unwanted.items() if job_id in self._clearing}
            known = self._jobs.keys() | self._unwanted.keys()
            gone = {job_id: place for job_id, place in unwanted.items() if job_id not in known}
            try:
                await asyncio.to_thread(self._remove, gone)
            except OSError as error:
                log.error("the records of %d jobs cannot be removed yet: %s", len(gone), error)
                self._unwanted.update(gone)

    def _remove(self, gone: dict[str, str]) -> None:
        for directory in filter(None, gone.values()):
            release_room(directory)  # also what could not be when the job ended: its disk may have been away
        self._folder.remove(list(gone))

    def _start(self, job: Job) -> None:
        if self._spawner.describe_stop():  # what it is given would fill its socket, and could not be taken back
            self._held[job.job_id] = job
            return
        job.attempts += 1
        try:
            job.open_journals()
            request = self._requests.build(job.record.launch)
        except (OSError, ValueError, KeyError, TypeError) as error:
            if is_short(error):
                self._give_back(job, error.errno)
                return
            path = job.record.launch.environment_file
            end = failed_exit(EndReason.LAUNCH_FAILED, f"the environment in {path} cannot be read: {error}")
            self._end(job, end, Losses())
            return
        try:
            channel = self._spawner.launch(request)
        except OSError as error:
            if is_short(error):  # before anything was sent
                self._give_back(job, error.errno)
                return
            log.warning("job %s could not be given to the spawner: %s", job.job_id, error)
            self._tasks.start(self._find_out(job), f"find out {job.job_id}")
            return
        asyncio.get_running_loop().add_reader(channel, self._receive, job, channel)

    def _receive(self, job: Job, channel: socket.socket) -> None:
        """The reaper has reported that the trial runs, or is gone without it; or it cannot write the trial's end."""
        size = _START_BYTES if job.channel is None else _END_BYTES
        try:
            packet, descriptors, _, _ = socket.recv_fds(channel, size, 1, socket.MSG_CMSG_CLOEXEC)
        except BlockingIOError:
            return
        except OSError:
            packet, descriptors = b"", []
        if job.process is not None and job.channel is channel:
            self._receive_end(job, packet)
            return
        process = parse_process(packet)
        if process is None or not descriptors:
            asyncio.get_running_loop().remove_reader(channel)
            channel.close()
            if number := parse_failure(packet):
                self._give_back(job, number)
            else:
                self._tasks.start(self._find_out(job), f"find out {job.job_id}")
            return
        job.process, job.channel = process, channel
        self._watch_job(job, descriptors[0])

    def _give_back(self, job: Job, number: int | None) -> None:
        """The machine has no process or descriptor for a job, which was not started; with this error."""
        clause = describe_shortage(number)
        end = failed_exit(EndReason.NO_ROOM if clause else EndReason.INFRASTRUCTURE, clause or os.strerror(number or 0))
        log.warning("job %s cannot be started: %s", job.job_id, end.detail)
        self._tasks.start(self._settle(job, end), f"end of {job.job_id}")

    def _receive_end(self, job: Job, packet: bytes) -> None:
        """From a reaper that continues trying to write it down, or from one that is gone (no packet)."""
        end = parse_exit(packet)
        if end is None:
            self._close_channel(job)
        elif job.exit is None:
            log.warning("the end of job %s cannot be written; it is reported anyway", job.job_id)
            self._unwatch_reaper(job)
            self._tasks.start(self._end_from_memory(job, end), f"end of {job.job_id}")

    async def _end_from_memory(self, job: Job, end: Exit) -> None:
        await asyncio.to_thread(self._disk.check_folder, job.directory)
        await self._settle(job, end)

    async def _find_out(self, job: Job) -> None:
        """Find the process that runs this job, and continue, end or start it."""
        pauses = iter(_CLAIM_PAUSES)
        while True:
            pause = next(pauses, None)
            try:
                if await self._recognize(job):
                    return
                if pause is None and self._folder.is_damaged(job.job_id) and await self._stop_damaged(job):
                    return
            except OSError as error:  # no descriptors left: it is not known now
                if not is_short(error):
                    raise
            await asyncio.sleep(_CLAIM_PAUSES[-1] if pause is None else pause)

    async def _recognize(self, job: Job) -> bool:
        """`_find_out`, if that can be said now: not while a reaper is about to start it, or to say why not."""
        job.process = self._folder.read_process(job.job_id)
        if job.process is None and self._folder.is_claimed(job.job_id):
            return False
        if job.process is not None and job.process.boot_id == self._boot_id:
            reaper = open_pidfd(job.process.reaper.pid, job.process.reaper.started)
            if reaper is not None:
                self._watch_job(job, reaper)
                return True
        await self._go_on_without_reaper(job)
        return True

    async def _stop_damaged(self, job: Job) -> bool:
        """Have the reaper of a job whose process record cannot be read end it: it is unknown which process its trial
        is. False: that reaper is gone."""
        reaper = await asyncio.to_thread(find_reaper, self._folder, job.job_id)
        if reaper is None:
            return False
        detail = "the record of its processes could not be read; it was stopped"
        log.error("job %s: %s", job.job_id, detail)
        job.record = with_stop(job.record, StopRecord(EndReason.EXIT_UNKNOWN.value, _DAMAGED_GRACE_SECONDS, detail))
        await self._write_again(job)
        self._watch_job(job, reaper)
        return True

    async def _go_on_without_reaper(self, job: Job) -> None:
        """Start a job that no reaper has begun, else end it: as is recorded, or as one of which nothing is known."""
        while True:
            try:
                await self._judge_without_reaper(job)
                return
            except OSError as error:
                if not is_short(error):
                    raise
                log.warning("it cannot be found out yet how job %s has ended: %s", job.job_id, error)
            await asyncio.sleep(_SHORTAGE_RETRY_SECONDS)

    async def _judge_without_reaper(self, job: Job) -> None:
        end = await asyncio.to_thread(read_exit, job.directory)
        was_running = is_running(job.process)
        is_damaged = job.process is None and self._folder.is_damaged(job.job_id)
        was_started = job.process is not None or is_damaged or job.of_earlier_boot
        if end is None and not was_started and job.record.stop is None and job.attempts < _MOST_ATTEMPTS:
            self._start(job)
            return
        if end is None and not was_started and job.record.stop is None:
            end = await asyncio.to_thread(self._why_never_started, job)
        if end is None:
            await asyncio.to_thread(end_leftovers, job.tag, job.process)
            end = unknown_exit(job.record, job.process, now=time.time(), was_running=was_running)
            await asyncio.to_thread(write_exit, job.directory, end)
        elif was_running:  # then its reaper did not write what stands in exit.json
            await asyncio.to_thread(end_leftovers, job.tag, job.process)
        if is_damaged:
            log.error(await asyncio.to_thread(self._folder.set_process_aside, job.job_id))
        await self._settle(job, end)

    def _why_never_started(self, job: Job) -> Exit:
        """The end of a job whose reapers ended without recording it. Blocks."""
        if clause := self._disk.check_folder(job.directory):
            return failed_exit(EndReason.NO_ROOM, clause)
        detail = f"its reaper ended {job.attempts} times before the trial started; see spawner.log"
        return failed_exit(EndReason.INFRASTRUCTURE, detail)

    def _watch_job(self, job: Job, reaper: int) -> None:
        """Wait for the reaper's end, its journals' growth and its deadline."""
        job.reaper = reaper
        asyncio.get_running_loop().add_reader(reaper, self._reaper_ended, job)
        self.watch.add(job)
        self._outbox.queue_start(job)
        self._set_deadline(job)
        if job.record.stop is not None:
            self._begin_stop(job)

    def _unwatch_reaper(self, job: Job) -> None:
        if job.reaper is not None:
            asyncio.get_running_loop().remove_reader(job.reaper)
            os.close(job.reaper)
            job.reaper = None
        self._close_channel(job)

    def _close_channel(self, job: Job) -> None:
        if job.channel is not None:
            asyncio.get_running_loop().remove_reader(job.channel)
            job.channel.close()
            job.channel = None

    def _reaper_ended(self, job: Job) -> None:
        self._unwatch_reaper(job)
        end = None
        with contextlib.suppress(OSError):  # no descriptors left: it is read again
            found = read_exit(job.directory)
            end = None if found is None or is_running(job.process) else found
        if end is None:
            self._tasks.start(self._go_on_without_reaper(job), f"reaper of {job.job_id} lost")
        elif end.memory or end.reason == EndReason.NO_ROOM or is_reserve_used(job.directory):
            self._tasks.start(self._settle(job, end), f"end of {job.job_id}")
        else:
            self._end(job, end, Losses())

    async def _settle(self, job: Job, end: Exit) -> None:
        """A job has ended: find out what it has lost, before its end is reported."""
        if end.reason == EndReason.NO_ROOM:  # it never began, and has nothing to lose
            await asyncio.to_thread(self._disk.add_obstacle, job.directory, end.detail)
            self._end(job, end, Losses())
            return
        while True:
            try:
                losses = await asyncio.to_thread(find_losses, job.directory, memory=end.memory, ended_at=end.ended_at)
                break
            except OSError as error:
                log.warning("it cannot be found out yet what job %s has lost: %s", job.job_id, error)
            await asyncio.sleep(_SHORTAGE_RETRY_SECONDS)
        self._end(job, end, losses)

    def _end(self, job: Job, end: Exit, losses: Losses) -> None:
        stop = job.record.stop
        if job.stop_unwritten and stop is not None and end.reason == EndReason.SIGNALED:
            end = replace(end, reason=EndReason(stop.reason), detail=stop.detail)  # its reaper could not read why
        elif stop is not None and stop.reason == EndReason.PREEMPTED and end.reason in _OWN_ENDS:
            end = replace(end, reason=EndReason.PREEMPTED, detail=stop.detail)  # it was asked to
        job.end(end, losses)
        self._clearing.add(job.job_id)
        self._tasks.start(self._clear(job), f"clear up after {job.job_id}")
        self.watch.remove(job)
        job.rest()
        self._ended_lately.add(job.tag)
        if end.reason == EndReason.PREEMPTED:
            self.place_taken.set()
        self._outbox.full = self._disk.full
        if job.record.forgotten:
            self.forget(job)
        else:
            self._outbox.queue(job)

    async def _clear(self, job: Job) -> None:
        """Clear up, and only then let go of the record: the next keeper does it again if this one is killed."""
        try:
            await asyncio.to_thread(self._clear_up, job)
        finally:
            self._clearing.discard(job.job_id)
        if job.job_id in self._unwanted:
            await self._remove_records()

    def _clear_up(self, job: Job) -> None:
        """Make the end of a job durable, and give back the room that it no longer needs: also that of a checkpoint in
        which its trial died, and of those here that are stored under a URL. Blocks."""
        sync_exit(job.directory)
        storage = job.record.launch.environment.get(ENV_CHECKPOINT_STORAGE, "")
        with contextlib.suppress(OSError):
            folder = checkpoint_folder(job.directory, storage)
            remove = remove_tree if is_url(storage) else remove_unfinished
            remove(folder)
        with contextlib.suppress(OSError):
            if job.process is None:
                release_room(job.directory)
            elif job.losses is None:
                remove_reserve(job.directory)

    def _begin_stop(self, job: Job) -> None:
        """Tell the trial; have it signaled when its time to save is over, which its own end may come before."""
        stop = job.record.stop
        if stop is None or job.exit is not None:  # it has ended while the decision was being written down
            return
        seconds = stop.seconds_left
        try:
            write_stop(job.directory, stop)
        except OSError as error:  # it could not know, so there is nothing to wait for
            log.warning("control.json of job %s cannot be written: %s", job.job_id, error)
            seconds = 0.0
        if job.saving is not None:
            job.saving.cancel()
            job.saving = None
        if seconds > 0:
            job.saving = asyncio.get_running_loop().call_later(seconds, self._signal_stop, job)
            failpoint("keeper.stop.save.after")
        else:
            self._signal_stop(job)

    def _signal_stop(self, job: Job) -> None:
        """Have the reaper end everything of the job."""
        failpoint("keeper.stop.signal.before")
        if job.reaper is not None:
            signal_reaper(job.reaper)
        failpoint("keeper.stop.signal.after")

    def _set_deadline(self, job: Job) -> None:
        """The limit counts from the trial's start, whichever keeper process started it, without its waits for
        verdicts."""
        if job.deadline is not None:
            job.deadline.cancel()
            job.deadline = None
        if (left := job.seconds_left) is None:
            return
        pause = max(left, _LEAST_PAUSE_SECONDS) if left > 0 else 0.0  # while it waits for a verdict nothing is used up
        job.deadline = asyncio.get_running_loop().call_later(pause, self._end_overdue, job)

    def _end_overdue(self, job: Job) -> None:
        """Stop a job that has run as long as it may; one that has waited for verdicts meanwhile runs on."""
        if (left := job.seconds_left) is None:
            return
        if left > 0:
            self._set_deadline(job)
            return
        detail = f"it ran longer than its limit of {job.record.launch.max_duration_seconds:g} s"
        stop = StopRecord(EndReason.DEADLINE.value, _DEADLINE_GRACE_SECONDS, detail)
        self._tasks.start(self.stop(job, stop), f"deadline of {job.job_id}")

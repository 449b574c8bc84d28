"""Ending jobs apart from the keeper's table: the processes that are left of a job whose reaper is gone, and all jobs of
a keeper that is gone.

The last of these (`end_jobs`) ends jobs through their reapers where these live, and in their place where they do not.
Its caller holds the keeper's lock, so that no keeper adopts or starts jobs meanwhile. It writes what the keeper itself
would have written, so that a keeper that is started later reports the ends.
"""

import os
import select
import signal
import time
from contextlib import suppress
from pathlib import Path

from proctor.sdk.checkpoints.saving import checkpoint_folder
from proctor.sdk.failpoints import failpoint
from proctor.sdk.files import has_open, lock_file, remove_file
from proctor.sdk.process_limits import is_short
from proctor.sdk.protocol import CAN_SAVE_FILE, ENV_CHECKPOINT_STORAGE, boot_time
from proctor.trial_keeper.jobs.records import (
    JobRecord,
    ProcessRecord,
    RecordFolder,
    StopRecord,
    exit_problem,
    read_exit,
    with_stop,
    write_exit,
    write_stop,
)
from proctor.trial_keeper.linux.files import verdict_seconds
from proctor.trial_keeper.linux.identity import boot_id, is_alive, open_pidfd
from proctor.trial_keeper.linux.processes import (
    ProcessFacts,
    descendants,
    end_processes,
    find_job_processes,
    is_subreaper,
    read_tag,
    send,
    survey,
)
from proctor.trial_keeper.protocol import EndReason, Exit, Launch
from proctor.trial_keeper.settings import ENV_KEEPER, JOBS_FOLDER, SPAWNER_CODE_END

_GRACE_SECONDS = 2.0
_REAPER_LEAVES_SECONDS = 70.0  # it gives what does not react to SIGKILL a minute
_DETAIL = "canceled: the node was removed from the experiment"
_POLL_INTERVAL_SECONDS = 0.25
_REAPER_SECONDS = 10.0


def end_leftovers(
    tag: tuple[str, str], process: ProcessRecord | None, *, grace_seconds: float = _GRACE_SECONDS
) -> None:
    """Block until nothing of the job is left. Its trial is known by identity, the rest by descent, session and tag
    (the job's id and directory), and by having no parent left but a spawner or this keeper."""
    failpoint("keeper.stop.before")
    adopters = _adopters(process)

    def find() -> list[ProcessFacts]:
        trial = None if process is None or process.boot_id != boot_id() else (process.trial.pid, process.trial.started)
        lives = trial is not None and is_alive(*trial)
        found = find_job_processes(tag, ancestors=(trial[0],) if trial and lives else (), session=trial)
        found += filter(None, [survey().get(trial[0])]) if trial and lives else []
        found += _find_orphans(tag, adopters) if adopters else []
        return list({member.pid: member for member in found}.values())

    end_processes(find, grace_seconds=grace_seconds, wait=time.sleep)
    failpoint("keeper.stop.after")


def end_strays(ended: set[tuple[str, str]]) -> None:
    """End processes that carry the tag of a job that has ended, as far as they were not found when it ended."""
    for process in survey().values():
        tag = read_tag(process.pid)
        if tag is not None and tag in ended:
            end_leftovers(tag, None)


def is_running(process: ProcessRecord | None) -> bool:
    """Whether the trial's own process lives."""
    return process is not None and process.boot_id == boot_id() and is_alive(process.trial.pid, process.trial.started)


def unknown_exit(record: JobRecord, process: ProcessRecord | None, *, now: float, was_running: bool) -> Exit:
    """The end of a job of which neither a process nor an exit record that can be read is there.

    :param was_running: its process lived until now; else it is not known how long it ran: 0, and its manager counts
        until its last report.
    """
    started_at = process.started_at if process is not None else now
    is_of_this_boot = (record if process is None else process).boot_id == boot_id()
    known = process.seconds if process is not None and was_running else 0.0
    waited = min(verdict_seconds(record.launch.directory, boot_time()), known) if known else 0.0
    if record.stop is not None:
        reason, detail = EndReason(record.stop.reason), record.stop.detail
        return Exit(reason, None, None, started_at, now, detail, run_seconds=known, verdict_seconds=waited)
    if not is_of_this_boot:
        detail = "the machine was restarted while it ran"
    else:
        detail = "its reaper was killed; what was left of the trial was stopped"
    problem = exit_problem(record.launch.directory)
    detail = f"{detail}; {problem}" if problem else detail
    reason = EndReason.EXIT_UNKNOWN
    return Exit(reason, None, None, started_at, now, detail, run_seconds=known, verdict_seconds=waited)


def end_lost_job(folder: RecordFolder, job_id: str) -> None:
    """Block until nothing is left of a job whose record cannot be read, so that its manager may start it again: by its
    reaper where that lives. Its process record goes."""
    process = folder.read_process(job_id)
    tag = None if process is None or process.boot_id != boot_id() else read_tag(process.trial.pid)
    reaper = find_reaper(folder, job_id)
    if reaper is not None:
        end_reaper(reaper)
    end_leftovers(tag or (job_id, ""), process)
    remove_file(folder.process_file(job_id))


def find_reaper(folder: RecordFolder, job_id: str) -> int | None:
    """A pidfd of the reaper that has claimed a job: by its record, or as the process that has this record open."""
    process = folder.read_process(job_id)
    if process is not None:
        return open_pidfd(process.reaper.pid, process.reaper.started) if process.boot_id == boot_id() else None
    path = folder.process_file(job_id)
    for found in survey().values():
        with suppress(PermissionError):  # another user's
            if found.pid != os.getpid() and has_open(found.pid, path):
                return open_pidfd(found.pid, found.started)
    return None


def end_reaper(reaper: int) -> None:
    """Have a reaper end its job, and wait for it; one that does not come to an end is killed. Closes the pidfd."""
    try:
        for number in (signal.SIGTERM, signal.SIGKILL):
            signal_reaper(reaper, number)
            if select.select([reaper], [], [], _REAPER_LEAVES_SECONDS)[0]:
                return
    finally:
        os.close(reaper)


def signal_reaper(reaper: int, number: int = signal.SIGTERM) -> None:
    """Have the reaper of this pidfd end its job; one that is suspended is resumed, so that it gets the signal."""
    with suppress(ProcessLookupError):
        signal.pidfd_send_signal(reaper, number)
        signal.pidfd_send_signal(reaper, signal.SIGCONT)


def _adopters(process: ProcessRecord | None) -> list[int]:
    """The processes whose children the children of a killed reaper have become: the spawner from which the reaper was
    forked, or, where that was killed before, the keeper."""
    found = [os.getpid()] if is_subreaper() else []
    if process is not None and process.spawner is not None and process.boot_id == boot_id():
        spawner = process.spawner
        if is_alive(spawner.pid, spawner.started) and _is_ours(spawner.pid):
            found.append(spawner.pid)
    return found


def _find_orphans(tag: tuple[str, str], adopters: list[int]) -> list[ProcessFacts]:
    """The children that these processes have not started themselves, with all descendants: only the death of a reaper
    brings them there. What carries another job's tag is left to the end of that job."""
    table = survey()
    orphans = {
        process.pid
        for process in table.values()
        if process.parent in adopters and not _is_ours(process.pid) and read_tag(process.pid) in (None, tag)
    }
    return [table[pid] for pid in orphans | descendants(table, orphans)]


def _is_ours(pid: int) -> bool:
    """Whether it is a spawner, a reaper (a fork of one), or this keeper's fork that is about to become a spawner."""
    arguments = _read_words(pid, "cmdline")
    is_spawner = any(argument.endswith(SPAWNER_CODE_END.encode()) for argument in arguments)
    return is_spawner or arguments == _read_words(os.getpid(), "cmdline")


def _read_words(pid: int, name: str) -> list[bytes]:
    """The texts in a process's `cmdline` or `environ`; none where it is gone or may not be read. Raises OSError where
    the machine has no descriptors left."""
    try:
        with open(f"/proc/{pid}/{name}", "rb") as file:
            return file.read().split(b"\0")
    except OSError as error:
        if is_short(error):
            raise
        return []


def can_save(launch: Launch) -> bool:
    """Whether the trial has called `should_stop()`, or has registered a checkpoint, in this job or in an earlier one.
    Reads the job's directory, so it may block on the disk."""
    if launch.resume_checkpoint is not None or os.path.exists(os.path.join(launch.directory, CAN_SAVE_FILE)):
        return True
    folder = checkpoint_folder(launch.directory, launch.environment.get(ENV_CHECKPOINT_STORAGE, ""))
    try:
        return any(name.isdigit() for name in os.listdir(folder))
    except OSError as error:
        return is_short(error)  # not known: it gets the time


def count_running(directory: Path) -> int:
    """How many jobs of the records have not ended."""
    return sum(read_exit(record.launch.directory) is None for record in _read_records(directory)[1])


def end_jobs(directory: Path, *, grace_seconds: float) -> tuple[int, list[str]]:
    """End every job with all its processes; returns how many had not ended, and sentences on what could not be."""
    folder, records = _read_records(directory)
    for job_id in folder.lost():
        end_lost_job(folder, job_id)
    stop = StopRecord(EndReason.CANCELED.value, grace_seconds, _DETAIL)
    running = [with_stop(record, stop) for record in records if read_exit(record.launch.directory) is None]
    for record in running:
        _write_stop(folder, record)
    deadline = time.monotonic() + grace_seconds + _REAPER_SECONDS
    pending, notified = running, set[int]()
    while pending and time.monotonic() < deadline:
        pending = [record for record in pending if not _has_ended(folder, record, notified)]
        if pending:
            time.sleep(_POLL_INTERVAL_SECONDS)
    for record in pending:
        _end_without_reaper(folder, record)
    # Whatever else says that it belongs to this directory: spawners of killed keepers, jobs without records.
    left = end_processes(lambda: find_processes(directory), grace_seconds=grace_seconds, wait=time.sleep)
    return len(running), [f"process {pid} does not react to SIGKILL" for pid in left]


def _read_records(directory: Path) -> tuple[RecordFolder, list[JobRecord]]:
    folder = RecordFolder(directory / JOBS_FOLDER)
    return folder, folder.read_all()[0] if folder.path.is_dir() else []


def _write_stop(folder: RecordFolder, record: JobRecord) -> None:
    """Write the stop down for reaper and trial. On a full disk the reaper calls it a signal from outside."""
    with suppress(OSError):
        folder.write([record])
    if record.stop is not None:
        with suppress(OSError):
            write_stop(record.launch.directory, record.stop)


def _has_ended(folder: RecordFolder, record: JobRecord, notified: set[int]) -> bool:
    """Whether nothing runs this job now; a reaper that does is signaled once."""
    job_id = record.launch.job_id
    process = folder.read_process(job_id)
    if process is not None and process.boot_id == boot_id():
        reaper = open_pidfd(process.reaper.pid, process.reaper.started)
        if reaper is not None:
            try:
                if process.reaper.pid not in notified:
                    notified.add(process.reaper.pid)
                    signal_reaper(reaper)
            finally:
                os.close(reaper)
            return False
    if process is None and folder.is_claimed(job_id):
        return False  # a reaper is about to start it
    _end_without_reaper(folder, record)
    return True


def _end_without_reaper(folder: RecordFolder, record: JobRecord) -> None:
    """End what is left and write the end down. The claim keeps reapers away that were asked for and have not come."""
    launch = record.launch
    process = folder.read_process(launch.job_id)
    with suppress(OSError), open(folder.process_file(launch.job_id), "ab") as claim:
        lock_file(claim.fileno())
        if process is not None:
            send(process.reaper.pid, process.reaper.started, signal.SIGKILL)
        was_running = is_running(process)
        end_leftovers((launch.job_id, launch.directory), process)
        if read_exit(launch.directory) is None:
            write_exit(launch.directory, unknown_exit(record, process, now=time.time(), was_running=was_running))


def find_processes(directory: Path) -> list[ProcessFacts]:
    """All living processes of the keeper of `directory` and of its jobs, except this one."""
    mine = f"{ENV_KEEPER}={directory}".encode(errors="surrogateescape")
    found = []
    for pid, process in survey().items():
        tag = read_tag(pid)
        is_of_job = tag is not None and tag[1].startswith(f"{directory}{os.sep}")
        if pid != os.getpid() and (is_of_job or mine in _read_words(pid, "environ")):
            found.append(process)
    return found

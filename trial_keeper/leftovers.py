"""Ending what is left of a job whose reaper is gone."""

import os
import select
import signal
import time
from contextlib import suppress

from proctor.sdk.failpoints import failpoint
from proctor.trial_keeper import kernel
from proctor.trial_keeper.files import remove_file
from proctor.trial_keeper.identity import boot_id, is_alive, open_process, start_time
from proctor.trial_keeper.origin import SPAWNER_CODE
from proctor.trial_keeper.processes import ProcessFacts, descendants, end_members, find_members, read_tag, survey
from proctor.trial_keeper.protocol import EndReason, Exit
from proctor.trial_keeper.records import JobRecord, ProcessRecord, RecordFolder, exit_trouble

_GRACE_SECONDS = 2.0
_REAPER_SECONDS = 70.0  # it gives what does not react to SIGKILL a minute


def end_leftovers(
    tag: tuple[str, str], process: ProcessRecord | None, *, grace_seconds: float = _GRACE_SECONDS
) -> None:
    """Block until nothing of the job is left. Its trial is known by identity, the rest by descent, session and tag
    (the job's id and directory), and by having no parent any more but a spawner or this keeper."""
    failpoint("keeper.stop.before")
    session, adopters = _living_session(process), _adopters(process)

    def find() -> list[ProcessFacts]:
        found = find_members(tag, ancestors=() if session is None else (session,), session=session)
        found += _itself(session) if session is not None else []
        found += _find_orphans(tag, adopters) if adopters else []
        return list({member.pid: member for member in found}.values())

    end_members(find, grace_seconds=grace_seconds, wait=time.sleep)
    failpoint("keeper.stop.after")


def end_strays(ended: set[tuple[str, str]]) -> None:
    """End processes that carry the tag of a job that has ended, as far as they were not found when it ended."""
    for process in survey().values():
        tag = read_tag(process.pid)
        if tag is not None and tag in ended:
            end_leftovers(tag, None)


def unknown_exit(record: JobRecord, process: ProcessRecord | None, *, now: float) -> Exit:
    """The end of a job of which neither a process nor an exit record that can be read is there."""
    started_at = process.started_at if process is not None else now
    if record.stop is not None:
        return Exit(EndReason(record.stop.reason), None, None, started_at, now, record.stop.detail)
    if (record if process is None else process).boot_id != boot_id():
        detail = "the machine was restarted while it ran"
    else:
        detail = "its reaper was killed; what was left of the trial was stopped"
    trouble = exit_trouble(record.launch.directory)
    return Exit(EndReason.EXIT_UNKNOWN, None, None, started_at, now, f"{detail}; {trouble}" if trouble else detail)


def end_lost_job(folder: RecordFolder, job_id: str) -> None:
    """Block until nothing is left of a job whose record cannot be read, so that its manager may start it anew: by its
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
        return open_process(process.reaper.pid, process.reaper.started) if process.boot_id == boot_id() else None
    path = folder.process_file(job_id)
    for found in survey().values():
        if found.pid != os.getpid() and _has_open(found.pid, path):
            return open_process(found.pid, found.started)
    return None


def end_reaper(reaper: int) -> None:
    """Have a reaper end its job, and wait for it; one that does not come to an end is killed. Closes the pidfd."""
    try:
        for number in (signal.SIGTERM, signal.SIGKILL):
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(reaper, number)
                signal.pidfd_send_signal(reaper, signal.SIGCONT)
            if select.select([reaper], [], [], _REAPER_SECONDS)[0]:
                return
    finally:
        os.close(reaper)


def _has_open(pid: int, path: str) -> bool:
    try:
        return any(os.readlink(f"/proc/{pid}/fd/{name}") == path for name in os.listdir(f"/proc/{pid}/fd"))
    except OSError:
        return False


def _living_session(process: ProcessRecord | None) -> int | None:
    """The trial's pid, which is its session's id, as long as that number cannot mean anybody else."""
    if process is None or process.boot_id != boot_id():
        return None
    return process.trial.pid if start_time(process.trial.pid) in (None, process.trial.started) else None


def _adopters(process: ProcessRecord | None) -> list[int]:
    """The processes whose children the children of a killed reaper have become: the spawner from which the reaper was
    forked, or, where that was killed before, the keeper."""
    found = [os.getpid()] if kernel.is_subreaper() else []
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
    arguments = _command_line(pid)
    return SPAWNER_CODE.encode() in arguments or arguments == _command_line(os.getpid())


def _command_line(pid: int) -> list[bytes]:
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return file.read().split(b"\0")
    except OSError:
        return []


def _itself(pid: int) -> list[ProcessFacts]:
    found = survey().get(pid)
    return [] if found is None else [found]

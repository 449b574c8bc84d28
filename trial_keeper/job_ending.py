"""Ending all jobs of a keeper that is gone: through their reapers where they live, in their stead where they do not.

Whoever calls it holds the keeper's lock, so that no keeper adopts or starts jobs meanwhile. What is written down is
what the keeper itself would have written, so that one that is started later reports the ends.
"""

import contextlib
import fcntl
import os
import signal
import time
from pathlib import Path

from proctor.trial_keeper.identity import boot_id, open_process
from proctor.trial_keeper.leftovers import end_leftovers, end_lost_job, unknown_exit
from proctor.trial_keeper.origin import ENV_KEEPER
from proctor.trial_keeper.processes import ProcessFacts, end_members, read_tag, survey
from proctor.trial_keeper.protocol import EndReason
from proctor.trial_keeper.records import JobRecord, RecordFolder, Stop, read_exit, with_stop, write_exit
from proctor.trial_keeper.settings import JOBS_FOLDER
from proctor.trial_keeper.soft_stops import write_control

_DETAIL = "its machine was left by the manager"
_LOOK_SECONDS = 0.25
_REAPER_SECONDS = 10.0


def count_running(directory: Path) -> int:
    """How many jobs of the records have not ended."""
    return sum(read_exit(record.launch.directory) is None for record in _read_records(directory)[1])


def end_jobs(directory: Path, *, grace_seconds: float) -> tuple[int, list[str]]:
    """End every job with all its processes; returns how many had not ended, and sentences on what could not be."""
    folder, records = _read_records(directory)
    for job_id in folder.lost():
        end_lost_job(folder, job_id)
    stop = Stop(EndReason.CANCELED.value, grace_seconds, _DETAIL)
    running = [with_stop(record, stop) for record in records if read_exit(record.launch.directory) is None]
    for record in running:
        _tell(folder, record)
    gives_up = time.monotonic() + grace_seconds + _REAPER_SECONDS
    pending, told = running, set[int]()
    while pending and time.monotonic() < gives_up:
        pending = [record for record in pending if not _has_ended(folder, record, told)]
        if pending:
            time.sleep(_LOOK_SECONDS)
    for record in pending:
        _end_without_reaper(folder, record)
    return len(running), _end_strays(directory, grace_seconds)


def _read_records(directory: Path) -> tuple[RecordFolder, list[JobRecord]]:
    folder = RecordFolder(directory / JOBS_FOLDER)
    return folder, folder.read_all()[0] if folder.path.is_dir() else []


def _tell(folder: RecordFolder, record: JobRecord) -> None:
    """Write the stop down for reaper and trial. On a full disk the reaper calls it a signal from outside."""
    with contextlib.suppress(OSError):
        folder.write([record])
    if record.stop is not None:
        with contextlib.suppress(OSError):
            write_control(record.launch.directory, record.stop, now=time.time())


def _has_ended(folder: RecordFolder, record: JobRecord, told: set[int]) -> bool:
    """Whether nothing runs this job any more; a reaper that does is told to stop, once."""
    job_id = record.launch.job_id
    process = folder.read_process(job_id)
    if process is not None and process.boot_id == boot_id():
        reaper = open_process(process.reaper.pid, process.reaper.started)
        if reaper is not None:
            try:
                if process.reaper.pid not in told:
                    told.add(process.reaper.pid)
                    signal.pidfd_send_signal(reaper, signal.SIGTERM)
                    signal.pidfd_send_signal(reaper, signal.SIGCONT)
            except ProcessLookupError:
                pass
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
    with contextlib.suppress(OSError), open(folder.process_file(launch.job_id), "ab") as claim:
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(claim, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if process is not None:
            _kill(process.reaper.pid, process.reaper.started)
        end_leftovers((launch.job_id, launch.directory), process)
        if read_exit(launch.directory) is None:
            write_exit(launch.directory, unknown_exit(record, process, now=time.time()))


def _kill(pid: int, started: int) -> None:
    descriptor = open_process(pid, started)
    if descriptor is not None:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(descriptor, signal.SIGKILL)
        os.close(descriptor)


def _end_strays(directory: Path, grace_seconds: float) -> list[str]:
    """End whatever else says that it belongs to this directory: spawners of killed keepers, jobs without records."""
    left = end_members(lambda: find_processes(directory), grace_seconds=grace_seconds, wait=time.sleep)
    return [f"process {pid} does not react to SIGKILL" for pid in left]


def find_processes(directory: Path) -> list[ProcessFacts]:
    """All living processes of the keeper of `directory` and of its jobs, except this one."""
    mine = f"{ENV_KEEPER}={directory}".encode(errors="surrogateescape")
    return [
        process
        for pid, process in survey().items()
        if pid != os.getpid() and (_is_below(read_tag(pid), directory) or mine in _environment(pid))
    ]


def _is_below(tag: tuple[str, str] | None, directory: Path) -> bool:
    return tag is not None and tag[1].startswith(f"{directory}{os.sep}")


def _environment(pid: int) -> list[bytes]:
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            return file.read().split(b"\0")
    except OSError:
        return []

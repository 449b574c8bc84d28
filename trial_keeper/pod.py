"""The command `pod`: the keeper of one job, in the foreground, as the main process of the container it runs in.

    pod --directory DIR --node-id ID --pointer FILE --secret-file FILE [--instance UID] [--grace-seconds 30]
        [--linger-seconds 600] [--termination-file /dev/termination-log] [--cgroup /sys/fs/cgroup]

It waits for its launch over the link like any keeper, so nothing of the trial stands in the pod's specification. It
differs from the keeper of a node in this (docs/decisions/0042):

* It is the process with pid 1, whose end is the end of the trial: it reaps what others leave behind, and never leaves a
  job running.
* The platform has given it GPUs, so it takes no leases and hides none.
* SIGTERM means that the pod goes away, and 410 from the manager that it is not needed. The trial may save, then it is
  signaled and killed, within the grace; its end is PREEMPTED.
* That memory ran out, it sees in its own control group.
* It leaves when the manager says so (`Shutdown`), or when it has had no manager for the linger time and nothing runs.
  What is not acknowledged then goes to standard output, and the end to the termination file (`pod_output`).
"""

import argparse
import asyncio
import contextlib
import logging
import math
import os
import socket
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from proctor.sdk.failpoints import failpoint
from proctor.sdk.files import open_locked, write_all
from proctor.sdk.process_limits import keep_files_private
from proctor.trial_keeper.daemon import Keeper, write_facts
from proctor.trial_keeper.jobs.cleanup import can_save
from proctor.trial_keeper.jobs.job import Job
from proctor.trial_keeper.jobs.launching import Spawner
from proctor.trial_keeper.jobs.outbox import SettledReport
from proctor.trial_keeper.jobs.records import StopRecord
from proctor.trial_keeper.linux.files import open_regular_file
from proctor.trial_keeper.linux.processes import find_oom_counter
from proctor.trial_keeper.pod_output import (
    FinalMetric,
    TerminationMessage,
    find_final,
    format_records,
    format_termination,
    format_whole,
)
from proctor.trial_keeper.protocol import (
    Acknowledgement,
    Command,
    EndReason,
    FileRequest,
    KeeperCommand,
    Launch,
    ReportAnswer,
)
from proctor.trial_keeper.reaper.spawner import start_by_fork
from proctor.trial_keeper.settings import LOCK_FILE, SPAWNER_LOG_FILE, KeeperSettings

_GPU_LOCKS_FOLDER = "gpu-locks"  # never made: there are no leases to read in a pod
_REPORT_SECONDS = 5.0
_KILL_SECONDS = 5.0
_WRITE_SECONDS = 2.0
_MOST_LOG_BYTES = 8 * 1024 * 1024
"""A kubelet keeps 10 MiB of a container's log, unless it is configured otherwise."""

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class PodSettings:
    """What the arguments of the command say."""

    directory: Path
    node_id: str
    pointer: str
    secret_file: str
    instance: str = ""
    grace_seconds: float = 30.0
    linger_seconds: float = 600.0
    termination_file: str = "/dev/termination-log"
    cgroup: str = "/sys/fs/cgroup"


class PodKeeper(Keeper):
    """The keeper of the one job of a pod. Its jobs end with it."""

    def __init__(self, settings: PodSettings, spawner: Spawner) -> None:
        keeper = KeeperSettings(
            settings.node_id,
            settings.pointer,
            secret_file=os.path.abspath(settings.secret_file),
            gpu_lock_directory=str(settings.directory / _GPU_LOCKS_FOLDER),
            instance=settings.instance,
        )
        counter = find_oom_counter(settings.cgroup)
        if not counter:
            log.warning("no memory controller below %s: running out of memory looks like SIGKILL", settings.cgroup)
        super().__init__(settings.directory, keeper, spawner=spawner, oom_counter=counter, is_for_one_job=True)
        self._pod = settings
        self._is_going = False
        self._job_id = ""
        self._ended: Job | None = None

    def settle(self, report: SettledReport) -> None:
        self._ended = next(iter(report.stored), self._ended)
        super().settle(report)

    def _read_command(self, command: Command) -> KeeperCommand | FileRequest | None:
        body = super()._read_command(command)
        if not isinstance(body, Launch):
            return body
        if self._job_id not in ("", body.job_id):
            raise ValueError(f"this pod is for job {self._job_id}")
        if self._is_going:  # the platform says how its job ends
            log.error("job %s is not launched: the pod is going away", body.job_id)
            return None
        self._job_id = body.job_id
        return replace(body, gpus=None)

    def _take_signal(self) -> None:
        self._go("the platform has ended its pod (SIGTERM)")

    def turn_away(self, why: str) -> None:
        self._go(why)

    def _go(self, why: str) -> None:
        """Stop the job and leave, within the grace; at once where there is no job."""
        if self._is_going:
            return
        self._is_going = True
        if not len(self._jobs):
            log.info("leaving without a job: %s", why)
            self._leaving.set()
            return
        grace = self._pod.grace_seconds
        log.info("leaving, and stopping the job within %g s: %s", grace, why)
        leaves_after = grace - min(_WRITE_SECONDS, grace / 8)
        asyncio.get_running_loop().call_later(leaves_after, self._leaving.set)
        self._tasks.start(self._preempt(why), "stop for the end of the pod")

    async def _preempt(self, why: str) -> None:
        """Stop the job so that it can end, and its end be reported, within the grace."""
        grace = self._pod.grace_seconds
        report, kill = min(_REPORT_SECONDS, grace / 4), min(_KILL_SECONDS, grace / 4)
        for job in self._jobs.running():
            saves = job.process is not None and await asyncio.to_thread(can_save, job.record.launch)
            save = grace - report - kill if saves else 0.0
            patience = kill if saves else grace - report
            stop = StopRecord.after_saving(EndReason.PREEMPTED, patience, why, request="preempt", save_seconds=save)
            await self._jobs.stop(job, stop)

    def _consider_leaving(self) -> None:
        silent = asyncio.get_running_loop().time() - self._session.last_answer
        if silent > self._pod.linger_seconds and not self._jobs.running():
            log.warning("there has been no manager for %g s; leaving", self._pod.linger_seconds)
            self._leaving.set()

    def _leave(self) -> None:
        """The termination message first: it is short, and nothing can hold it up."""
        failpoint("pod.leave.before")
        jobs = self._jobs.all()
        ended = next((job for job in jobs if job.exit is not None), self._ended)
        if ended is not None and ended.exit is not None:
            self._write_termination(TerminationMessage(ended.job_id, ended.exit, _find_finals(ended)))
        if jobs:
            log.info("what the manager has not acknowledged follows")
            try:
                for line in self._unacknowledged(jobs):
                    write_all(1, line.encode() + b"\n")
            except OSError as error:
                log.error("standard output cannot be written: %s", error.strerror)
        failpoint("pod.leave.after")
        log.info("the keeper of the pod is exiting")

    def _write_termination(self, message: TerminationMessage) -> None:
        """Into the file that the platform has mounted, which can be neither replaced nor made."""
        try:
            with open(open_regular_file(self._pod.termination_file, os.O_WRONLY | os.O_TRUNC), "wb") as file:
                file.write(format_termination(message))
        except OSError as error:
            log.warning("%s cannot be written: %s", self._pod.termination_file, error.strerror)

    def _unacknowledged(self, jobs: list[Job]) -> Iterator[str]:
        """The lines for the log. They are taken from the outbox as a manager's reports are, and count as stored."""
        for job in jobs:
            self._outbox.queue(job)
        records = size = 0
        while size < _MOST_LOG_BYTES and (report := self._outbox.build("")).has_news:
            for line in format_records(report.header, report.data):
                records, size = records + 1, size + len(line)
                yield line
            chunks = report.header.chunks
            stored = [Acknowledgement(chunk.job_id, chunk.member, chunk.offset + chunk.length) for chunk in chunks]
            self._outbox.settle(report, ReportAnswer(stored, [job.job_id for job in report.ended], []))
        if size < _MOST_LOG_BYTES:
            yield format_whole(records)
        else:
            log.warning("the rest of the journals is not in the log: it would be more than %d bytes", _MOST_LOG_BYTES)


def _find_finals(job: Job) -> dict[str, FinalMetric]:
    """The first final metric of each member, also one that the disk had no room for."""
    found: dict[str, FinalMetric] = {}
    for member, tail in job.tails.items():
        final = None
        with contextlib.suppress(OSError), open(open_regular_file(tail.path, os.O_RDONLY), "rb") as file:
            final = find_final(file, offset=tail.offset_of_file)
        final = final or find_final(tail.ending.splitlines(keepends=True), offset=tail.size - len(tail.ending))
        if final is not None:
            found[member] = final
    return found


def main(words: list[str]) -> int:
    """Run the keeper of a pod until it leaves; returns the exit code: 0 whatever became of the trial."""
    parser = argparse.ArgumentParser(prog="python -m proctor.trial_keeper pod", description="The keeper of one job.")
    parser.add_argument("--directory", required=True, type=Path, help="a folder for its and the job's files")
    parser.add_argument("--node-id", required=True, help="under which name the manager knows it")
    parser.add_argument("--pointer", required=True, help="the file that says where the manager listens")
    parser.add_argument("--secret-file", required=True, help="the file with the secret that it shares with the manager")
    parser.add_argument("--instance", default="", help="which start of its job this is, such as the pod's uid")
    parser.add_argument("--grace-seconds", type=_seconds, default=30.0, help="from SIGTERM to SIGKILL (default: 30)")
    parser.add_argument("--linger-seconds", type=_seconds, default=600.0, help="without a manager (default: 600)")
    parser.add_argument("--termination-file", default="/dev/termination-log", help="takes the end, if it is there")
    parser.add_argument("--cgroup", default="/sys/fs/cgroup", help="where control groups are mounted")
    arguments = parser.parse_args(words)
    arguments.directory = arguments.directory.absolute()
    return _run(PodSettings(**vars(arguments)))


def _seconds(text: str) -> float:
    with contextlib.suppress(ValueError):
        if 0 < float(text) < math.inf:
            return float(text)
    raise argparse.ArgumentTypeError(f"expected a number of seconds above 0, found {text!r}")


def _run(settings: PodSettings) -> int:
    keep_files_private()
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(levelname)s %(message)s")
    try:
        settings.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        forked = start_by_fork(str(settings.directory / SPAWNER_LOG_FILE))
        lock = open_locked(settings.directory / LOCK_FILE)  # held until this process ends
    except OSError as error:
        if error.filename is None:
            log.error("the keeper's spawner cannot be started: %s", error.strerror)
            return 1
        log.error("%s cannot be written: %s; it needs a folder that its user may write", error.filename, error.strerror)
        return 1
    if lock is None:
        log.error("another keeper uses %s; each pod needs a folder of its own", settings.directory)
        return 1
    try:
        asyncio.run(_serve(settings, *forked))
    except Exception:
        log.exception("the keeper has failed, and its job with it")
        return 1
    return 0


async def _serve(settings: PodSettings, spawner_pid: int, launches: socket.socket) -> None:
    log.info("the keeper of a pod is starting in %s, pid %d", settings.directory, os.getpid())
    spawner = Spawner(settings.directory / SPAWNER_LOG_FILE)
    spawner.adopt(spawner_pid, launches)
    keeper = PodKeeper(settings, spawner)
    write_facts(settings.directory)
    await keeper.run()

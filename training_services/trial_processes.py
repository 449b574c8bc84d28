"""Trials as processes of this machine, for training services that start them without a keeper.

A plug-in need not know what a job's directory and environment hold: `prepare_trial` fills the one and returns the
other. `end_trials` leaves nothing of a job running, `describe_exit` says how its process ended. All of it blocks for
moments (files, `/proc`), so an asyncio service calls it in a thread. `examples/plug-in-subprocess` is built on it.
"""

import asyncio
import os
import threading
import time
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass

from proctor.sdk.bundle import build_bundle
from proctor.sdk.checkpoints.manifest import verify_checkpoint
from proctor.sdk.process_limits import users_open_files
from proctor.sdk.protocol import ENV_JOB_STARTED, EXIT_FILE, STDERR_FILE, boot_time, write_moment
from proctor.training_services.base import CheckpointOffer, EndReason, Exit, TrialJobForm
from proctor.training_services.capacity import GpuRules
from proctor.training_services.keepers.launches import write_launch
from proctor.trial_keeper.files.access import list_files, read_file
from proctor.trial_keeper.jobs.launching import CapturedEnvironments, build_environment, keep_bundle, prepare_directory
from proctor.trial_keeper.jobs.lost_reports import find_losses, remove_reserve, write_endings
from proctor.trial_keeper.linux.files import remove_replacement
from proctor.trial_keeper.linux.identity import start_time
from proctor.trial_keeper.linux.processes import ProcessFacts, end_processes, find_job_processes, read_tag, survey
from proctor.trial_keeper.reaper.exits import classify, last_line_of

__all__ = [
    "JobTag",
    "TrialCommand",
    "describe_exit",
    "end_trials",
    "list_files",
    "living_trials",
    "prepare_trial",
    "read_file",
    "verify_on_this_machine",
]

JobTag = tuple[str, str]
"""A job's id and the path of its directory, as they stand in the environment of all its processes."""


@dataclass(frozen=True)
class TrialCommand:
    """What starts a trial: these arguments, in this directory, with exactly this environment."""

    arguments: tuple[str, ...]
    working_directory: str
    environment: Mapping[str, str]


def prepare_trial(form: TrialJobForm, *, platform: str, bundle_directory: str) -> TrialCommand:
    """Write what a job's directory must hold before its trial starts (see `base`), and return what starts the trial.
    Idempotent. The caller starts the process in a session of its own (`start_new_session=True`) and sends its output to
    the files `stdout` and `stderr` of the job's directory.

    :param platform: the name that the trial reads in `NNI_PLATFORM`.
    :param bundle_directory: a folder for what makes `import proctor` work; the trials of an experiment share it.
    :raises OSError: a file cannot be written, or the captured environment cannot be read.
    :raises ValueError: the captured environment is damaged.
    """
    launch = write_launch(form, platform=platform, owner="", rules=GpuRules())
    prepare_directory(launch)
    remove_replacement(os.path.join(launch.directory, EXIT_FILE))  # none is written without a reaper
    captured = CapturedEnvironments()
    bundle = build_bundle(bundle_directory)
    environment = build_environment(launch, captured.read(form.environment_file), bundle)
    environment[ENV_JOB_STARTED] = write_moment(boot_time())  # as a reaper says it
    limits = f"ulimit -Sn {users_open_files()}; umask {captured.umask(form.environment_file):04o}"
    command = f"{limits}; {keep_bundle(form.command, bundle)}"
    return TrialCommand(("bash", "-c", command), form.code_directory, environment)


async def verify_on_this_machine(checkpoint: CheckpointOffer) -> str:
    """Why a job on this machine must not continue from a checkpoint, as a clause; "" if it is whole. Reads all of it,
    in a thread. Raises OSError as `verify_checkpoint`."""
    is_abandoned = threading.Event()
    try:
        return await asyncio.to_thread(
            verify_checkpoint, checkpoint.path, checkpoint.manifest, is_abandoned=is_abandoned.is_set
        )
    finally:
        is_abandoned.set()


def living_trials(directory: str) -> set[JobTag]:
    """The jobs whose directories are below `directory` and that have a living process on this machine, no
    matter who started it."""
    below = os.path.join(directory, "")
    tags = (read_tag(pid) for pid in survey())
    return {tag for tag in tags if tag is not None and tag[1].startswith(below)}


def end_trials(tags: Collection[JobTag], *, grace_seconds: float = 5.0, session: int | None = None) -> list[int]:
    """End every process of these jobs, also those in a session of their own: SIGTERM, then SIGKILL until nothing is
    left. Returns the pids of those that do not react to SIGKILL.

    What a full disk has kept a trial from reporting is written behind its journals then, if there is room now: read
    these to their end after this call, and `describe_exit` after that.

    :param grace_seconds: how long they may take to end after SIGTERM.
    :param session: the pid of the trial's first process, so that processes which have cleared their environment are
        found by their session.
    """

    leader = None if session is None else (session, start_time(session) or 0)

    def find() -> list[ProcessFacts]:
        return [process for tag in tags for process in find_job_processes(tag, session=leader)]

    left = end_processes(find, grace_seconds=grace_seconds, wait=time.sleep)
    for _, directory in tags:
        with suppress(OSError):  # still full: `describe_exit` says what is lost
            write_endings(directory)
    return left


def describe_exit(
    form: TrialJobForm,
    returncode: int,
    started_at: float,
    *,
    stop: tuple[EndReason, str] | None = None,
    run_seconds: float | None = None,
) -> Exit:
    """How a job's first process ended, with the last line of its stderr in the detail, and what the job has lost on a
    full disk. To be called once, when everything of the job has ended.

    :param returncode: as `subprocess` has it: negative for a signal.
    :param started_at: Unix time.
    :param stop: why the service ended the job, with a sentence; None if the job ended by itself.
    :param run_seconds: how long it ran, by a monotonic clock.
    """
    status = -returncode if returncode < 0 else returncode << 8
    reason, detail = stop if stop is not None else (None, "")
    last_line = last_line_of(os.path.join(form.directory, STDERR_FILE)) if returncode else ""
    ending = classify(status, stop_reason=reason, stop_detail=detail, out_of_memory=False, last_line=last_line)
    losses = find_losses(form.directory)
    unwritten = [int(member) for member, lines in losses.endings.items() if b'"kind":"final"' in lines]
    with suppress(OSError):
        remove_reserve(form.directory)
    return Exit(
        EndReason(ending.reason),
        ending.code,
        ending.signal,
        started_at,
        time.time(),
        "; ".join(filter(None, (ending.detail, losses.describe()))),
        lost=losses.lost + len(unwritten),
        lost_finals=sorted({*losses.finals, *unwritten}),
        run_seconds=run_seconds,
    )

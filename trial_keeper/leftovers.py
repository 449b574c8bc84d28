"""Ending what is left of a job whose reaper is gone."""

import time

from proctor.sdk.failpoints import failpoint
from proctor.trial_keeper.identity import boot_id, start_time
from proctor.trial_keeper.processes import ProcessFacts, end_members, find_members, read_tag, survey
from proctor.trial_keeper.protocol import EndReason, Exit
from proctor.trial_keeper.records import ProcessRecord, Stop

_GRACE_SECONDS = 2.0


def end_leftovers(
    tag: tuple[str, str], process: ProcessRecord | None, *, grace_seconds: float = _GRACE_SECONDS
) -> None:
    """Block until nothing of the job is left. Its trial is known by identity, the rest by descent, session and tag
    (the job's id and directory)."""
    failpoint("keeper.stop.before")
    session = _living_session(process)

    def find() -> list[ProcessFacts]:
        return find_members(tag, ancestors=() if session is None else (session,), session=session) + (
            _itself(session) if session is not None else []
        )

    end_members(find, grace_seconds=grace_seconds, wait=time.sleep)
    failpoint("keeper.stop.after")


def end_strays(ended: set[tuple[str, str]]) -> None:
    """End processes that carry the tag of a job that has ended, as far as they were not found when it ended."""
    for process in survey().values():
        tag = read_tag(process.pid)
        if tag is not None and tag in ended:
            end_leftovers(tag, None)


def unknown_exit(process: ProcessRecord | None, stop: Stop | None, *, now: float) -> Exit:
    """The end of a job of which neither a process nor an exit record is there."""
    started_at = process.started_at if process is not None else now
    if stop is not None:
        return Exit(EndReason(stop.reason), None, None, started_at, now, stop.detail)
    if process is not None and process.boot_id != boot_id():
        detail = "the machine was restarted while it ran"
    else:
        detail = "its reaper was killed; what was left of the trial was stopped"
    return Exit(EndReason.EXIT_UNKNOWN, None, None, started_at, now, detail)


def _living_session(process: ProcessRecord | None) -> int | None:
    """The trial's pid, which is its session's id, as long as that number cannot mean anybody else."""
    if process is None or process.boot_id != boot_id():
        return None
    return process.trial.pid if start_time(process.trial.pid) in (None, process.trial.started) else None


def _itself(pid: int) -> list[ProcessFacts]:
    found = survey().get(pid)
    return [] if found is None else [found]

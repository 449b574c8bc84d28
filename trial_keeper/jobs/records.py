"""What a keeper has written down about each of its jobs, so that another keeper process can continue with them.

jobs/<job id>.json      the keeper's: the launch it was sent, and the stop, if any (JobRecord)
jobs/<job id>.process   the reaper's: who the reaper and the trial are; locked while the reaper lives (ProcessRecord)
"""

import json
import os
import time
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from proctor.sdk.failpoints import failpoint
from proctor.sdk.files import is_locked, remove_file, replace_file, set_aside, sync_file, sync_folder
from proctor.sdk.json_input import LATEST_TIME
from proctor.sdk.process_limits import is_short
from proctor.sdk.protocol import (
    CONTROL_FILE,
    EXIT_FILE,
    NO_MILESTONE,
    boot_time,
    write_moment,
)
from proctor.trial_keeper.linux.files import open_regular_file, read_regular_file, write_replacement
from proctor.trial_keeper.protocol import EndReason, Exit, JsonObject, Launch, from_json, to_json

_RECORD_SUFFIX = ".json"
_PROCESS_SUFFIX = ".process"
_UNREADABLE_SUFFIX = ".unreadable"
_MOST_EXIT_BYTES = 1024 * 1024  # it holds a reserve of 64 KiB at most


@dataclass(frozen=True)
class StopRecord:
    """The decision to stop a job: the end reason it will get, how long it has after SIGTERM, a sentence, and for the
    trial: what comes after the stop, how long it may save, and when that is over, as Unix time for people and by the
    boot time of the job's boot, which counts. A record of an earlier version has the Unix time alone."""

    reason: str
    grace_seconds: float
    detail: str = ""
    request: str = "stop"
    save_seconds: float = 0.0
    deadline: float = 0.0  # 0: at once
    until: float | None = None

    @classmethod
    def after_saving(
        cls, reason: EndReason, grace_seconds: float, detail: str, *, request: str, save_seconds: float
    ) -> "StopRecord":
        """A stop before which the trial may save from now on."""
        deadline, until = time.time() + save_seconds, boot_time() + save_seconds
        return cls(reason.value, grace_seconds, detail, request, save_seconds, deadline, until)

    @property
    def seconds_left(self) -> float:
        """How long the trial may still save. How the clock is set changes that only for a record of an earlier
        version; and one that was set back prolongs nothing."""
        left = self.deadline - time.time() if self.until is None else self.until - boot_time()
        return max(0.0, min(left, self.save_seconds))


@dataclass(frozen=True)
class JobRecord:
    """The intent to run a job; written before its reaper exists. `forgotten`: its end must not be reported."""

    launch: Launch
    boot_id: str
    stop: StopRecord | None = None
    forgotten: bool = False


@dataclass(frozen=True)
class ProcessIdentity:
    """A pid and when it started, in clock ticks since boot."""

    pid: int
    started: int


@dataclass(frozen=True)
class ProcessRecord:
    """Who runs a job. `started_boot` is the boot time of its start, `started_monotonic` the same by CLOCK_MONOTONIC,
    which is all that a reaper of an earlier version has written; `spawner` is the process from which the reaper was
    forked."""

    reaper: ProcessIdentity
    trial: ProcessIdentity
    boot_id: str
    started_at: float
    started_monotonic: float
    spawner: ProcessIdentity | None = None
    started_boot: float | None = None

    @property
    def seconds(self) -> float:
        """How long ago it started, in this boot of the machine."""
        return (
            time.monotonic() - self.started_monotonic if self.started_boot is None else boot_time() - self.started_boot
        )


class RecordFolder:
    """The folder `jobs/` of a keeper. All methods block on the disk."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def record_file(self, job_id: str) -> str:
        """Where the keeper's record of a job is."""
        return str(self.path / f"{job_id}{_RECORD_SUFFIX}")

    def process_file(self, job_id: str) -> str:
        """Where the reaper's record of a job is."""
        return str(self.path / f"{job_id}{_PROCESS_SUFFIX}")

    def write(self, records: list[JobRecord]) -> None:
        """Write records durably, with one sync of the folder for all of them."""
        for record in records:
            failpoint("keeper.intent.before")
            data = json.dumps(asdict(record)).encode()
            replace_file(self.record_file(record.launch.job_id), data, durable=True, syncs_folder=False)
            failpoint("keeper.intent.after")
        sync_folder(str(self.path))

    def read_all(self) -> tuple[list[JobRecord], list[str]]:
        """All records, and a sentence for each that cannot be read and was set aside (a power cut cannot cause one:
        they are synced). `lost` says what runs their jobs. Raises OSError."""
        self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        records, problems = [], []
        for file in sorted(self.path.iterdir()):
            if file.suffix == ".new" or (file.suffix == _PROCESS_SUFFIX and self._is_left_over(file)):
                file.unlink(missing_ok=True)
            if file.suffix != _RECORD_SUFFIX:
                continue
            try:
                records.append(_read_record(json.loads(file.read_bytes())))
            except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
                if is_short(error):
                    raise
                aside = file.with_suffix(_UNREADABLE_SUFFIX)
                problems.append(f"the job record {file} cannot be read ({error}); it was set aside as {aside.name}")
                set_aside(file, aside)
        return records, problems

    def lost(self) -> list[str]:
        """The ids of the jobs whose records were set aside and whose reapers have claimed them."""
        aside = sorted(self.path.glob(f"*{_UNREADABLE_SUFFIX}"))
        return [file.stem for file in aside if os.path.exists(self.process_file(file.stem))]

    def _is_left_over(self, process_file: Path) -> bool:
        """Whether a keeper was killed while it removed the records of this job: the first is gone, the second not."""
        return not any(process_file.with_suffix(suffix).exists() for suffix in (_RECORD_SUFFIX, _UNREADABLE_SUFFIX))

    def read_process(self, job_id: str) -> ProcessRecord | None:
        """Who runs the job, or None when no reaper has come that far, or its record cannot be read. This and what
        follows raise OSError where the machine has no descriptors left: then it is not known."""
        return parse_process(self._read_process_file(job_id))

    def is_damaged(self, job_id: str) -> bool:
        """Whether there is a process record that cannot be read."""
        data = self._read_process_file(job_id)
        return bool(data) and parse_process(data) is None

    def set_process_aside(self, job_id: str) -> str:
        """Keep a process record that cannot be read, for people; a sentence that says so."""
        path = self.process_file(job_id)
        with suppress(OSError):
            set_aside(path, path + _UNREADABLE_SUFFIX)
        return f"the process record {path} could not be read; it was set aside as {path}{_UNREADABLE_SUFFIX}"

    def is_claimed(self, job_id: str) -> bool:
        """Whether a living reaper holds the job's process record."""
        try:
            return is_locked(self.process_file(job_id))
        except OSError as error:
            if is_short(error):
                raise
            return False

    def _read_process_file(self, job_id: str) -> bytes:
        try:
            return Path(self.process_file(job_id)).read_bytes()
        except OSError as error:
            if is_short(error):
                raise
            return b""

    def remove(self, job_ids: list[str]) -> None:
        """Forget jobs: the manager has stored their ends, or does not need them."""
        for job_id in job_ids:
            failpoint("keeper.exit.ack.before")
            remove_file(self.record_file(job_id))
            remove_file(self.process_file(job_id))
            failpoint("keeper.exit.ack.after")


def parse_process(data: bytes) -> ProcessRecord | None:
    """A process record from its JSON, or None when that is empty, torn (a power cut) or no such record."""
    try:
        body = json.loads(data)
        return ProcessRecord(
            reaper=ProcessIdentity(**body["reaper"]),
            trial=ProcessIdentity(**body["trial"]),
            boot_id=body["boot_id"],
            started_at=body["started_at"],
            started_monotonic=body["started_monotonic"],
            spawner=ProcessIdentity(**body["spawner"]) if "spawner" in body else None,
            started_boot=body.get("started_boot"),
        )
    except (ValueError, TypeError, KeyError):
        return None


def parse_failure(data: bytes) -> int:
    """The number of the error with which the spawner could not fork a reaper; 0 if that is not what the data says."""
    try:
        return int(json.loads(data)["errno"])
    except (ValueError, TypeError, KeyError):
        return 0


def parse_exit(data: bytes) -> Exit | None:
    """An end from its JSON, or None when there is none that can be read, or one that no reaper has written."""
    try:
        end = from_json(Exit, json.loads(data.strip(b"\0")))  # zeros: room that was allocated for it (a power cut)
    except (ValueError, TypeError, AttributeError, RecursionError):
        return None
    are_times = all(0 <= time < LATEST_TIME for time in (end.started_at, end.ended_at))  # NaN is none either
    are_numbers = all(number is None or 0 <= number < 2**31 for number in (end.code, end.signal))
    are_durations = all(0 <= seconds < LATEST_TIME for seconds in (end.run_seconds or 0.0, end.verdict_seconds))
    return end if are_times and are_numbers and are_durations else None


def read_exit(directory: str) -> Exit | None:
    """The end that was recorded in a job's directory, or None when there is none that can be read: then it is not
    known whether anything of the job still runs. Raises OSError where the machine has no descriptors left."""
    try:
        return parse_exit(read_regular_file(os.path.join(directory, EXIT_FILE), _MOST_EXIT_BYTES))
    except OSError as error:
        if is_short(error):
            raise
        return None


def exit_problem(directory: str) -> str:
    """Why the recorded end of a job cannot be read, as a clause; "" where there is none, or one of nothing or zero
    bytes (a power cut)."""
    path = os.path.join(directory, EXIT_FILE)
    try:
        data = read_regular_file(path, _MOST_EXIT_BYTES).strip(b"\0")
    except FileNotFoundError:
        return ""
    except OSError as error:
        return f"{path} cannot be read: {error.strerror}"
    return f"{path} should hold how the job ended, found {data[:40]!r}" if data and not read_exit(directory) else ""


def write_exit(directory: str, end: Exit) -> None:
    """Write exit.json in a reaper's stead; a directory that cannot be written to does not raise, the end is
    reported."""
    with suppress(OSError):
        write_replacement(os.path.join(directory, EXIT_FILE), json.dumps(to_json(end)).encode())


def sync_exit(directory: str) -> None:
    """Make exit.json survive a power cut; with the file, file systems with a journal store the rename before it.

    A failure is none here: the end is reported, and the manager stores it.
    """
    failpoint("keeper.exit.sync.before")
    with suppress(OSError):
        descriptor = open_regular_file(os.path.join(directory, EXIT_FILE), os.O_RDONLY)
        try:
            sync_file(descriptor)
        finally:
            os.close(descriptor)
    failpoint("keeper.exit.sync.after")


def with_stop(record: JobRecord, stop: StopRecord) -> JobRecord:
    """The record with a stop; the first decision stays, only its times may become shorter."""
    first = record.stop
    if first is None:
        return replace(record, stop=stop)
    grace, save = min(first.grace_seconds, stop.grace_seconds), min(first.save_seconds, stop.save_seconds)
    deadline = min(first.deadline, stop.deadline)
    untils = [each.until for each in (first, stop) if each.until is not None]
    until = None if first.until is None else min(untils)
    changed = replace(first, grace_seconds=grace, save_seconds=save, deadline=deadline, until=until)
    return replace(record, stop=changed)


def write_milestone(directory: str, milestone: int) -> None:
    """Write at which step the trial waits; NO_MILESTONE: at none. Not for one that is to stop. Raises OSError."""
    body = {} if milestone == NO_MILESTONE else {"milestone": milestone}
    _replace_control(directory, body)


def write_stop(directory: str, stop: StopRecord) -> None:
    """Write the stop for the trial. Raises OSError."""
    seconds = stop.seconds_left
    body = {
        "stop": True,
        "reason": stop.detail or stop.reason,
        "request": stop.request,
        "deadline": time.time() + seconds,
        "until": write_moment(boot_time() + seconds),
    }
    _replace_control(directory, body)


def _replace_control(directory: str, body: JsonObject) -> None:
    replace_file(os.path.join(directory, CONTROL_FILE), json.dumps(body).encode(), durable=False, mode=0o644)


def _read_record(body: JsonObject) -> JobRecord:
    stop = body.get("stop")
    return JobRecord(
        launch=from_json(Launch, body["launch"]),
        boot_id=body["boot_id"],
        stop=None if stop is None else from_json(StopRecord, stop),
        forgotten=bool(body.get("forgotten")),
    )

"""Tools of the conformance suite: what jobs it wants, what an implementation gives it, listeners that record."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import Any, Self

from proctor.sdk.quick_json import loads
from proctor.training_services.base import (
    JournalChunk,
    StatusChange,
    SupportsEvents,
    TrainingService,
    TrialJobForm,
    TrialJobStatus,
)
from proctor.training_services.trial_processes import living_trials

PATIENCE_SECONDS = 60.0
VALUES = (0.25, 0.5, 0.75)
"""The intermediate metrics of a `Behavior.REPORT` job; its final metric is `FINAL_VALUE`."""
FINAL_VALUE = 1.5
EXIT_CODE = 3
"""The exit code of a `Behavior.FAIL` job."""
OUTSIDE = "/etc/passwd"
"""A file outside every job's directory; a `Behavior.LINK` job makes a link to it."""


class Behavior(StrEnum):
    """What a job of the suite does; the harness turns it into a form."""

    REPORT = "REPORT"  # report `VALUES` as intermediate metrics and `FINAL_VALUE` as the final one, then exit with 0
    FAIL = "FAIL"  # exit with `EXIT_CODE`
    HANG = "HANG"  # report the first of `VALUES`, then run until stopped
    IMPORT = (
        "IMPORT"  # report parameter `x` and `FINAL_VALUE` through `import nni` and `import proctor`, then exit with 0
    )
    DETACH = "DETACH"  # as HANG, with a child in a session of its own that ignores SIGTERM
    LEAVE = "LEAVE"  # as REPORT, and leave such a child behind
    LINK = "LINK"  # write "kept" to output/kept, make output/link a link to `OUTSIDE`, then exit with 0


def _record(kind: str, value: float) -> str:
    return f"""echo '{{"kind":"{kind}","value":{value},"time":1.0}}' >> "$PROCTOR_JOB_DIR/journal"; """


_REPORT_ALL = "".join(_record("intermediate", value) for value in VALUES) + _record("final", FINAL_VALUE)
_HANG = _record("intermediate", VALUES[0]) + "sleep 3600"
_CHILD = """setsid sh -c 'trap "" TERM; sleep 3600 & wait; sleep 3600' > /dev/null 2>&1 < /dev/null & """
_IMPORT = (
    "import nni, proctor; "
    "proctor.report_intermediate_result(nni.get_next_parameter()['x']); "
    f"nni.report_final_result({FINAL_VALUE})"
)

COMMANDS: Mapping[Behavior, str] = {
    Behavior.REPORT: f"{_REPORT_ALL}true",
    Behavior.FAIL: f"exit {EXIT_CODE}",
    Behavior.HANG: _HANG,
    Behavior.IMPORT: f'python3 -S -c "{_IMPORT}"',  # -S: without what is installed in its environment
    Behavior.DETACH: _CHILD + _HANG,
    Behavior.LEAVE: f"{_CHILD}{_REPORT_ALL}true",
    Behavior.LINK: f'echo kept > "$PROCTOR_OUTPUT_DIR/kept"; ln -s {OUTSIDE} "$PROCTOR_OUTPUT_DIR/link"',
}
"""A `trialCommand` for each behavior, for platforms that run commands."""


class ServiceHarness(ABC):
    """A platform under test, with one service on it.

    The methods that are not abstract suit a platform that runs the commands of jobs as processes of this machine. They
    need `directory` and `code_directory`; a harness of another platform overrides those that do not suit it.
    """

    service: TrainingService
    """Made by the constructor, or anew by each `open`."""
    metadata: tuple[str, Any]
    """A key that `set_cluster_metadata` takes, and a value for it that is not the one it has."""
    runs_commands: bool = True
    """Whether a job is a process that runs the form's command. False only for a simulation, which knows REPORT, FAIL
    and HANG; the tests that need processes are skipped for it."""

    shows_milestones: bool = False
    """Whether its jobs find the milestone of their forms in control.json, and what an update makes of it."""

    experiment_id: str = "Ab3dE5f7"
    trial_prefix: str = ""
    """Put before the names of jobs to make ids of trials: set it where a platform outlives the test."""
    directory: Path
    """A directory that no other test uses. The directories of jobs are below it; their processes are found by that."""
    code_directory: Path
    """The code of all jobs, a directory that is there."""

    @property
    def trials_directory(self) -> Path:
        """The folder of the experiment's trials: a job's directory is `0-<trial id>/jobs/1` in it."""
        return self.directory / "trials"

    # The manager's end

    async def open(self) -> None:  # noqa: B027 - a service that needs no manager's end is made by the constructor
        """Open what a manager has, which knows nothing of jobs, and make `service`. Called again after `close`: by
        another manager."""

    async def close(self) -> None:  # noqa: B027
        """Close what `open` has opened, as a manager that is killed: jobs keep running."""

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[Self]:
        """Open the manager's end, with nothing to reattach; close it on leaving."""
        await self.open()
        try:
            await self.reattached()
            yield self
        finally:
            await self.close()

    async def restart(self) -> TrainingService:
        """The manager was restarted: another service on the same platform, whose jobs went on. Asked only of services
        that are `SupportsReattach`, when the first one no longer runs."""
        await self.close()
        await self.open()
        return self.service

    async def reattached(self) -> None:  # noqa: B027 - most platforms have nothing to do
        """Called after `restart`, when the new service has received all its jobs by `reattach`."""

    # Forms of jobs

    def form(self, behavior: Behavior, name: str = "first") -> TrialJobForm:
        """A form for a job with this behavior, with the command that `COMMANDS` has for it. The same name gives the
        same job id and token; a job's directory is its own."""
        return self.form_of(COMMANDS[behavior], name)

    def form_of(self, command: str, name: str = "first", **changes: Any) -> TrialJobForm:
        """A form for a job that runs this command.

        :param changes: fields of the form with other values.
        """
        trial_id = self.trial_prefix + name
        form = TrialJobForm(
            job_id=f"{trial_id}.1",
            token=f"token of {name}",
            experiment_id=self.experiment_id,
            trial_id=trial_id,
            sequence_id=0,
            number=1,
            parameter_id=0,
            parameter_file='{"parameter_id":0,"parameters":{}}',
            command=command,
            code_directory=str(self.code_directory),
            directory=str(self.trials_directory / f"0-{trial_id}" / "jobs" / "1"),
        )
        return replace(form, **changes)

    def impossible_form(self) -> TrialJobForm:
        """A form that can never run; here because its code is missing."""
        return self.form_of("true", code_directory=str(self.code_directory / "missing"))

    # States of the platform

    @abstractmethod
    async def block(self) -> TrainingService:
        """Put the platform into a state in which it takes jobs but can start none: no node is connected, every slot is
        taken, its queue is held. Returns the service to use from now on: `service`, or another one."""

    @abstractmethod
    async def unblock(self) -> None:
        """End that state. Called while the service runs."""

    # What is there

    async def processes(self) -> list[str]:
        """The processes of jobs that are alive, each described for people: found by `PROCTOR_JOB_ID` in their
        environment, so that those in a session of their own count. Called when none is expected; processes that are
        just ending are waited for. A simulation answers with its running jobs."""
        return await until_none(self.find_processes)

    async def leftovers(self) -> list[str]:
        """What is left of jobs: processes, locks, temporary files. Called after `clean_up`; what is just being removed
        is waited for."""
        return await until_none(self.find_leftovers)

    def find_processes(self) -> list[str]:
        """The same as `processes`, without waiting. May block for moments: it is called in a thread."""
        return sorted(f"a process of job {job_id}" for job_id, _ in living_trials(str(self.directory)))

    def find_leftovers(self) -> list[str]:
        """The same as `leftovers`, without waiting: here the processes. It is called in a thread."""
        return self.find_processes()


async def until_none(find: Callable[[], list[str]], *, patience_seconds: float = PATIENCE_SECONDS) -> list[str]:
    """Look in a thread until `find` finds nothing: for what ends in other processes, of which no event tells. Returns
    what it still finds when its patience ends."""
    loop = asyncio.get_running_loop()
    gives_up = loop.time() + patience_seconds
    while (found := await asyncio.to_thread(find)) and loop.time() < gives_up:  # noqa: ASYNC110
        await asyncio.sleep(0.02)
    return found


class Recorder:
    """The listeners of a test: keeps what it took and can refuse to take it.

    :param refusals: how many calls of each listener to refuse by raising, before any is taken.
    :param fenced: jobs whose metrics are refused: the metric listener leaves them out of its answer.
    :param patience_seconds: how long what a test waits for may take.
    """

    def __init__(
        self, refusals: int = 0, *, fenced: Collection[str] = (), patience_seconds: float = PATIENCE_SECONDS
    ) -> None:
        self.journals: dict[str, bytes] = {}
        self.changes: list[StatusChange] = []
        self.refused: list[JournalChunk | StatusChange] = []
        self._refusals = {"metrics": refusals, "status": refusals}
        self._fenced = frozenset(fenced)
        self._patience_seconds = patience_seconds
        self._news = asyncio.Condition()

    def listen(self, service: TrainingService) -> None:
        """Listen to a service."""
        service.add_trial_job_metric_listener(self.take_metrics)
        assert isinstance(service, SupportsEvents), "a training service must be SupportsEvents"
        service.add_status_listener(self.take_changes)

    async def take_metrics(self, chunks: Sequence[JournalChunk]) -> Mapping[tuple[str, int], int]:
        """A MetricListener. Chunks may repeat what was taken, and may not leave anything out."""
        await self._refuse("metrics", chunks)
        taken = [chunk for chunk in chunks if chunk.job_id not in self._fenced]
        self.refused += [chunk for chunk in chunks if chunk.job_id in self._fenced]
        for chunk in taken:
            assert chunk.data.endswith(b"\n"), "a chunk holds whole lines"
            journal = self.journals.get(chunk.job_id, b"")
            assert chunk.offset <= len(journal), "a chunk was left out"
            assert journal[chunk.offset : chunk.end] == chunk.data[: len(journal) - chunk.offset], "bytes have changed"
            self.journals[chunk.job_id] = journal + chunk.data[len(journal) - chunk.offset :]
            assert not any(change.exit for change in self.of(chunk.job_id)) or chunk.end <= len(journal), (
                "metrics came after the end of their job"
            )
        await self._tell()
        return {(chunk.job_id, chunk.member): len(self.journals[chunk.job_id]) for chunk in taken}

    async def take_changes(self, changes: Sequence[StatusChange]) -> None:
        """A StatusListener."""
        await self._refuse("status", changes)
        for change in changes:
            assert (change.exit is not None) == (change.status is TrialJobStatus.ENDED)
            assert change.time.tzinfo is not None, "times are aware"
            self.changes.append(change)
        await self._tell()

    def of(self, job_id: str) -> list[StatusChange]:
        """What was taken about a job."""
        return [change for change in self.changes if change.job_id == job_id]

    def statuses(self, job_id: str) -> list[TrialJobStatus]:
        """The statuses of a job in the order they were taken, repetitions left out."""
        found: list[TrialJobStatus] = []
        for change in self.of(job_id):
            if change.status is not TrialJobStatus.SUBMITTED and change.status not in found[-1:]:
                found.append(change.status)
        return found

    def records(self, job_id: str) -> list[tuple[str, Any]]:
        """(kind, value) of every record in a job's journal."""
        lines = self.journals.get(job_id, b"").splitlines()
        records = [loads(line.decode()) for line in lines]
        return [(record["kind"], record["value"]) for record in records]

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait for something to be taken or refused."""
        async with asyncio.timeout(self._patience_seconds), self._news:
            await self._news.wait_for(condition)

    async def end_of(self, job_id: str) -> StatusChange:
        """Wait for a job's end."""
        await self.until(lambda: any(change.exit for change in self.of(job_id)))
        return next(change for change in self.of(job_id) if change.exit)

    async def waiting_of(self, job_id: str) -> StatusChange:
        """Wait until a job says why it does not run yet."""

        def found() -> list[StatusChange]:
            changes = self.of(job_id)
            return [change for change in changes if change.status is TrialJobStatus.SUBMITTED and change.detail]

        await self.until(lambda: bool(found()))
        return found()[0]

    async def start_of(self, job_id: str) -> None:
        """Wait until a job runs."""
        await self.until(lambda: TrialJobStatus.RUNNING in self.statuses(job_id))

    async def _refuse(self, kind: str, items: Sequence[JournalChunk] | Sequence[StatusChange]) -> None:
        if self._refusals[kind] > 0:
            self._refusals[kind] -= 1
            self.refused.extend(items)
            await self._tell()
            raise RuntimeError("this listener does not take it yet; deliver it again")

    async def _tell(self) -> None:
        async with self._news:
            self._news.notify_all()


@asynccontextmanager
async def serving(service: TrainingService) -> AsyncIterator[None]:
    """Run a service in the background; it is canceled on leaving."""
    async with asyncio.TaskGroup() as group:
        task = group.create_task(service.run(), name="training service")
        try:
            yield
        finally:
            task.cancel()
            _, late = await asyncio.wait({task}, timeout=PATIENCE_SECONDS)
            if late:
                task.cancel()
                raise AssertionError(f"`run` has not ended {PATIENCE_SECONDS:g} s after it was canceled")

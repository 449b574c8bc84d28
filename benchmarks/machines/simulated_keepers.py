"""`python -m benchmarks.machines.simulated_keepers HOME NODES RATE REPORTS`: the keepers of many machines in a process.

Each talks to the manager over real HTTP on its socket, with the keeper's own session, outbox and journal reader; only
its trials are played: RATE records a second are appended to a job's journal until there are REPORTS.
"""

import asyncio
import json
import os
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.machines.simulated_machines import SECRET
from proctor.trial_keeper.files.server import FileAnswers, ReadablePaths
from proctor.trial_keeper.jobs.job import Job
from proctor.trial_keeper.jobs.outbox import Outbox, SettledReport
from proctor.trial_keeper.jobs.records import JobRecord, ProcessIdentity, ProcessRecord
from proctor.trial_keeper.protocol import (
    Command,
    EndReason,
    Exit,
    Launch,
    Registration,
    RegistrationAnswer,
    from_json,
)
from proctor.trial_keeper.uplink.session import ManagerSession, SessionHandler

BOOT = "simulated"


def node_name(number: int) -> str:
    """What a simulated machine is called."""
    return f"machine-{number}"


class SimulatedKeeper(SessionHandler):
    """One keeper: a session with the manager, and trials that only write journals."""

    def __init__(self, home: Path, number: int, folder: Path, *, rate: float, reports: int) -> None:
        self._folder = folder / str(number)
        self._folder.mkdir()
        secret_file = self._folder / "secret"
        secret_file.write_text(SECRET)
        self._rate = rate
        self._reports = reports
        self._number = number
        self._jobs: dict[str, Job] = {}
        self._group: asyncio.TaskGroup | None = None
        self._outbox = Outbox()
        self._session = ManagerSession(
            node_id=node_name(number),
            pointer=str(home / "run" / "socket"),
            secret_file=secret_file,
            outbox=self._outbox,
            answers=FileAnswers(str(self._folder), lambda: ReadablePaths((), ()), lambda _: ("", None)),
        )

    async def run(self) -> None:
        """Serve until canceled."""
        async with asyncio.TaskGroup() as self._group:
            await self._session.run(self)

    def registration(self) -> Registration:
        jobs = [job.report() for job in self._jobs.values()]
        return Registration(f"keeper-{self._number}", os.getpid(), BOOT, node_name(self._number), "0", "3.11", [], jobs)

    def begin_session(self, answer: RegistrationAnswer) -> None:
        for job in self._jobs.values():
            job.acknowledge(answer.offsets.get(job.job_id, {}))
            self._outbox.queue(job)

    async def carry_out(self, commands: list[Command]) -> None:
        for command in commands:
            if command.type == Launch.__name__ and command.order["job_id"] not in self._jobs:
                self._launch(from_json(Launch, {**command.order, "directory": str(self._folder)}))

    def _launch(self, launch: Launch) -> None:
        directory = self._folder / launch.job_id
        directory.mkdir(parents=True)
        record = JobRecord(from_json(Launch, {**vars(launch), "directory": str(directory)}), BOOT)
        itself = ProcessIdentity(os.getpid(), 1)
        job = Job(record, process=ProcessRecord(itself, itself, BOOT, time.time(), time.monotonic()))
        self._jobs[launch.job_id] = job
        job.find_journals()
        self._outbox.queue_start(job)
        assert self._group is not None
        self._group.create_task(self._play(job, directory / "journal"), name=launch.job_id)

    async def _play(self, job: Job, journal: Path) -> None:
        """Append records at the rate, each by one write, as a trial does; then end."""
        began = time.time()
        with journal.open("ab", buffering=0) as file:
            for step in range(self._reports):
                kind = "final" if step == self._reports - 1 else "intermediate"
                file.write(json.dumps({"kind": kind, "value": step / 2, "time": time.time()}).encode() + b"\n")
                self._outbox.queue(job)
                await asyncio.sleep(max(0.0, began + (step + 1) / self._rate - time.time()))
        job.exit = Exit(EndReason.EXITED_OK, 0, None, began, time.time())
        self._outbox.queue(job)

    def settle(self, report: SettledReport) -> None:
        for job in (*report.stored, *report.fenced):
            job.close()
            self._jobs.pop(job.job_id, None)

    def turn_away(self, why: str) -> None:
        raise RuntimeError(why)


async def serve(home: Path, machines: int, *, rate: float, reports: int) -> None:
    """Play all machines until the process is ended."""
    with tempfile.TemporaryDirectory(prefix="keepers-", dir=home) as folder:
        async with asyncio.TaskGroup() as group:
            for number in range(machines):
                keeper = SimulatedKeeper(home, number, Path(folder), rate=rate, reports=reports)
                group.create_task(keeper.run(), name=node_name(number))


if __name__ == "__main__":
    chosen, count, per_second, total = sys.argv[1:]
    asyncio.run(serve(Path(chosen), int(count), rate=float(per_second), reports=int(total)))

"""Trials that are paused, resumed and moved: how long that takes, what PAUSED ones cost, what a save costs."""

import asyncio
import multiprocessing
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks import harness
from benchmarks.machines.ssh_machines import Machines, machines
from benchmarks.table import Row, spread
from proctor.manager.lifecycle.states import TrialStatus
from proctor.manager.settings import Home
from proctor.manager.simulation.simulation import Simulation
from proctor.manager.simulation.virtual_time import VirtualTimeLoop, run_virtual
from proctor.manager.store.rows import TrialRow
from proctor.manager.store.tables import trials
from proctor.training_services.base import TrialJobForm
from proctor.training_services.in_memory.scripts import Hang, ScriptedReport, Step

MEGABYTES = 10
PAUSED, LIVE, FEW = 60_000, 1_000, 10
TURNS = 2_000
SETTLED = 200
"""Turns before those that are counted: the experiment's beginning is not what is compared."""
LARGE = 1_000_000
"""More than any number that the experiment gives a trial or a parameter itself."""
TARGET_PAUSE_SECONDS = 0.3
TARGET_MOVE, TARGET_MOVE_SECONDS = 2.0, 0.5
TARGET_TURN = 1.2
TARGET_SAVE = 1.3


class Pausable:
    """An experiment of `pausable.py`, whose trials are added by hand."""

    def __init__(self, running: harness.RunningManager, folder: Path, **settings: Any) -> None:
        self._running = running
        self._stamps = folder / "stamps"
        self._stamps.write_text("")
        self._experiment = running.create(
            command=f"{sys.executable} pausable.py {self._stamps} {MEGABYTES}",
            trialConcurrency=2,
            maxTrialNumber=1,
            **settings,
        )
        (first,) = harness.wait_for(lambda: list(running.client.trials(self._experiment)) or None, "the first trial")
        self.trial = str(first["id"])
        self._reported(self.trial, 1)

    def _reported(self, trial: str, attempt: int) -> float:
        """When an attempt has reported first."""

        def look() -> float | None:
            lines = (line.split() for line in self._stamps.read_text().splitlines())
            return next((float(at) for one, number, at in lines if (one, number) == (trial, str(attempt))), None)

        return harness.wait_for(look, f"attempt {attempt} of trial {trial} to report")

    def fresh_seconds(self) -> float:
        """From the request for a new trial to its first report."""
        began = time.time()
        added = self._running.client.add_trial(self._experiment, {"x": 0.5, "y": 0.5, "z": "a"})
        seconds = self._reported(added["id"], 1) - began
        self._running.client.kill_trial(added["id"])
        self._until(added["id"], "USER_CANCELED")
        return seconds

    def pause(self) -> None:
        """Pause the trial; returns when it is PAUSED."""
        self._running.client.pause_trial(self.trial)
        self._until(self.trial, "PAUSED")

    def resumed_seconds(self, before: Callable[[], None] | None = None) -> float:
        """From the request to pause the trial to its first report after a resume.

        :param before: done between the two.
        """
        attempt = self._running.client.trial(self.trial)["jobs"] + 1
        began = time.time()
        self.pause()
        if before is not None:
            before()
        self._running.client.resume_trial(self.trial)
        return self._reported(self.trial, attempt) - began

    def node(self) -> str:
        """Where the trial runs, or ran last."""
        return str(self._running.client.trial(self.trial)["node_id"])

    def end(self) -> None:
        """Stop the experiment."""
        self._running.client.kill_trial(self.trial)
        self._running.stop(self._experiment)

    def _until(self, trial: str, status: str) -> None:
        what = f"trial {trial} to be {status}"
        harness.wait_for(lambda: self._running.client.trial(trial)["status"] == status or None, what)


def _pauses(running: harness.RunningManager, folder: Path, repeats: int) -> Row:
    work = Pausable(running, folder)
    pairs = [(work.fresh_seconds(), work.resumed_seconds()) for _ in range(repeats)]
    work.end()
    more = median(resumed - fresh for fresh, resumed in pairs)
    return Row(
        f"pause → resume → the same trial reports again, {MEGABYTES} MB saved and read",
        "a new trial's first report: " + spread([fresh for fresh, _ in pairs], " s", 2),
        spread([resumed for _, resumed in pairs], " s", 2),
        f"{more:+.2f} s",
        f"+ ≤ {TARGET_PAUSE_SECONDS} s",
        more <= TARGET_PAUSE_SECONDS,
    )


def _moves(running: harness.RunningManager, group: Machines, folder: Path, repeats: int) -> Row:
    """The trial goes from one machine to the other and back; its node is drained each time."""
    client = running.client
    work = Pausable(running, folder, trainingService=group.service(2))

    def connected() -> bool | None:
        rows = [node for node in client.nodes() if node["kind"] == "remote" and node["status"] == "CONNECTED"]
        return len(rows) == 2 or None

    harness.wait_for(connected, "both machines")
    copied, moved = [], []
    for number in range(repeats + 1):
        node = work.node()
        client.drain_node(node)
        seconds = work.resumed_seconds()
        if work.node() == node:
            raise harness.BenchmarkError(f"the trial is on {node} again, which is drained")
        client.resume_node(node)
        if number:  # at the first move the other machine has neither code nor SDK yet
            moved.append(seconds)
            copied.append(_copy_seconds(group, folder))
    work.end()
    margin = median(reached - TARGET_MOVE * copy for reached, copy in zip(moved, copied, strict=True))
    return Row(
        "… on the other one of two machines over SSH",
        f"{MEGABYTES} MB by sftp from one to here and on to the other: " + spread(copied, " s", 2),
        spread(moved, " s", 2),
        f"{median(reached / copy for reached, copy in zip(moved, copied, strict=True)):.2f}",
        f"≤ {TARGET_MOVE:g} × + {TARGET_MOVE_SECONDS} s",
        margin <= TARGET_MOVE_SECONDS,
    )


def _copy_seconds(group: Machines, folder: Path) -> float:
    """A file of the checkpoint's size, by OpenSSH's sftp."""
    source, target = group.service(2)["machineList"]
    weights = folder / "weights"
    weights.write_bytes(bytes(MEGABYTES << 20))
    _sftp(source, f"put {weights} weights")
    began = time.perf_counter()
    _sftp(source, f"get weights {weights}")
    _sftp(target, f"put {weights} weights")
    return time.perf_counter() - began


def _sftp(machine: dict[str, Any], command: str) -> None:
    options = ["-q", "-b", "-", "-i", machine["sshKeyFile"], "-P", str(machine["port"])]
    options += ["-o", "StrictHostKeyChecking=no", "-o", "UserKnownHostsFile=/dev/null", "-F", "none"]
    address = f"{machine['user']}@{machine['host']}"
    subprocess.run(["sftp", *options, address], input=command, text=True, check=True, stdout=subprocess.DEVNULL)


def turn_milliseconds(turns: int, running: int, waiting: int, paused: int) -> float:
    """Processor time of a turn in which one trial reports, with so many trials in each status at all."""
    moments: list[float] = []

    def script(form: TrialJobForm) -> Iterator[Step]:
        for step in range(turns + SETTLED + 1 if form.sequence_id == 0 else 0):
            moments.append(time.process_time())
            yield ScriptedReport(10.0, float(step))
        yield Hang()

    async def main(loop: VirtualTimeLoop) -> None:
        with harness.temporary_folder() as folder:
            simulation = Simulation(Home(folder / "home"), loop, script=script)
            config = {
                "searchSpace": harness.SPACE,
                "trialCommand": "true",
                "trialConcurrency": running,
                "maxTrialNumber": running + waiting + paused,
                "tuner": {"name": "Random"},
                "trainingService": {"platform": "local"},
            }
            others = {TrialStatus.WAITING: waiting, TrialStatus.PAUSED: paused}
            async with simulation.manager() as manager:
                created = await manager.create_experiment(config=config, directory=str(folder))
                await asyncio.sleep(5.0)
                await manager.control.write(lambda connection: _insert(connection, created.id, others))
            async with simulation.manager() as manager:
                while len(moments) <= turns + SETTLED:  # noqa: ASYNC110
                    await asyncio.sleep(60.0)
                found = await manager.control.read(lambda connection: trials.counts(connection, created.id))
                expected = {TrialStatus.RUNNING: running, **{status: many for status, many in others.items() if many}}
                if found != expected:
                    raise harness.BenchmarkError(f"expected {expected}, found {found}")

    run_virtual(main)
    return (moments[-1] - moments[SETTLED]) / turns * 1000


def _insert(connection: sqlite3.Connection, experiment_id: str, others: Mapping[TrialStatus, int]) -> None:
    """Trials as a long life of the experiment would leave them; no loop may have it in memory afterwards."""
    statuses = [status for status, number in others.items() for _ in range(number)]
    for place, status in enumerate(statuses, start=LARGE):
        row = TrialRow(
            id=f"added{place:x}",
            experiment_id=experiment_id,
            sequence_id=place,
            status=status,
            parameter_id=place,
            parameters={"x": 0.5, "y": 0.5, "z": "a"},
            created_at=time.time(),
        )
        trials.insert(connection, row)


def _turns(quick: bool, repeats: int) -> list[Row]:
    """Each measurement in a process of its own; they take turns."""
    turns, live, paused = (TURNS // 10, LIVE // 10, PAUSED // 20) if quick else (TURNS, LIVE, PAUSED)
    works = {
        f"with {FEW} running": (FEW, 0, 0),
        f"CPU of a turn of the loop (one report) with {FEW} running and {paused:,} PAUSED trials": (FEW, 0, paused),
        f"… with {live:,} running": (live, 0, 0),
        f"… with {FEW} running and {live - FEW:,} that wait for a place": (FEW, live - FEW, 0),
    }
    with multiprocessing.get_context("spawn").Pool(1, maxtasksperchild=1) as pool:
        rounds = [[pool.apply(turn_milliseconds, (turns, *sizes)) for sizes in works.values()] for _ in range(repeats)]
    rows = []
    for place, work in enumerate(works):
        ratio = median(found[place] / found[0] for found in rounds)
        reference = f"with {FEW} running: " + spread([found[0] for found in rounds], " ms", 2)
        reached = spread([found[place] for found in rounds], " ms", 2)
        rows.append(Row(work, reference, reached, f"{ratio:.2f}", f"≤ {TARGET_TURN} ×", ratio <= TARGET_TURN))
    return rows[1:]


def _saves(running: harness.RunningManager, folder: Path, saves: int) -> list[Row]:
    seconds = folder / "seconds"
    experiment = running.create(
        command=f"{sys.executable} saver.py {seconds} {MEGABYTES} {saves}", trialConcurrency=1, maxTrialNumber=1
    )
    running.finish(experiment)
    running.stop(experiment)
    rounds = [[float(word) * 1000 for word in line.split()] for line in seconds.read_text().splitlines()]
    reached = spread([reported for _, _, reported in rounds], " ms")
    ratios = [median(found[2] / found[place] for found in rounds) for place in (0, 1)]
    return [
        Row(
            f"report(checkpoint=) of {MEGABYTES} MB, as seen by the trial",
            "shutil.copytree: " + spread([found[0] for found in rounds], " ms"),
            reached,
            f"{ratios[0]:.2f}",
            f"≤ {TARGET_SAVE} ×",
            ratios[0] <= TARGET_SAVE,
        ),
        Row(
            "… against a copy that survives a power cut, too",
            "shutil.copytree and fsync: " + spread([found[1] for found in rounds], " ms"),
            reached,
            f"{ratios[1]:.2f}",
            "–",
            None,
        ),
    ]


def measure(quick: bool) -> list[Row]:
    """Seven rows."""
    repeats = 1 if quick else 5
    with harness.manager() as running, machines(2) as group, harness.temporary_folder() as folder:
        rows = [
            _pauses(running, folder, repeats),
            _moves(running, group, folder, repeats),
            *_saves(running, folder, 3 if quick else 15),
        ]
    return [*rows, *_turns(quick, repeats)]

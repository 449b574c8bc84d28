"""Whatever a user does with trials, and whatever happens to their jobs, the manager and its dispatcher: no trial is
lost, every PAUSED trial can be resumed, no budget is overdrawn, and no job begins with a checkpoint that is deleted."""

import asyncio
import tempfile
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain
from pathlib import Path
from typing import Any

import pytest
from fakes.small_experiments import SMALL, all_trials, attempts, create, curve, saved
from hypothesis import given, settings
from hypothesis import strategies as st

from proctor.manager.engine.manager import Manager
from proctor.manager.errors import BadRequest, Conflict
from proctor.manager.lifecycle.states import ExperimentStatus, TrialStatus
from proctor.manager.settings import Home
from proctor.manager.simulation.simulation import Simulation
from proctor.manager.simulation.virtual_time import VirtualTimeLoop, run_virtual
from proctor.manager.store.rows import TrialJobRow, TrialRow
from proctor.manager.store.tables import checkpoints, dispatcher_inputs, metrics
from proctor.manager.store.tables.jobs import live as live_jobs
from proctor.training_services.base import EndReason, TrialJobForm
from proctor.training_services.in_memory.scripts import Final, ScriptedExit, ScriptedReport, Step

POINTS = 4
CONFIG = SMALL | {
    "trialConcurrency": 2,
    "maxTrialNumber": 4,
    "maxTrialRetries": 1,
    "maxInfrastructureRetries": 2,
    "objective": {"direction": "maximize"},
    "seed": 7,
    "keepCheckpoints": 1,
    "checkpointQuotaMb": 1,  # two of them
}
COMMANDS = (
    *("pause", "resume", "clone", "retry", "retry from its checkpoint", "kill"),
    *("pause new trials", "pause all", "resume new trials", "resume all", "stop", "restart the manager"),
)
MISHAPS = {
    EndReason.EXITED_ERROR: 1,
    EndReason.SIGNALED: None,
    EndReason.NODE_LOST: None,
    EndReason.OUT_OF_MEMORY: None,
}

commands = st.lists(
    st.tuples(st.floats(0.1, 15.0), st.sampled_from(COMMANDS), st.integers(0, 7)), min_size=1, max_size=14
)
mishaps = st.dictionaries(
    st.integers(0, 20), st.tuples(st.integers(1, POINTS), st.sampled_from(sorted(MISHAPS))), max_size=8
)


@dataclass
class Platform:
    """What happens to jobs, by how many were started before."""

    mishaps: dict[int, tuple[int, EndReason]]
    started: int = 0

    def training(self, form: TrialJobForm) -> Iterable[Step]:
        """A point every two seconds with a checkpoint after it."""
        point_of_mishap, reason = self.mishaps.get(self.started, (0, EndReason.EXITED_OK))
        self.started += 1
        begin = 0 if form.resume_checkpoint is None else int(Path(form.resume_checkpoint).name)
        for point in range(begin + 1, POINTS + 1):
            yield ScriptedReport(2.0, float(point), step=point)
            if point == point_of_mishap:
                yield ScriptedExit(0.1, reason, MISHAPS[reason])
            yield saved(form, point, step=point, bytes=400_000)
        yield Final(0.5, float(form.sequence_id))


async def carry_out(manager: Manager, experiment_id: str, command: str, which: int) -> None:
    """One command of the user; one that is refused changes nothing."""
    rows = await all_trials(manager, experiment_id)
    trial_id = rows[which % len(rows)].id if rows else "none"
    try:
        match command:
            case "pause all" | "pause new trials":
                await manager.pause_experiment(experiment_id, trials=command == "pause all")
            case "resume all" | "resume new trials":
                await manager.resume_experiment(experiment_id, trials=command == "resume all")
            case "stop":
                await manager.stop_experiment(experiment_id)
            case _ if not rows:
                pass
            case "pause":
                await manager.trials.pause(trial_id)
            case "resume":
                await manager.trials.resume(trial_id)
            case "clone":
                await manager.trials.clone(trial_id, {"x": 0.25})
            case "retry" | "retry from its checkpoint":
                await manager.trials.retry(trial_id, from_checkpoint=command != "retry")
            case "kill":
                await manager.trials.kill(trial_id)
    except (Conflict, BadRequest):
        after = await all_trials(manager, experiment_id)
        assert [row.id for row in after] == [row.id for row in rows], f"{command} was refused and made a trial"


async def check_always(manager: Manager, experiment_id: str, seen: set[str]) -> None:
    """What holds at any moment.

    :param seen: the trials that there were; new ones are added.
    """
    rows = await all_trials(manager, experiment_id)
    assert seen <= {row.id for row in rows}, "a trial is lost"
    seen |= {row.id for row in rows}
    jobs = Counter(job.trial_id for job in await manager.control.read(lambda c: live_jobs(c, experiment_id)))
    assert max(jobs.values(), default=0) <= 1
    assert jobs.total() <= CONFIG["trialConcurrency"]
    assert not [row for row in rows if row.id in jobs and (row.status is TrialStatus.PAUSED or row.status.is_terminal)]


async def finish(manager: Manager, experiment_id: str) -> None:
    """Resume what is stopped or PAUSED until nothing is left to do."""
    for _ in range(20):
        row, rows = await manager.experiment(experiment_id), await all_trials(manager, experiment_id)
        if row.status in {ExperimentStatus.STOPPED, ExperimentStatus.PAUSED, ExperimentStatus.ERROR}:
            await manager.resume_experiment(experiment_id)
        elif paused := [trial for trial in rows if trial.status is TrialStatus.PAUSED]:
            await manager.trials.resume(paused[0].id)
        elif row.status is ExperimentStatus.DONE and all(trial.status.is_terminal for trial in rows):
            return
        await asyncio.sleep(300.0)
    raise AssertionError(f"it does not come to its end: {row.status} ({row.reason})")


def check_budgets(row: TrialRow, jobs: Sequence[TrialJobRow]) -> None:
    """Each end of a job is charged to the budget that it belongs to, and to no other."""
    ends = Counter(job.end_reason for job in jobs)
    charged = ends[EndReason.EXITED_ERROR] + ends[EndReason.OUT_OF_MEMORY]
    lost = ends[EndReason.SIGNALED] + ends[EndReason.NODE_LOST]
    assert charged <= CONFIG["maxTrialRetries"] + 1
    assert lost <= CONFIG["maxInfrastructureRetries"] + 1
    assert row.failures <= CONFIG["maxTrialRetries"]
    assert row.infrastructure_failures <= CONFIG["maxInfrastructureRetries"]
    if row.status is TrialStatus.FAILED:
        assert charged == CONFIG["maxTrialRetries"] + 1 or lost == CONFIG["maxInfrastructureRetries"] + 1
    assert [job.number for job in jobs] == list(range(1, len(jobs) + 1))
    assert all(job.end_reason is not None for job in jobs)
    assert ends[EndReason.EXITED_OK] <= 1


def check_concurrency(jobs: Sequence[TrialJobRow]) -> None:
    """At no time do more jobs run than may. What ends in a millisecond makes room for what starts in it."""
    ran = [(job.started_at, job.ended_at or 0.0) for job in jobs if job.started_at is not None]
    moments = [(round(start, 3), 1) for start, _ in ran] + [(round(end, 3), -1) for _, end in ran]
    running = list(accumulate(change for _, change in sorted(moments)))
    assert max(running, default=0) <= CONFIG["trialConcurrency"]


async def check_checkpoints(manager: Manager, experiment_id: str, jobs: Sequence[TrialJobRow]) -> None:
    """Of a checkpoint that is deleted nothing is left, of any other all. None was deleted before the end of a job that
    was given it."""
    rows = await all_trials(manager, experiment_id)
    folders = {row.id: f"{row.sequence_id}-{row.id}" for row in rows}
    top = Path((await manager.experiment(experiment_id)).directory) / "trials"
    database = await manager.metrics(experiment_id)
    deleted_at: dict[str, float | None] = {}
    for row in rows:
        for found in await database.read(lambda c, key=row.id: metrics.checkpoints(c, key, limit=100)):  # type: ignore[misc]
            place = top / folders[row.id] / "jobs" / str(found.job) / found.path
            deleted_at[str(place)] = found.deleted_at
            assert (found.removed_at is None) == (found.deleted_at is None), found
            assert place.is_dir() == (found.deleted_at is None), found
    for job in jobs:
        if job.resume_checkpoint is not None and (gone := deleted_at[job.resume_checkpoint]) is not None:
            assert gone >= (job.ended_at or 0.0), f"{job.resume_checkpoint} was deleted while {job.id} had it"
    left = sum(time is None for time in deleted_at.values())
    assert await database.read(checkpoints.total_bytes) == 400_000 * left <= 10**6


async def live(directory: Path, platform: Platform, wanted: Sequence[tuple[float, str, int]]) -> dict[str, Any]:
    """Play the user's commands, then let everything come to its end."""
    simulation = Simulation(Home(directory / "home"), asyncio.get_running_loop(), script=platform.training)  # type: ignore[arg-type]
    experiment_id, remaining, seen = "", list(wanted), set[str]()
    while True:
        async with simulation.manager() as manager:
            if not experiment_id:
                experiment_id = await create(manager, directory, **CONFIG)
            while remaining:
                seconds, command, which = remaining.pop(0)
                await asyncio.sleep(seconds)
                if command == "restart the manager":
                    break
                await carry_out(manager, experiment_id, command, which)
                await check_always(manager, experiment_id, seen)
            else:
                await finish(manager, experiment_id)
                rows = await all_trials(manager, experiment_id)
                jobs = [await attempts(manager, row) for row in rows]
                await check_checkpoints(manager, experiment_id, list(chain.from_iterable(jobs)))
                log = await manager.control.read(
                    lambda c, key=experiment_id: dispatcher_inputs.after(c, key, 0, 10_000)  # type: ignore[misc]
                )
                return {
                    "ends": Counter(entry.payload["parameter_id"] for entry in log if entry.kind == "TrialEnd"),
                    "trials": rows,
                    "jobs": jobs,
                    "curves": [await curve(manager, row) for row in rows],
                }


@pytest.mark.slow
@given(wanted=commands, mishaps=mishaps)
@settings(max_examples=settings().max_examples * 2 // 5)
def test_no_trial_is_lost_every_paused_one_is_resumable_and_budgets_hold(
    wanted: list[tuple[float, str, int]], mishaps: dict[int, tuple[int, EndReason]]
) -> None:
    async def main(loop: VirtualTimeLoop) -> None:
        with tempfile.TemporaryDirectory() as directory:
            found = await live(Path(directory), Platform(mishaps), wanted)
        rows: list[TrialRow] = found["trials"]
        assert [row.sequence_id for row in rows] == list(range(len(rows)))
        assert len({row.parameter_id for row in rows}) == len(rows)
        assert found["ends"] == Counter(row.parameter_id for row in rows), "each trial ends once for the tuner"
        suggested = [row for row in rows if row.source == "algorithm"]
        assert len(suggested) <= CONFIG["maxTrialNumber"] <= len(rows)
        check_concurrency(list(chain.from_iterable(found["jobs"])))
        for row, jobs, points in zip(rows, found["jobs"], found["curves"], strict=True):
            assert row.status.is_terminal
            check_budgets(row, jobs)
            assert [point.sequence for point in points] == list(range(len(points)))
            if row.status is TrialStatus.SUCCEEDED:
                assert row.final_value == row.sequence_id
                assert [point.step for point in points] == list(range(POINTS - len(points) + 1, POINTS + 1))
            if row.origin_job is None and points:
                assert points[0].step == 1
            if row.status is TrialStatus.USER_CANCELED:
                assert any(command == "kill" for _, command, _ in wanted)

    run_virtual(main)

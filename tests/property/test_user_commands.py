"""Whatever a user does with trials and their experiment, and however often the manager is restarted and jobs are lost
meanwhile: no trial is lost, each PAUSED one can be resumed, budgets are kept, and no curve has a gap."""

import asyncio
import json
import tempfile
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from fakes.small_experiments import SMALL, CheckpointingSimulation, all_trials, attempts, curve
from hypothesis import given, settings
from hypothesis import strategies as st

from proctor.manager.engine.manager import Manager
from proctor.manager.errors import ManagerError
from proctor.manager.lifecycle.states import ExperimentStatus, TrialStatus
from proctor.manager.settings import Home
from proctor.manager.simulation.virtual_time import VirtualTimeLoop, run_virtual
from proctor.manager.store.tables import dispatcher_inputs, jobs
from proctor.training_services.base import EndReason, TrialJobForm
from proctor.training_services.in_memory.scripts import Final, Raw, ScriptedExit, ScriptedReport, Step

STEPS, SECONDS = 5, 60.0
LIMITS = {"trialConcurrency": 2, "maxTrialNumber": 3, "maxInfrastructureRetries": 2}
OF_TRIALS = ("pause", "resume", "clone", "retry", "continue", "kill")
OF_EXPERIMENTS = ("pause trials", "resume trials", "pause all", "resume all", "stop", "restart")


@dataclass(frozen=True)
class Command:
    """What is done, to which of the trials if it is about one, and how many seconds later the next one is done."""

    what: str
    trial: int
    wait: float


commands = st.builds(
    Command,
    st.sampled_from([*OF_TRIALS, *OF_TRIALS, *OF_EXPERIMENTS]),
    st.integers(0, 5),
    st.sampled_from([0.0, 1.0, SECONDS / 2, SECONDS, 3.3 * SECONDS]),
)


def training(form: TrialJobForm) -> Iterable[Step]:
    """A step and a checkpoint a minute; some jobs are lost on the way."""
    begin = 0 if form.resume_checkpoint is None else int(form.resume_checkpoint.rpartition("/")[2])
    is_lost = form.sequence_id % 2 == 1 and form.number in (1, 3)
    for step in range(begin, STEPS):
        yield ScriptedReport(SECONDS, float(step))
        if is_lost and step == begin + form.number % 2:
            yield ScriptedExit(0.0, EndReason.NODE_LOST, code=None)
        record = {"kind": "checkpoint", "path": f"output/checkpoints/{step + 1}", "step": step, "time": 1.0}
        yield Raw(0.0, json.dumps(record).encode() + b"\n")
    yield Final(1.0, form.sequence_id)


async def give(manager: Manager, experiment_id: str, command: Command) -> None:
    """Give a command; one that cannot be carried out is refused."""
    rows = await all_trials(manager, experiment_id)
    trial = rows[command.trial % len(rows)].id
    with suppress(ManagerError):
        match command.what:
            case "pause":
                await manager.trials.pause(trial)
            case "resume":
                await manager.trials.resume(trial)
            case "clone":
                await manager.trials.clone(trial, {"x": 0.25})
            case "retry" | "continue":
                await manager.trials.retry(trial, from_checkpoint=command.what == "continue")
            case "kill":
                await manager.trials.kill(trial)
            case "pause trials" | "pause all":
                await manager.pause_experiment(experiment_id, trials=command.what == "pause trials")
            case "resume trials" | "resume all":
                await manager.resume_experiment(experiment_id, trials=command.what == "resume trials")
            case "stop":
                await manager.stop_experiment(experiment_id)


async def check_always(manager: Manager, experiment_id: str, seen: set[str]) -> None:
    """What holds at any moment.

    :param seen: the trials that there were; new ones are added.
    """
    rows = await all_trials(manager, experiment_id)
    assert seen <= {row.id for row in rows}, "a trial is lost"
    seen |= {row.id for row in rows}
    live = Counter(job.trial_id for job in await manager.control.read(lambda c: jobs.live(c, experiment_id)))
    assert max(live.values(), default=0) <= 1
    assert live.total() <= LIMITS["trialConcurrency"]
    assert not [row for row in rows if row.id in live and (row.status is TrialStatus.PAUSED or row.status.is_terminal)]
    assert sum(row.source == "algorithm" for row in rows) <= LIMITS["maxTrialNumber"]


async def finish(manager: Manager, experiment_id: str) -> None:
    """Have everything run to its end; every PAUSED trial can be resumed."""
    await asyncio.sleep(SECONDS)
    for resume in (manager.resume_experiment, manager.resume_experiment):  # of a stopped one, then of a paused one
        with suppress(ManagerError):
            await resume(experiment_id)
        await asyncio.sleep(SECONDS)
    for row in await all_trials(manager, experiment_id):
        if row.status is TrialStatus.PAUSED:
            await manager.trials.resume(row.id)
    await asyncio.sleep(200 * SECONDS)


async def check_end(manager: Manager, experiment_id: str) -> None:
    """What holds when nothing is PAUSED any more and there was time enough."""
    assert (await manager.experiment(experiment_id)).status is ExperimentStatus.DONE
    rows = await all_trials(manager, experiment_id)
    ended = {TrialStatus.SUCCEEDED, TrialStatus.USER_CANCELED, TrialStatus.SYS_CANCELED}
    assert {row.status for row in rows} <= ended
    assert len(rows) >= LIMITS["maxTrialNumber"]  # which the user's own count against
    log = await manager.control.read(lambda c: dispatcher_inputs.after(c, experiment_id, 0, 10_000))
    ends = Counter(entry.payload["parameter_id"] for entry in log if entry.kind == "TrialEnd")
    assert ends == Counter(row.parameter_id for row in rows), "each trial ends once for the tuner"
    for row in rows:
        reasons = [job.end_reason for job in await attempts(manager, row)]
        assert row.infrastructure_failures == min(
            reasons.count(EndReason.NODE_LOST), LIMITS["maxInfrastructureRetries"]
        )
        points = [(point.sequence, point.reported) for point in await curve(manager, row)]
        first = points[0][1] if points else 0.0
        assert points == [(place, first + place) for place in range(len(points))]
        if row.status is TrialStatus.SUCCEEDED and points:
            assert points[-1][1] == STEPS - 1
        if row.origin_job is None and points:
            assert first == 0.0


@settings(max_examples=settings().max_examples * 2 // 5)
@given(st.lists(commands, max_size=14))
def test_commands_of_users_lose_no_trial_and_keep_the_budgets(script: list[Command]) -> None:
    async def main(loop: VirtualTimeLoop) -> None:
        with tempfile.TemporaryDirectory() as folder:
            simulation = CheckpointingSimulation(Home(Path(folder) / "home"), loop, script=training)
            remaining, seen, experiment_id = list(script), set[str](), ""
            is_over = False
            while not is_over:
                async with simulation.manager() as manager:
                    if not experiment_id:
                        created = await manager.create_experiment(config=SMALL | LIMITS, directory=folder)
                        experiment_id = created.id
                        await asyncio.sleep(1.5 * SECONDS)
                    while remaining:
                        command = remaining.pop(0)
                        if command.what == "restart":
                            break
                        await give(manager, experiment_id, command)
                        await check_always(manager, experiment_id, seen)
                        await asyncio.sleep(command.wait)
                    else:
                        await finish(manager, experiment_id)
                        await check_always(manager, experiment_id, seen)
                        await check_end(manager, experiment_id)
                        is_over = True

    run_virtual(main)

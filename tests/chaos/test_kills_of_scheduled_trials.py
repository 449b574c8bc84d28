"""Kill -9 at random moments while population based training pauses, resumes and clones trials."""

import json
import random
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from chaos import audit
from chaos.harness import House, house
from chaos.processes import Found, Kind, find
from chaos.seeds import in_chaos

STEPS = 20
INTERVAL = 4
"""Between two comparisons of a trial with the population."""


def run_and_kill(folder: Path, *, trials: int, kills: int, seconds: tuple[float, float], seed: int) -> None:
    """Kill now and then; then check that nothing was lost, doubled or left, and who has continued whom."""
    dice = random.Random(seed)
    kinds = [kind for _ in range(kills // len(Kind) + 1) for kind in dice.sample(list(Kind), len(Kind))][:kills]
    with house(folder) as built:
        built.create(
            {
                "searchSpace": {"x": {"_type": "uniform", "_value": [0, 1]}},
                "trialCommand": built.trial_command("--saves", "--scored", steps=STEPS, seconds=seconds),
                "trialConcurrency": 3,
                "maxTrialNumber": trials,
                "maxInfrastructureRetries": kills,
                "seed": seed,
                "objective": {"direction": "maximize"},
                "tuner": {"name": "Random"},
                "trialScheduler": {
                    "name": "PBT",
                    "classArgs": {
                        "time_attr": "training_iteration",
                        "perturbation_interval": INTERVAL,
                        "population_size": trials,
                        "quantile_fraction": 0.4,
                    },
                },
                "trainingService": {"platform": "local"},
            }
        )
        killed = [each for kind in kinds if (each := kill_one(built, kind, dice.uniform(0.1, 0.5))) is not None]
        built.finish()
    ending = audit.Ending.read(built.home, built.ledgers)
    audit.check_list(ending, trials)
    audit.check_ended_once(ending)
    audit.check_processes(ending)
    audit.check_reports(ending)
    audit.check_nothing_left(ending)
    audit.check_continued(ending, {victim.job_id for victim in killed if victim.kind in (Kind.REAPER, Kind.TRIAL)})
    check_lineage(ending)


def kill_one(built: House, kind: Kind, delay_seconds: float) -> Found | None:
    """Kill one living process of the kind after a while; None if the experiment ends before there is one."""
    built.pause(delay_seconds)

    def try_one() -> Found | bool | None:
        built.is_up()
        if victim := next((found for found in find(kind, built.home, built.tag) if found.kill()), None):
            return victim
        return True if built.status() == "DONE" else None

    found = built.wait_for(try_one, f"a {kind} to kill")
    return found if isinstance(found, Found) else None


def check_lineage(ending: audit.Ending) -> None:
    """Each decision to clone became one job, with the parameters that were decided, which began with a checkpoint of
    the donor's job; every other job began with one of its own trial, or anew. Each began with the step after that."""
    clones = {f"{row['trial_id']}.{row['job']}": row for row in _decisions(ending) if row["kind"] == "clone"}
    assert clones, "nothing was cloned"
    assert clones.keys() <= ending.jobs.keys(), "a decision has no job"
    for job_id, job in ending.jobs.items():
        origin = job["resumed_from_job"]
        if (decision := clones.get(job_id)) is not None:
            assert origin == decision["donor_job"], (decision, job)
            assert json.loads(job["parameters"]) == json.loads(decision["parameters"]), (decision, job)
        else:
            assert (
                origin is None or origin.startswith(f"{job['trial_id']}.") or _continues_clone(ending, job, clones)
            ), job
        ledger = ending.ledgers.get(job_id)
        if ledger is None or not ledger.tried or ledger.tried[0][0] != "intermediate":
            continue
        first = int(ledger.tried[0][1])
        saved = [int(value) for _, value in ending.ledgers[origin].tried] if origin else []
        assert first == 1 if origin is None else first - 1 in saved, f"{job} began with {first}; {origin} saved {saved}"


def _continues_clone(ending: audit.Ending, job: dict[str, Any], clones: dict[str, dict[str, Any]]) -> bool:
    """Whether a job tries the beginning of a clone again: the job before had not saved yet."""
    before = ending.jobs[f"{job['trial_id']}.{job['number'] - 1}"]
    is_one = before["id"] in clones or _continues_clone(ending, before, clones)
    return is_one and job["resumed_from_job"] == before["resumed_from_job"]


def _decisions(ending: audit.Ending) -> list[dict[str, Any]]:
    with closing(sqlite3.connect(ending.home / "control.db")) as connection:
        connection.row_factory = sqlite3.Row
        return [dict(row) for row in connection.execute("SELECT * FROM decisions ORDER BY parameter_id")]


FEW = {"trials": 4, "kills": 6, "seconds": (1.0, 2.0)}
MANY = {"trials": 8, "kills": 30, "seconds": (4.0, 12.0)}


@pytest.mark.slow
@pytest.mark.thorough
@pytest.mark.parametrize(("plan", "seed"), [(FEW, 5), *in_chaos((MANY, seed) for seed in range(300, 306))])
def test_kills_while_a_population_is_paused_and_cloned_lose_nothing(
    plan: dict[str, Any], seed: int, tmp_path: Path
) -> None:
    run_and_kill(tmp_path, **plan, seed=seed)

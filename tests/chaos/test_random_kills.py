"""Kill -9 at random moments: manager, keeper, spawner, dispatcher, reapers and trials, while an experiment runs."""

import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from chaos import audit
from chaos.harness import EXPERIMENT_ID, House, house
from chaos.processes import Found, Kind, find
from chaos.seeds import in_chaos

KILLS_A_TRIAL = {Kind.REAPER, Kind.TRIAL}


@dataclass(frozen=True)
class Plan:
    """What is run, and what is killed. The victims follow from the seed, and so does when: the k-th one dies when so
    many jobs have begun that the kills spread over the whole experiment, and a random while later."""

    trials: int
    concurrency: int
    seconds: tuple[float, float]
    kills: int
    seed: int
    most_delay_seconds: float

    def victims(self) -> Iterator[tuple[int, float, Kind]]:
        """(number of jobs that have begun, seconds after that, what is killed); every kind about equally often."""
        dice = random.Random(self.seed)
        kinds = [kind for _ in range(self.kills // len(Kind) + 1) for kind in dice.sample(list(Kind), len(Kind))]
        for number, kind in enumerate(kinds[: self.kills]):
            begun = 1 + number * (self.trials - self.concurrency) // self.kills
            yield begun, dice.uniform(0, self.most_delay_seconds), kind


def run_and_kill(folder: Path, plan: Plan) -> None:
    """Run the plan, and check that nothing was lost, doubled, restarted or left."""
    with house(folder) as built:
        built.create(
            {
                "searchSpace": {"x": {"_type": "uniform", "_value": [0, 1]}},
                "trialCommand": built.trial_command(steps=8, seconds=plan.seconds),
                "trialConcurrency": plan.concurrency,
                "maxTrialNumber": plan.trials,
                "maxInfrastructureRetries": plan.kills,
                "seed": plan.seed,
                "tuner": {"name": "TPE"},
                "assessor": {"name": "Medianstop", "classArgs": {"start_step": 1000}},
                "trainingService": {"platform": "local"},
            }
        )
        killed = [kill_one(built, *victim) for victim in plan.victims()]
        built.wait_until_done()
        listed = built.ask(lambda client: list(client.experiments()))
        assert [(row["id"], row["status"]) for row in listed] == [(EXPERIMENT_ID, "DONE")]
        shown = read_over_rest(built)
        built.shut_down()
    ending = audit.Ending.read(built.home, built.ledgers)
    audit.check(ending, trials=plan.trials, killed={victim.job_id for victim in killed if victim.kind in KILLS_A_TRIAL})
    assert len(built.deaths) == sum(victim.kind is Kind.MANAGER for victim in killed)
    stored = {
        trial: [
            (row["kind"], row["value"]) for job in ending.jobs_of(trial) for row in ending.metrics.get(job["id"], [])
        ]
        for trial in ending.trials
    }
    assert shown == stored, "REST shows what is stored"


def kill_one(built: House, begun: int, delay_seconds: float, kind: Kind) -> Found:
    """Kill one living process of the kind; returns which."""

    def have_begun() -> bool | None:
        built.is_up()
        return True if len(list(built.ledgers.iterdir())) >= begun else None

    built.wait_for(have_begun, f"{begun} jobs to begin")
    built.pause(delay_seconds)

    def try_one() -> Found | None:
        built.is_up()
        living = find(kind, built.home, built.tag)
        return next((found for found in living if found.kill()), None)

    return built.wait_for(try_one, f"a {kind} to kill")


def read_over_rest(built: House) -> dict[str, list[tuple[str, float]]]:
    """What the manager shows of every trial's reports."""
    trials = built.ask(lambda client: [row["id"] for row in client.trials(EXPERIMENT_ID)])
    return {
        trial: built.ask(lambda client, key=trial: [(row["kind"], row["value"]) for row in client.metrics(key)])  # type: ignore[misc]
        for trial in trials
    }


FEW = Plan(trials=16, concurrency=4, seconds=(0.5, 1.5), kills=9, seed=1, most_delay_seconds=0.3)
MANY = [
    Plan(trials=60, concurrency=6, seconds=(3, 10), kills=20, seed=seed, most_delay_seconds=3.0)
    for seed in range(100, 105)
]


@pytest.mark.slow
@pytest.mark.parametrize("plan", [FEW, *in_chaos(MANY)], ids=lambda plan: f"{plan.kills}-{plan.seed}")
def test_random_kills_lose_nothing(plan: Plan, tmp_path: Path) -> None:
    run_and_kill(tmp_path, plan)

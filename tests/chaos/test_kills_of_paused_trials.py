"""Kill -9 at random moments while a user pauses, resumes, clones and retries trials."""

import random
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from chaos import audit
from chaos.harness import EXPERIMENT_ID, House, house
from chaos.processes import Found, Kind, find
from chaos.seeds import in_chaos

from proctor.sdk.client import Client
from proctor.sdk.client.errors import ProblemError

STEPS = 30
COMMANDS = {"WAITING": ("pause", "clone"), "RUNNING": ("pause", "pause", "clone"), "PAUSED": ("resume", "clone")}
"""By the status of a trial: what is done to it. Those that have ended are cloned and retried."""
ACTIONS = 4
"""How often something is done between two kills."""


class User:
    """Gives commands at random; one that is refused changes nothing, and one that is given twice may count twice.

    :param most_new: how many trials it makes at most.
    """

    def __init__(self, built: House, dice: random.Random, most_new: int) -> None:
        self._built, self._dice, self._left = built, dice, most_new

    def act(self) -> None:
        """One command, to any trial."""
        trials = self._built.ask(lambda client: list(client.trials(EXPERIMENT_ID)))
        if not trials:
            return
        row = self._dice.choice(trials)
        trial, x = row["id"], self._dice.random()
        command = self._dice.choice(COMMANDS.get(row["status"], ("clone", "retry")))
        if command in ("clone", "retry"):
            if self._left == 0:
                return
            self._left -= 1

        def give(client: Client) -> bool:
            match command:
                case "pause":
                    client.pause_trial(trial)
                case "resume":
                    client.resume_trial(trial)
                case "clone":
                    client.clone_trial(trial, {"x": x})
                case _:
                    client.retry_trial(trial, from_checkpoint=x < 0.5)
            return True

        with suppress(ProblemError):  # 409: the trial is in another status by now, or has no checkpoint
            self._built.ask(give)

    def finish(self) -> None:
        """Resume whatever is PAUSED until all trials have ended."""

        def look() -> bool | None:
            rows = self._built.ask(lambda client: list(client.trials(EXPERIMENT_ID)))
            for row in rows:
                if row["status"] == "PAUSED":
                    with suppress(ProblemError):
                        self._built.ask(lambda client, key=row["id"]: client.resume_trial(key))  # type: ignore[misc]
            return all(row["status"] in audit.TERMINAL for row in rows) or None

        self._built.wait_for(look, "all trials to end")


def run_and_kill(folder: Path, *, trials: int, kills: int, seconds: tuple[float, float], seed: int) -> None:
    """Commands all the time, and now and then a kill; then check that nothing was lost, doubled or left."""
    dice = random.Random(seed)
    kinds = [kind for _ in range(kills // len(Kind) + 1) for kind in dice.sample(list(Kind), len(Kind))][:kills]
    with house(folder) as built:
        built.create(
            {
                "searchSpace": {"x": {"_type": "uniform", "_value": [0, 1]}},
                "trialCommand": built.trial_command("--saves", steps=STEPS, seconds=seconds),
                "trialConcurrency": 3,
                "maxTrialNumber": trials,
                "maxInfrastructureRetries": kills,
                "seed": seed,
                "tuner": {"name": "Random"},
                "assessor": {"name": "Medianstop", "classArgs": {"start_step": 1000}},
                "trainingService": {"platform": "local"},
            }
        )
        user = User(built, dice, most_new=trials)
        killed = [kill_one(built, user, kind, dice.uniform(0.1, 0.5)) for kind in kinds]
        user.finish()
        built.finish()
    ending = audit.Ending.read(built.home, built.ledgers)
    audit.check_list(ending, len(ending.trials))
    audit.check_ended_once(ending)
    audit.check_work(ending, last=float(STEPS))
    may_die = {victim.job_id for victim in killed if victim.kind in (Kind.REAPER, Kind.TRIAL)}
    audit.check_continued(ending, may_die)


def kill_one(built: House, user: User, kind: Kind, delay_seconds: float) -> Found:
    """Kill one living process of the kind after a while, in which the user is busy."""
    for _ in range(ACTIONS):
        user.act()
        built.pause(delay_seconds / ACTIONS)

    def try_one() -> Found | None:
        built.is_up()
        if victim := next((found for found in find(kind, built.home, built.tag) if found.kill()), None):
            return victim
        user.act()
        return None

    return built.wait_for(try_one, f"a {kind} to kill")


@pytest.mark.slow
@pytest.mark.thorough
def test_a_trial_that_is_paused_before_its_launch_was_written_down_runs_when_it_is_resumed(tmp_path: Path) -> None:
    with house(tmp_path) as built:
        built.wait_for(
            lambda: built.ask(lambda client: client.node("local")["status"]) == "CONNECTED" or None, "a keeper"
        )
        # The next two keepers die, too: the trial is paused before there is one that would launch it.
        for place in ("keeper.intent.before", "keeper.register.before", "keeper.register.after"):
            built.places.arm(place)
        built.create(
            {
                "searchSpace": {"x": {"_type": "uniform", "_value": [0, 1]}},
                "trialCommand": built.trial_command("--saves", steps=STEPS, seconds=(0.1, 0.2)),
                "trialConcurrency": 1,
                "maxTrialNumber": 1,
                "tuner": {"name": "Random"},
                "trainingService": {"platform": "local"},
            }
        )
        built.wait_for(lambda: "keeper.intent.before" not in built.places.left() or None, "the death of the keeper")
        (trial,) = built.ask(lambda client: [row["id"] for row in client.trials(EXPERIMENT_ID)])
        built.give(lambda client: client.pause_trial(trial))
        User(built, random.Random(0), most_new=0).finish()
        built.finish()
    ending = audit.Ending.read(built.home, built.ledgers)
    first, last = ending.jobs_of(trial)
    assert (first["end_reason"], last["end_reason"]) == ("PAUSED", "EXITED_OK")
    assert first["id"] not in ending.ledgers
    audit.check_work(ending, last=float(STEPS))


FEW = {"trials": 5, "kills": 9, "seconds": (1.0, 2.0)}
MANY = {"trials": 20, "kills": 40, "seconds": (4.0, 12.0)}


@pytest.mark.slow
@pytest.mark.thorough
@pytest.mark.parametrize(("plan", "seed"), [(FEW, 3), *in_chaos((MANY, seed) for seed in range(200, 206))])
def test_kills_while_trials_are_paused_resumed_and_cloned_lose_nothing(
    plan: dict[str, Any], seed: int, tmp_path: Path
) -> None:
    run_and_kill(tmp_path, **plan, seed=seed)

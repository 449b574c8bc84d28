"""An experiment decides by the rules with which it was created, and says so where new ones are decided otherwise."""

import asyncio
import sqlite3
from collections.abc import Iterable
from typing import Any

from fakes.small_experiments import Scene, play, played

from proctor.manager.dispatcher.algorithms.catalog import (
    ASSESSOR,
    BUILTINS,
    CURRENT_RULES,
    TRIAL_SCHEDULER,
    TUNER,
)
from proctor.manager.dispatcher.algorithms.registry import create_algorithm, kept_rules
from proctor.manager.engine.manager import Manager
from proctor.manager.store.tables import scheduler_tables
from proctor.training_services.base import TrialJobForm
from proctor.training_services.in_memory.scripts import Final, ScriptedReport, Step

HYPERBAND = {"name": "HyperBand", "classArgs": {"max_t": 50, "reduction_factor": 3}}
SENTENCE = (
    "keeps the rules that it began with (version 1), so that it decides as before. In a new experiment (version "
    f"{CURRENT_RULES}): TPE learns from paused trials, too; HyperBand trains the last trials of every bracket to max_t"
)


def training(form: TrialJobForm) -> Iterable[Step]:
    for step in range(1, 60):
        yield ScriptedReport(10.0, step / 100, step=step)
    yield Final(1.0, 1.0)


async def ends_of_brackets(scene: Scene, manager: Manager) -> set[Any]:
    """Once the experiment has ended: how far the trials of each bracket were trained."""
    await scene.until_ended()
    shown = await manager.control.read(lambda c: scheduler_tables.get(c, scene.id))
    assert shown is not None
    return {row[3] for row in shown.tables[0]["rows"]}


async def continued(scene: Scene, manager: Manager, *, rules: int) -> Manager:
    """An experiment as one that was created with these rules, under the next manager."""
    made = await scene.create(
        training, trialScheduler=HYPERBAND, trialConcurrency=9, maxTrialNumber=9, tuner={"name": "TPE"}
    )
    assert made.rules == CURRENT_RULES

    def as_created_then(connection: sqlite3.Connection) -> None:
        connection.execute("UPDATE experiments SET rules = ?", (rules,))
        connection.execute("DELETE FROM scheduler_tables")

    await manager.control.write(as_created_then)
    manager = await scene.restart()
    await asyncio.sleep(25.0)
    return manager


@played(play)
async def test_an_experiment_of_an_earlier_version_keeps_its_rules_and_says_so_once(
    scene: Scene, manager: Manager, /
) -> None:
    manager = await continued(scene, manager, rules=1)
    assert await scene.notices() == [SENTENCE]
    manager = await scene.restart()
    assert await ends_of_brackets(scene, manager) == {50, 48}
    assert (await scene.notices()).count(SENTENCE) == 1


@played(play)
async def test_a_new_one_has_the_rules_of_now(scene: Scene, manager: Manager, /) -> None:
    manager = await continued(scene, manager, rules=CURRENT_RULES)
    assert await ends_of_brackets(scene, manager) == {50}
    assert not [text for text in await scene.notices() if text.startswith("keeps the rules")]


def test_only_what_is_decided_otherwise_is_named():
    assert kept_rules(1, [(TUNER, "TPE"), (TRIAL_SCHEDULER, "HyperBand")]) == SENTENCE
    assert "GP" not in kept_rules(1, [(TUNER, "GP"), (ASSESSOR, "Medianstop")]), "it is under no trial scheduler"
    assert kept_rules(1, [(TUNER, "Random"), (ASSESSOR, "Curvefitting")]) == ""
    assert kept_rules(1, [(TUNER, None), (TRIAL_SCHEDULER, None)]) == ""
    assert kept_rules(CURRENT_RULES, [(TUNER, "TPE"), (TRIAL_SCHEDULER, "HyperBand")]) == ""


def test_an_algorithm_whose_rules_have_changed_can_be_made_with_each_version():
    changed = [builtin for builtin in BUILTINS if builtin.changes]
    assert changed
    for builtin in changed:
        assert all(1 < version <= CURRENT_RULES for version in builtin.changes), builtin.name
        for rules in range(1, CURRENT_RULES + 1):
            create_algorithm(builtin.kind, builtin.name, {}, 7, rules=rules)

"""What a trial scheduler cannot do with a trial is said once, with the rule that holds then."""

from collections.abc import Iterable
from typing import Any

import pytest
from fakes.small_experiments import Scene, play, played

from proctor.manager.engine.manager import Manager
from proctor.training_services.base import TrialJobForm
from proctor.training_services.in_memory.scripts import Final, Script, ScriptedReport, Step

PROMOTION = {"name": "ASHA", "classArgs": {"type": "promotion", "max_t": 4, "reduction_factor": 2}}
BY_TOKENS = {"name": "ASHA", "classArgs": {"time_attr": "tokens", "max_t": 4, "reduction_factor": 2}}


def without_number(form: TrialJobForm) -> Iterable[Step]:
    yield ScriptedReport(1.0 + form.sequence_id / 10, {"loss": 0.5})
    yield Final(9.0, 1)


def with_number(form: TrialJobForm) -> Iterable[Step]:
    yield ScriptedReport(1.0 + form.sequence_id / 10, 0.5)
    yield Final(9.0, 1)


def silent(form: TrialJobForm) -> Iterable[Step]:
    yield Final(1.0 + form.sequence_id / 10, 1)


@pytest.mark.parametrize(
    ("scheduler", "script", "expected"),
    [
        (PROMOTION, without_number, ["has no number under 'default' (it has loss)"]),
        (PROMOTION, with_number, ["has saved no checkpoint"]),
        (BY_TOKENS, with_number, ["no number under 'tokens'"]),
        (PROMOTION, silent, ["has ended without an intermediate metric"]),
        (None, silent, []),
    ],
)
@played(play)
async def test_each_is_said_once_with_the_trial(
    scene: Scene, manager: Manager, /, scheduler: dict[str, Any] | None, script: Script, expected: list[str]
) -> None:
    await scene.create(script, maxTrialNumber=5, trialScheduler=scheduler, seconds=200.0)
    notices = await scene.notices()
    assert len(notices) == len(expected)
    for text, words in zip(notices, expected, strict=True):
        assert text.startswith("trial 0 ")
        assert words in text

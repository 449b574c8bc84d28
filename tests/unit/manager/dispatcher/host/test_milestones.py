"""What a session says of the steps at whose reports trials wait for a verdict."""

import threading
from pathlib import Path
from typing import Any

import pytest

from proctor.manager.dispatcher import protocol
from proctor.manager.dispatcher.algorithms.schedulers.asha import AshaScheduler
from proctor.manager.dispatcher.host.session import HostSession
from proctor.sdk.scheduler import CONTINUE

SPACE = {"x": {"_type": "uniform", "_value": [0, 1]}}
PROMOTION = {"type": "promotion", "grace_period": 3, "max_t": 27, "reduction_factor": 3, "optimize_mode": "maximize"}


class Conversation:
    """A session with a trial scheduler. What it is sent is kept, for a replay."""

    def __init__(
        self, scheduler: str = "ASHA", *, tuner: protocol.AlgorithmSpec | None = None, **class_args: Any
    ) -> None:
        self.said: list[Any] = []
        self.has_spoken = threading.Event()
        self.sent: list[Any] = []
        self.position = 0
        self.session = HostSession(self._take)
        self.initialize = protocol.Initialize(
            "e",
            SPACE,
            tuner or protocol.AlgorithmSpec(name="Random"),
            None,
            7,
            "",
            scheduler=protocol.AlgorithmSpec(name=scheduler, class_args=class_args),
        )
        self.session.handle(self.initialize)

    def _take(self, message: Any) -> None:
        self.said.append(protocol.decode(protocol.encode(message)))
        self.has_spoken.set()

    def send(self, message: Any) -> list[Any]:
        before = len(self.said)
        self.sent.append(message)
        self.session.handle(protocol.decode(protocol.encode(message)))
        return self.said[before:]

    def ask(self, *ids: int, answers: tuple[protocol.Answer, ...] = (), can_start: bool = True) -> list[Any]:
        self.position += 1
        return self.send(protocol.RequestTrialJobs(self.position, list(ids), list(answers), can_start))

    def report(self, parameter_id: int, step: int, value: float = 0.5, *, job: int = 1) -> list[Any]:
        self.position += 1
        row = protocol.ReportedMetric(parameter_id, f"t{parameter_id}", job, step - 1, value, step)
        return self.send(protocol.ReportMetrics(self.position, [row]))

    def restart(self, parameter_id: int, job: int, first: int) -> list[Any]:
        self.position += 1
        return self.send(protocol.TrialRestarted(self.position, parameter_id, f"t{parameter_id}", job, first))


def begin(**class_args: Any) -> Conversation:
    conversation = Conversation(**class_args)
    assert conversation.send(protocol.Replayed()) == []
    return conversation


def test_a_new_trial_comes_with_its_milestone() -> None:
    (trial,) = begin(**PROMOTION).ask(1)
    assert (type(trial), trial.milestone) == (protocol.NewTrial, 3)


def test_no_milestone_comes_where_there_is_none() -> None:
    (trial,) = begin(scheduler="MedianStopping").ask(1)
    assert trial.milestone is None
    (trial,) = begin(**PROMOTION, time_attr="time_total_s").ask(1)
    assert trial.milestone is None


@pytest.mark.parametrize(("step", "milestone"), [(2**63, None), (float("inf"), None), (2**63 - 1, 2**63 - 1), (-5, 0)])
def test_a_step_that_no_report_can_have_is_no_milestone(
    monkeypatch: pytest.MonkeyPatch, step: float, milestone: int | None
) -> None:
    monkeypatch.setattr(AshaScheduler, "next_milestone", lambda scheduler, trial: step)
    (trial,) = begin(**PROMOTION).ask(1)
    assert trial.milestone == milestone


def test_a_verdict_that_lets_the_trial_continue_is_followed_by_its_next_milestone() -> None:
    conversation = begin(**PROMOTION | {"type": "stopping"})
    conversation.ask(1)
    assert conversation.report(1, 1) == []
    assert conversation.report(1, 3) == [protocol.Milestone(1, "t1", 9)]
    assert conversation.report(1, 4) == []


def test_a_trial_that_is_paused_gets_its_next_milestone_when_it_is_resumed() -> None:
    conversation = begin(**PROMOTION)
    conversation.ask(1, 2, 3)
    for trial in (1, 2, 3):
        (pause,) = conversation.report(trial, 3, value=trial)
        assert isinstance(pause, protocol.PauseTrial)
    (resumed,) = conversation.ask(4)
    assert (type(resumed), resumed.trial_id, resumed.milestone) == (protocol.ResumeTrial, "t3", 9)


def test_a_trial_that_was_to_pause_and_runs_again_waits_at_its_next_new_point() -> None:
    conversation = begin(**PROMOTION)
    conversation.ask(1)
    conversation.report(1, 3)
    assert conversation.restart(1, 2, 0) == [protocol.Milestone(1, "t1", 4)]
    assert [conversation.report(1, step, job=2) for step in (1, 2, 3)] == [[], [], []]
    (pause,) = conversation.report(1, 4, job=2)
    assert isinstance(pause, protocol.PauseTrial)


def test_a_clone_comes_with_the_milestone_after_its_donors_training() -> None:
    args = {
        "population_size": 4,
        "perturbation_interval": 2,
        "time_attr": "training_iteration",
        "quantile_fraction": 0.5,
    }
    conversation = begin(scheduler="PBT", **args)
    conversation.ask(1, 2, 3, 4)
    for trial in (4, 3, 2, 1):
        conversation.report(trial, 2, value=trial)
    clones = [each for each in conversation.ask(5, 6) if isinstance(each, protocol.CloneTrial)]
    assert clones
    assert {clone.milestone for clone in clones} == {4}


def test_a_trial_of_the_user_has_one_too() -> None:
    conversation = begin(**PROMOTION)
    conversation.position += 1
    added = protocol.AddCustomizedTrial(conversation.position, 5, {"x": 0.5})
    assert conversation.send(added) == [protocol.Milestone(5, None, 3)]


def test_a_replay_says_nothing_of_milestones_before_it_is_over_and_then_the_newest() -> None:
    first = begin(**PROMOTION | {"type": "stopping"})
    made = first.ask(1, 2)
    first.report(1, 3)
    first.report(1, 9)
    second = Conversation(**PROMOTION | {"type": "stopping"})
    answers = tuple(protocol.Answer(trial.parameter_id, trial.parameters, trial.state) for trial in made)
    assert second.ask(1, 2, answers=answers) == []
    assert second.report(1, 3) == []
    assert second.report(1, 9) == []
    assert second.send(protocol.Replayed()) == [protocol.Milestone(1, "t1", 27), protocol.Milestone(2, None, 3)]


def test_a_trial_that_is_paused_needs_none_after_a_replay() -> None:
    conversation = Conversation(**PROMOTION)
    conversation.ask(1, answers=(protocol.Answer(1, {"x": 0.5}),))
    conversation.report(1, 3)
    assert conversation.send(protocol.Replayed()) == []


@pytest.mark.parametrize("step", [3, 5])
def test_a_scheduler_whose_milestone_does_not_move_holds_up_nothing(step: int) -> None:
    conversation = begin(**PROMOTION)
    scheduler = conversation.session._scheduler._scheduler  # type: ignore[union-attr]
    scheduler.next_milestone = lambda trial: 3  # type: ignore[method-assign]
    scheduler.on_trial_result = lambda trial, result: CONTINUE  # type: ignore[method-assign]
    conversation.ask(1)
    assert conversation.report(1, step) == [protocol.Milestone(1, "t1", None)]
    assert conversation.report(1, step + 1) == []


def test_a_tuner_that_proposes_later_has_the_milestone_added(tmp_path: Path) -> None:
    (tmp_path / "own_tuner.py").write_text(
        "from proctor.sdk.tuner import Tuner\n"
        "class OwnTuner(Tuner):\n"
        "    def generate_parameters(self, parameter_id, **kwargs):\n"
        "        return {'x': 0.5}\n"
        "    def update_search_space(self, search_space):\n"
        "        pass\n"
    )
    spec = protocol.AlgorithmSpec(class_name="own_tuner.OwnTuner", code_directory=str(tmp_path))
    conversation = Conversation(tuner=spec, **PROMOTION)
    conversation.send(protocol.Replayed())
    conversation.has_spoken.clear()
    conversation.ask(1)
    assert conversation.has_spoken.wait(30)
    assert (type(conversation.said[-1]), conversation.said[-1].milestone) == (protocol.NewTrial, 3)

"""Which nodes are held for their failures."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proctor.training_services.nodes.pool import NodePool
from proctor.training_services.nodes.quarantine import FAILURES, Quarantine
from proctor.trial_keeper.protocol import EndReason

OK, BAD = EndReason.EXITED_OK, EndReason.EXITED_ERROR
ROW = [("a", number, BAD) for number in "123"]


class Stage:
    def __init__(self, after: int = 3) -> None:
        self.held: dict[str, str] = {}
        self.after = after
        self.quarantine = Quarantine(self.held.__setitem__)

    def play(self, *ends: tuple[str, str, EndReason]) -> list[str]:
        for node_id, trial_id, reason in ends:
            self.quarantine.record(node_id, trial_id, reason, after=self.after)
        return list(self.held)


def test_three_different_trials_that_fail_on_one_node_and_succeed_elsewhere_hold_it() -> None:
    stage = Stage()
    assert stage.play(("a", "1", BAD), ("b", "2", OK), ("a", "3", BAD)) == []
    assert stage.play(("a", "4", BAD)) == ["a"]
    assert "3 trials in a row" in stage.held["a"]
    assert "proctor nodes resume a" in stage.held["a"]


@pytest.mark.parametrize(
    ("ends", "held"),
    [
        ([*ROW, ("b", "4", OK)], ["a"]),
        ([("b", "0", OK), *ROW], []),
        ([(node, f"{node}{number}", BAD) for number in range(9) for node in ("a", "b")], []),
        ([("b", "0", OK), *[("a", "1", BAD)] * 9, ("b", "2", OK)], []),
        ([ROW[0], ("b", "1", BAD), *ROW[1:], ("b", "4", OK)], []),
        ([ROW[0], ("b", "2", OK), ROW[2], ("a", "4", OK), ("a", "5", BAD), ("b", "6", OK)], []),
    ],
    ids=[
        "a success elsewhere may come last",
        "a success elsewhere before the row proves nothing",
        "failures everywhere",
        "one trial that fails again and again",
        "a trial that also fails elsewhere",
        "a success there ends the row",
    ],
)
def test_only_failures_of_the_node_hold_it(ends: list[tuple[str, str, EndReason]], held: list[str]) -> None:
    assert Stage().play(*ends) == held
    assert Stage(after=0).play(*ends) == []


def test_after_a_hold_the_count_starts_over() -> None:
    stage = Stage()
    stage.play(("a", "1", BAD), ("a", "2", BAD), ("a", "3", BAD), ("b", "4", OK))
    stage.held.clear()
    assert stage.play(("a", "5", BAD), ("a", "6", BAD), ("b", "7", OK)) == []
    assert stage.play(("a", "8", BAD)) == ["a"]


@pytest.mark.parametrize("reason", sorted(set(EndReason) - FAILURES - {OK}))
def test_ends_that_somebody_wished_for_say_nothing(reason: EndReason) -> None:
    assert Stage().play(*[("a", str(n), reason) for n in range(9)], ("b", "x", OK)) == []


@given(st.lists(st.tuples(st.just("a"), st.sampled_from("123456"), st.sampled_from([OK, BAD])), max_size=40))
def test_a_lone_node_is_never_held(ends: list[tuple[str, str, EndReason]]) -> None:
    assert Stage().play(*ends) == []


def test_a_pool_holds_what_is_quarantined_unless_somebody_has_held_it_before() -> None:
    pool = NodePool()
    pool.hold("b", "drained: its disk is replaced")
    for node_id in ("a", "b"):
        for trial_id in "123":
            pool.quarantine.record(node_id, node_id + trial_id, BAD, after=3)
    pool.quarantine.record("c", "4", OK, after=3)
    assert "quarantined: 3 trials" in pool.add("a", "remote").hold
    assert pool.add("b", "remote").hold == "drained: its disk is replaced"

"""What the ends of trials say about their experiment."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proctor.manager.lifecycle.experiment_failures import (
    FAILURES,
    FIRST_ENDS,
    NO_ENDS,
    TrialEnds,
    cause_of_failure,
    count_end,
    fatal_failures,
    is_worth_a_notice,
    most_frequent,
    normalized,
)
from proctor.manager.lifecycle.retries import MEANINGS
from proctor.manager.lifecycle.states import TrialStatus
from proctor.training_services.base import EndReason

FAILED, SUCCEEDED = TrialStatus.FAILED, TrialStatus.SUCCEEDED

End = tuple[TrialStatus, str]

ends = st.lists(
    st.sampled_from(
        [(SUCCEEDED, ""), (TrialStatus.USER_CANCELED, ""), (FAILED, "a 1"), (FAILED, "a 2"), (FAILED, "b")]
    ),
    max_size=25,
)


def counted(found: Sequence[End]) -> TrialEnds:
    counts = NO_ENDS
    for status, cause in found:
        counts = count_end(counts, status, cause, has_final=True)
    return counts


@given(ends)
def test_the_first_ten_that_count_decide_whatever_comes_after_them(found: list[End]) -> None:
    counting = [(status, cause) for status, cause in found if status is not TrialStatus.USER_CANCELED]
    first = counting[:FIRST_ENDS]
    is_alike = len(first) == FIRST_ENDS and len({normalized(cause) for _, cause in first}) == 1 and first[0][1] != ""
    assert bool(fatal_failures(counted(found), None, is_over=False)) is is_alike


@given(ends)
def test_fewer_than_ten_decide_when_no_more_come(found: list[End]) -> None:
    first = [cause for status, cause in found if status is not TrialStatus.USER_CANCELED][:FIRST_ENDS]
    is_alike = len({normalized(cause) for cause in first}) == 1 and first[0] != ""
    assert bool(fatal_failures(counted(found), None, is_over=True)) is is_alike


@given(ends, st.integers(1, 12))
def test_max_failed_trials_is_the_number_of_failures(found: list[End], most: int) -> None:
    counts = counted([*found, (SUCCEEDED, ""), *found])
    failed = 2 * sum(status is FAILED for status, _ in found)
    assert counts.failed == failed
    if not fatal_failures(counts, None, is_over=False):
        assert bool(fatal_failures(counts, most, is_over=False)) is (failed >= most)


@pytest.mark.parametrize("end", list(EndReason))
def test_ends_that_count_as_failures_are_those_after_which_a_trial_has_not_worked(end: EndReason) -> None:
    status = MEANINGS[end].status
    cause = cause_of_failure(status, end, "it said so")
    assert (cause != "") is (end in FAILURES)
    assert cause in {"", f"{end.value} (it said so)"}
    assert cause_of_failure(SUCCEEDED, end, "it said so") == ""  # its final metric was stored before
    assert end not in FAILURES or status in {FAILED, TrialStatus.SYS_CANCELED}


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("exit code 1: no module at line 17", "exit code 1: no module at line 4"),
        ("no room for 2.5e-3 of 7 MiB", "no room for 1e10 of 12.5 MiB"),
        ("<Model object at 0x7f31aa>: bad", "<Model object at 0x55C0>: bad"),
        ("run 3fa4b0c19d2e: lost", "run 00aa11bb22cc: lost"),
        ("cannot read '/data/a b/x.npz'", "cannot read '/scratch b/x.npz'"),
        ("File ./runs/a: missing", "File ./runs/b-7: missing"),
        ("open(~/x/y.json) failed", "open(/home/z/w.json) failed"),
    ],
)
def test_numbers_paths_and_hexadecimal_make_no_other_cause(one: str, other: str) -> None:
    assert normalized(one) == normalized(other)
    assert most_frequent([one, "else", other]) == (one, 2)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("ValueError: lr", "KeyError: lr"),
        ("and/or", "and/not"),
        ("the decade", "the facade"),
        ("unknown optimizer 'adam'", "unknown optimizer 'sgd'"),
    ],
)
def test_words_make_another_cause(one: str, other: str) -> None:
    assert normalized(one) != normalized(other)


def test_the_other_end_reason_is_another_cause_even_with_the_same_message() -> None:
    causes = [cause_of_failure(FAILED, end, "killed") for end in (EndReason.SIGNALED, EndReason.OUT_OF_MEMORY)]
    assert not fatal_failures(counted([(FAILED, cause) for cause in causes]), None, is_over=True)


def test_the_first_the_tenth_and_the_hundredth_are_worth_a_notice() -> None:
    assert [number for number in range(2000) if is_worth_a_notice(number)] == [1, 10, 100, 1000]

"""Which checkpoints are kept, by properties."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proctor.manager.lifecycle.checkpoints import (
    CheckpointFacts,
    Expendability,
    KeepReason,
    KeepRule,
    retain,
    take_until_within,
)

rules = st.builds(
    KeepRule,
    newest=st.one_of(st.none(), st.integers(1, 4)),
    best=st.integers(0, 3),
    maximize=st.booleans(),
)


@st.composite
def trials(draw: Any) -> list[CheckpointFacts]:
    """The checkpoints of one trial, in any order, now and then two records of one folder."""
    found = []
    for id in draw(st.lists(st.integers(1, 1_000), unique=True, max_size=12)):
        job = draw(st.integers(1, 3))
        found.append(
            CheckpointFacts(
                id,
                job,
                draw(st.integers(0, 1)),
                (f"t.{job}", f"output/checkpoints/{draw(st.integers(1, 20))}"),
                draw(st.one_of(st.none(), st.floats(-5, 5))),
                is_given=draw(st.booleans()),
                is_donor=draw(st.booleans()),
                is_foreign=draw(st.booleans()),
            )
        )
    return found


def order(item: CheckpointFacts) -> tuple[int, int]:
    return item.job, item.id


@pytest.mark.slow
@given(trials(), rules, st.booleans())
def test_what_is_needed_and_the_newest_of_every_rank_stays_with_its_whole_folder(
    found: list[CheckpointFacts], rule: KeepRule, has_ended: bool
) -> None:
    outcome = retain(found, rule, has_ended=has_ended)
    needed = [item for item in found if item.is_given or item.is_donor or item.is_foreign]
    newest = {item.member: item for item in sorted(found, key=order)}.values()
    for item in (*needed, *newest):
        assert outcome.reasons[item.id]
    for item in (*needed, *(() if has_ended else newest)):
        assert outcome.expendable[item.id] is Expendability.NEVER
    deleted = set(outcome.deleted)
    kept = [item for item in found if item.id not in deleted]
    assert not {item.place for item in found if item.id in deleted} & {item.place for item in kept}
    for place in {item.place for item in found if item.id in outcome.expendable}:
        ranks = {outcome.expendable[item.id] for item in found if item.place == place}
        assert Expendability.NEVER not in ranks or len(ranks) == 1
    assert retain(kept, rule, has_ended=has_ended).deleted == [], "it keeps what it has kept"


@pytest.mark.slow
@given(trials(), rules)
def test_no_better_one_is_deleted_while_a_worse_one_is_kept_as_the_best(
    found: list[CheckpointFacts], rule: KeepRule
) -> None:
    found = list({item.place: item for item in found}.values())
    outcome = retain(found, rule, has_ended=True)
    sign = 1 if rule.maximize else -1
    for member in {item.member for item in found}:
        ours = [item for item in found if item.member == member and item.value is not None]
        best = [item for item in ours if KeepReason.BEST in outcome.reasons[item.id]]
        gone = [item for item in ours if not outcome.reasons[item.id]]
        if best and gone:
            assert min(sign * (item.value or 0.0) for item in best) >= max(sign * (item.value or 0.0) for item in gone)


@given(st.lists(st.integers(0, 50), max_size=10), st.integers(0, 200))
def test_no_more_goes_than_the_quota_wants(sizes: list[int], quota: int) -> None:
    total = sum(sizes)
    taken = take_until_within(total, quota, list(enumerate(sizes)))
    assert taken == list(range(len(taken)))
    assert total - sum(sizes[: len(taken)]) <= quota
    assert not taken or total - sum(sizes[: len(taken) - 1]) > quota


def test_the_rule_keeps_the_newest_two_and_the_best() -> None:
    values = {1: 0.5, 2: 0.9, 3: 0.7, 4: 0.6, 5: None}
    found = [CheckpointFacts(id, 1, 0, ("t.1", f"output/checkpoints/{id}"), value) for id, value in values.items()]
    outcome = retain(found, KeepRule(2, 1, maximize=True), has_ended=False)
    assert outcome.deleted == [1, 3]
    assert [outcome.reasons[id] for id in (2, 4, 5)] == [(KeepReason.BEST,), (KeepReason.NEWEST,), (KeepReason.NEWEST,)]
    assert outcome.expendable == {
        2: Expendability.OLDER_OF_LIVE,
        4: Expendability.OLDER_OF_LIVE,
        5: Expendability.NEVER,
    }
    ended = retain(found, KeepRule(2, 1, maximize=True), has_ended=True)
    assert ended.expendable == {2: Expendability.BEST_OF_ENDED, 4: Expendability.OF_ENDED, 5: Expendability.OF_ENDED}
    assert retain(found, KeepRule(2, 1), has_ended=False).deleted == [2, 3]
    assert retain(found, KeepRule(None), has_ended=False).deleted == []

"""Which checkpoints stay, for any run (row C10)."""

from hypothesis import given, settings
from hypothesis import strategies as some

from proctor.sdk.pytorch.checkpoints.pointer import Entry, Retention

SCORES = some.none() | some.integers(-3, 3).map(float) | some.just(float("nan"))


def entries(scores: "list[float | None]") -> "list[Entry]":
    """Newest first; the last score is the newest."""
    found = [Entry(str(at), "", 0, at, at, score) for at, score in enumerate(scores)]
    return found[::-1]


@settings(deadline=None)
@given(some.lists(SCORES, max_size=12), some.integers(1, 4), some.integers(0, 4), some.sampled_from(["max", "min"]))
def test_C10_saving_one_by_one_keeps_the_newest_and_the_best_of_all(
    scores: "list[float | None]", last: int, best: int, mode: str
) -> None:
    retention = Retention(last, best, mode)
    kept: list[Entry] = []
    for entry in reversed(entries(scores)):
        kept = retention.choose([entry, *kept])
    everything = entries(scores)
    names = {entry.name for entry in kept}
    assert [entry.name for entry in kept] == [entry.name for entry in everything if entry.name in names]
    assert [entry.name for entry in kept[:last]] == [entry.name for entry in everything[:last]]
    judged = sorted((s for s in scores if s is not None and s == s), reverse=mode == "max")
    assert [entry.score for entry in retention.rank(kept)[:best]] == judged[:best]
    assert len(kept) <= last + best


@settings(deadline=None)
@given(some.lists(SCORES, max_size=8), some.integers(-4, 4).map(float), some.integers(0, 3))
def test_C10_what_is_called_among_the_best_is_kept_as_one(
    scores: "list[float | None]", score: float, best: int
) -> None:
    retention = Retention(1, best)
    stored = entries(scores)
    new = Entry("new", "", 0, 99, 99, score)
    later = [Entry("later", "", 0, 100, 100)]
    if retention.is_among_best(score, stored):
        assert new in retention.choose([*later, new, *stored])
    assert not retention.is_among_best(float("nan"), stored)


def test_C10_pinned_ones_stay_and_without_a_limit_all_do() -> None:
    stored = entries([None] * 5)
    assert [entry.name for entry in Retention(1).choose(stored, {"1"})] == ["4", "1"]
    assert Retention(None).choose(stored) == stored

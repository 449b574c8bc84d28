"""The resource that a trial has used, as its scheduler measures it."""

import math

import pytest

from proctor.sdk.scheduler import TrialReport


@pytest.mark.parametrize(
    ("attribute", "expected"),
    [("training_iteration", 3.0), ("time_total_s", 2.5), ("tokens", 7.0)],
)
def test_it_is_a_step_the_seconds_or_a_metric(attribute: str, expected: float) -> None:
    assert TrialReport(0.5, 3, 2.5, {"tokens": 7}).time(attribute) == expected


@pytest.mark.parametrize("found", [None, True, "7", math.inf, -math.inf, math.nan, 10**400])
def test_what_is_no_finite_number_is_not_a_number(found: object) -> None:
    assert math.isnan(TrialReport(0.5, 3, None, {"tokens": found}).time("tokens"))

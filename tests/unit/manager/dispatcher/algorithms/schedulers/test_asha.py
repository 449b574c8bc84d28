import pytest

from proctor.manager.dispatcher.algorithms.schedulers.asha import AshaScheduler
from proctor.sdk.scheduler import ContinueVerdict, StopVerdict, TrialReport


def test_trials_go_to_brackets_by_the_softmax_of_their_rungs():
    scheduler = AshaScheduler(max_t=64, brackets=3, seed=5)
    for trial in range(3000):
        scheduler.on_trial_add(trial, {})
    first = [scheduler.next_milestone(trial) for trial in range(3000)]
    shares = [first.count(milestone) / 3000 for milestone in (1, 4, 16)]
    assert shares == pytest.approx([0.665, 0.245, 0.090], abs=0.03)


def test_the_bracket_of_a_trial_depends_on_the_seed_and_the_trial_alone():
    one, other = AshaScheduler(max_t=64, brackets=3, seed=5), AshaScheduler(max_t=64, brackets=3, seed=5)
    for trial in range(40):
        one.on_trial_add(trial, {})
    for trial in reversed(range(40)):
        other.on_trial_add(trial, {"any": 1})
    assert [one.next_milestone(trial) for trial in range(40)] == [other.next_milestone(trial) for trial in range(40)]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"type": "pausing"}, "type: expected stopping or promotion, found 'pausing'"),
        ({"grace_period": 200}, r"grace_period: expected more than 0 and at most max_t \(100\), found 200"),
        ({"grace_period": 0}, "grace_period"),
        ({"reduction_factor": 1}, "reduction_factor: expected more than 1, found 1"),
        ({"max_t": 3, "brackets": 2}, "brackets: expected 1 to 1, the number of rungs, found 2"),
    ],
)
def test_arguments_that_make_no_sense_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        AshaScheduler(**arguments)


def test_a_time_that_is_missing_decides_nothing():
    scheduler = AshaScheduler(time_attr="epoch", max_t=2)
    scheduler.on_trial_add(0, {})
    assert isinstance(scheduler.on_trial_result(0, TrialReport(0.1, 50)), ContinueVerdict)
    assert scheduler.next_milestone(0) is None
    assert isinstance(scheduler.on_trial_result(0, TrialReport(0.1, 50, metrics={"epoch": 2})), StopVerdict)


def test_its_table_shows_each_rung():
    scheduler = AshaScheduler(type="promotion", max_t=9, reduction_factor=3)
    for trial, value in enumerate([0.1, 0.3, 0.2]):
        scheduler.on_trial_add(trial, {})
        scheduler.on_trial_result(trial, TrialReport(value, 1))
    scheduler.on_trial_resume(1)
    (table,) = scheduler.describe()
    assert table["columns"] == ["milestone", "trials", "best value", "promoted", "waiting"]
    assert table["rows"] == [[1, 3, 0.3, 1, 2], [3, 0, None, 0, 0], [9, 0, None, 0, 0]]

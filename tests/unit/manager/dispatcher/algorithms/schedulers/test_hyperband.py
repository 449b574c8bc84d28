import pytest

from proctor.manager.dispatcher.algorithms.schedulers.hyperband import HyperBandScheduler, band, rays_band
from proctor.sdk.scheduler import ResumeChoice, TrialReport

POWERS = [
    (81, 3, [(5, 81), (8, 27), (15, 9), (34, 3), (81, 1)]),
    (16, 2, [(5, 16), (5, 8), (7, 4), (10, 2), (16, 1)]),
    (27, 3, [(4, 27), (6, 9), (12, 3), (27, 1)]),
]


@pytest.mark.parametrize(("max_t", "factor", "brackets"), POWERS)
def test_the_brackets_of_a_band_are_those_of_the_paper_and_of_ray_tune(max_t, factor, brackets):
    for found in (band(max_t, factor, in_steps=True), band(max_t, factor, in_steps=False), rays_band(max_t, factor)):
        assert [(size, milestones[0]) for size, milestones in found] == brackets
        assert {milestones[-1] for _, milestones in found} == {max_t}


@pytest.mark.parametrize(("max_t", "factor"), [(50, 3), (100, 4), (1000, 10), (20, 2.5), (7, 2), (1, 3), (2.5, 3)])
def test_every_bracket_ends_at_max_t(max_t, factor):
    for in_steps in (True, False):
        found = band(max_t, factor, in_steps=in_steps)
        assert {milestones[-1] for _, milestones in found} == {max_t}
        assert [len(milestones) for _, milestones in found] == list(range(1, len(found) + 1))
        assert all(milestones[0] >= 1 for _, milestones in found)
        assert all(list(milestones) == sorted(set(milestones)) for _, milestones in found)


def test_steps_are_whole_and_rounded_up():
    assert band(50, 3, in_steps=True) == [(4, (50,)), (6, (17, 50)), (12, (6, 17, 50)), (27, (2, 6, 17, 50))]


def test_ray_tunes_brackets_miss_a_max_t_that_is_no_power():
    assert [milestones[-1] for _, milestones in rays_band(50, 3)] == [50, 48, 45, 27]
    assert HyperBandScheduler(max_t=50, ray_brackets=True).plan == rays_band(50, 3)
    assert HyperBandScheduler(max_t=50, rules=1).plan == rays_band(50, 3)
    assert HyperBandScheduler(max_t=50).plan == band(50, 3, in_steps=True)


def test_a_bracket_of_less_than_one_step_is_left_out():
    assert [size for size, _ in rays_band(6, 3)] == [3, 5]
    scheduler = HyperBandScheduler(max_t=6, ray_brackets=True)
    first = []
    for trial in range(3 + 5 + 1):
        scheduler.on_trial_add(trial, {})
        first.append(scheduler.next_milestone(trial))
    assert first == [6, 6, 6, 2, 2, 2, 2, 2, 6]


def test_the_bracket_of_which_the_least_is_done_continues_first():
    scheduler = HyperBandScheduler(max_t=9)
    for trial in range(3 + 5 + 9):
        scheduler.on_trial_add(trial, {})
    for trial in range(3, 8):
        scheduler.on_trial_result(trial, TrialReport(0.5, 3))
    for trial in range(8, 17):
        scheduler.on_trial_result(trial, TrialReport(0.5, 1))
    choice = scheduler.choose_trial_to_run(1, True)
    assert isinstance(choice, ResumeChoice)
    assert choice.trial == 8


def test_of_brackets_without_living_trials_only_a_row_is_remembered():
    scheduler = HyperBandScheduler(max_t=9)
    for trial in range(170):
        scheduler.on_trial_add(trial, {})
        scheduler.on_trial_result(trial, TrialReport(trial / 1000, 0.5))
        scheduler.on_trial_remove(trial)
    assert len(scheduler.state_dict()["brackets"]) == 0
    (table,) = scheduler.describe()
    assert table["title"] == "Brackets (30 of 30 are done)"
    assert table["rows"][0] == [29, 9, 9, 9, 0, 0, 0.169]
    assert len(table["rows"]) == 30
    successor = HyperBandScheduler(max_t=9)
    successor.load_state_dict(scheduler.state_dict())
    assert successor.describe() == [table]


@pytest.mark.parametrize("arguments", [{"max_t": 0}, {"reduction_factor": 1}])
def test_arguments_that_make_no_sense_are_refused(arguments):
    with pytest.raises(ValueError, match=f"{next(iter(arguments))}: expected"):
        HyperBandScheduler(**arguments)

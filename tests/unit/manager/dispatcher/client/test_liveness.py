"""When a silent dispatcher is given up, and when it is not."""

import pytest

from proctor.manager.dispatcher.client.liveness import Liveness, LivenessMonitor, Patience, ProcessStats

PATIENCE = Patience(60.0)
POLL = PATIENCE.poll_seconds


class Course:
    """A liveness monitor and the time that passes for it."""

    def __init__(self) -> None:
        self.now = 100.0
        self.used = 5.0
        self.suspended = False
        self.monitor = LivenessMonitor(PATIENCE, self.now, self.process_stats())

    def process_stats(self) -> ProcessStats:
        return ProcessStats(self.used, suspended=self.suspended)

    def check(self, *, after: float = POLL, share: float = 0.0) -> Liveness:
        self.now += after
        self.used += share * after
        return self.monitor.check(self.now, self.process_stats())

    def begin(self) -> None:
        """It has spoken."""
        self.monitor.beat()
        assert self.check() is Liveness.WELL

    def seconds_until(self, liveness: Liveness, *, share: float = 0.0) -> float:
        began = self.now
        while self.check(share=share) is not liveness:
            assert self.now - began < 1e5, f"never {liveness}"
        return self.now - began


@pytest.fixture
def course() -> Course:
    course = Course()
    course.begin()
    return course


def test_one_that_answers_is_well_for_ever(course: Course) -> None:
    for _ in range(1000):
        course.monitor.beat()
        assert course.check() is Liveness.WELL
        assert course.monitor.problem == ""


def test_one_that_neither_answers_nor_computes_is_lost_after_the_patience(course: Course) -> None:
    assert course.seconds_until(Liveness.LOST) == 60.0
    assert course.monitor.problem == "the dispatcher has not answered for 60 s: it is neither computing nor exiting"


def test_a_suspended_one_is_named_so(course: Course) -> None:
    course.suspended = True
    course.check()
    assert course.monitor.problem == ""
    course.seconds_until(Liveness.LOST)
    assert "60 s: it is suspended (by SIGSTOP or a debugger)" in course.monitor.problem


def test_one_that_answers_at_the_last_moment_is_well(course: Course) -> None:
    for _ in range(11):
        assert course.check() is Liveness.WELL
    course.monitor.beat()
    assert course.check() is Liveness.WELL
    assert course.monitor.problem == ""
    assert course.seconds_until(Liveness.LOST) == 60.0


def test_threads_that_wait_for_a_deadlocked_interpreter_are_no_work(course: Course) -> None:
    assert course.seconds_until(Liveness.LOST, share=0.08) == 60.0


def test_one_that_computes_is_named_once_and_given_thirty_times_as_long(course: Course) -> None:
    assert course.seconds_until(Liveness.BUSY, share=0.9) == 60.0
    assert "it is running code that blocks everything else" in course.monitor.problem
    assert course.seconds_until(Liveness.LOST, share=0.9) == 1740.0


def test_one_that_computes_between_pauses_is_not_lost(course: Course) -> None:
    for _ in range(10):
        for share in (*[0.0] * 11, 0.5):
            assert course.check(share=share) is not Liveness.LOST


def test_one_that_stops_computing_is_lost_after_the_patience(course: Course) -> None:
    course.seconds_until(Liveness.BUSY, share=0.9)
    assert course.seconds_until(Liveness.LOST) == 60.0


def test_where_nobody_knows_whether_it_computes_it_is_given_the_longer_time() -> None:
    monitor = LivenessMonitor(PATIENCE, 0.0, ProcessStats(None))
    monitor.beat()
    found = [monitor.check(n * POLL, ProcessStats(None)) for n in range(1, 400)]
    assert found.index(Liveness.LOST) * POLL == 1800.0


def test_one_that_has_never_spoken_may_take_five_times_as_long_to_be_loaded() -> None:
    course = Course()
    assert course.seconds_until(Liveness.BUSY) == 60.0
    assert course.monitor.problem == "the dispatcher has not answered for 60 s: it is still being loaded"
    assert course.seconds_until(Liveness.LOST) == 240.0


@pytest.mark.parametrize("away", [3 * POLL, 3600.0, 1e6])
def test_time_in_which_the_manager_was_away_does_not_count(course: Course, away: float) -> None:
    for _ in range(50):
        assert course.check(after=away) is Liveness.WELL
    assert course.monitor.problem == ""
    assert course.seconds_until(Liveness.LOST) == 60.0


def test_looks_are_never_closer_than_a_quarter_of_a_second() -> None:
    assert Patience(0.1).poll_seconds == 0.25

"""A loader's workers do not outlive their process."""

from fakes.incarnations import Incarnations


def test_a_worker_that_is_stuck_in_a_sample_ends_when_its_process_is_killed(incarnations: Incarnations) -> None:
    assert incarnations.call("fakes.stuck_workers", "kill_its_process") == {"was there": True, "has ended": True}

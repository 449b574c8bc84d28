"""Two hundred launchers of trainings, killed from their first moment on: every process is gone within two seconds."""

import pytest
from fakes.killed_launchers import describe, kill_at_random

KILLS = 200
SECONDS = 2.0


@pytest.mark.chaos
def test_nothing_outlives_a_killed_launcher_by_two_seconds() -> None:
    found = kill_at_random(KILLS, seed="make chaos")
    print(describe(found))
    assert [kill for kill in found if kill.left_seconds > SECONDS] == [], describe(found)

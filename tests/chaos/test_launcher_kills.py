"""Two hundred launchers of trainings, killed from their first moment on: no process outlives its imports."""

import pytest
from fakes.killed_launchers import PATIENCE_SECONDS, describe, kill_at_random

KILLS = 200


@pytest.mark.chaos
def test_nothing_outlives_a_killed_launcher_by_more_than_its_imports() -> None:
    found = kill_at_random(KILLS, seed="make chaos")
    print(describe(found))
    assert [kill for kill in found if kill.left_seconds > PATIENCE_SECONDS] == [], describe(found)

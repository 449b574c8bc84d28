"""The whole matrix of the PyTorch trainer: every cell killed twenty times, and continued to the same bits.

Then kills at any time, a hundred for each way of counting.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest
from fakes.incarnations import Incarnations
from fakes.kill_matrix import AXES, MAIN_AXES, Cell, check_cell, choose_all, name_cell
from fakes.timed_kills import TIMED_RECIPES, check_timed_kills

CELLS = choose_all(MAIN_AXES, AXES, seed=1)


@pytest.fixture(scope="module")
def incarnations() -> Iterator[Incarnations]:
    """One server, which has imported torch."""
    server = Incarnations()
    yield server
    server.close()


@pytest.mark.chaos
@pytest.mark.parametrize("cell", CELLS, ids=name_cell)
def test_a_run_killed_twenty_times_ends_as_if_it_had_not_been(
    incarnations: Incarnations, cell: Cell, tmp_path: Path
) -> None:
    check_cell(incarnations, cell, kills=20, seed="make chaos", root=tmp_path)


@pytest.mark.chaos
@pytest.mark.parametrize("name", TIMED_RECIPES)
def test_a_run_killed_a_hundred_times_at_any_time_ends_as_if_it_had_not_been(
    incarnations: Incarnations, name: str, tmp_path: Path
) -> None:
    check_timed_kills(incarnations, TIMED_RECIPES[name], kills=100, seed=f"make chaos {name}", root=tmp_path)

"""The whole matrix of the PyTorch trainer: every cell killed twenty times, and continued to the same bits."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from fakes.incarnations import Incarnations
from fakes.kill_matrix import AXES, MAIN_AXES, Cell, check_cell, choose_all, name_cell

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

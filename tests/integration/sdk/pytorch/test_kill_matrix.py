"""Runs that are killed and continued end with the same bits as runs that are left alone.

A pairwise selection of the matrix's cells, three kills each; `make chaos` runs the whole matrix.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest
from fakes.incarnations import Incarnations
from fakes.kill_matrix import AXES, Cell, check_cell, choose_pairwise, name_cell

CELLS = choose_pairwise(AXES, 7, 12)


@pytest.fixture(scope="module")
def incarnations() -> Iterator[Incarnations]:
    """The processes that die."""
    server = Incarnations()
    yield server
    server.close()


@pytest.mark.parametrize("cell", CELLS, ids=name_cell)
def test_R1_a_run_killed_three_times_ends_as_if_it_had_not_been(
    incarnations: Incarnations, cell: Cell, tmp_path: Path
) -> None:
    check_cell(incarnations, cell, kills=3, seed="make test", root=tmp_path)

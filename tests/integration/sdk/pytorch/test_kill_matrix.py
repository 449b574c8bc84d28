"""Runs that are killed and continued end with the same bits as runs that are left alone.

A pairwise selection of the matrix's cells, three kills each; `make chaos` runs the whole matrix.
"""

from itertools import combinations
from pathlib import Path

import pytest
from fakes.incarnations import Incarnations
from fakes.kill_matrix import AXES, Cell, check_cell, choose_pairwise, name_cell

CELLS = choose_pairwise(AXES, 7, 12)


@pytest.mark.parametrize("cell", CELLS, ids=name_cell)
def test_R1_a_run_killed_three_times_ends_as_if_it_had_not_been(
    incarnations: Incarnations, cell: Cell, tmp_path: Path
) -> None:
    check_cell(incarnations, cell, kills=3, seed="make test", root=tmp_path)


def test_D12_every_two_options_meet_in_a_cell_of_the_matrix() -> None:
    for one, other in combinations(AXES, 2):
        met = {(cell[one], cell[other]) for cell in CELLS}
        assert len(met) == len(AXES[one]) * len(AXES[other]), (one, other)

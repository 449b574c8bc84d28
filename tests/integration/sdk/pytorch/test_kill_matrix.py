"""Runs that are killed and continued end with the same bits as runs that are left alone.

A pairwise selection of the matrix's cells, two kills each; `make chaos` runs the whole matrix.
"""

from itertools import combinations
from pathlib import Path

import pytest
import torch
from fakes.incarnations import Incarnations
from fakes.kill_matrix import AXES, Cell, check_cell, choose_pairwise, name_cell

CELLS = choose_pairwise(AXES, 7, 12)


@pytest.mark.parametrize(
    "cell", [CELLS[0], *(pytest.param(cell, marks=pytest.mark.thorough) for cell in CELLS[1:])], ids=name_cell
)
def test_R1_a_run_killed_twice_ends_as_if_it_had_not_been(
    incarnations: Incarnations, cell: Cell, tmp_path: Path
) -> None:
    check_cell(incarnations, cell, kills=2, seed="make test", root=tmp_path)


GPU_CELL = {name: values[0] for name, values in AXES.items()} | {"unit": "iteration", "amp": True, "accumulation": 3}


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_R1_a_run_on_a_gpu_with_deterministic_kernels_that_is_killed_ends_with_the_same_bits(
    incarnations: Incarnations, tmp_path: Path
) -> None:
    options = {"use_cpu": False, "gpus": [0], "enable_deterministic": True}
    check_cell(incarnations, GPU_CELL, kills=3, seed="one GPU", root=tmp_path, **options)


def test_D12_every_two_options_meet_in_a_cell_of_the_matrix() -> None:
    for one, other in combinations(AXES, 2):
        met = {(cell[one], cell[other]) for cell in CELLS}
        assert len(met) == len(AXES[one]) * len(AXES[other]), (one, other)

"""Runs that are killed and continued end with the same bits as runs that are left alone.

They are killed in a pairwise selection of the matrix's cells, two kills each (`make chaos` runs the whole matrix), at
the places where a trainer that counts wrongly would show it, inside of a save, and from outside at any time.
"""

import json
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
import torch
from fakes.incarnations import Incarnations
from fakes.kill_matrix import AXES, FAIL_POINTS, Cell, check_cell, choose_pairwise, name_cell
from fakes.timed_kills import TIMED_RECIPES, check_timed_kills
from fakes.trained_models import SAMPLES, Recipe
from fakes.trained_runs import check_equal, check_samples, read_samples

from proctor.sdk.files import UNFINISHED_PREFIX
from proctor.sdk.pytorch.checkpoints.pointer import read_pointer

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


PREFETCHING = {"workers": 2, "persistent": True}
EDGES = {
    "inside a validation": (Recipe(unit="iteration"), ("validation", 1)),
    "inside the second validation of an epoch's end": (Recipe(workers=2), ("validation", 2)),
    "while workers have fetched ahead": (Recipe(unit="iteration", **PREFETCHING), ("batch", 8)),  # type: ignore[arg-type]
    "at the first batch of an epoch": (Recipe(unit="iteration"), ("batch", 7)),
    "at the last batch of an epoch": (Recipe(unit="iteration"), ("step", 6)),
    "at the epoch's end": (Recipe(unit="iteration", accumulation=3), ("epoch end", 0)),
    "inside a window": (Recipe(unit="iteration", accumulation=4), ("backward", 10)),
    "at a window's end": (Recipe(unit="iteration", accumulation=4), ("step", 12)),
    "inside a window that spans two epochs": (Recipe(unit="iteration", accumulation=4), ("batch", 7)),
    "at the short window of an epoch's end": (Recipe(unit="epoch", accumulation=4), ("step", 12)),
    "where the data's phase changes": (Recipe(unit="iteration", phases=2), ("batch", 8)),
}


PLAIN = ("inside a window", "inside the second validation of an epoch's end", "where the data's phase changes")


@pytest.mark.parametrize(
    "edge", [edge if edge in PLAIN else pytest.param(edge, marks=pytest.mark.thorough) for edge in EDGES]
)
def test_R4_a_run_killed_at_an_edge_ends_as_if_it_had_not_been(
    incarnations: Incarnations, edge: str, tmp_path: Path
) -> None:
    recipe, kill = EDGES[edge]
    reference = incarnations.run(recipe, tmp_path / "uninterrupted")
    assert incarnations.run(recipe, tmp_path / "killed", kill=kill, background_writes=False)["killed"]
    last = incarnations.run(recipe, tmp_path / "killed")
    check_equal(last, reference)
    check_samples(tmp_path / "uninterrupted", tmp_path / "killed")


@pytest.mark.parametrize(
    ("form", "processes", "workers"),
    [
        ("sampler", 1, 0),
        ("stream", 1, 0),
        ("stream with a state", 1, 0),
        ("stream", 1, 2),
        ("stream with a state", 2, 0),
        pytest.param("sampler", 2, 1, marks=pytest.mark.thorough),
        pytest.param("stream", 2, 2, marks=pytest.mark.thorough),
    ],
)
def test_R4_a_run_over_other_forms_of_data_that_is_killed_ends_as_if_it_had_not_been(
    incarnations: Incarnations, form: str, processes: int, workers: int, tmp_path: Path
) -> None:
    recipe = Recipe(unit="iteration", form=form, processes=processes, workers=workers)
    reference = incarnations.run(recipe, tmp_path / "uninterrupted")
    for kill in (("batch", 6), ("step", 8), ("batch", 13)):
        assert incarnations.run(recipe, tmp_path / "killed", kill=kill, background_writes=False)["killed"]
    check_equal(incarnations.run(recipe, tmp_path / "killed"), reference)
    check_samples(tmp_path / "uninterrupted", tmp_path / "killed")


@pytest.mark.parametrize("unit", ["epoch", "iteration"])
def test_R4_a_run_killed_after_its_completion_has_nothing_left_to_do(
    incarnations: Incarnations, unit: str, tmp_path: Path
) -> None:
    recipe = Recipe(unit=unit)
    reference = incarnations.run(recipe, tmp_path / "uninterrupted")
    killed = incarnations.run(recipe, tmp_path / "killed", kill=("training end", 1), background_writes=False)
    assert killed["killed"]
    for _ in range(2):
        last = incarnations.run(recipe, tmp_path / "killed")
        check_equal(last, reference)
        assert last["batches"] == 0


RECIPE = Recipe(unit="iteration", accumulation=3)
SAVES = 3  # at the steps 2, 4 and 6, which is the end


@pytest.fixture(scope="module")
def uninterrupted(incarnations: Incarnations, tmp_path_factory: pytest.TempPathFactory) -> "dict[str, Any]":
    """What the run comes to when it is left alone."""
    return incarnations.run(RECIPE, tmp_path_factory.mktemp("uninterrupted"))


def steps(root: Path) -> "list[int]":
    return [entry.iteration for entry in read_pointer(root / "run")]


@pytest.mark.parametrize("save", range(1, SAVES + 1))
@pytest.mark.parametrize("place", FAIL_POINTS)
def test_R3_a_run_killed_inside_a_save_continues_from_a_whole_checkpoint(
    incarnations: Incarnations, uninterrupted: "dict[str, Any]", tmp_path: Path, place: str, save: int
) -> None:
    assert incarnations.run(RECIPE, tmp_path, kill=(place, save))["killed"]
    stored = save if place == "trainer.pointer.after" else save - 1  # the pointer decides
    assert steps(tmp_path) == [2 * number for number in range(stored, 0, -1)]
    check_equal(incarnations.run(RECIPE, tmp_path), uninterrupted)
    assert steps(tmp_path) == [6, 4, 2]
    assert not list((tmp_path / "run").glob(f"{UNFINISHED_PREFIX}*"))


def test_R3_a_run_that_is_killed_at_every_save_in_turn_ends_alike(
    incarnations: Incarnations, uninterrupted: "dict[str, Any]", tmp_path: Path
) -> None:
    for place in (*FAIL_POINTS, *FAIL_POINTS):
        incarnations.run(RECIPE, tmp_path, kill=(place, 1))
    check_equal(incarnations.run(RECIPE, tmp_path), uninterrupted)


KILLS = 10


@pytest.mark.thorough
@pytest.mark.parametrize("name", TIMED_RECIPES)
def test_R2_a_run_killed_at_any_time_ends_as_if_it_had_not_been(
    incarnations: Incarnations, name: str, tmp_path: Path
) -> None:
    check_timed_kills(incarnations, TIMED_RECIPES[name], kills=KILLS, seed=name, root=tmp_path)


def test_R5_over_all_incarnations_each_sample_is_trained_on_once_an_epoch(
    incarnations: Incarnations, tmp_path: Path
) -> None:
    recipe = Recipe(unit="iteration", workers=2)
    for kill in (("backward", 4), ("batch", 9), ("step", 14), None):
        incarnations.run(recipe, tmp_path / "run", kill=kill, background_writes=False)
    (lines,) = read_samples(tmp_path / "run").values()
    batches = {number: json.loads(samples) for number, samples in lines}
    assert len(lines) > len(batches) == 18
    for first in (1, 7, 13):
        epoch = [sample for number in range(first, first + 6) for sample in batches[number]]
        assert sorted(epoch) == list(range(SAMPLES))

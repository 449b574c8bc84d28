"""Kills that come from outside, at times drawn uniformly over a run."""

import json
import random
from pathlib import Path

import pytest
from fakes.incarnations import SAMPLE_FILE, Incarnations
from fakes.kill_matrix import check_equal, check_samples
from fakes.trained_models import SAMPLES, Recipe

RECIPES = {
    "epochs": Recipe(accumulation=3, scheduler="plateau"),
    "iterations": Recipe(unit="iteration", accumulation=3, scheduler="plateau", workers=2),
}
KILLS = 5


@pytest.mark.parametrize("name", RECIPES)
def test_R2_a_run_killed_at_any_time_ends_as_if_it_had_not_been(
    incarnations: Incarnations, name: str, tmp_path: Path
) -> None:
    recipe, draw = RECIPES[name], random.Random(name)
    reference = incarnations.run(recipe, tmp_path / "uninterrupted")
    for _ in range(KILLS):
        incarnations.run(recipe, tmp_path / "killed", kill_after_seconds=draw.uniform(0.05, 0.6))
    last = incarnations.run(recipe, tmp_path / "killed")
    check_equal(last, reference)
    check_samples(tmp_path / "uninterrupted", tmp_path / "killed")


def test_R5_over_all_incarnations_each_sample_is_trained_on_once_an_epoch(
    incarnations: Incarnations, tmp_path: Path
) -> None:
    recipe = Recipe(unit="iteration", workers=2)
    for kill in (("backward", 4), ("batch", 9), ("step", 14), None):
        incarnations.run(recipe, tmp_path / "run", kill=kill, background_writes=False)
    lines = [line.partition(" ") for line in (tmp_path / "run" / SAMPLE_FILE).read_text().splitlines()]
    batches = {int(number): json.loads(samples) for number, _, samples in lines}
    assert len(lines) > len(batches) == 18
    for first in (1, 7, 13):
        epoch = [sample for number in range(first, first + 6) for sample in batches[number]]
        assert sorted(epoch) == list(range(SAMPLES))

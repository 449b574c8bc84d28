"""Kills that come from outside, at times drawn uniformly over a run."""

import json
from pathlib import Path

import pytest
from fakes.incarnations import Incarnations
from fakes.timed_kills import TIMED_RECIPES, check_timed_kills
from fakes.trained_models import SAMPLES, Recipe
from fakes.trained_runs import read_samples

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

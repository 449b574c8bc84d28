"""The streams: one seed for all of them, none that is not ours, states that can be put back."""

import random

import numpy
import pytest
import torch

from proctor.sdk.pytorch import (
    DefaultNumpyRNG,
    Trainer,
    get_default_numpy_rng,
    get_default_seed,
    get_rng_state_dict,
    load_rng_state_dict,
    seed_rngs,
    seeding,
)
from proctor.sdk.pytorch.seeding import derive_seed


def draw() -> "list[float]":
    """One number of each stream."""
    return [float(torch.rand(1)), random.random(), float(get_default_numpy_rng().random())]


def test_S1_the_default_seed_is_6691_and_zero_stays_zero() -> None:
    assert get_default_seed() == 6691
    assert Trainer("run").settings.random_seed == 6691
    assert Trainer("run", random_seed=None).settings.random_seed == 6691
    assert Trainer("run", random_seed=0).settings.random_seed == 0


def test_S2_seeding_twice_repeats_every_stream_and_leaves_numpys_own_alone() -> None:
    numpy.random.seed(1)
    expected = numpy.random.random(2).tolist()
    numpy.random.seed(1)
    found = [numpy.random.random()]
    seed_rngs(5)
    first = draw()
    seed_rngs(5)
    assert draw() == first
    found.append(numpy.random.random())
    assert found == expected
    seed_rngs()
    default = draw()
    seed_rngs(6691)
    assert draw() == default != first


def test_S2_torch_can_be_left_out() -> None:
    seed_rngs(5)
    expected = draw()
    torch.manual_seed(1)
    seed_rngs(5, skip_torch=True)
    found = draw()
    assert found[1:] == expected[1:]
    assert found[0] != expected[0]


@pytest.mark.parametrize("seed", [3, [1, 2, 3], (4, 5), None])
def test_S4_the_numpy_stream_goes_on_from_its_state(seed: object) -> None:
    rng = DefaultNumpyRNG(seed)  # type: ignore[arg-type]
    rng.random(17)
    state = rng.state_dict()
    expected = rng.generator.random(1000).tolist()
    other = DefaultNumpyRNG(0)
    other.load_state_dict(state)
    assert other.generator.random(1000).tolist() == expected


def test_S5_both_spellings_draw_from_the_same_stream() -> None:
    seed_rngs(1)
    whole = [float(get_default_numpy_rng().random()), float(get_default_numpy_rng().generator.random())]
    seed_rngs(1)
    assert get_default_numpy_rng().random(2).tolist() == whole


def test_S5_asking_before_anything_is_seeded_names_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seeding._Streams, "numpy", None)
    monkeypatch.setattr(seeding._Streams, "reseeding", None)
    with pytest.raises(RuntimeError, match=r"seed_rngs\(seed\)"):
        get_default_numpy_rng()


def test_S6_a_state_has_every_stream_and_puts_each_back() -> None:
    seed_rngs(9)
    draw()
    state = get_rng_state_dict()
    assert {"torch", "rand", "numpy"} <= set(state)
    expected = [draw() for _ in range(3)]
    seed_rngs(10)
    load_rng_state_dict(state)
    assert [draw() for _ in range(3)] == expected


def test_S6_a_state_without_cuda_is_accepted_and_survives_a_file(tmp_path: object) -> None:
    seed_rngs(9)
    state = get_rng_state_dict()
    state.pop("cuda", None)
    torch.save(state, f"{tmp_path}/state")
    expected = draw()
    load_rng_state_dict(torch.load(f"{tmp_path}/state", weights_only=True))
    assert draw() == expected


def test_seeds_of_neighbours_share_nothing() -> None:
    seeds = {derive_seed(seed, purpose, number) for seed in range(40) for purpose in "ab" for number in range(40)}
    assert len(seeds) == 40 * 2 * 40
    assert all(0 <= seed < 2**63 for seed in seeds)

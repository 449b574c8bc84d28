"""The streams: one seed for all of them, none that is not ours, states that can be put back."""

import random
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy
import pytest
import torch
from fakes.thread_ranks import call_on_ranks

from proctor.sdk.pytorch import (
    DefaultNumpyRNG,
    Trainer,
    get_default_numpy_rng,
    get_default_seed,
    get_rng_state_dict,
    load_rng_state_dict,
    seed_rngs,
)
from proctor.sdk.pytorch.distributed.ranks import Ranks
from proctor.sdk.pytorch.reproducibility import seeding
from proctor.sdk.pytorch.reproducibility.seeding import derive_seed, forked_streams
from proctor.sdk.pytorch.snapshots import restore_streams


def draw() -> "list[float]":
    """One number of each stream."""
    own = [float(numpy.random.rand()), float(numpy.random.randn())]  # of the latter it keeps every other number
    return [float(torch.rand(1)), random.random(), float(get_default_numpy_rng().random()), *own]


def test_S1_the_default_seed_is_6691_and_zero_stays_zero() -> None:
    assert get_default_seed() == 6691
    assert Trainer("run").settings.random_seed == 6691
    assert Trainer("run", random_seed=None).settings.random_seed == 6691
    assert Trainer("run", random_seed=0).settings.random_seed == 0


def test_S2_seeding_twice_repeats_every_stream() -> None:
    seed_rngs(5)
    first = draw()
    seed_rngs(5)
    assert draw() == first
    seed_rngs()
    default = draw()
    seed_rngs(6691)
    assert draw() == default != first


def test_a_state_of_an_earlier_version_leaves_numpys_own_generator_as_it_is() -> None:
    seed_rngs(5)
    state = get_rng_state_dict()
    del state["numpy_legacy"]
    numpy.random.seed(7)
    expected = numpy.random.rand()
    numpy.random.seed(7)
    load_rng_state_dict(state)
    assert numpy.random.rand() == expected


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


def test_S6_a_state_has_every_stream_survives_a_file_and_puts_each_back(tmp_path: Path) -> None:
    seed_rngs(9)
    draw()
    state = get_rng_state_dict()
    assert {"torch", "rand", "numpy", "numpy_legacy"} <= set(state)
    torch.save(state, tmp_path / "state")
    expected = [draw() for _ in range(3)]
    seed_rngs(10)
    load_rng_state_dict(torch.load(tmp_path / "state", weights_only=True))
    assert [draw() for _ in range(3)] == expected


class FakeCuda:
    """The streams of some GPUs, each a number; every thread has a current GPU of its own, as every rank has."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *streams: int) -> None:
        self.streams = list(streams)
        self.thread = threading.local()
        monkeypatch.setattr(torch.cuda, "is_available", lambda: bool(self.streams))
        monkeypatch.setattr(torch.cuda, "is_initialized", lambda: bool(self.streams))
        monkeypatch.setattr(torch.cuda, "get_rng_state", self._get)
        monkeypatch.setattr(torch.cuda, "set_rng_state", self._set)

    def _get(self) -> torch.Tensor:
        return torch.tensor([self.streams[self.thread.current]], dtype=torch.uint8)

    def _set(self, state: torch.Tensor) -> None:
        assert state.device.type == "cpu"
        self.streams[self.thread.current] = int(state.item())


def test_S6_the_stream_of_the_current_gpu_is_saved_and_comes_back_on_whichever_is_current_then(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seed_rngs(9)
    before = FakeCuda(monkeypatch, 10, 11, 12)
    before.thread.current = 2
    state = get_rng_state_dict()
    assert state["cuda"].tolist() == [12]
    for count, current in ((3, 0), (1, 0), (4, 3)):
        now = FakeCuda(monkeypatch, *range(count))
        now.thread.current = current
        load_rng_state_dict(state)
        assert now.streams == [12 if gpu == current else gpu for gpu in range(count)]


def test_S6_a_state_of_a_gpu_is_accepted_where_there_is_none_and_the_other_way_round(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seed_rngs(9)
    gpu = FakeCuda(monkeypatch, 10)
    gpu.thread.current = 0
    state = get_rng_state_dict()
    expected = draw()
    FakeCuda(monkeypatch)
    without = get_rng_state_dict()
    assert "cuda" not in without
    load_rng_state_dict(state)
    assert draw() == expected
    gpu = FakeCuda(monkeypatch, 13)
    load_rng_state_dict(without)
    assert gpu.streams == [13]


def test_S6_every_rank_gets_the_stream_of_its_own_gpu_back(monkeypatch: pytest.MonkeyPatch) -> None:
    seed_rngs(9)
    cuda = FakeCuda(monkeypatch, 10, 11)

    def save(ranks: Ranks) -> Any:
        cuda.thread.current = 1 - ranks.rank  # gpus=[1, 0]
        return ranks.gather(get_rng_state_dict())

    content = {"rng": call_on_ranks(save)[0]}
    later = FakeCuda(monkeypatch, 20, 21, 22)

    def restore(ranks: Ranks) -> None:
        later.thread.current = ranks.rank
        restore_streams(SimpleNamespace(ranks=ranks), content)  # type: ignore[arg-type]

    assert call_on_ranks(restore, 3) == [None] * 3
    assert later.streams == [11, 10, 22]  # one that was not there keeps what it was seeded with


def test_seeds_of_neighbors_share_nothing() -> None:
    seeds = {derive_seed(seed, purpose, number) for seed in range(40) for purpose in "ab" for number in range(40)}
    assert len(seeds) == 40 * 2 * 40
    assert all(0 <= seed < 2**63 for seed in seeds)


def test_forked_streams_leave_no_trace_in_those_of_the_process() -> None:
    seed_rngs(1)
    expected = [draw(), draw()]
    seed_rngs(1)
    rng = get_default_numpy_rng()
    found = [draw()]
    forks = []
    for seed in (2, 3, 2):
        with forked_streams(seed):
            forks.append([*draw(), float(rng.generator.random())])
    with pytest.raises(KeyError), forked_streams(2):
        raise KeyError
    assert [*found, draw()] == expected
    assert forks[0] == forks[2]
    assert not {*forks[0]} & {*forks[1]}
    assert get_default_numpy_rng() is rng


def test_forked_streams_leave_a_generator_that_the_user_has_put_into_numpy() -> None:
    before = numpy.random.get_bit_generator()
    try:
        numpy.random.set_bit_generator(numpy.random.PCG64(1))
        expected = numpy.random.get_state(legacy=False)
        with forked_streams(2):
            numpy.random.rand()
        assert numpy.random.get_state(legacy=False) == expected
    finally:
        numpy.random.set_bit_generator(before)

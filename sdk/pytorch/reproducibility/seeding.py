"""The random streams of a run: seeded from one number, saved, restored, and derived without collisions.

Five streams are global: torch's, CUDA's (of the current device), `random`'s, the package's own NumPy generator, and
NumPy's legacy one (`np.random.rand`). Everything else (shuffles, workers,
ranks) draws from private streams, each seeded by a hash of the run's seed and of what the stream is for, so that
neighboring seeds and epochs share nothing.

NumPy is imported when it is first needed; without it the other streams work.
"""

import random
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from hashlib import blake2b
from typing import Any

import torch

from proctor.sdk.pytorch.errors import ConfigurationError

_DEFAULT_SEED = 6691


class DefaultNumpyRNG:
    """A NumPy `Generator` (PCG64) whose state can be saved; it passes every call on to `.generator`."""

    def __init__(self, seed: "int | Sequence[int] | None" = None) -> None:
        import numpy

        self.generator: Any = numpy.random.default_rng(seed)

    def __getattr__(self, name: str) -> Any:
        if name == "generator":  # not made yet: a copy that is being unpickled
            raise AttributeError(name)
        return getattr(self.generator, name)

    def state_dict(self) -> "dict[str, Any]":
        """The state, of plain Python values."""
        return dict(self.generator.bit_generator.state)

    def load_state_dict(self, state: "dict[str, Any]") -> None:
        """Continue from a state that `state_dict` returned."""
        self.generator.bit_generator.state = state


class _Streams:
    """This process's streams that are not kept by a library."""

    numpy: "DefaultNumpyRNG | None" = None
    reseeding: "int | None" = None  # the seed from which the NumPy stream is made when it is first asked for


def get_default_seed() -> int:
    """The seed of a run that names none: 6691."""
    return _DEFAULT_SEED


def get_default_numpy_rng() -> DefaultNumpyRNG:
    """Return the package's NumPy stream; both `rng.random()` and `rng.generator.random()` draw from it.

    :raises ConfigurationError: nothing has been seeded yet.
    """
    if _Streams.reseeding is not None:
        _Streams.numpy, _Streams.reseeding = DefaultNumpyRNG(_Streams.reseeding), None
    if _Streams.numpy is None:
        raise ConfigurationError(
            "the NumPy stream does not exist yet: Trainer.fit and Trainer.test make it before setup; elsewhere call "
            "proctor.sdk.pytorch.seed_rngs(seed) first (and install numpy)."
        )
    return _Streams.numpy


def seed_rngs(seed: "int | None" = None, skip_torch: bool = False) -> None:
    """Seed torch (with CUDA on every device), `random`, a new NumPy stream and NumPy's legacy generator.

    :param seed: None is the default seed.
    """
    value = _DEFAULT_SEED if seed is None else seed
    if not skip_torch:
        torch.manual_seed(value)
    random.seed(value)
    _Streams.reseeding = None
    try:
        _Streams.numpy = DefaultNumpyRNG(value)
        sys.modules["numpy"].random.seed(value & 0xFFFFFFFF)
    except ImportError:
        _Streams.numpy = None


def seed_rank(seed: int, rank: int) -> None:
    """Let a rank draw on its own from here, for set-up was alike on all; the main rank continues as it is.

    The NumPy stream stays the same object: who has asked for it during set-up may have kept it.
    """
    if rank == 0:
        return
    kept = _Streams.numpy
    seed_rngs(derive_seed(seed, "rank", rank))
    if kept is not None and _Streams.numpy is not None:
        kept.load_state_dict(_Streams.numpy.state_dict())
        _Streams.numpy = kept


@contextmanager
def forked_streams(seed: int) -> "Iterator[None]":
    """Draw from streams of this seed, and leave those of the process as they were; their objects stay the same.

    Of CUDA it is the stream of the current device, if CUDA is used.
    """
    streams = list(_find_streams())
    before = [get_state() for get_state, _, _ in streams]
    try:
        for _, _, reseed in streams:
            reseed(seed)
        yield
    finally:
        for (_, set_state, _), state in zip(streams, before, strict=True):
            set_state(state)


def _find_streams() -> "Iterator[tuple[Callable[[], Any], Callable[[Any], object], Callable[[int], object]]]":
    """How the state of each stream is read and set, and how it is seeded; without what makes a state portable."""
    yield torch.get_rng_state, torch.set_rng_state, torch.default_generator.manual_seed
    yield random.getstate, random.setstate, random.seed
    if (own := _Streams.numpy) is not None:
        yield own.state_dict, own.load_state_dict, lambda seed: own.load_state_dict(DefaultNumpyRNG(seed).state_dict())
    if (numpy := sys.modules.get("numpy")) is not None:
        yield partial(numpy.random.get_state, legacy=False), numpy.random.set_state, _seed_legacy
    if torch.cuda.is_initialized():
        yield torch.cuda.get_rng_state, torch.cuda.set_rng_state, torch.cuda.manual_seed


def _seed_legacy(seed: int) -> None:
    with suppress(TypeError):  # the user has put a generator of another kind in its place
        sys.modules["numpy"].random.seed(seed & 0xFFFFFFFF)


def seed_worker(seed: int) -> None:
    """Seed the streams of a loader's worker process: cheap enough for every batch.

    NumPy's legacy generator is seeded here too if NumPy is loaded: it belongs to the worker, PyTorch seeds it as well,
    and transforms draw from it.
    """
    torch.default_generator.manual_seed(seed)
    random.seed(seed)
    _Streams.reseeding = seed
    if (numpy := sys.modules.get("numpy")) is not None:
        numpy.random.seed(seed & 0xFFFFFFFF)


def get_rng_state_dict() -> "dict[str, Any]":
    """The state of this process's streams: `torch`, `rand`, with NumPy `numpy` and `numpy_legacy`, and, if CUDA is
    used, the device's `cuda`."""
    state: dict[str, Any] = {"torch": torch.get_rng_state(), "rand": _pack(random.getstate())}
    if _Streams.numpy is not None or _Streams.reseeding is not None:
        state["numpy"] = get_default_numpy_rng().state_dict()
        legacy = sys.modules["numpy"].random.get_state(legacy=False)
        if legacy["bit_generator"] == "MT19937":  # unless the user has put another kind in its place
            state["numpy_legacy"] = _pack_legacy(legacy)
    if torch.cuda.is_initialized():
        state["cuda"] = torch.cuda.get_rng_state()
    return state


def load_rng_state_dict(state: "dict[str, Any]") -> None:
    """Continue from a state that `get_rng_state_dict` returned; a stream that it lacks stays as it is."""
    torch.set_rng_state(state["torch"].cpu())
    random.setstate(_unpack(state["rand"]))
    if "numpy" in state:
        _Streams.numpy, _Streams.reseeding = _Streams.numpy or DefaultNumpyRNG(0), None
        _Streams.numpy.load_state_dict(state["numpy"])
    if "numpy_legacy" in state:  # which checkpoints of earlier versions do not have
        sys.modules["numpy"].random.set_state(_unpack_legacy(state["numpy_legacy"]))
    if "cuda" in state and torch.cuda.is_available():
        torch.cuda.set_rng_state(state["cuda"].cpu())


def derive_seed(seed: int, *purpose: "str | int") -> int:
    """A seed of 63 bits for one purpose, such as `derive_seed(seed, "shuffle", epoch)`."""
    text = repr((seed, *purpose)).encode()
    return int.from_bytes(blake2b(text, digest_size=8).digest(), "big") >> 1


def _pack(state: "tuple[Any, ...]") -> "list[Any]":
    """`random`'s state with its 625 words as one tensor, which is saved and loaded ten times as fast."""
    version, words, gauss = state
    return [version, torch.tensor(words), gauss]


def _pack_legacy(state: "dict[str, Any]") -> "dict[str, Any]":
    """The state of NumPy's legacy generator with its 624 words as one tensor, and of plain values."""
    words = torch.from_numpy(state["state"]["key"].astype("int64"))
    return {**state, "state": {"key": words, "pos": int(state["state"]["pos"])}}


def _unpack_legacy(state: "dict[str, Any]") -> "dict[str, Any]":
    """Read what `_pack_legacy` returned."""
    words = state["state"]["key"].cpu().numpy().astype("uint32")
    return {**state, "state": {**state["state"], "key": words}}


def _unpack(state: "Sequence[Any]") -> "tuple[Any, ...]":
    """Read what `_pack` returned, or `random`'s own form, which Helios saved."""
    version, words, gauss = state
    return version, tuple(words.tolist() if isinstance(words, torch.Tensor) else words), gauss

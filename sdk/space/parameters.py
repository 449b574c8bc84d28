"""The numeric parameter kinds of an NNI search space, each one an inverse distribution function.

Every kind draws its values through `from_unit`, so that sampling, walking a grid and asking an optimizer that knows
only the unit interval are the same operation with another source of numbers.
"""

import json
import math
import random
import sys
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class SpaceProblem:
    """One thing wrong with a search space, and where it is."""

    path: tuple[str | int, ...]
    """Keys and list indexes from the top of the search space, e.g. `("lr", "_value", 0)`; empty means all of it."""
    message: str
    """A sentence: what was expected, what was found, what to do."""

    def __str__(self) -> str:
        where = ".".join(str(step) for step in self.path)
        return f"{where}: {self.message}" if where else self.message


class SearchSpaceError(ValueError):
    """A search space is not valid, or parameters are outside of one."""

    def __init__(self, problems: Sequence[SpaceProblem]) -> None:
        super().__init__("; ".join(str(problem) for problem in problems))
        self.problems = tuple(problems)


def shown(value: Any) -> str:
    """A JSON value on one line, shortened."""
    text = json.dumps(value, ensure_ascii=False, default=repr)
    return text if len(text) <= 60 else text[:57] + "..."


_SMALLEST_TAIL = 2.0**-53
MOST_DEVIATIONS = 9.0
"""Quantiles of a normal axis are no further than this from its `mu`, in multiples of `sigma`."""


class Parameter(ABC):
    """One axis of a search space."""

    @property
    @abstractmethod
    def type_name(self) -> str:
        """NNI's `_type`."""

    @property
    @abstractmethod
    def size(self) -> int | None:
        """Number of distinct values, or None if there is no end of them."""

    @abstractmethod
    def from_unit(self, u: float) -> Any:
        """Return the value at quantile `u`, which is in [0, 1]. Numbers outside are moved to the nearest end."""

    @abstractmethod
    def to_unit(self, value: Any) -> float:
        """Return a quantile in [0, 1] that `from_unit` maps back to `value`. Raises ValueError if there is none."""

    @abstractmethod
    def value_at(self, index: int) -> Any:
        """Return the distinct value number `index`, 0 <= index < size. Raises IndexError outside, or if endless."""

    @abstractmethod
    def contains(self, value: Any) -> bool:
        """Say whether this axis can produce `value`."""

    @property
    @abstractmethod
    def expected(self) -> str:
        """What its values are, for error messages."""

    def fit(self, value: Any) -> Any:
        """Return `value` as this axis would produce it. Raises ValueError if it cannot."""
        if not self.contains(value):
            raise self._not_mine(value)
        return value

    @abstractmethod
    def to_json(self) -> dict[str, Any]:
        """Return the axis as it is written in a search space file."""

    def sample(self, rng: random.Random) -> Any:
        """Draw one value; `rng` is asked for exactly one number, except by nested choices."""
        return self.from_unit(rng.random())

    def _no_such_index(self, index: int) -> IndexError:
        return IndexError(f"{self.type_name} has {self.size} distinct values, number {index} was asked for")

    def _not_mine(self, value: Any) -> ValueError:
        return ValueError(f"{value!r} is not a value of {self.to_json()}")


@dataclass(frozen=True)
class RandInt(Parameter):
    """Whole numbers from `low` up to, not including, `high`, all equally likely."""

    low: int
    high: int

    type_name = "randint"

    @property
    def size(self) -> int:
        """Number of whole numbers in the range."""
        return self.high - self.low

    def from_unit(self, u: float) -> int:
        """Return the whole number whose slice of the unit interval holds `u`."""
        return self.low + min(max(int(u * self.size), 0), self.size - 1)

    def to_unit(self, value: Any) -> float:
        """Return the middle of the slice that belongs to `value`."""
        if not self.contains(value):
            raise self._not_mine(value)
        return (int(value) - self.low + 0.5) / self.size

    def value_at(self, index: int) -> int:
        """Return `low + index`."""
        if not 0 <= index < self.size:
            raise self._no_such_index(index)
        return self.low + index

    def contains(self, value: Any) -> bool:
        """Say whether `value` is a whole number of the range; 3.0 counts as 3."""
        return is_number(value) and value == int(value) and self.low <= value < self.high

    @property
    def expected(self) -> str:
        """The range, its end included."""
        return f"a whole number from {self.low} to {self.high - 1}"

    def fit(self, value: Any) -> int:
        """Return the whole number: 3 for 3.0."""
        return int(super().fit(value))

    def to_json(self) -> dict[str, Any]:
        """Return `{"_type": "randint", "_value": [low, high]}`."""
        return {"_type": self.type_name, "_value": [self.low, self.high]}


@dataclass(frozen=True)
class Uniform(Parameter):
    """Real numbers of [low, high], uniform in the number or (`log`) in its logarithm, rounded to steps of `q`."""

    low: float
    high: float
    log: bool = False
    q: float | None = None

    @property
    def type_name(self) -> str:
        """One of uniform, quniform, loguniform, qloguniform."""
        return ("q" if self.q is not None else "") + ("loguniform" if self.log else "uniform")

    @property
    def size(self) -> int | None:
        """Number of steps; without `q` there is no end, unless both ends are the same."""
        if self.low == self.high:
            return 1
        return None if self.q is None else round(self.high / self.q) - round(self.low / self.q) + 1

    def from_unit(self, u: float) -> float:
        """Return the quantile; with `q` the nearest step, never outside [low, high]."""
        u = min(max(u, 0.0), 1.0)
        if self.log:
            low, high = math.log(self.low), math.log(self.high)
            return self.nearest(self._clipped(math.exp(low + u * (high - low))))
        return self.nearest(self._clipped(self.low * (1.0 - u) + self.high * u))

    def nearest(self, x: float) -> float:
        """Return the value of this axis that a number of the range is rounded to."""
        return self._clipped(_to_step(x, self.q))

    def to_unit(self, value: Any) -> float:
        """Return where `value` is between the ends."""
        if not self.contains(value):
            raise self._not_mine(value)
        if self.low == self.high:
            return 0.5
        low, high, here = self.low, self.high, self._clipped(float(value))
        if self.log:
            low, high, here = math.log(low), math.log(high), math.log(here)
        return min(max((here - low) / (high - low), 0.0), 1.0)

    def value_at(self, index: int) -> float:
        """Return step number `index`, counted from the low end."""
        size = self.size
        if size is None or not 0 <= index < size:
            raise self._no_such_index(index)
        if self.q is None:
            return self.from_unit(0.0)  # as a sample is made, so that -0.0 is the same value in both
        return self._clipped((round(self.low / self.q) + index) * self.q)

    def contains(self, value: Any) -> bool:
        """Say whether `value` is in the range and (with `q`) on a step, up to float rounding."""
        if not is_number(value):
            return False
        slack = 1e-9 * max(abs(self.low), abs(self.high), abs(self.high - self.low))
        if not self.low - slack <= value <= self.high + slack:
            return False
        return self.q is None or abs(self.nearest(float(value)) - value) <= max(slack, 1e-9 * self.q)

    @property
    def expected(self) -> str:
        """The range, and the step if there is one."""
        return f"a number from {self.low} to {self.high}{_stepped(self.q)}"

    def to_json(self) -> dict[str, Any]:
        """Return `{"_type": ..., "_value": [low, high]}`, and the step if there is one."""
        return {"_type": self.type_name, "_value": [self.low, self.high, *_step(self.q)]}

    def _clipped(self, x: float) -> float:
        return float(min(max(x, self.low), self.high))


@dataclass(frozen=True)
class Normal(Parameter):
    """Real numbers around `mu` with deviation `sigma`; (`log`) their exponential; rounded to steps of `q`. No ends."""

    mu: float
    sigma: float
    log: bool = False
    q: float | None = None

    @property
    def type_name(self) -> str:
        """One of normal, qnormal, lognormal, qlognormal."""
        return ("q" if self.q is not None else "") + ("lognormal" if self.log else "normal")

    @property
    def size(self) -> None:
        """There is no end of values."""
        return None

    def from_unit(self, u: float) -> float:
        """Return the quantile through the inverse distribution function, rounded to the nearest step, not clipped."""
        from statistics import NormalDist  # takes milliseconds to import, and most spaces have no normal axis

        u = min(max(u, _SMALLEST_TAIL), 1.0 - _SMALLEST_TAIL)
        x = NormalDist(self.mu, self.sigma).inv_cdf(u)
        return _to_step(_exp(x) if self.log else x, self.q)

    def nearest(self, x: float) -> float:
        """Return the step that a number is rounded to; it may be no value of a lognormal axis."""
        return _to_step(x, self.q)

    def to_unit(self, value: Any) -> float:
        """Return the share of draws below `value`."""
        from statistics import NormalDist

        if not self.contains(value):
            raise self._not_mine(value)
        if self.log:
            if value <= 0:
                return _SMALLEST_TAIL
            value = math.log(value)
        return min(max(NormalDist(self.mu, self.sigma).cdf(value), _SMALLEST_TAIL), 1.0 - _SMALLEST_TAIL)

    def value_at(self, index: int) -> float:
        """Raise IndexError: the values cannot be counted."""
        raise self._no_such_index(index)

    def contains(self, value: Any) -> bool:
        """Say whether `value` is a finite number (above 0 for lognormal) and on a step."""
        if not is_number(value) or (self.log and (value < 0 if self.q is not None else value <= 0)):
            return False
        return self.q is None or abs(_to_step(float(value), self.q) - value) <= 1e-9 * max(abs(value), self.q)

    @property
    def expected(self) -> str:
        """A number, and the step if there is one."""
        least = "" if not self.log else " above 0" if self.q is None else " of at least 0"
        return f"a finite number{least}{_stepped(self.q)}"

    def to_json(self) -> dict[str, Any]:
        """Return `{"_type": ..., "_value": [mu, sigma]}`, and the step if there is one."""
        return {"_type": self.type_name, "_value": [self.mu, self.sigma, *_step(self.q)]}


def is_number(value: Any) -> bool:
    """Say whether `value` is an int or float that a float can hold; True and False are not numbers here."""
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        return False
    return -sys.float_info.max <= value <= sys.float_info.max


def _to_step(x: float, q: float | None) -> float:
    if q is None:
        return float(x)
    steps = x / q
    return float(round(steps) * q) if math.isfinite(steps) else float(x)


def _stepped(q: float | None) -> str:
    return "" if q is None else f", a multiple of {q}"


def _step(q: float | None) -> tuple[float, ...]:
    return () if q is None else (q,)


def _exp(x: float) -> float:
    """The exponential as a positive finite float, whatever `x`."""
    try:
        return math.exp(x) or math.ulp(0.0)
    except OverflowError:
        return sys.float_info.max

"""Grid search: every combination of a grid, then of one twice as fine, and so on.

Axes without end are cut at quantiles: the first level has the middle (1/2), the second adds 1/4 and 3/4, the third
the odd eighths. A level proposes the combinations that hold at least one point of that level. Nested choices are the
union of their branches.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any

from proctor.manager.dispatcher.algorithms.base import Parameters, SpaceExhausted, Suggestion, TunerAlgorithm
from proctor.sdk.space import Choice, NestedChoice, Parameter, RandInt, SearchSpace
from proctor.sdk.space.choices import canonical

_DEEPEST_LEVEL = 12
"""Stepped axes without ends (qnormal) hold nothing new beyond quantiles of 1/4096."""
_LONGEST_LIST = 4096
"""A randint up to here is walked as a list, a longer one is refined like a real axis."""


class GridSearchTuner(TunerAlgorithm):
    """Walks the grids of a search space in order. The state of a suggestion is the place reached."""

    def __init__(self, *, seed: int = 0, optimize_mode: str = "maximize") -> None:
        del seed, optimize_mode  # a grid needs neither
        self._known: set[str] = set()

    def update_search_space(self, space: SearchSpace) -> None:
        """Begin the grid of `space`; combinations that were proposed before are left out."""
        self._space = space
        self._place = (0, 0)
        self._walk: Iterator[tuple[tuple[int, int], Parameters]] | None = None

    def suggest(self, parameter_id: int) -> Suggestion:
        """Return the next combination that is not known yet."""
        if self._walk is None:
            self._walk = GridWalk(self._space).iterate(*self._place)
        for place, parameters in self._walk:
            self._place = place
            if self._space.key(parameters) not in self._known:
                self._known.add(self._space.key(parameters))
                return Suggestion(parameters, list(place))
        raise SpaceExhausted("every combination of the grid has been used")

    def restore(self, parameter_id: int, parameters: Parameters, state: Any) -> None:
        """Go to the place behind an earlier suggestion."""
        self._place = (state[0], state[1])
        self._walk = None
        self._known.add(self._space.key(parameters))

    def import_data(self, parameters: Parameters, value: float) -> None:
        """Leave out what was tried elsewhere."""
        self._known.add(canonical(parameters))

    def accept_customized(self, parameter_id: int, parameters: Parameters) -> None:
        """Leave out what the user tries."""
        self._known.add(canonical(parameters))


@dataclass(frozen=True)
class _GridPoint:
    value: Any
    level: int


class GridWalk:
    """All combinations of a search space in grid order."""

    def __init__(self, space: SearchSpace) -> None:
        self._space = space
        self._axes: dict[int, _Axis] = {}

    def iterate(self, level: int, done: int) -> Iterator[tuple[tuple[int, int], Parameters]]:
        """Yield ((level, place behind), combination), beginning in `level` after its first `done` combinations."""
        axes = self._space.parameters
        while level == 0 or any(self._refines(axis, level) for axis in axes.values()):
            if not self._adds(axes, level):
                level, done = level + 1, 0
                continue
            combinations = self._combine(list(axes.items()), level)
            fresh = (values for values, newest in combinations if newest == level)
            for place, parameters in enumerate(islice(fresh, done, None), done + 1):
                yield (level, place), parameters
            level, done = level + 1, 0

    def _adds(self, parameters: Mapping[str, Parameter], level: int) -> bool:
        """Say whether any axis has a point of just this level; level 0 always counts."""
        for parameter in parameters.values():
            if isinstance(parameter, NestedChoice):
                if any(self._adds(branch.parameters, level) for branch in parameter.branches):
                    return True
            elif any(point.level == level for point in self._axis(parameter).points(level)):
                return True
        return level == 0

    def _refines(self, parameter: Parameter, level: int) -> bool:
        if isinstance(parameter, NestedChoice):
            return any(self._refines(p, level) for b in parameter.branches for p in b.parameters.values())
        return not self._axis(parameter).complete_at(level - 1)

    def _combine(self, items: list[tuple[str, Parameter]], level: int) -> Iterator[tuple[Parameters, int]]:
        """Yield every combination of the points up to `level`, with the level of its newest point."""
        if not items:
            yield {}, 0
            return
        (name, parameter), rest = items[0], items[1:]
        for value, newest in self._points(parameter, level):
            for values, other in self._combine(rest, level):
                yield {name: value, **values}, max(newest, other)

    def _points(self, parameter: Parameter, level: int) -> Iterator[tuple[Any, int]]:
        if isinstance(parameter, NestedChoice):
            for branch in parameter.branches:
                for values, newest in self._combine(list(branch.parameters.items()), level):
                    yield {"_name": branch.name, **values}, newest
            return
        for point in self._axis(parameter).points(level):
            if point.level <= level:
                yield point.value, point.level

    def _axis(self, parameter: Parameter) -> "_Axis":
        axis = self._axes.get(id(parameter))
        if axis is None:
            axis = self._axes[id(parameter)] = _Axis(parameter)
        return axis


class _Axis:
    """The points of one parameter, coarse ones first, made as far as they are needed."""

    def __init__(self, parameter: Parameter) -> None:
        self._parameter = parameter
        self._points: list[_GridPoint] = []
        self._keys: set[str] = set()
        self._level = -1
        self._is_barren = False
        """The last level added nothing: for a real axis, floating-point numbers are not fine enough for more."""

    def points(self, level: int) -> list[_GridPoint]:
        while self._level < level and not self._complete():
            self._level += 1
            self._add_level(self._level)
        return self._points

    def complete_at(self, level: int) -> bool:
        """Say whether no level after `level` adds a point."""
        self.points(level)
        return self._complete() and all(point.level <= level for point in self._points)

    def _complete(self) -> bool:
        if self._parameter.size is not None:
            return len(self._points) >= self._parameter.size
        if getattr(self._parameter, "q", None) is not None:
            return self._level >= _DEEPEST_LEVEL
        return self._is_barren

    def _add_level(self, level: int) -> None:
        size = self._parameter.size
        listed = isinstance(self._parameter, Choice) or (
            isinstance(self._parameter, RandInt) and self._parameter.size <= _LONGEST_LIST
        )
        if size is not None and (listed or 2**level >= size):
            values: Iterator[Any] = (self._parameter.value_at(index) for index in range(size))
        else:
            cells = 2 ** (level + 1)
            values = (self._parameter.from_unit(odd / cells) for odd in range(1, cells, 2))
        before = len(self._points)
        for value in values:
            if canonical(value) not in self._keys:
                self._keys.add(canonical(value))
                self._points.append(_GridPoint(value, level))
        self._is_barren = len(self._points) == before

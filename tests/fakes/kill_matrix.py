"""The cells of the kill matrix: which combinations of options are trained, where they are killed, what is compared."""

import random
from collections.abc import Iterator, Sequence
from itertools import combinations, product
from pathlib import Path
from typing import Any

from fakes.incarnations import Incarnations
from fakes.trained_models import Recipe
from fakes.trained_runs import RUN, check_equal, check_samples
from fakes.watches import Kill

from proctor.sdk.pytorch.checkpoints.pointer import read_pointer

AXES: "dict[str, Sequence[Any]]" = {
    "model": ("cnn", "transformer"),
    "unit": ("epoch", "iteration"),
    "shuffle": (True, False),
    "workers": ("none", "two", "two that live on"),
    "accumulation": (1, 4, 3),
    "amp": (False, True),
    "scheduler": ("step", "plateau", "warm-up, then cosine"),
    "phases": (1, 2),
    "validation": (True, False),
    "flush": (False, True),
    "background": (True, False),
    "processes": (1, 2),
}
FAIL_POINTS = (
    "trainer.checkpoint.before",
    "trainer.checkpoint.after",
    "trainer.pointer.before",
    "trainer.pointer.after",
)
# The whole matrix: these in every combination, the other axes drawn for each cell.
MAIN_AXES: "dict[str, Sequence[Any]]" = {
    **{name: AXES[name] for name in ("model", "unit", "amp", "processes")},
    "workers": ("none", "two"),
    "accumulation": (1, 4),
}
OTHERS = (*FAIL_POINTS, "epoch end", "validation")
KILLS_A_RUN = 4
Cell = dict[str, Any]


def choose_pairwise(axes: "dict[str, Sequence[Any]]", seed: int, size: int) -> "list[Cell]":
    """Return `size` cells that together hold every pair of values of any two axes.

    Each is the best of some drawn at random; the drawing starts over until the size does.
    """
    draw = random.Random(seed)
    while True:
        missing = set(_all_pairs(axes))
        cells = []
        for _ in range(size):
            drawn = [{name: draw.choice(values) for name, values in axes.items()} for _ in range(4)]
            improved = [_improve(cell, axes, missing=missing) for cell in drawn]
            best = max(improved, key=lambda cell: _gain(cell, missing))
            cells.append(best)
            missing.difference_update(_pairs(best))
        if not missing:
            return cells


def choose_all(axes: "dict[str, Sequence[Any]]", others: "dict[str, Sequence[Any]]", *, seed: int) -> "list[Cell]":
    """Return every combination of the axes, with values drawn for the other ones."""
    draw = random.Random(seed)
    cells = []
    for values in product(*axes.values()):
        drawn = {name: draw.choice(choice) for name, choice in others.items()}
        cells.append({**drawn, **dict(zip(axes, values, strict=True))})
    return cells


def name_cell(cell: Cell) -> str:
    """A name for a test."""
    return "-".join(str(value).replace(" ", "_").replace(",", "") for value in cell.values())


def check_cell(
    incarnations: Incarnations, cell: Cell, *, kills: int, seed: "str | int", root: Path, **options: Any
) -> None:
    """Train a cell without and with kills, and compare everything that came of it.

    Exactly so many kills happen: a run that has had its share runs to its end, and another one begins, of its own
    random seed.
    """
    draw, left = random.Random(f"{seed} {name_cell(cell)}"), kills
    while left > 0:
        folder = root / f"run with {left} kills to come"
        folder.mkdir()
        chosen = {"background_writes": cell["background"], "random_seed": draw.randrange(2**31), **options}
        run = KilledRun(incarnations, make_recipe(cell), options=chosen, root=folder)
        left -= run.kill_at_drawn_places(min(left, KILLS_A_RUN), draw)
        run.check_end(what=str(cell))


class KilledRun:
    """One run that is killed at places that it comes to, beside one that is left alone, which tells the places."""

    def __init__(self, incarnations: Incarnations, recipe: Recipe, *, options: "dict[str, Any]", root: Path) -> None:
        self._incarnations, self._recipe, self._options = incarnations, recipe, options
        self._whole, self._killed = root / "uninterrupted", root / "killed"
        at_once = {
            **options,
            "background_writes": False,
            "keep_last": None,
        }  # a save has its place then
        self._reference = incarnations.run(recipe, self._whole, trace=str(root / "places"), **at_once)
        self._saves = [entry.name for entry in reversed(read_pointer(self._whole / RUN))]
        self._parts = _split_at_saves((root / "places").read_text().splitlines())
        assert len(set(self._saves)) == len(self._parts) > 0

    def kill_at_drawn_places(self, count: int, draw: random.Random) -> int:
        """Let incarnations die at places that are still to come, and return how many did; fewer if the run has ended.

        They are spread over the run, and every third is at a place of another kind than the training's.
        """
        for turn in range(count):
            to_come = [place for part in self._parts[self._count_stored() :] for place in part]
            if not to_come:
                return turn
            kill = _draw_kill(to_come, draw, among_others=turn % 3 == 1, left=count - turn)
            died = self._incarnations.run(self._recipe, self._killed, kill_passage=kill, **self._options)
            assert died["killed"], f"{kill} of {to_come}: {died}"
        return count

    def check_end(self, *, what: str) -> None:
        """Continue to the end, and compare."""
        last = self._incarnations.run(self._recipe, self._killed, **self._options)
        check_equal(last, self._reference, what=what)
        check_samples(self._whole, self._killed)

    def _count_stored(self) -> int:
        """How many saves lie behind the checkpoint that the run continues from."""
        if entries := read_pointer(self._killed / RUN):
            return self._saves.index(entries[0].name) + 1
        return int((self._killed / RUN / self._saves[0]).exists())  # whole, and found without a pointer


def make_recipe(cell: Cell) -> Recipe:
    """The recipe of a cell."""
    chosen = {name: value for name, value in cell.items() if name not in ("workers", "background")}
    return Recipe(**chosen, workers=2 * (cell["workers"] != "none"), persistent=cell["workers"] == "two that live on")


def _split_at_saves(places: "list[str]") -> "list[list[str]]":
    """The places up to each save's end; what comes after the last save, a run that has been killed does not repeat."""
    parts: list[list[str]] = [[]]
    for place in places:
        parts[-1].append(place)
        if place == FAIL_POINTS[-1]:
            parts.append([])
    return parts[:-1]


def _draw_kill(to_come: "list[str]", draw: random.Random, *, among_others: bool, left: int) -> Kill:
    """A place and its passage, early enough to leave room for the kills after it."""
    fitting = [at for at, place in enumerate(to_come) if place.startswith(OTHERS) == among_others] or range(
        len(to_come)
    )
    at = draw.choice(fitting[: -(-len(fitting) // left)])
    return to_come[at], to_come[: at + 1].count(to_come[at])


def _improve(cell: Cell, axes: "dict[str, Sequence[Any]]", *, missing: "set[Any]") -> Cell:
    while True:
        changed = [{**cell, name: value} for name, values in axes.items() for value in values]
        best = max(changed, key=lambda other: _gain(other, missing))
        if _gain(best, missing) <= _gain(cell, missing):
            return cell
        cell = best


def _gain(cell: Cell, missing: "set[Any]") -> int:
    return sum(pair in missing for pair in _pairs(cell))


def _pairs(cell: Cell) -> "Iterator[Any]":
    return combinations(cell.items(), 2)


def _all_pairs(axes: "dict[str, Sequence[Any]]") -> "Iterator[Any]":
    for one, other in combinations(axes, 2):
        for value, other_value in product(axes[one], axes[other]):
            yield (one, value), (other, other_value)

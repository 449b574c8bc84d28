"""The cells of the kill matrix: which combinations of options are trained, where they are killed, what is compared."""

import random
from collections.abc import Iterator, Sequence
from itertools import combinations, product
from pathlib import Path
from typing import Any

from fakes.incarnations import SAMPLE_FILE, Incarnations
from fakes.trained_models import Recipe

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
}
FAIL_POINTS = (
    "trainer.checkpoint.written",
    "trainer.checkpoint.renamed",
    "trainer.pointer.written",
    "trainer.pointer.renamed",
)
# The whole matrix: these in every combination, the other axes drawn for each cell.
MAIN_AXES: "dict[str, Sequence[Any]]" = {
    **{name: AXES[name] for name in ("model", "unit", "amp")},
    "workers": ("none", "two"),
    "accumulation": (1, 4),
}
EDGES = ("epoch end", "validation")
EQUAL = ("weights", "optimizer", "streams", "state", "history", "reason")
Cell = dict[str, Any]


def choose_pairwise(axes: "dict[str, Sequence[Any]]", seed: int, size: int) -> "list[Cell]":
    """Return `size` cells that together hold every pair of values of any two axes.

    Each is the best of some drawn at random; the drawing begins anew until the size does.
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


def check_cell(incarnations: Incarnations, cell: Cell, *, kills: int, seed: "str | int", root: Path) -> None:
    """Train a cell without and with kills, and compare everything that came of it."""
    recipe, options = make_recipe(cell), {"background_writes": cell["background"]}
    reference = incarnations.run(recipe, root / "uninterrupted", **options)
    batches = reference["state"]["global_iteration"]
    for kill in draw_kills(kills, batches=batches, seed=f"{seed} {name_cell(cell)}"):
        incarnations.run(recipe, root / "killed", kill=kill, **options)
    last = incarnations.run(recipe, root / "killed", **options)
    assert not last["killed"]
    check_equal(last, reference, what=str(cell))
    check_samples(root / "uninterrupted", root / "killed")


def check_equal(found: "dict[str, Any]", expected: "dict[str, Any]", *, what: str = "run") -> None:
    """Two runs ended with the same bits."""
    for part in EQUAL:
        assert found[part] == expected[part], f"{part} of {what}"


def draw_kills(count: int, *, batches: int, seed: str) -> "list[tuple[str, int]]":
    """Where the incarnations die: never at an earlier batch, every third time at a place of another kind."""
    draw = random.Random(seed)
    at = sorted(draw.choices(range(2, batches + 1), k=count))
    kills: list[tuple[str, int]] = [(draw.choice(("batch", "backward", "step")), batch) for batch in at]
    for turn in range(1, count, 3):
        place = draw.choice((*FAIL_POINTS, *EDGES))
        kills[turn] = (place, draw.randint(1, 2))
    return kills


def make_recipe(cell: Cell) -> Recipe:
    """The recipe of a cell."""
    chosen = {name: value for name, value in cell.items() if name not in ("workers", "background")}
    return Recipe(**chosen, workers=2 * (cell["workers"] != "none"), persistent=cell["workers"] == "two that live on")


def check_samples(reference: Path, killed: Path) -> None:
    """Each batch of each incarnation had the samples that it has in the uninterrupted run, and none was left out."""
    expected = dict(_read_samples(reference))
    seen = set()
    for batch, samples in _read_samples(killed):
        assert samples == expected[batch], f"batch {batch}"
        seen.add(batch)
    assert seen == set(expected)


def _read_samples(root: Path) -> "Iterator[tuple[int, str]]":
    for line in (root / SAMPLE_FILE).read_text().splitlines():
        batch, _, samples = line.partition(" ")
        yield int(batch), samples


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

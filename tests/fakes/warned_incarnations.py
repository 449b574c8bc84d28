"""An incarnation that may be warned: it goes on, and what it was told is part of what it returns."""

import warnings
from dataclasses import asdict
from pathlib import Path
from typing import Any

from fakes.incarnations import Incarnations, _train


def run_warned(incarnations: Incarnations, recipe: Any, root: Path) -> "dict[str, Any]":
    """Run one incarnation; `told` has the texts of its warnings."""
    order = {"recipe": asdict(recipe), "root": str(root), "kill": None, "options": {}}
    found: dict[str, Any] = incarnations.call(__name__, "train", order=order)
    return found


def train(order: "dict[str, Any]") -> "dict[str, Any]":
    """What the incarnation does."""
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        return {**_train(order), "told": [str(warning.message) for warning in told]}

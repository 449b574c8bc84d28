"""What is said of a run that continues: from where, and what was asked for now and is not as it was.

What changes a run's bits is in the fingerprint, which is compared and warned of. Here is the rest: options that may
well differ, and learning rates, which a resumed optimizer has from its checkpoint, whatever `setup` gives it.
"""

import logging
import sys
from collections.abc import Mapping
from typing import Any

from torch.optim import Optimizer

from proctor.sdk.pytorch.options import Settings

LOGGER = logging.getLogger("proctor.sdk.pytorch")
_OPTIONS = (
    "total_steps",
    "valid_frequency",
    "chkpt_frequency",
    "print_frequency",
    "early_stop_cycles",
    "best_metric",
    "best_mode",
    "keep_last",
    "keep_best",
)
_RATES = "learning rates"
Rates = dict[str, list[float]]  # by the name of an optimizer: one for each of its groups


def read_rates(model: object) -> Rates:
    """Return the learning rates that a model's optimizers were made with; a scheduler may have changed them since."""
    return {
        name: [float(group.get("initial_lr", group["lr"])) for group in part.param_groups if "lr" in group]
        for name, part in vars(model).items()
        if isinstance(part, Optimizer)
    }


def describe_settings(settings: Settings, rates: Rates) -> "dict[str, Any]":
    """Return what a checkpoint keeps to be compared."""
    return {**{name: getattr(settings, name) for name in _OPTIONS}, _RATES: rates}


def find_saved_rates(saved: "Mapping[str, Any]", model: object) -> Rates:
    """Return the rates that the run began with; a checkpoint that does not tell them has those of its optimizers.

    :param model: has been given the checkpoint's state.
    """
    found: Rates = saved.get(_RATES) or read_rates(model)
    return found


def judges_alike(saved: "Mapping[str, Any]", settings: Settings) -> bool:
    """Whether the metric that judges the run is what it was; a checkpoint that does not say so may be of any."""
    return all(
        saved.get(name, getattr(settings, name)) == getattr(settings, name) for name in ("best_metric", "best_mode")
    )


def find_changes(saved: "Mapping[str, Any]", settings: Settings, *, before: Rates, now: Rates) -> "list[str]":
    """Return what is not as it was, a phrase each.

    :param before: what the run began with, `now` what `setup` gives.
    """
    found = [
        f"{name} was {saved[name]!r}, is {getattr(settings, name)!r}"
        for name in _OPTIONS
        if name in saved and saved[name] != getattr(settings, name)
    ]
    for name in sorted(set(before) & set(now)):
        if before[name] != now[name]:
            rates = (", ".join(f"{rate:g}" for rate in some[name]) for some in (before, now))
            text = (
                f"the learning rate of {name} goes on from {{}} although setup gives {{}} (set it in on_training_start)"
            )
            found.append(text.format(*rates))
    return found


def announce(text: str) -> None:
    """Log a line, and write it to standard error unless the log goes there already."""
    LOGGER.info(text)
    if not (LOGGER.isEnabledFor(logging.INFO) and _has_terminal(LOGGER)):
        print(f"proctor: {text}", file=sys.stderr, flush=True)


def _has_terminal(logger: "logging.Logger | None") -> bool:
    while logger is not None:
        for handler in logger.handlers:
            if isinstance(handler, logging.StreamHandler) and handler.stream in (sys.stderr, sys.stdout):
                return True
        logger = logger.parent if logger.propagate else None
    return False

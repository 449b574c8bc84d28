"""What `setup` gives optimizers and schedulers, and how a trial with other parameters than its donor takes it over.

A resumed optimizer has the options of its checkpoint, whatever `setup` gives it: that makes a resume exact. A clone is
to train with its own parameters. So a checkpoint holds what `setup` had given; where the clone's `setup` gives
something else, that is what its parameters have changed, and all the rest stays as the checkpoint has it.

A learning rate that has been changed since, by a scheduler or by hand, keeps its share of the one that it began with.

Optimizers and schedulers that Lightning or transformers make and restore are treated in the same way.
"""

import json
import sys
from collections.abc import Iterable, Iterator, Mapping
from types import SimpleNamespace
from typing import Any

import torch
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

Options = dict[str, list[dict[str, Any]]]
"""By the name of a part: of an optimizer the options of each group, of a scheduler its own."""
Rates = dict[str, list[float]]
"""By the name of an optimizer: the learning rate that each of its groups began with."""

_LAST_RATES = "_last_lr"  # of a scheduler: what it gave the optimizer last


class SetupOptions:
    """What `setup` gives the optimizers and schedulers of a model, and what it gave those of the checkpoint."""

    def __init__(self, model: object) -> None:
        self._model = model
        self.now: Options = {}
        self.before: Options = {}  # empty without a checkpoint, and with one of an older version
        self.changes: list[str] = []  # what was taken over, a clause each

    def note(self) -> None:
        """Read the parts that have been made since the last call; they have been given no state yet."""
        made = {name: [_plain(group) for group in groups] for name, _, groups in _find_groups(self._model)}
        self.now = {**made, **self.now}

    def to_save(self) -> Options:
        """What a checkpoint keeps: a resumed run continues with what it began with."""
        return {**self.now, **self.before}

    def take_over(self) -> None:
        """Give the parts what `setup` gives now and did not give then."""
        for name, part, groups in _find_groups(self._model):
            both = zip(groups, self.before.get(name, ()), self.now.get(name, ()), strict=False)
            for number, (group, before, now) in enumerate(both):
                which = f"{name}, group {number}" if len(groups) > 1 else name
                self.changes += [f"{which}: {change}" for change in _take_over(group, before, now)]
            if isinstance(part, LRScheduler) and _LAST_RATES in vars(part):
                setattr(part, _LAST_RATES, [group["lr"] for group in part.optimizer.param_groups])
        self.before = {}


class FrameworkOptions:
    """The same for a run whose optimizers and schedulers Lightning makes and restores.

    :param run_name: for the line that says what has changed.
    :param parameters: the trial's; None outside of one.
    """

    def __init__(self, run_name: str, parameters: Any) -> None:
        self._run_name = run_name
        self._parameters = parameters
        self._options = SetupOptions(SimpleNamespace())

    def note(self, optimizers: "Iterable[Any]", schedulers: "Iterable[Any]") -> None:
        """Read what the optimizers and schedulers were made with; they have been given no state yet."""
        self._options = _options_of(optimizers, schedulers)
        self._options.note()

    def to_save(self) -> "dict[str, Any]":
        """What a checkpoint keeps."""
        return {"parameters": self._parameters, "options": self._options.to_save()}

    def take_over(self, saved: "Mapping[str, Any] | None", *, is_main: bool) -> None:
        """Once the framework has restored a checkpoint, give the parts what this trial's parameters have changed.

        :param saved: what `to_save` returned then; None in a checkpoint of an older version.
        """
        self._options.before = dict((saved or {}).get("options") or {})
        if is_clone((saved or {}).get("parameters"), self._parameters):
            self._options.take_over()
            announce_clone(self._run_name, self._options.changes, is_main=is_main)


def take_over_arguments(
    optimizer: Any, scheduler: Any, before: "Mapping[str, Any]", now: "Mapping[str, Any]"
) -> "list[str]":
    """Give an optimizer and its scheduler what other arguments would have given them; return what has changed.

    :param before: by the name of an option of groups, the argument with which the checkpoint's run began. A group that
        began with another value keeps it.
    :param now: this run's.
    """
    options = _options_of([optimizer], [scheduler])
    options.note()
    options.before = {}
    for name, groups in options.now.items():
        pairs = [_with_arguments(group, before, now) for group in groups]
        options.before[name], options.now[name] = [list(each) for each in zip(*pairs, strict=True)]
    options.take_over()
    return options.changes


def is_clone(before: Any, now: Any) -> bool:
    """Whether a trial with these parameters continues a checkpoint of a trial with others."""
    return before is not None and now is not None and _sorted_text(before) != _sorted_text(now)


def announce_clone(run_name: str, changes: "Iterable[str]", *, is_main: bool) -> None:
    """Say on standard error what a clone does not have from its donor."""
    if is_main:
        what = "; ".join(changes) or "its optimizers and schedulers are as they were"
        print(f"proctor: run {run_name} has other parameters; {what}", file=sys.stderr, flush=True)


def read_rates(model: object) -> Rates:
    """Return the learning rates that a model's optimizers were made with; a scheduler may have changed them since."""
    return {
        name: [_first_rate(group) for group in part.param_groups if "lr" in group]
        for name, part in vars(model).items()
        if isinstance(part, Optimizer)
    }


def _find_groups(model: object) -> "Iterator[tuple[str, Any, list[dict[str, Any]]]]":
    """Optimizers, then schedulers and those that these consist of, by name, and the dictionaries of their options."""
    schedulers: dict[str, LRScheduler] = {}
    for name, part in vars(model).items():
        if isinstance(part, Optimizer):
            yield name, part, part.param_groups
        elif isinstance(part, LRScheduler):
            schedulers[name] = part
    while schedulers:
        name, part = next(iter(schedulers.items()))
        del schedulers[name]
        yield name, part, [vars(part)]
        schedulers |= {f"{name}.{place}": inner for place, inner in enumerate(getattr(part, "_schedulers", ()))}


def _options_of(optimizers: "Iterable[Any]", schedulers: "Iterable[Any]") -> SetupOptions:
    parts = {f"optimizer {number}": part for number, part in enumerate(optimizers)}
    parts |= {f"scheduler {number}": part for number, part in enumerate(schedulers)}
    return SetupOptions(SimpleNamespace(**parts))


def _with_arguments(
    group: "Mapping[str, Any]", before: "Mapping[str, Any]", now: "Mapping[str, Any]"
) -> "tuple[dict[str, Any], dict[str, Any]]":
    """A group's options as the arguments of then and of now give them."""
    if "base_lrs" in group:  # of a scheduler
        bases = group["base_lrs"]
        return {"base_lrs": bases}, {"base_lrs": [now["lr"] if base == before["lr"] else base for base in bases]}
    begun = {**group, "lr": _first_rate(group)} if "lr" in group else dict(group)
    same = [name for name in now if name in begun and _sorted_text(begun[name]) == _sorted_text(before.get(name))]
    was, becomes = {name: begun[name] for name in same}, {name: now[name] for name in same}
    if "lr" in same and "initial_lr" in group:
        was["initial_lr"], becomes["initial_lr"] = was["lr"], becomes["lr"]
    return was, becomes


def _sorted_text(value: Any) -> str:
    """The same for a list and a tuple, and for mappings in any order."""
    return json.dumps(value, sort_keys=True)


def _plain(group: "Mapping[str, Any]") -> "dict[str, Any]":
    """The options of a group that are plain values."""
    values = {name: _to_number(value) for name, value in group.items() if name != _LAST_RATES}
    return {name: value for name, value in values.items() if _is_plain(value)}


def _to_number(value: Any) -> Any:
    """A number of torch or NumPy as one of Python; everything else as it is."""
    if isinstance(value, torch.Tensor) and value.numel() == 1:
        return value.item()
    return float(value) if isinstance(value, float) else value


def _is_plain(value: Any) -> bool:
    if type(value) in (list, tuple):
        return all(_is_plain(item) for item in value)
    return value is None or type(value) in (bool, int, float, str)


def _first_rate(group: "Mapping[str, Any]") -> float:
    return float(group.get("initial_lr", group["lr"]))


def _take_over(group: "dict[str, Any]", before: "Mapping[str, Any]", now: "Mapping[str, Any]") -> "Iterator[str]":
    for name, value in now.items():
        if name not in before or before[name] == value:
            continue
        if name == "lr":
            begun, begins, present = _first_rate(before), _first_rate(now), float(group["lr"])
            if present != before["lr"] and begun:
                value = present * begins / begun
            yield f"the learning rate begins at {begins:g} instead of {begun:g} and is {value:g} now"
        elif name not in ("initial_lr", "base_lrs"):
            yield f"{name} was {before[name]}, is {value}"
        if isinstance(group.get(name), torch.Tensor):
            group[name].fill_(value)
        else:
            group[name] = list(value) if isinstance(value, list) else value

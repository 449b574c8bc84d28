"""What code changes while it trains and no part with a `state_dict` holds: followed from the start, saved, restored.

`walk` says what is followed. A value is saved once it differs from what it was when training began: what never changes
is configuration, and a resumed run has that of its own start. What has changed and cannot be saved is reported.
"""

import io
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any

import torch
from torch.utils.data.dataloader import _BaseDataLoaderIter

from proctor.sdk.pytorch.checkpoints.values import (
    Marks,
    NotSavable,
    ObjectMark,
    check_size,
    compare_by,
    decode,
    encode,
    is_generator,
)
from proctor.sdk.pytorch.checkpoints.walk import MODEL, Leaf, Memory, ValuePath, Walk, find_saved, is_watched

EPOCH, RUN = "epoch", "run"
_REMOVED = {"kind": "removed", "value": None}
_NONE = compare_by(None, Marks())
_CHANGED = object()  # in place of a mark that would keep many objects alive


class TrackedAttributes:
    """What a run follows besides the parts of its model, in one process."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self.others: dict[str, Any] = {}
        """What else the run is made of, by a name for people; each may have a `transient` as models have."""
        self.copied: dict[str, str] = {}
        """Those of `others` of which copies are read with: made for each `EPOCH`, or once for the `RUN`."""
        self._epoch: dict[ValuePath, Any] = {}  # how what is copied for each epoch was at the beginning of this one
        self._before: dict[ValuePath, Any] = {}
        self._holders: set[ValuePath] = set()
        self._held: dict[ValuePath, Any] = {}
        self._gaps: list[str] = []
        self._told: set[str] = set()
        self._changed: set[ValuePath] = set()
        self._memory = Memory()
        self._latest: Walk | None = None

    def mark(self) -> None:
        """Remember how everything is: training is about to begin."""
        walk = self._walk()
        self._before = {place: leaf.mark for place, leaf in walk.leaves.items()}
        self._holders, self._held = set(walk.holders), walk.held

    def mark_epoch(self) -> None:
        """Remember what is copied now, for an epoch is about to be read."""
        roots = {name: root for name, root in self.others.items() if self.copied.get(name) == EPOCH}
        self._epoch = {place: leaf.mark for place, leaf in Walk(roots).leaves.items()} if roots else {}

    def find_parts(self) -> "list[tuple[str, Any]]":
        """The networks, parameters, optimizers and schedulers that `take` has just come to, by attributes of the model.

        Not those that a network holds: their values are followed.
        """
        walk, self._latest = self._latest or self._walk(), None  # it would keep alive what is replaced
        found = [(place, part) for place, part in walk.parts if place[0] == ("root", MODEL)]
        networks = {place for place, holder in walk.holders.items() if isinstance(holder, torch.nn.Module)}
        return [
            (place[1][1], part)
            for place, part in found
            if not any(place[:end] in networks for end in range(2, len(place)))
        ]

    def take(self, *, inside_epoch: bool = False) -> "list[Any]":
        """What has changed since `mark`, as pairs of place and value that a checkpoint may hold."""
        found, memo, walk = [], dict[int, Any](), self._walk()
        self._gaps, self._latest = [], walk
        self._adopt_spaces(walk)
        for place, leaf in walk.leaves.items():
            before = self._before.get(place, _CHANGED)
            is_iterator = isinstance(leaf.value, (_BaseDataLoaderIter, Iterator))
            if is_iterator and not isinstance(leaf.value, io.IOBase) and place[0][1] in (MODEL, *self.others):
                self._gaps.append(
                    f"{self._show(place)} is an iterator, whose position no checkpoint holds; give the data to the "
                    "DataModule, or make a new iterator for each pass"
                )
            if place not in self._changed and before == leaf.mark:
                continue
            if place[0][1] in walk.spaces and not is_generator(leaf.value):
                self._report_space(place, before)
                continue
            self._changed.add(place)
            if self._may_take(place, leaf, walk, inside_epoch=inside_epoch):
                try:
                    if not _is_of_model(place):
                        check_size(leaf.value)
                    how = ["in place"] if isinstance(before, ObjectMark) and before.is_of(leaf.value) else []
                    found.append([[list(step) for step in place], encode(leaf.value, memo), *how])
                except NotSavable as problem:
                    self._report_unsaved(place, leaf, problem)
            if before != _NONE and place in self._before and not isinstance(before, ObjectMark):
                self._before[place] = _CHANGED
        gone = [
            (*place, step)
            for place, steps in self._held.items()
            if place[0][1] not in walk.spaces
            for step in sorted(steps - walk.held.get(place, steps), key=lambda step: str(step[1]).rjust(20))
            if step[0] in ("attribute", "item")
        ]
        if walk.is_cut:
            self._gaps.append(
                "the model, the data and the callbacks hold more objects than are followed; what is in the others is "
                "lost: save it in a state_dict, or name what does not change in transient"
            )
        return [*found, *([[list(step) for step in place], _REMOVED] for place in gone)]

    def find_gaps(self) -> "list[str]":
        """A clause for everything that `take` could not save as it was, and that was in no such list before."""
        gaps = [gap for gap in dict.fromkeys(self._gaps) if gap not in self._told]
        self._told.update(gaps)
        return gaps

    def restore(self, saved: "Sequence[Any]") -> "list[str]":
        """Take over what `take` returned, and return clauses about what could not be."""
        walk, memo, gaps, removed = self._walk(), dict[int, Any](), list[str](), list[ValuePath]()
        for steps, encoded, *how in saved:
            place = tuple((str(kind), key) for kind, key in steps)
            if encoded == _REMOVED:
                removed.append(place)
                continue
            self._changed.add(place)
            try:
                leaf = walk.leaves.get(place) or _find_leaf(place, walk)
                leaf.set(decode(encoded, memo, self._model.device), in_place=bool(how))
            except Exception as problem:  # objects of the user may refuse in any way
                why = str(problem) or type(problem).__name__
                gaps.append(f"{self._show(place)} could not be given back its value: {why}")
        for place in reversed(removed) if self._holders else ():  # before `mark` a hook may still need it
            with suppress(LookupError, AttributeError, TypeError):
                _find_leaf(place, walk).remove()
        return gaps

    def _walk(self) -> Walk:
        return Walk({MODEL: self._model, **self.others}, find_saved(self._model), self._memory)

    def _adopt_spaces(self, walk: Walk) -> None:
        """Take classes and modules that are first met now as they are: nothing is known of how they were."""
        new = {place for place in walk.holders if len(place) == 1 and place not in self._holders}
        self._before |= {place: leaf.mark for place, leaf in walk.leaves.items() if place[:1] in new}
        self._holders |= {place for place in walk.holders if place[:1] in new}

    def _may_take(self, place: ValuePath, leaf: Leaf, walk: Walk, *, inside_epoch: bool) -> bool:
        """Whether a resumed run could be given a value that has changed; report what it would not have."""
        copied = None if is_generator(leaf.value) else self.copied.get(place[0][1])
        late = next((place[:end] for end in range(1, len(place)) if place[:end] not in self._holders), None)
        if copied == RUN:
            self._gaps.append(
                f"{self._show(place)} has changed since training began, and persistent workers read with a copy "
                "made before; set persistent_workers to False"
            )
        elif copied == EPOCH and inside_epoch and self._epoch.get(place) != leaf.mark:
            self._gaps.append(
                f"{self._show(place)} has changed in the middle of an epoch, which is read as it was at its "
                "beginning, but by a resumed run as it is now; change it between epochs"
            )
        if late is None and is_generator(leaf.value) and self._before.get(place, _NONE) == _NONE:
            late = place
        if late is not None and not (
            late != place and _is_of_model(late) and isinstance(walk.holders[late], torch.nn.Module)
        ):
            self._gaps.append(  # networks of the model have been checked
                f"{self._show(late)} was made after training had begun, so a resumed run has none to give its values "
                "back to; make it in setup or on_training_start, or save it in a state_dict of the model"
            )
        return copied != RUN and late is None

    def _report_space(self, place: ValuePath, before: Any) -> None:
        """To set what a class or a module keeps could take from the program what it has made since."""
        if before not in (_CHANGED, _NONE):  # else it was made when it was first needed, as a cache is
            self._gaps.append(
                f"{self._show(place[:2])} has changed since training began, and no checkpoint holds what classes and "
                "modules keep; keep it in the model, or name it in transient if nothing depends on it"
            )

    def _report_unsaved(self, place: ValuePath, leaf: Leaf, problem: NotSavable) -> None:
        is_new = self._before.get(place) in (None, _NONE) and not is_watched(leaf.value)
        if is_new and not _is_of_model(place):
            return  # made when it was first needed, as a handle to a file is
        self._gaps.append(
            f"{self._show(place)} has changed since training began and is {problem}, which no checkpoint "
            "holds; save what matters of it in a state_dict of the model, or name it in transient if "
            "nothing depends on it"
        )

    def _show(self, place: ValuePath) -> str:
        first = place[0][1]
        steps = (f"[{key!r}]" if kind == "item" else f".{key}" for kind, key in place[1:])
        return (type(self._model).__name__ if first == MODEL else str(first)) + "".join(steps)


def _is_of_model(place: ValuePath) -> bool:
    return place[0] == ("root", MODEL)


def _find_leaf(place: ValuePath, walk: Walk) -> Leaf:
    """Where a value goes that this start has not made yet. Raises LookupError, AttributeError, TypeError."""
    holder = walk.holders.get(place[:-1])
    if holder is None:
        raise LookupError("it is no longer there")
    kind, key = place[-1]
    now = getattr(holder, key, None) if kind == "attribute" else None
    return Leaf(holder, place[-1], now if is_generator(now) else None)

"""Which checkpoints are kept: those that are needed, those that the experiment's rule keeps; and which go first when
all of them together take more than the quota.

Pure: facts in, decisions out. The engine gathers the facts of one trial at a time (`manager/engine/loop/retention.py`),
so that a decision costs the same however many trials there are.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum, StrEnum


class KeepReason(StrEnum):
    """Why a checkpoint is kept."""

    GIVEN = "GIVEN"  # a live job was given it, to continue from
    DONOR = "DONOR"  # a trial that has not ended began with it
    COPIED = "COPIED"  # it is being copied to the manager's machine
    NEWEST = "NEWEST"  # among the newest of its trial that the rule keeps
    BEST = "BEST"  # among the best of its trial that the rule keeps
    ALL = "ALL"  # the rule keeps every checkpoint
    FOREIGN = "FOREIGN"  # it is where the SDK stores none: the trial itself has to remove it


class Expendability(IntEnum):
    """What goes first when the quota is exceeded: the greater number; of equals the oldest."""

    NEVER = 0
    BEST_OF_ENDED = 1  # the best one of a trial that has ended
    OLDER_OF_LIVE = 2  # of a trial that has not ended all but its newest one
    OF_ENDED = 3  # any other of a trial that has ended


@dataclass(frozen=True)
class KeepRule:
    """How many checkpoints of each trial are kept, for each of its ranks that registers some: the `newest`, and the
    `best` by their metrics. `newest` None: all of them."""

    newest: int | None = None
    best: int = 0
    maximize: bool = False

    @property
    def protects_best(self) -> bool:
        """Whether the best ones are the last to go."""
        return self.best > 0 or self.newest is None


@dataclass(frozen=True)
class CheckpointFacts:
    """What decides over one checkpoint. `id` counts up within the experiment.

    place: (job id, path in the job's directory): what is deleted. Two records may be of one place.
    value: of the metric that was reported with it, or of the last one before it; None: that is no finite number.
    """

    id: int
    job: int
    member: int
    place: tuple[str, str]
    value: float | None = None
    is_given: bool = False
    is_donor: bool = False
    is_copied: bool = False
    is_foreign: bool = False


@dataclass(frozen=True)
class RetentionVerdict:
    """What becomes of the checkpoints of one trial: why each is kept (those without a reason are deleted), and what of
    them may go when the quota is exceeded."""

    reasons: Mapping[int, tuple[KeepReason, ...]]
    expendable: Mapping[int, Expendability]

    @property
    def deleted(self) -> list[int]:
        """The ids of those that nothing keeps, oldest first."""
        return sorted(id for id, reasons in self.reasons.items() if not reasons)


def retain(checkpoints: Iterable[CheckpointFacts], rule: KeepRule, *, has_ended: bool) -> RetentionVerdict:
    """Decide over the checkpoints of one trial that were not deleted.

    Applied again to those that it keeps, it keeps them all. Of every rank the newest checkpoint is kept.

    :param has_ended: the trial is over. Otherwise its newest checkpoint is never deleted, whatever the quota says.
    """
    found = list(checkpoints)
    reasons: dict[int, list[KeepReason]] = {item.id: [] for item in found}
    newest_of_all: set[int] = set()
    best_of_all: set[int] = set()
    for member in {item.member for item in found}:
        newest = sorted((item for item in found if item.member == member), key=lambda item: (item.job, item.id))[::-1]
        best = _ranked(newest, rule)
        newest_of_all.add(newest[0].id)
        best_of_all.update(item.id for item in best[:1])
        for item in newest[: len(newest) if rule.newest is None else max(rule.newest, 1)]:
            reasons[item.id].append(KeepReason.ALL if rule.newest is None else KeepReason.NEWEST)
        for item in best[: rule.best]:
            reasons[item.id].append(KeepReason.BEST)
    for item in found:
        held = (
            (item.is_given, KeepReason.GIVEN),
            (item.is_copied, KeepReason.COPIED),
            (item.is_donor, KeepReason.DONOR),
            (item.is_foreign, KeepReason.FOREIGN),
        )
        reasons[item.id] += [reason for holds, reason in held if holds]
    _share_places(found, reasons)
    expendable = {
        item.id: _expendability(
            item, has_ended, item.id in newest_of_all, item.id in best_of_all and rule.protects_best
        )
        for item in found
        if reasons[item.id]
    }
    places = {item.place for item in found if expendable.get(item.id) is Expendability.NEVER}
    expendable |= {item.id: Expendability.NEVER for item in found if item.place in places and item.id in expendable}
    return RetentionVerdict({id: tuple(kept) for id, kept in reasons.items()}, expendable)


def take_until_within(total: int, quota: int, candidates: Sequence[tuple[int, int]]) -> list[int]:
    """The ids of the first checkpoints that have to go so that the others take at most `quota` bytes; all of them if
    that is not enough.

    :param candidates: (id, bytes), those that go first at the front.
    """
    taken = []
    for id, size in candidates:
        if total <= quota:
            break
        taken.append(id)
        total -= size
    return taken


def _ranked(checkpoints: Sequence[CheckpointFacts], rule: KeepRule) -> list[CheckpointFacts]:
    """Those with a value, the best first; of equals the one that comes first in `checkpoints`."""
    valued = [item for item in checkpoints if item.value is not None]
    return sorted(valued, key=lambda item: item.value or 0.0, reverse=rule.maximize)


def _share_places(found: Sequence[CheckpointFacts], reasons: Mapping[int, list[KeepReason]]) -> None:
    """Two records of one folder are kept together."""
    of_place: dict[tuple[str, str], list[KeepReason]] = {}
    for item in found:
        of_place.setdefault(item.place, []).extend(reasons[item.id])
    for item in found:
        if not reasons[item.id]:
            reasons[item.id].extend(dict.fromkeys(of_place[item.place]))


def _expendability(item: CheckpointFacts, has_ended: bool, is_newest: bool, is_best: bool) -> Expendability:
    if item.is_given or item.is_donor or item.is_copied or item.is_foreign or (is_newest and not has_ended):
        return Expendability.NEVER
    if not has_ended:
        return Expendability.OLDER_OF_LIVE
    return Expendability.BEST_OF_ENDED if is_best else Expendability.OF_ENDED

"""The book of one machine, kept on the manager's disk: which experiments want it, which ones are still owed files of
theirs, and whether anything of ours was ever brought there."""

import logging
from collections.abc import Sequence
from dataclasses import replace

from proctor.training_services.remote.claims import Claim
from proctor.training_services.remote.node_folder import NodeFolder, NodeRecord

__all__ = ["Tenancy"]

log = logging.getLogger(__name__)


class Tenancy:
    """A machine's `NodeRecord`, and how it changes."""

    def __init__(self, record: NodeRecord, folder: NodeFolder) -> None:
        self._record = record
        self._folder = folder

    @property
    def address(self) -> str:
        """[user@]host[:port], as written."""
        return self._record.address

    @property
    def claims(self) -> tuple[Claim, ...]:
        """Those that want it, the newest last; of a released machine those that wanted it last."""
        return self._record.claims

    @property
    def experiments(self) -> tuple[str, ...]:
        """The experiments that want it."""
        return () if self._record.released else tuple(claim.experiment_id for claim in self._record.claims)

    @property
    def is_released(self) -> bool:
        """Whether nobody wants it any more."""
        return self._record.released

    @property
    def is_entered(self) -> bool:
        """Whether something of ours may be there."""
        return self._record.entered

    @property
    def owed(self) -> tuple[Claim, ...]:
        """The experiments that are owed files."""
        return self._record.owed

    def claim(self, claim: Claim) -> None:
        """An experiment wants it; one that has claimed it already is heard again. Raises OSError."""
        others = () if self._record.released else _without(self._record.claims, claim.experiment_id)
        owed = _without(self._record.owed, claim.experiment_id)  # it collects them itself
        self._write(replace(self._record, claims=(*others, claim), released=False, owed=owed))

    def release(self, experiment_id: str, *, owing: bool) -> None:
        """An experiment wants it no more, and is owed files or not."""
        debt = [claim for claim in self._record.claims if owing and claim.experiment_id == experiment_id]
        others = _without(self._record.claims, experiment_id)
        owed = (*self._record.owed, *debt)
        if others:
            self._try_to_write(replace(self._record, claims=others, owed=owed))
        else:
            self._try_to_write(replace(self._record, released=True, owed=owed))

    def give_up(self) -> None:
        """None of those that wanted it is there any more. Each may be owed files."""
        owing = () if self._record.released else self._record.claims
        self._try_to_write(replace(self._record, released=True, owed=(*self._record.owed, *owing)))

    def settle_with(self, *experiments: str) -> None:
        """Nothing is owed to these any more."""
        self._try_to_write(replace(self._record, owed=_without(self._record.owed, *experiments)))

    def enter(self) -> None:
        """Something is about to be brought there. On the disk when it returns. Raises OSError."""
        self._write(replace(self._record, entered=True))

    def close(self) -> None:
        """Nothing of ours is there any more, or it is given up: the machine is forgotten. Raises OSError."""
        self._folder.remove()
        self._record = replace(self._record, released=True, owed=(), entered=False)

    def _write(self, record: NodeRecord) -> None:
        if record != self._record or not self._folder.path.exists():
            self._folder.write(record)
            self._record = record

    def _try_to_write(self, record: NodeRecord) -> None:
        """A machine is left whether or not that can be written down; after a restart nobody claims it."""
        try:
            self._write(record)
        except OSError as error:
            extra = {"action": "node.fail", "node_id": record.node_id}
            log.error("what becomes of node %s cannot be written down: %s", record.node_id, error, extra=extra)
            self._record = record


def _without(claims: Sequence[Claim], *experiments: str) -> tuple[Claim, ...]:
    return tuple(claim for claim in claims if claim.experiment_id not in experiments)

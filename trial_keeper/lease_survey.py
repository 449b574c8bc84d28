"""Who holds which share of which GPU of this machine now: trials of any manager, of any user."""

from proctor.trial_keeper.leases import Note, allowed_trials, guard, list_shares, read_held
from proctor.trial_keeper.protocol import Lease

_GUARD_SECONDS = 0.25


def read(folder: str) -> dict[str, list[Lease]]:
    """The leases that are held now, by GPU UUID, each GPU's by share. Nobody who takes one is disturbed.

    May block for a quarter of a second per GPU when somebody keeps a guard.

    :param folder: the machine's directory of leases; one that is not there holds none.
    :raises OSError: the directory cannot be read.
    """
    found = {uuid: _read_gpu(folder, uuid, slots) for uuid, slots in list_shares(folder).items() if slots}
    return {uuid: leases for uuid, leases in found.items() if leases}


def _read_gpu(folder: str, uuid: str, slots: list[int]) -> list[Lease]:
    try:
        with guard(folder, uuid, shared=True, make=False, seconds=_GUARD_SECONDS):
            held = read_held(folder, uuid, slots)
    except OSError:  # it was removed, or somebody was stopped while holding it: a note may be unfinished then
        held = read_held(folder, uuid, slots)
    return [_lease(slot, note) for slot, note in held]


def _lease(slot: int, note: Note) -> Lease:
    """What a note says."""
    job_id, pid = note.get("job_id"), note.get("pid")
    return Lease(
        slot=slot,
        holder=str(note.get("holder", "")),
        job_id=job_id if isinstance(job_id, str) else None,
        pid=pid if isinstance(pid, int) else None,
        since=str(note.get("since", "")),
        max_trials_per_gpu=allowed_trials(note),
    )

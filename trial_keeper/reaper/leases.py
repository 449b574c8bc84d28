"""Leases on GPUs: one lock per GPU share in a directory that all users of the machine share.

The lock of a share is the file `<GPU UUID>.<share>`. Its text says who holds it and how many trials its holder allows
on the GPU. A process that acquires, counts or removes shares of a GPU holds that GPU's guard, `<GPU UUID>.guard`, for
that moment: so "how many hold it, and what do they allow" and "take mine" are one step. Used by the reaper, so it
imports as little as possible.

Every user of the machine may write into this directory. What a note or a file's name says is cleaned here: nothing but
short printable texts and sensible numbers gets any further.
"""

import errno
import json
import os
from collections.abc import Collection, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress

from proctor.trial_keeper.linux.locks import (
    EXCLUSIVE,
    SHARED,
    find_danger,
    read_if_locked,
    remove_unlocked,
    wait_for_lock,
)

_GUARD = "guard"
_GUARD_SECONDS = 10.0
_GLANCE_SECONDS = 1.0
_LONGEST_TEXT = 500  # characters of one entry of a note
_MOST_PID = 2**22  # the kernel's
_MOST_TRIALS = 10_000
_MOST_NAMED = 3  # holders, in a sentence

Note = dict[str, object]


class LeaseRefused(Exception):
    """Another job holds the GPU."""


class UnsafeFolder(OSError):
    """Other users could remove locks that are held."""


class GuardBusy(OSError):
    """A process holds a lock for much longer than any use of leases needs."""


def acquire(folder: str, slots: list[tuple[str, int]], note: Note, *, max_trials: int = 1) -> list[int]:
    """Take the leases on all `slots` (GPU UUID, share) or none; returns the descriptors that hold them. Only for a
    process with one thread.

    A lease is refused when its share is held, and when as many trials hold the GPU as the strictest of them, the one
    that asks included, allows.

    :param note: what is shown to the next one who asks: holder, job_id, pid, since.
    :param max_trials: how many trials may share each of these GPUs, the one that asks included.
    :raises LeaseRefused: with a sentence that names the holders.
    :raises OSError: the directory cannot be used or is not safe (UnsafeFolder), or a guard is not given back
        (GuardBusy).
    """
    text = json.dumps({**note, "max_trials_per_gpu": max_trials}).encode() + b"\n"
    uuids = sorted({uuid for uuid, _ in slots})
    held: list[int] = []
    try:
        with ExitStack() as guards:
            for uuid in uuids:  # every process in this order, so that there is no deadlock
                guards.enter_context(guard(folder, uuid))
            if danger := find_danger(folder):
                raise UnsafeFolder(errno.EPERM, danger, folder)
            for uuid, slot in sorted(slots):
                held.append(_take(folder, uuid, slot, text=text, max_trials=max_trials))
    except BaseException:
        release(held)
        remove_unused(folder, uuids)
        raise
    return held


def release(descriptors: list[int]) -> None:
    """Give leases back; what dies gives its leases back by dying. `remove_unused` removes their files."""
    for descriptor in descriptors:
        os.close(descriptor)


def remove_unused(folder: str, uuids: Collection[str] | None = None) -> None:
    """Remove the lock files of these GPUs that are not held. None: those of all GPUs, and the directory too when it is
    empty then and any user could make it again. What may not be removed (other users' files) is left."""
    with suppress(OSError):
        for uuid in list_shares(folder) if uuids is None else uuids:
            with suppress(OSError):
                _remove_unused_of(folder, uuid)
        if uuids is None and os.stat(os.path.dirname(folder)).st_mode & 0o002:
            os.rmdir(folder)


@contextmanager
def guard(
    folder: str, uuid: str, *, shared: bool = False, make: bool = True, seconds: float = _GUARD_SECONDS
) -> Iterator[None]:
    """Keep others from taking or removing shares of a GPU while the block runs.

    :param shared: only look; others may look too.
    :param make: whether to make the guard's file (and the directory) if it is not there.
    :raises GuardBusy: another process holds it for longer than `seconds`.
    :raises FileNotFoundError: it is not there and is not to be made.
    """
    path = os.path.join(folder, f"{uuid}.{_GUARD}")
    descriptor = wait_for_lock(path, SHARED if shared else EXCLUSIVE, make=make, seconds=seconds)
    if descriptor is None:
        raise GuardBusy(errno.EBUSY, f"another process keeps it locked for more than {seconds:g} s", path)
    try:
        yield
    finally:
        os.close(descriptor)


def list_shares(folder: str) -> dict[str, list[int]]:
    """The shares that have a lock file, held or not, by GPU UUID; a GPU that has only a guard is there too.

    :raises OSError: the directory cannot be read; one that is not there holds nothing.
    """
    shares: dict[str, list[int]] = {}
    try:
        names = os.listdir(folder)
    except FileNotFoundError:
        return {}
    for name in sorted(names):
        uuid, _, share = name.rpartition(".")
        if uuid and (share == _GUARD or _is_share(share)):
            shares.setdefault(uuid, []).extend([] if share == _GUARD else [int(share)])
    return shares


def read_held(folder: str, uuid: str, slots: Iterable[int]) -> list[tuple[int, Note]]:
    """Which of these shares of a GPU are held now, in their order, and their holders' notes. Call it under the GPU's
    guard: then every note is whole."""
    texts = [(slot, read_if_locked(_path(folder, uuid, slot))) for slot in sorted(slots)]
    return [(slot, _read_note(text)) for slot, text in texts if text is not None]


def allowed_trials(note: Note) -> int:
    """How many trials a holder allows on the GPU, itself included."""
    allowed = note.get("max_trials_per_gpu")
    return allowed if isinstance(allowed, int) else 1


def _take(folder: str, uuid: str, slot: int, *, text: bytes, max_trials: int) -> int:
    """Under the GPU's guard: take one share."""
    held = read_held(folder, uuid, list_shares(folder).get(uuid, ()))
    for other, note in held:
        if other == slot:
            raise LeaseRefused(f"GPU {uuid} (share {slot}) is held by {_describe(note)}")
    limit = min([max_trials, *(allowed_trials(note) for _, note in held)])
    if held and len(held) >= limit:
        holders = " and ".join([_describe(note) for _, note in held[:_MOST_NAMED]])
        if len(held) > _MOST_NAMED:
            holders += f" and {len(held) - _MOST_NAMED} more"
        trials = "1 trial" if limit == 1 else f"{limit} trials"
        raise LeaseRefused(f"GPU {uuid} is held by {holders}, and no more than {trials} may have it")
    # No job holds the share; a check without the guard lasts microseconds.
    path = _path(folder, uuid, slot)
    descriptor = wait_for_lock(path, EXCLUSIVE, seconds=_GLANCE_SECONDS)
    if descriptor is None:
        raise GuardBusy(errno.EBUSY, "another process keeps it locked without being a holder", path)
    with suppress(OSError):  # a full disk, or a file that may not be written: the lock holds without its note
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, text, 0)
    return descriptor


def _remove_unused_of(folder: str, uuid: str) -> None:
    with guard(folder, uuid, make=False, seconds=_GLANCE_SECONDS):
        slots = list_shares(folder).get(uuid, ())
        gone = [remove_unlocked(_path(folder, uuid, slot)) for slot in slots]
        if all(gone):
            os.unlink(os.path.join(folder, f"{uuid}.{_GUARD}"))


def _path(folder: str, uuid: str, slot: int) -> str:
    return os.path.join(folder, f"{uuid}.{slot}")


def _is_share(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) < len(str(_MOST_TRIALS)) and str(int(text)) == text


def _read_note(text: bytes) -> Note:
    """Written by other users: anything may be in it. Entries that say nothing sensible are left out."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    if not isinstance(found, dict):
        return {}
    texts = {name: _clean(found.get(name)) for name in ("holder", "job_id", "since")}
    limits = {"pid": _MOST_PID, "max_trials_per_gpu": _MOST_TRIALS}
    numbers = {name: found.get(name) for name, most in limits.items() if _is_number(found.get(name), most)}
    return {**{name: value for name, value in texts.items() if value}, **numbers}


def _clean(value: object) -> str:
    """Printable and short, on one line; empty for what is not a text."""
    if not isinstance(value, str):
        return ""
    return "".join(letter if letter.isprintable() else "?" for letter in value[:_LONGEST_TEXT])


def _is_number(value: object, most: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 < value <= most


def _describe(note: Note) -> str:
    if not note:
        return "an unknown holder"
    job, pid, since = (note.get(name, "unknown") for name in ("job_id", "pid", "since"))
    return f"{note.get('holder', 'an unknown holder')} (job {job}, pid {pid}, since {since})"

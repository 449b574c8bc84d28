"""What a checkpoint holds: taken from a run and saved, found again and given back to one.

format, version      of this layout, and of the package
training_state       the counters
model                what `Model.state_dict` returns
amp_scaler           the gradient scaler's state, if there is one
rng                  the random streams of every rank
averages             the running means of every rank
attributes           what else has changed while training, of every rank
positions            of every rank, what its place in the data is besides the counters, if there is something
history              how much of the metrics belongs to it (added by the storage)
metrics              the last value of each metric
plugins              the state of every plug-in by id
observers            where the logs are, and whose
log_path, run_path   the folders that the run was started with
settings             the options and the learning rates that the run had
fingerprint          what must be the same for an exact resume

Only the main rank needs the folder of the checkpoints. A rank that has the same bytes at the same path, as their hash
tells, reads them. All others, on other machines or in other containers, get them through the process group in blocks,
into a nameless temporary file. So no process has more than a few blocks in memory, and no rank reads another file that
happens to have that name.
"""

import os
import platform
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryFile, gettempdir
from typing import Any, BinaryIO

import torch

from proctor import __version__
from proctor.sdk.files import hash_file
from proctor.sdk.pytorch import trial
from proctor.sdk.pytorch.checkpoints.folder import CheckpointFolder
from proctor.sdk.pytorch.checkpoints.serialization import FORMAT, hash_outline, load, load_upgraded, upgrade
from proctor.sdk.pytorch.config import Settings, TrainUnit
from proctor.sdk.pytorch.distributed.ranks import Ranks
from proctor.sdk.pytorch.distributed.shards import holds_split, is_split, join_split, split_as, splitting
from proctor.sdk.pytorch.errors import ConfigurationError, UnreadableCheckpointError
from proctor.sdk.pytorch.model import Model, overrides
from proctor.sdk.pytorch.reproducibility.fingerprint import (
    Fingerprint,
    describe_device,
    report_gaps,
    take_fingerprint,
)
from proctor.sdk.pytorch.reproducibility.seeding import get_rng_state_dict, load_rng_state_dict
from proctor.sdk.pytorch.run import Run, describe_settings
from proctor.sdk.trial import is_in_trial

LAST, BEST = "last", "best"
"""What `ckpt_path` of a test may be besides a path."""
BLOCK_BYTES = 16 << 20


def save_checkpoint(run: Run) -> None:
    """Make a checkpoint of the present position (collective).

    :raises ConfigurationError: the model has parts that no checkpoint would hold, or no resumed run have.
    :raises NotExactError: `strict_resume` is set, and something that has changed cannot be saved.
    """
    content = take_snapshot(run)
    run.parts.check(run.attributes.find_parts())  # what the hooks have made since the run began was there for no check
    gaps = [*run.gradients.find_gaps(), *run.attributes.find_gaps()]
    gaps += [] if run.has_saved else run.datamodule.find_gaps()
    report_gaps(gaps, ranks=run.ranks, strict=run.settings.strict_resume)
    run.has_saved = True
    if content is not None and run.storage is not None:
        metadata = run.model.append_metadata_to_chkpt_name()
        path = run.storage.save(content, metadata=metadata, score=run.score())
        run.callbacks.call("on_checkpoint", path)
    run.gradients.watch(run.model)


def take_snapshot(run: Run) -> "dict[str, Any] | None":
    """Return the content of a checkpoint on the main rank, None elsewhere (collective)."""
    averages = run.model.averages.state_dict()
    device, attributes = describe_device(run.device), run.attributes.take(inside_epoch=run.state.batch > 0)
    streams = get_rng_state_dict()
    positions = run.datamodule.take_positions()
    own = run.ranks.gather(
        {"rng": streams, "averages": averages, "device": device, "attributes": attributes, "positions": positions}
    )
    model = run.model.state_dict()  # on every rank: what is split over the ranks is put together, by the model or here
    is_split_up = any(map(holds_split, vars(run.model).values()))
    callbacks = run.callbacks.state_dict() if run.ranks.is_main or is_split_up else {}
    if not run.has_saved:
        report_unlike_ranks(run, model)
    model, callbacks = join_split((model, callbacks), run.ranks)
    if own is None:
        return None
    content: dict[str, Any] = {
        "format": FORMAT,
        "version": __version__,
        "training_state": run.state.state_dict(),
        "model": model,
        "rng": [part["rng"] for part in own],
        "averages": [part["averages"] for part in own],
        "attributes": [part["attributes"] for part in own],
        **({"positions": found} if any(found := [part["positions"] for part in own]) else {}),
        "metrics": dict(run.metrics),
        **callbacks,
        "log_path": run.settings.log_path and str(run.settings.log_path),
        "run_path": run.settings.run_path and str(run.settings.run_path),
        "settings": describe_settings(run),
        "fingerprint": describe_run(run, [part["device"] for part in own]),
    }
    if run.model.amp_scaler is not None:
        content["amp_scaler"] = run.model.amp_scaler.state_dict()
    return content


def report_unlike_ranks(run: Run, model: "dict[str, Any]") -> None:
    """Refuse or report parts of a model that are not alike on all ranks (collective).

    A checkpoint holds the main rank's state for all. Of a model with a `state_dict` of its own nothing is known.

    :raises ConfigurationError: a network or an optimizer consists of other things: a resumed run could not load its
        state.
    """
    if run.ranks.world_size == 1 or not run.parts.is_used:
        return
    outlines = run.ranks.gather({name: hash_outline(state) for name, state in model.items()})
    clauses = []
    for name, rank in run.ranks.broadcast(_find_unlike(outlines)):
        place = f"{type(run.model).__name__}.{name}"
        text = f"the state of {place} has another structure on rank {rank} than on the main rank"
        if isinstance(getattr(run.model, name, None), (torch.nn.Module, torch.optim.Optimizer)):
            raise ConfigurationError(
                f"{text}, whose state alone a checkpoint would hold. Make it alike on all ranks; split a network over "
                "them with torch.distributed.fsdp.fully_shard (FSDP2); or override state_dict and load_state_dict to "
                "return and take what belongs to all ranks."
            )
        clauses.append(f"{text}, whose state alone is saved")
    weights = run.ranks.gather({name: _add_up(getattr(run.model, name, None)) for name in model})
    for name, rank in run.ranks.broadcast(_find_unlike(weights)):
        text = f"the weights of {type(run.model).__name__}.{name} on rank {rank} are not those of the main rank, which"
        clauses.append(f"{text} alone are saved; share its gradients with wrap_for_ranks in setup")
    report_gaps(clauses, ranks=run.ranks, strict=run.settings.strict_resume)


def _find_unlike(found: "list[dict[str, Any]] | None") -> "list[tuple[str, int]]":
    """By what all ranks have said of each part, the parts that are not alike, each with the first such rank."""
    main, *others = found or [{}]
    names = sorted({name for own in others for name in own} | main.keys())
    unlike = ((name, rank) for name in names for rank, own in enumerate(others, 1) if own.get(name) != main.get(name))
    return list({name: (name, rank) for name, rank in reversed(list(unlike))}.values())


def _add_up(part: Any) -> "list[str]":
    """The sum of each of a network's parameters, as a text; equal parameters have equal sums."""
    parameters = part.parameters() if isinstance(part, torch.nn.Module) else ()
    whole = (one.detach() for one in parameters if not is_split(one))
    return [repr(one.to(torch.complex128 if one.is_complex() else torch.float64).sum().item()) for one in whole]


def describe_run(run: Run, devices: "Sequence[Fingerprint]") -> Fingerprint:
    """The fingerprint of a run as it is now.

    :param devices: what `describe_device` returned on each rank.
    """
    settings, own = run.settings, run.callbacks.own
    return take_fingerprint(
        run.device,
        world_size=run.ranks.world_size,
        devices=devices,
        settings={
            **run.model.describe_precision(),
            "seed": settings.seed,
            "train unit": TrainUnit(settings.train_unit).value,
            "accumulation steps": settings.accumulation_steps,
            "flush at epoch end": settings.flush_at_epoch_end,
            "validation frequency": settings.valid_frequency,  # they draw from the streams, too
            "plug-ins": ", ".join(one.state_key for one in own),
            **{
                f"{what} of {one.state_key}": fact for one in run.callbacks.own for what, fact in one.describe().items()
            },
        },
        loaders=run.datamodule.describe(),
    )


def find_checkpoint(run: Run, ckpt_path: "str | os.PathLike[str]" = LAST) -> "dict[str, Any] | None":
    """Read the checkpoint to continue from, the same one on all ranks (collective).

    :param ckpt_path: another one.
    :raises UnreadableCheckpointError: there is one and it cannot be read, or is of another version.
    """
    path, content = (_read_checkpoint(run, ckpt_path) if run.ranks.is_main else None) or (None, None)
    run.resumed_from = path = run.ranks.broadcast(path)
    if run.ranks.world_size > 1 and path is not None:
        with deliver(path, run.ranks) as file:
            if content is None:
                safe_types = tuple(run.model.types_for_safe_load())
                content = upgrade(load(path, run.device, safe_types, file=file), str(path))
    elif run.ranks.world_size > 1 and ckpt_path == LAST and run.storage is not None:
        refuse_to_leave_behind(run.storage, run.ranks)
    return content


def _read_checkpoint(run: Run, ckpt_path: "str | os.PathLike[str]") -> "tuple[Path, dict[str, Any]] | None":
    if ckpt_path in (LAST, BEST):
        if run.storage is None:
            return None
        trial.adopt_checkpoint(run.storage)
        read = run.storage.load_newest if ckpt_path == LAST else run.storage.load_best
        loaded = read(run.device)
        return None if loaded is None else (loaded.path, loaded.content)
    path = Path(ckpt_path).absolute()
    if not path.exists():
        return None
    return path, load_upgraded(path, run.device, tuple(run.model.types_for_safe_load()))


def check_tested(settings: Settings, ckpt_path: Any) -> None:
    """Refuse to test a checkpoint that there cannot be.

    :raises ConfigurationError: it is none that `Trainer.test` knows, or an option that it needs is missing.
    """
    if ckpt_path is not None and not isinstance(ckpt_path, (str, os.PathLike)):
        raise ConfigurationError(
            f"ckpt_path must be None, 'last', 'best' or the path of a checkpoint; found {ckpt_path!r}."
        )
    if ckpt_path not in (LAST, BEST):
        return
    if trial.choose_root(settings) is None:
        raise ConfigurationError(f"ckpt_path={ckpt_path!r} needs chkpt_root, the folder of the run's checkpoints.")
    if ckpt_path == BEST and settings.best_metric is None:
        raise ConfigurationError("ckpt_path='best' needs best_metric, the name of the metric that tells which it is.")
    if ckpt_path == BEST and not settings.keep_best:
        raise ConfigurationError(
            "ckpt_path='best' needs keep_best of at least 1, while training too; with keep_best=0 only the newest "
            "checkpoints stay."
        )


def find_tested(run: Run, ckpt_path: "str | os.PathLike[str] | None") -> "dict[str, Any] | None":
    """Read the checkpoint that is to be tested, the same one on all ranks; None if there need be none (collective).

    :raises ConfigurationError: there is none, and one was named.
    :raises UnreadableCheckpointError: there is one and it cannot be read, or is of another version.
    """
    content = find_checkpoint(run, ckpt_path or LAST)
    if content is not None or ckpt_path is None:
        return content
    if ckpt_path not in (LAST, BEST):
        raise ConfigurationError(f"ckpt_path: there is no checkpoint {ckpt_path}; found no such file.")
    assert run.storage is not None
    scored = f" that was saved with a value of {run.settings.best_metric!r}" if ckpt_path == BEST else ""
    raise ConfigurationError(
        f"ckpt_path={ckpt_path!r} names a checkpoint in {run.storage.path}, which holds none{scored}. Train first, "
        "with the same run_name and chkpt_root."
    )


def restore_model(run: Run, content: "dict[str, Any]") -> None:
    """Give the model and its scaler back what they were (collective)."""
    state, parts = content["model"], vars(run.model).values()
    if overrides(run.model, Model.load_state_dict) and any(map(holds_split, parts)):
        state = split_as(state, run.model.state_dict())
    with splitting(parts):
        run.model.load_state_dict(state)
    if run.model.amp_scaler is not None and content.get("amp_scaler"):  # one that does nothing has an empty state
        run.model.amp_scaler.load_state_dict(content["amp_scaler"])


def restore_attributes(run: Run, content: "dict[str, Any]") -> "list[str]":
    """Give the model and its data back what else had changed, and return clauses about what could not be."""
    saved = content.get("attributes") or []
    return run.attributes.restore(saved[run.ranks.rank]) if run.ranks.rank < len(saved) else []


def restore_positions(run: Run, content: "dict[str, Any]") -> None:
    """Have this rank's data read on from its place; with another number of ranks no place is known."""
    saved = content.get("positions") or []
    run.datamodule.restore_positions(saved[run.ranks.rank] if len(saved) == run.ranks.world_size else {})


def restore_training(run: Run, content: "dict[str, Any]") -> None:
    """Give the counters, the metrics, the means and the callbacks back what they were."""
    run.state.load_state_dict(content["training_state"])
    run.metrics.clear()
    run.metrics.update(content.get("metrics") or {})
    averages = content.get("averages") or []
    if run.ranks.rank < len(averages):
        run.model.averages.load_state_dict(averages[run.ranks.rank])
    run.callbacks.load_state_dict(content)


def restore_streams(run: Run, content: "dict[str, Any]") -> None:
    """Give this rank its own random streams back; a rank that was not there keeps the ones it was seeded with."""
    streams = content["rng"]
    if run.ranks.rank < len(streams):
        load_rng_state_dict(streams[run.ranks.rank])


# -- a checkpoint on every rank ---------------------------------------------------------------------------------------


@contextmanager
def deliver(path: Path, ranks: Ranks) -> "Iterator[BinaryIO]":
    """Yield, on every rank, a file with the bytes of the main rank's file at `path` (collective).

    :raises OSError: the main rank cannot read it.
    :raises UnreadableCheckpointError: this machine has no room for a copy.
    """
    size, digest = ranks.broadcast((path.stat().st_size, hash_file(path)) if ranks.is_main else None)
    is_missing = not ranks.is_main and not _has_bytes(path, size, digest)
    with TemporaryFile(prefix="proctor-checkpoint-") if is_missing else open(path, "rb") as file:
        for _ in range(0, size if ranks.any(is_missing) else 0, BLOCK_BYTES):
            block = ranks.broadcast(file.read(BLOCK_BYTES) if ranks.is_main else None)
            if is_missing:
                _store(block, file, size=size)
        file.seek(0)
        yield file


def _has_bytes(path: Path, size: int, digest: str) -> bool:
    try:
        return path.stat().st_size == size and hash_file(path) == digest
    except OSError:
        return False


def _store(block: bytes, target: BinaryIO, *, size: int) -> None:
    try:
        target.write(block)
    except OSError as problem:
        raise UnreadableCheckpointError(
            f"{platform.node()} cannot see the main rank's checkpoint and gets a copy of its {size} bytes, for which "
            f"{gettempdir()} has no room: {problem}. Make room, or set TMPDIR to another folder."
        ) from problem


def refuse_to_leave_behind(storage: CheckpointFolder, ranks: Ranks) -> None:
    """Called where the main rank has no checkpoint: nor may any other rank have one at its place (collective).

    In a trial the manager decides what an attempt continues from, and what else a machine has does not count.

    :raises UnreadableCheckpointError: there is one; the main rank was on another machine before.
    """
    found = "" if is_in_trial() or storage.is_empty() else f"{storage.path} on {platform.node()} (rank {ranks.rank})"
    strays = ranks.broadcast([place for place in ranks.gather(found) or () if place])
    if strays:
        raise UnreadableCheckpointError(
            f"the main rank, which reads the checkpoints, has none, and there are some in {', '.join(strays)}. Start "
            "the ranks so that the main one is where it was, give all machines one shared chkpt_root, or start over "
            "with resume=False."
        )

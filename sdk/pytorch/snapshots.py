"""What a checkpoint holds: taken from a run and saved, found again and given back to one.

format, version      of this layout, and of the package
training_state       the counters
model                what `Model.state_dict` returns
amp_scaler           the gradient scaler's state, if there is one
rng                  the random streams of every rank
averages             the running means of every rank
attributes           what else has changed while training, of every rank
history              how much of the metrics belongs to it (added by the storage)
metrics              the last value of each metric
plugins              the state of every plug-in by id
observers            where the logs are, and whose
log_path, run_path   the folders that the run was started with
settings             the options and the learning rates that the run had
fingerprint          what must be the same for an exact resume
"""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from proctor.sdk.pytorch import trial
from proctor.sdk.pytorch.checkpoints.formats import FORMAT, upgrade
from proctor.sdk.pytorch.checkpoints.serialization import load
from proctor.sdk.pytorch.checkpoints.transfer import deliver, refuse_to_leave_behind
from proctor.sdk.pytorch.errors import ConfigurationError
from proctor.sdk.pytorch.observers.continuation import describe_settings
from proctor.sdk.pytorch.options import Settings
from proctor.sdk.pytorch.reproducibility.fingerprint import Fingerprint, describe_device, take_fingerprint
from proctor.sdk.pytorch.reproducibility.kernels import report_gaps
from proctor.sdk.pytorch.reproducibility.seeding import get_rng_state_dict, load_rng_state_dict
from proctor.sdk.pytorch.run import Run

LAST, BEST = "last", "best"
"""What `ckpt_path` of a test may be besides a path."""


def save_checkpoint(run: Run) -> None:
    """Make a checkpoint of the present position (collective).

    :raises ConfigurationError: the model has parts that no checkpoint would hold, or no resumed run have.
    :raises NotExactError: `strict_resume` is set, and something that has changed cannot be saved.
    """
    content = take_snapshot(run)
    run.model.check_parts()  # what the hooks have made since the run began was there for no check
    if not run.has_saved:
        report_gaps(
            [*run.attributes.find_gaps(), *run.datamodule.find_gaps()],
            ranks=run.ranks,
            strict=run.settings.strict_resume,
        )
        run.has_saved = True
    if content is not None and run.storage is not None:
        metadata = run.model.append_metadata_to_chkpt_name()
        path = run.storage.save(content, metadata=metadata, score=run.score())
        run.observers.on_checkpoint(path, run.state)


def take_snapshot(run: Run) -> "dict[str, Any] | None":
    """Return the content of a checkpoint on the main rank, None elsewhere (collective)."""
    averages = run.model.averages.state_dict()
    device, attributes = describe_device(run.device), run.attributes.take()
    streams = get_rng_state_dict()
    own = run.ranks.gather({"rng": streams, "averages": averages, "device": device, "attributes": attributes})
    model = run.model.state_dict()  # on every rank: a sharded model may have to gather
    if own is None:
        return None
    content: dict[str, Any] = {
        "format": FORMAT,
        "version": _version(),
        "training_state": run.state.state_dict(),
        "model": model,
        "rng": [part["rng"] for part in own],
        "averages": [part["averages"] for part in own],
        "attributes": [part["attributes"] for part in own],
        "metrics": dict(run.metrics),
        "plugins": run.plugins.state_dict(),
        "observers": run.observers.state_dict(),
        "log_path": _text(run.settings.log_path),
        "run_path": _text(run.settings.run_path),
        "settings": describe_settings(run.settings, run.rates),
        "fingerprint": describe_run(run, [part["device"] for part in own]),
    }
    if run.model.amp_scaler is not None:
        content["amp_scaler"] = run.model.amp_scaler.state_dict()
    return content


def describe_run(run: Run, devices: "Sequence[Fingerprint]") -> Fingerprint:
    """The fingerprint of a run as it is now.

    :param devices: what `describe_device` returned on each rank.
    """
    settings = run.settings
    return take_fingerprint(
        run.device,
        world_size=run.ranks.world_size,
        devices=devices,
        settings={
            **run.model.describe_precision(),
            "seed": settings.random_seed,
            "train unit": settings.train_unit.value,
            "accumulation steps": settings.accumulation_steps,
            "flush at epoch end": settings.flush_at_epoch_end,
            "validation frequency": settings.valid_frequency,  # they draw from the streams, too
            "plug-ins": ", ".join(plugin.plugin_id for plugin in run.plugins),
            **{f"{what} of {one.plugin_id}": fact for one in run.plugins for what, fact in one.describe().items()},
        },
        loaders=run.datamodule.describe(),
    )


def find_checkpoint(run: Run) -> "dict[str, Any] | None":
    """Read the checkpoint to continue from, the same one on all ranks (collective).

    :raises UnreadableCheckpointError: there is one and it cannot be read, or is of another version.
    """
    content, path = None, None
    if run.storage is not None and run.ranks.is_main:
        trial.adopt_checkpoint(run.storage)
        if (loaded := run.storage.load_newest(run.device)) is not None:
            content, path = loaded.content, loaded.path
    run.resumed_from = run.ranks.broadcast(path)
    if run.ranks.world_size > 1 and run.storage is not None:
        if run.resumed_from is None:
            refuse_to_leave_behind(run.storage, run.ranks)
        content = _share_checkpoint(run, content)
    return content


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
    if ckpt_path is None or ckpt_path == LAST:
        content = find_checkpoint(run)
    else:
        path, content = None, None
        if run.ranks.is_main:
            path, content = _read_tested(run, ckpt_path)
        run.resumed_from = run.ranks.broadcast(path)
        if run.ranks.world_size > 1:
            content = _share_checkpoint(run, content)
    if content is None and ckpt_path is not None:
        _refuse_missing(run, str(ckpt_path))
    return content


def _read_tested(run: Run, ckpt_path: "str | os.PathLike[str]") -> "tuple[Path | None, dict[str, Any] | None]":
    if ckpt_path == BEST and run.storage is not None:
        trial.adopt_checkpoint(run.storage)
        found = run.storage.load_best(run.device)
        return (None, None) if found is None else (found.path, found.content)
    path = Path(ckpt_path).absolute()
    if not path.exists():
        return None, None
    return path, upgrade(load(path, run.device, tuple(run.model.types_for_safe_load())), str(path))


def _refuse_missing(run: Run, ckpt_path: str) -> None:
    if ckpt_path not in (LAST, BEST):
        raise ConfigurationError(f"ckpt_path: there is no checkpoint {ckpt_path}; found no such file.")
    assert run.storage is not None
    scored = f" that was saved with a value of {run.settings.best_metric!r}" if ckpt_path == BEST else ""
    raise ConfigurationError(
        f"ckpt_path={ckpt_path!r} names a checkpoint in {run.storage.path}, which holds none{scored}. Train first, "
        "with the same run_name and chkpt_root."
    )


def restore_model(run: Run, content: "dict[str, Any]") -> None:
    """Give the model and its scaler back what they were."""
    run.model.load_state_dict(content["model"])
    if run.model.amp_scaler is not None and content.get("amp_scaler"):  # one that does nothing has an empty state
        run.model.amp_scaler.load_state_dict(content["amp_scaler"])


def restore_attributes(run: Run, content: "dict[str, Any]") -> "list[str]":
    """Give the model and its data back what else had changed, and return clauses about what could not be."""
    saved = content.get("attributes") or []
    return run.attributes.restore(saved[run.ranks.rank]) if run.ranks.rank < len(saved) else []


def restore_training(run: Run, content: "dict[str, Any]") -> None:
    """Give the counters, the metrics, the means, the plug-ins and the observers back what they were."""
    run.state.load_state_dict(content["training_state"])
    run.metrics.clear()
    run.metrics.update(content.get("metrics") or {})
    averages = content.get("averages") or []
    if run.ranks.rank < len(averages):
        run.model.averages.load_state_dict(averages[run.ranks.rank])
    run.plugins.load_state_dict(content.get("plugins") or {})
    if run.ranks.is_main:
        run.observers.load_state_dict(content.get("observers") or {})


def restore_streams(run: Run, content: "dict[str, Any]") -> None:
    """Give this rank its own random streams back; a rank that was not there keeps the ones it was seeded with."""
    streams = content["rng"]
    if run.ranks.rank < len(streams):
        load_rng_state_dict(streams[run.ranks.rank])


def _share_checkpoint(run: Run, content: "dict[str, Any] | None") -> "dict[str, Any] | None":
    """Give the other ranks what the main rank has read, wherever they are."""
    if (path := run.resumed_from) is None:
        return None
    with deliver(path, run.ranks) as file:
        if content is None:
            safe_types = tuple(run.model.types_for_safe_load())
            content = upgrade(load(path, run.device, safe_types, file=file), str(path))
    return content


def _version() -> str:
    from proctor import __version__

    return __version__


def _text(path: "Path | None") -> "str | None":
    return None if path is None else str(path)

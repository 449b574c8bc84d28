"""Hugging Face runs that are registered, reported, stopped and continued, as far as `transformers.Trainer` allows.

    callback = ProctorCallback("output", metric="eval_accuracy")
    arguments = TrainingArguments(callback.folder, save_steps=100, ...)
    trainer = Trainer(model, arguments, callbacks=[callback], ...)
    trainer.train(resume_from_checkpoint=callback.find_checkpoint())

The Trainer writes each checkpoint as a folder, in place. A small file, the mark, is written last and tells the complete
ones from those that a kill has torn; its content is what an exact resume depends on. docs/trainer.md says what the
Trainer does not allow.
"""

import json
import os
import re
from collections.abc import Sequence
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any

from proctor.sdk.files import remove_file, sync_file
from proctor.sdk.pytorch import trial
from proctor.sdk.pytorch.checkpoints.filesystem import store_file
from proctor.sdk.pytorch.checkpoints.pointer import Entry, read_pointer
from proctor.sdk.pytorch.distributed.ranks import get_ranks
from proctor.sdk.pytorch.errors import ConfigurationError, UnreadableCheckpointError
from proctor.sdk.pytorch.reproducibility.fingerprint import (
    Fingerprint,
    compare_on_ranks,
    gather_devices,
    take_fingerprint,
)
from proctor.sdk.pytorch.setup_options import announce_clone, is_clone, take_over_arguments

try:
    from transformers import TrainerCallback
except ImportError:
    raise ImportError("transformers is not installed; run pip install 'proctor[huggingface]'") from None

MARK = "proctor.json"
_TRIAL = "trial"  # in the mark, beside the fingerprint
_CHECKPOINT = re.compile(r"checkpoint-(\d+)")


class ProctorCallback(TrainerCallback):
    """Marks whole checkpoints, registers them with the trial, reports what is logged, ends when the manager wants it.

    `folder` is what `output_dir` must be: `folder/run_name`, in a trial `folder/<trial id>/run_name`.

    A trial that continues the checkpoint of one with other parameters gives the restored optimizer and its scheduler
    what its TrainingArguments give otherwise: `learning_rate`, `weight_decay`, `adam_beta1`, `adam_beta2`,
    `adam_epsilon`.

    :param run_name: what distinguishes this run from others of the trial; it continues only what bears its name.
    :param metric: the one that becomes the `default` of the reports, such as "eval_accuracy".
    :param strict_resume: raise `NotExactError` instead of warning when a resume cannot be exact.
    :raises ConfigurationError: the name cannot be that of a folder.
    """

    def __init__(
        self,
        folder: "str | os.PathLike[str]",
        *,
        run_name: str = "transformers",
        metric: "str | None" = None,
        strict_resume: bool = False,
    ) -> None:
        self.folder = trial.choose_folder(os.path.expanduser(folder), run_name)
        self._run_name = run_name
        self._metric = metric
        self._strict_resume = strict_resume
        self._loaded: Any = None
        self._arguments: dict[str, Any] = {}
        self._wants_stop = self._is_leaving = self._is_postponed = False

    def find_checkpoint(self) -> "str | None":
        """Return this run's newest whole checkpoint for `resume_from_checkpoint`; None if it is new.

        The one that the trial was handed comes first, unless it is a copy from this folder, which has a newer one. If
        it is new although the trial was handed something, a `CheckpointWarning` says so.

        :raises UnreadableCheckpointError: the trial's checkpoint of this name is of a run of another kind.
        """
        own = max(((step, path) for step, path in self._list() if (path / MARK).is_file()), default=None)
        found = trial.find_registered(self._run_name, is_new=own is None)
        if found is not None and not (found / MARK).is_file():
            raise UnreadableCheckpointError(
                f"the checkpoint {found} of run {self._run_name!r} should have the mark {MARK}; found none. Give runs "
                "of different kinds a run_name each."
            )
        if own is not None and (
            found is None or (trial.is_copy_from(found, self.folder) and own[0] > _read_step(found))
        ):
            found = own[1]
        self._loaded = None if found is None else json.loads((found / MARK).read_text())
        return None if found is None else str(found)

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Report, or refuse, what keeps a resume from being exact (collective)."""
        if Path(args.output_dir) != self.folder or args.save_only_model:
            raise ConfigurationError(
                f"output_dir must be the callback's folder, {self.folder}, and save_only_model False; found "
                f"{args.output_dir} and {args.save_only_model}. Give TrainingArguments callback.folder."
            )
        self._wants_stop = self._is_leaving = self._is_postponed = False
        self._arguments = _read_arguments(args)
        ranks = get_ranks()
        loaded, self._loaded = ranks.broadcast(self._loaded), None
        if loaded is not None and state.global_step > 0:
            self._take_over(args, loaded.pop(_TRIAL, None), kwargs, is_main=ranks.is_main)
            describe = partial(_describe, args, state, keeps_position=not args.ignore_data_skip)
            compare_on_ranks(loaded, describe, ranks=ranks, device=args.device, strict=self._strict_resume)
        for step, path in self._list():
            if ranks.is_main and step > state.global_step:  # it will be written again
                remove_file(path / MARK)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Save and end if the manager wants that; the Trainer's steps are whole optimizer windows (collective)."""
        if get_ranks().any(trial.should_stop()):
            self._wants_stop = control.should_save = control.should_training_stop = True
        self._is_postponed = control.should_save and float(state.epoch).is_integer()
        if self._is_postponed:  # until the evaluation at the epoch's end, which is not made up for
            control.should_save = False

    def on_epoch_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Save what was postponed; if the run leaves in the middle of an epoch, this is the next attempt's."""
        if self._is_postponed:
            control.should_save = True
        self._is_leaving = self._wants_stop and not float(state.epoch).is_integer()
        if self._is_leaving:
            control.should_evaluate = control.should_save = False

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Mark the checkpoint that was just written, and hand a copy to the trial (collective)."""
        devices = gather_devices(get_ranks(), args.device)  # all have written their streams when it is complete
        if devices is not None:
            of_trial = {"parameters": trial.read_parameters(), "arguments": self._arguments}
            self._mark_whole(state.global_step, {**_describe(args, state, devices), _TRIAL: of_trial})

    def on_log(self, args: Any, state: Any, control: Any, logs: "dict[str, Any] | None" = None, **kwargs: Any) -> None:
        """Report the numbers that the Trainer logs."""
        metrics = {name: float(value) for name, value in (logs or {}).items() if isinstance(value, (int, float))}
        if metrics and state.is_world_process_zero and not self._is_leaving:
            trial.report_values(metrics, default=self._metric, step=state.global_step)

    def _take_over(self, args: Any, saved: Any, parts: "dict[str, Any]", *, is_main: bool) -> None:
        """Train a clone with its own arguments; the Trainer has restored its donor's."""
        if saved is None:  # of an older version
            return
        if not is_clone(saved["parameters"], trial.read_parameters()):
            self._arguments = saved["arguments"]  # what the restored optimizer began with
            return
        scheduler = parts.get("lr_scheduler")
        scheduler = getattr(scheduler, "scheduler", scheduler)  # of accelerate's wrapper
        changes = take_over_arguments(parts["optimizer"], scheduler, saved["arguments"], self._arguments)
        announce_clone(self._run_name, changes, is_main=is_main)

    def _mark_whole(self, step: int, content: "dict[str, Any]") -> None:
        """Call a checkpoint whole once it is on the disk, and hand a copy to the trial. Raises OSError."""
        folder = self.folder / f"checkpoint-{step}"
        for path in folder.rglob("*"):
            if path.is_file():
                sync_file(path)
        mark = json.dumps(content).encode()
        store_file(folder / MARK, mark, place="trainer.mark")
        entry = Entry(MARK, sha256(mark).hexdigest(), len(mark), epoch=0, iteration=step)
        trial.register_links(self._run_name, entry, folder.iterdir(), place=self.folder)

    def _list(self) -> "list[tuple[int, Path]]":
        found = [(_CHECKPOINT.fullmatch(path.name), path) for path in self.folder.glob("checkpoint-*")]
        return [(int(match[1]), path) for match, path in found if match]


def _read_step(registered: Path) -> int:
    return max((entry.iteration for entry in read_pointer(registered)), default=0)


def _read_arguments(args: Any) -> "dict[str, Any]":
    """By the name of an option of an optimizer's groups, the argument that it begins with."""
    return {
        "lr": args.learning_rate,
        "weight_decay": args.weight_decay,
        "betas": [args.adam_beta1, args.adam_beta2],
        "eps": args.adam_epsilon,
    }


def _describe(args: Any, state: Any, devices: "Sequence[Fingerprint]", *, keeps_position: bool = True) -> Fingerprint:
    return take_fingerprint(
        args.device,
        world_size=args.world_size,
        devices=devices,
        settings={
            "seed": args.seed,
            "data seed": args.data_seed,
            "accumulation steps": args.gradient_accumulation_steps,
            "batch size": args.train_batch_size,
            "workers": min(args.dataloader_num_workers, 1),
            "steps in all": state.max_steps,
            "precision": "bf16" if args.bf16 else "fp16" if args.fp16 else "32",
            "position in the data": "kept" if keeps_position else "lost",
        },
    )

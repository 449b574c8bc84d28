"""Hugging Face runs that are registered, reported, stopped and continued, as far as `transformers.Trainer` allows.

    callback = ProctorCallback(metric="eval_accuracy")
    trainer = Trainer(model, TrainingArguments("output", save_steps=100, ...), callbacks=[callback], ...)
    trainer.train(resume_from_checkpoint=callback.find_checkpoint("output"))

The Trainer writes its checkpoints in place; a mark, written last, tells the whole ones from those that a kill has torn.
docs/trainer.md says what the Trainer does not allow.
"""

import json
import os
import re
from pathlib import Path
from typing import Any

from proctor.sdk import trial as sdk
from proctor.sdk.pytorch.distributed import get_ranks
from proctor.sdk.pytorch.files import write_whole
from proctor.sdk.pytorch.fingerprint import compare_fingerprints, take_fingerprint
from proctor.sdk.pytorch.trial import is_in_trial

try:
    from transformers import TrainerCallback
except ImportError:
    raise ImportError("transformers is not installed; run pip install 'proctor[huggingface]'") from None

MARK = "proctor.json"  # in a checkpoint that is whole: what it depends on
_CHECKPOINT = re.compile(r"checkpoint-(\d+)")


class ProctorCallback(TrainerCallback):
    """Marks whole checkpoints, registers them with the trial, reports what is logged, ends when the manager wants it.

    :param metric: the one that becomes the `default` of the reports, such as "eval_accuracy".
    :param strict_resume: raise `NotExactError` instead of warning when a resume cannot be exact.
    """

    def __init__(self, metric: "str | None" = None, *, strict_resume: bool = False) -> None:
        self._metric = metric
        self._strict_resume = strict_resume
        self._loaded: Any = None

    def find_checkpoint(self, output_dir: "str | os.PathLike[str]") -> "str | None":
        """Return the newest whole checkpoint for `resume_from_checkpoint`: the trial's, or one in the folder."""
        found = sdk.get_checkpoint() if is_in_trial() else _find_newest(Path(output_dir))
        if found is not None:
            self._loaded = json.loads((Path(found) / MARK).read_text())
        return found

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Tell, or refuse, what keeps a resume from being exact."""
        if self._loaded is not None and state.global_step > 0:
            compare_fingerprints(self._loaded, _describe(args), strict=self._strict_resume)
        self._loaded = None

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Save and end if the manager wants that; the Trainer's steps are whole optimizer windows."""
        if get_ranks().any(is_in_trial() and sdk.should_stop()):
            control.should_save = control.should_training_stop = True

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Mark the checkpoint that was just written, and hand a copy to the trial."""
        get_ranks().barrier()  # each rank writes its own streams into the folder
        if not state.is_world_process_zero:
            return
        folder = Path(args.output_dir) / f"checkpoint-{state.global_step}"
        for path in folder.rglob("*"):
            if path.is_file():
                with open(path, "rb") as written:
                    os.fsync(written.fileno())
        write_whole(folder / MARK, json.dumps(_describe(args)).encode(), place="huggingface.mark")
        if is_in_trial():
            sdk.save_checkpoint(folder, step=state.global_step)

    def on_log(self, args: Any, state: Any, control: Any, logs: "dict[str, Any] | None" = None, **kwargs: Any) -> None:
        """Report the numbers that the Trainer logs."""
        metrics = {name: float(value) for name, value in (logs or {}).items() if isinstance(value, (int, float))}
        if not metrics or not state.is_world_process_zero:
            return
        if self._metric in metrics:
            metrics["default"] = metrics[self._metric]
        sdk.report(metrics, step=state.global_step)


def _find_newest(output_dir: Path) -> "str | None":
    found = {
        int(match[1]): path
        for path in output_dir.glob("checkpoint-*")
        if (match := _CHECKPOINT.fullmatch(path.name)) and (path / MARK).is_file()
    }
    return str(found[max(found)]) if found else None


def _describe(args: Any) -> "dict[str, Any]":
    return take_fingerprint(
        args.device,
        world_size=args.world_size,
        settings={
            "seed": args.seed,
            "data seed": args.data_seed,
            "accumulation steps": args.gradient_accumulation_steps,
            "batch size": args.train_batch_size,
            "workers": min(args.dataloader_num_workers, 1),
        },
    )

"""What a trial calls: its parameters, its reports, its checkpoints, the question whether to stop.

A report raises only for a mistake of its caller (`MetricError`, `CheckpointError`). It costs one `write` to a local
file, and is safe once the call has returned, however the process ends. It waits for nothing but, at a step that a trial
scheduler has named, a short time for the verdict. Outside an experiment every call works and does nothing: parameters
are `{}`, ids are `"STANDALONE"`.
"""

import os
from time import time

from proctor.sdk.channel import STANDALONE, Channel, StopRequest
from proctor.sdk.errors import DamagedCheckpointError, MetricError, notice_once
from proctor.sdk.metrics import DEFAULT_KEY, encode_metric
from proctor.sdk.protocol import (
    ENV_JOB_DIRECTORY,
    KIND_CHECKPOINT,
    KIND_FINAL,
    KIND_INTERMEDIATE,
    KIND_LOST,
    KIND_UNJUDGED,
    MAX_RECORD_BYTES,
)
from proctor.sdk.quick_json import quote

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from proctor.sdk.checkpoints.saving import StoredCheckpoint


class _State:
    """This process's view of its trial; filled at the first call."""

    channel: "Channel | None" = None
    opened = False
    parameters: "Any" = None
    parameters_read = False
    final_reported = False


def get_next_parameter() -> "Any":
    """Return the parameters of this trial (a dictionary), the same at every call and in every process of the trial.

    Outside an experiment it returns `{}`.

    :raises JobDirectoryError: the file with the parameters is missing or damaged.
    """
    if not _State.parameters_read:
        channel = _open()
        _State.parameters = {} if channel is None else channel.read_parameters()
        _State.parameters_read = True
    return _State.parameters


def get_current_parameter(tag: "str | None" = None) -> "Any":
    """Return the parameters of this trial or, with `tag`, the one parameter of that name.

    :raises KeyError: there is no parameter of that name.
    """
    parameters = get_next_parameter()
    return parameters if tag is None else parameters[tag]


def report_intermediate_result(metric: "Any") -> None:
    """Report how the trial is doing: a number, or a dictionary with the number to optimize under `default`.

    :raises MetricError: the metric is neither.
    """
    _report(KIND_INTERMEDIATE, encode_metric(metric), metric)


def report_final_result(metric: "Any") -> None:
    """Report the trial's result, once, in the form of an intermediate one; the first one counts.

    :raises MetricError: the metric is neither a number nor a dictionary.
    """
    text = encode_metric(metric)
    if _State.final_reported:
        notice_once("final", "report_final_result was called again; the first final metric of a trial counts")
    _report(KIND_FINAL, text, metric)
    _State.final_reported = True


def report(metrics: "Any", checkpoint: "str | os.PathLike[str] | None" = None, step: "int | None" = None) -> None:
    """Report an intermediate metric together with the checkpoint that goes with it.

    :param metrics: a number, or a dictionary with the number to optimize under `default`.
    :param checkpoint: a folder; it is copied, so it may be changed or removed after the call.
    :param step: the step the metric belongs to, if the trial counts them itself.
    :raises MetricError: the metrics are neither a number nor a dictionary, or the step is not an integer.
    :raises CheckpointError: the folder is missing or cannot be read. Nothing of the report is recorded.
    """
    text = encode_metric(metrics)
    if step is not None and type(step) is not int:
        step = _require_step(step)
    if checkpoint is None:
        _report(KIND_INTERMEDIATE, text, metrics, step)
        return
    channel = _open()
    if channel is None:
        return
    from proctor.sdk.checkpoints.saving import save_checkpoint

    stored = save_checkpoint(os.fspath(checkpoint), channel.job_directory)
    # After its metric, so that the curve up to the checkpoint includes it.
    after = _checkpoint_record(stored, step, with_metric=True)
    _report(KIND_INTERMEDIATE, text, metrics, step, after=after)


def save_checkpoint(
    checkpoint: "str | os.PathLike[str]", step: "int | None" = None, *, shares_files: bool = False
) -> None:
    """Register a folder as the trial's newest checkpoint without reporting a metric.

    :param checkpoint: a folder; it is copied, so it may be changed or removed after the call.
    :param step: the step it belongs to, if the trial counts them itself.
    :param shares_files: the files in it are never written to again, at most replaced or removed, so that links take the
        place of copies where the file system has them.
    :raises CheckpointError: the folder is missing or cannot be read.
    """
    channel = _open()
    if channel is None:
        return
    from proctor.sdk.checkpoints import saving

    stored = saving.save_checkpoint(os.fspath(checkpoint), channel.job_directory, shares_files=shares_files)
    if record := _checkpoint_record(stored, step, with_metric=False):
        channel.journal.append(record, count=0, registers=True)


def get_checkpoint() -> "str | None":
    """Return the folder to continue from: this job's newest checkpoint, else the one it was started from, else None.
    Where checkpoints are stored under a URL, the first call downloads it.

    :raises CheckpointError: it cannot be downloaded, or is damaged.
    """
    channel = _open()
    if channel is None:
        return None
    from proctor.sdk.checkpoints.saving import find_newest_checkpoint

    newest = find_newest_checkpoint(channel.job_directory)
    return find_handed_checkpoint() if newest is None else newest


def find_handed_checkpoint() -> "str | None":
    """Return the folder of the checkpoint that the job was handed to continue from; None if there is none.

    :raises CheckpointError: it cannot be downloaded, or is damaged.
    """
    channel = _open()
    if channel is None or channel.resume_checkpoint is None:
        return None
    from proctor.sdk.checkpoints.saving import fetch_checkpoint

    try:
        return fetch_checkpoint(channel.job_directory, channel.resume_checkpoint)
    except DamagedCheckpointError as damage:
        named = f'"why":{quote(str(damage))},"damaged":{quote(channel.resume_checkpoint)}'
        channel.journal.append(_record(KIND_LOST, named, None), count=0)
        raise


def should_stop() -> bool:
    """Return whether the trial has been asked to save what it wants to keep and end; cheap enough for every step.

    A trial that calls this, even once, is given `saveSeconds` to save before its processes are sent SIGTERM.
    """
    channel = _open()
    return channel is not None and channel.read_stop_request() is not None


def stop_request() -> "StopRequest | None":
    """Return why the trial has been asked to stop and until when it may save; None while it has not been asked.

    It costs what `should_stop` costs. The deadline may move closer while the trial saves, never further away.
    """
    channel = _open()
    return None if channel is None else channel.read_stop_request()


def is_in_trial() -> bool:
    """Whether this process belongs to a trial of an experiment."""
    return bool(os.environ.get(ENV_JOB_DIRECTORY))


def get_experiment_id() -> str:
    """Return the experiment's id, `"STANDALONE"` outside one."""
    channel = _open()
    return STANDALONE if channel is None else channel.experiment_id


def get_trial_id() -> str:
    """Return the trial's id, the same for all its attempts; `"STANDALONE"` outside an experiment."""
    channel = _open()
    return STANDALONE if channel is None else channel.trial_id


def get_sequence_id() -> int:
    """Return the trial's number in its experiment, 0 outside one."""
    channel = _open()
    return 0 if channel is None else channel.sequence_id


def _open() -> "Channel | None":
    if not _State.opened:
        if is_in_trial():
            _State.channel = Channel(os.environ)
        else:
            notice_once(
                "standalone",
                "not running in an experiment: parameters are {} and reports are dropped; "
                "`proctor create --config FILE` runs trials",
            )
        _State.opened = True
    return _State.channel


def _report(kind: str, text: str, metric: object, step: "int | None" = None, after: str = "") -> None:
    if len(text) > MAX_RECORD_BYTES - 512:
        raise MetricError(
            f"a metric may take {MAX_RECORD_BYTES - 512} bytes as JSON; found {len(text)}. Report numbers and "
            "write large things to a file in the trial's output folder."
        )
    if type(metric) is dict and DEFAULT_KEY not in metric:
        notice_once(
            f"default of {kind}",
            f"a metric was reported without the key {DEFAULT_KEY!r}: it is stored, but the tuner and the assessor "
            "cannot use it",
        )
    channel = _open()
    if channel is not None:
        is_stored = channel.journal.append(_record(kind, f'"value":{text}', step), patient=kind == KIND_FINAL)
        if after:  # on its own: half a write must not hold a whole record
            channel.journal.append(after, count=0, registers=True)
        if channel.is_judged and kind == KIND_INTERMEDIATE:
            has_value = not isinstance(metric, dict) or DEFAULT_KEY in metric
            passed = channel.await_verdict(step, is_stored=is_stored, has_value=has_value)
            if passed is not None:
                waited = f'"waited":{channel.verdict_seconds:.6f}'
                channel.journal.append(_record(KIND_UNJUDGED, waited, passed), count=0)


def _record(kind: str, content: str, step: "int | None") -> str:
    named = "" if step is None else f',"step":{step}'
    seconds = None if _State.channel is None else _State.channel.time.seconds()
    ran = "" if seconds is None else f',"seconds":{seconds:.6f}'
    return f'{{"kind":"{kind}",{content}{named},"time":{time():.6f}{ran}}}\n'


def _checkpoint_record(stored: "StoredCheckpoint | str", step: "int | None", *, with_metric: bool) -> str:
    """The record of a checkpoint, or of why it was not stored; "" if that is recorded already."""
    if isinstance(stored, str):
        return _record(KIND_LOST, f'"why":{quote(stored)}', step) if stored else ""
    together = "true" if with_metric else "false"
    found = f'"path":{quote(stored.path)},"bytes":{stored.size},"manifest":"{stored.manifest}"'
    return _record(KIND_CHECKPOINT, f'{found},"with_metric":{together}', step)


def _require_step(step: "Any") -> int:
    try:
        return int(step.__index__())
    except AttributeError:
        raise MetricError(f"a step must be an integer; found {step!r} of type {type(step).__name__}") from None

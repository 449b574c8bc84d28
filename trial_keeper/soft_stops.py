"""What a trial is told when it is to stop, and whether it has shown that it can save before it is signaled."""

import json
import os

from proctor.sdk.protocol import CAN_SAVE_FILE, CHECKPOINT_FOLDER, CONTROL_FILE
from proctor.trial_keeper.files import replace_file
from proctor.trial_keeper.protocol import Launch
from proctor.trial_keeper.records import Stop


def can_save(launch: Launch) -> bool:
    """Whether the trial has called `should_stop()`, or has registered a checkpoint, in this job or in an earlier one.
    Reads the job's directory, so it may block on the disk."""
    if launch.resume_checkpoint is not None or os.path.exists(os.path.join(launch.directory, CAN_SAVE_FILE)):
        return True
    try:
        return any(name.isdigit() for name in os.listdir(os.path.join(launch.directory, CHECKPOINT_FOLDER)))
    except OSError:
        return False


def write_control(directory: str, stop: Stop, *, now: float) -> None:
    """Tell the trial to stop. Raises OSError.

    :param now: Unix time; the deadline of a stop that leaves no time to save.
    """
    body = {
        "stop": True,
        "reason": stop.detail or stop.reason,
        "request": stop.request,
        "deadline": now + stop.seconds_left(now),
    }
    replace_file(os.path.join(directory, CONTROL_FILE), json.dumps(body).encode(), durable=False, mode=0o644)

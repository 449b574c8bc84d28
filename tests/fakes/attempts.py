"""An attempt of a trial as its keeper starts it: the job's folder, and the environment that a trial finds."""

import json
from pathlib import Path
from typing import Any

import pytest

from proctor.sdk import trial as sdk
from proctor.sdk.protocol import ENV_RESUME_CHECKPOINT, PARAMETER_FILE, trial_environment


def make_environment(job: Path, *, resume: "str | None" = None, trial: str = "t") -> "dict[str, str]":
    """Lay the job's folder out and return the environment.

    :param resume: the checkpoint that the manager tells the attempt to continue from.
    """
    (job / "output").mkdir(parents=True, exist_ok=True)
    return trial_environment(
        experiment_id="e",
        trial_id=trial,
        job_id=job.name,
        sequence_id=0,
        job_directory=str(job),
        code_directory=str(job),
        platform="local",
        resume_checkpoint=resume,
    )


def begin_attempt(
    monkeypatch: pytest.MonkeyPatch,
    job: Path,
    *,
    resume: "str | None" = None,
    trial: str = "t",
    parameters: "dict[str, Any] | None" = None,
) -> None:
    """Make this process seem to be an attempt of a trial."""
    monkeypatch.delenv(ENV_RESUME_CHECKPOINT, raising=False)
    for name, value in make_environment(job, resume=resume, trial=trial).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sdk._State, "opened", False)
    monkeypatch.setattr(sdk._State, "channel", None)
    monkeypatch.setattr(sdk._State, "parameters_read", False)
    if parameters is not None:
        (job / PARAMETER_FILE).write_text(json.dumps({"parameters": parameters}))

"""Launches for keepers under test."""

from pathlib import Path
from typing import Any

from proctor.trial_keeper.protocol import Launch

EXPERIMENT = "Ab3dE5f7"


def make_launch(job_id: str, command: str, *, folder: Path, code: Path, **changes: Any) -> Launch:
    """The order to run `command` as the job "<trial id>.<number>".

    :param folder: the job's directory.
    :param code: its working directory.
    """
    trial_id, _, number = job_id.partition(".")
    return Launch(
        **{
            "job_id": job_id,
            "token": f"token of {job_id}",
            "experiment_id": EXPERIMENT,
            "trial_id": trial_id,
            "sequence_id": 0,
            "directory": str(folder),
            "command": command,
            "code_directory": str(code),
            "parameter_file": '{"parameter_id": 0, "parameters": {"x": 1}}',
            "environment_file": None,
            "holder": f"user manager experiment {trial_id} {number}",
            **changes,
        }
    )

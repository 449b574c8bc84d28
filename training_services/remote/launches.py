"""What the keeper of a remote node is told to start."""

import os
import pwd
import socket
from pathlib import Path

from proctor.training_services.base import TrialJobForm
from proctor.training_services.capacity import GpuRules
from proctor.training_services.remote.preparation import Prepared
from proctor.training_services.remote.settings import MachineSettings
from proctor.trial_keeper.protocol import Launch

__all__ = ["owner", "write_launch"]


def write_launch(
    form: TrialJobForm,
    prepared: Prepared,
    *,
    directory: str,
    owner: str,
    rules: GpuRules,
    machine: MachineSettings | None,
) -> Launch:
    """The launch of a job whose machine is ready.

    :param directory: of the job, relative to the keeper's.
    :param owner: who holds the job's GPUs, up to the experiment.
    """
    gpus = form.placement.gpus if form.placement is not None else None
    if gpus is None and form.gpu_number == 0:
        gpus = ()
    return Launch(
        job_id=form.job_id,
        token=form.token,
        experiment_id=form.experiment_id,
        trial_id=form.trial_id,
        sequence_id=form.sequence_id,
        directory=directory,
        command=form.command,
        code_directory=prepared.code_directory,
        parameter_file=form.parameter_file,
        environment_file=None,  # what `create` has captured is the environment of another machine
        platform="remote",
        environment=dict(form.environment),
        gpus=None if gpus is None else list(gpus),
        max_duration_seconds=form.max_duration_seconds,
        resume_checkpoint=prepared.beginning.path,
        lease_seconds=form.lease_seconds,
        holder=f"{owner}, experiment {form.experiment_id}, trial {form.sequence_id}",
        max_trials_per_gpu=rules.max_trials_per_gpu,
        search_path=(machine.python_path or "") if machine is not None else "",
    )


def owner(experiment_directory: Path) -> str:
    """Who wants GPUs, for people on the machine: "user bob, manager alpha:/home/bob/.proctor"."""
    try:
        user = pwd.getpwuid(os.getuid()).pw_name
    except KeyError:  # a container without a passwd entry
        user = str(os.getuid())
    return f"user {user}, manager {socket.gethostname()}:{experiment_directory.parent.parent}"

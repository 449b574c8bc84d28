"""What a keeper is ordered to do with a job: its launch, made from the job's form, and its cancellation. The platforms
differ only in where things are."""

import os
import pwd

from proctor.training_services.base import SoftStop, TrialJobForm
from proctor.training_services.capacity import GpuRules
from proctor.training_services.errors import SubmissionRefused
from proctor.trial_keeper.protocol import Cancel, Launch


def write_launch(form: TrialJobForm, *, platform: str, owner: str, rules: GpuRules) -> Launch:
    """The launch of a job, with the form's own paths.

    :param owner: who wants the job's GPUs, up to the experiment, for people on the machine.
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
        directory=form.directory,
        command=form.command,
        code_directory=form.code_directory,
        parameter_file=form.parameter_file,
        environment_file=form.environment_file,
        platform=platform,
        environment=dict(form.environment),
        gpus=None if gpus is None else list(gpus),
        max_duration_seconds=form.max_duration_seconds,
        resume_checkpoint=form.resume_checkpoint,
        lease_seconds=form.lease_seconds,
        holder=f"{owner}, experiment {form.experiment_id}, trial {form.sequence_id}",
        max_trials_per_gpu=rules.max_trials_per_gpu,
        milestone=form.milestone,
    )


def write_cancel(job_id: str, token: str, stop: SoftStop) -> Cancel:
    """The command to stop a job softly."""
    return Cancel(
        job_id,
        token,
        request=stop.request,
        reason=stop.reason,
        save_seconds=stop.save_seconds,
        only_if_able=stop.only_if_able,
    )


def require_launchable(form: TrialJobForm) -> None:
    """Raise SubmissionRefused for a form that no keeper could start."""
    if not form.command.strip():
        raise SubmissionRefused("trialCommand is empty; it says how a trial is started, e.g. `python trial.py`")
    wanted, placed = form.gpu_number or 0, len(form.placement.gpus or ()) if form.placement is not None else 0
    if wanted and placed != wanted:
        raise SubmissionRefused(
            f"trial job {form.job_id} needs {wanted} GPUs and its placement names {placed}; GPUs are chosen before a "
            "job is submitted"
        )


def user_name() -> str:
    """Who the manager runs as, for people who wonder who holds a GPU."""
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:  # a container without a passwd entry
        return str(os.getuid())

"""Where the files of an experiment are on the machines of its jobs: in the same tree as on the manager's, below the
directory of the keeper. Paths there are relative to that directory, or absolute."""

from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from proctor.training_services.base import JobStart, TrialJobForm


@dataclass(frozen=True)
class ResumePoint:
    """Where a job begins, and the path of its checkpoint there."""

    start: JobStart | None = None
    path: str | None = None


@dataclass(frozen=True)
class StagedJob:
    """A machine is ready for a job."""

    code_directory: str
    resume_point: ResumePoint


class ExperimentPaths:
    """The places of one experiment. Paths on machines are relative to the keeper's directory."""

    def __init__(self, experiment_id: str, directory: Path) -> None:
        self.directory = directory  # the experiment's own, here
        self.folder = f"experiments/{experiment_id}"
        self.trials = f"{self.folder}/trials"
        self.checkpoints = f"{self.folder}/checkpoints"

    def job(self, form: TrialJobForm) -> str:
        """A job's directory on its machine."""
        return f"{self.trials}/{form.sequence_id}-{form.trial_id}/jobs/{form.number}"

    def local_job(self, path: str) -> Path | None:
        """The directory here of the job to which a file belongs; `path` is relative to the folder `trials`."""
        parts = PurePosixPath(path).parts
        if len(parts) < 4 or parts[1] != "jobs":
            return None
        return self.directory / "trials" / Path(*parts[:3])

    def on_machine(self, path: str) -> str | None:
        """Where something that has its place here is on the machine it was made on; None for anything else."""
        try:
            return f"{self.folder}/{Path(path).relative_to(self.directory).as_posix()}"
        except ValueError:
            return None

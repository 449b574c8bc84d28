"""What the REST API takes."""

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field


class Request(BaseModel):
    """What every request has in common."""

    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)


class CreateExperiment(Request):
    """A new experiment."""

    config: dict[str, Any] = Field(
        examples=[
            {
                "search_space": {"lr": {"_type": "loguniform", "_value": [0.0001, 0.1]}},
                "trial_command": "python trial.py",
                "trial_concurrency": 2,
                "max_trial_number": 24,
                "tuner": {"name": "TPE", "class_args": {"optimize_mode": "maximize"}},
                "training_service": {"platform": "local"},
            }
        ]
    )
    """The configuration as it was written."""
    directory: str = Field(examples=["/home/ada/digits"])
    """The folder that relative paths in it start from; absolute, on the manager's machine."""
    handover: str | None = Field(default=None, pattern=r"^[A-Za-z0-9._-]+$", examples=["k3v9.json"])
    """The name of a file in the home's incoming folder with the caller's environment and secrets."""
    experiment_id: str | None = Field(default=None, examples=["digits-1"])
    """An id of one's own; null for a random one."""
    dry_run: bool = False
    """Check everything, start nothing."""


class LoadExperiment(Request):
    """An experiment that was saved."""

    archive: str = Field(pattern=r"^[A-Za-z0-9._-]+$", examples=["Ab3dE5f7-k3v9.zip"])
    """The name of the zip of `proctor experiment save` in the home's incoming folder."""
    experiment_id: str | None = Field(default=None, examples=["digits-1"])
    """An id of one's own; null for the one it had."""
    code_directory: str | None = Field(default=None, examples=["/home/ada/digits"])
    """The folder its code lies in now, absolute; null for the one it lay in."""
    handover: str | None = Field(default=None, pattern=r"^[A-Za-z0-9._-]+$", examples=["k3v9.json"])
    """The name of a file in the incoming folder with the environment that its trials will run in."""


class UpdateExperiment(Request):
    """Changes to a running experiment. What is left out stays; null takes a limit away."""

    trial_concurrency: Annotated[int, Field(ge=1)] | None = Field(default=None, examples=[4])
    max_trial_number: Annotated[int, Field(ge=1)] | None = Field(default=None, examples=[48])
    max_experiment_duration_seconds: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = Field(
        default=None, examples=[7200.0]
    )
    max_trial_duration_seconds: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = Field(
        default=None, examples=[600.0]
    )
    search_space: dict[str, Any] | None = Field(
        default=None, examples=[{"lr": {"_type": "loguniform", "_value": [0.0001, 0.1]}}]
    )


class DrainNode(Request):
    """No new jobs for a node."""

    reason: str = Field(default="", max_length=500, examples=["its disk is replaced"])
    """Why, for those who look at it."""


class Machines(Request):
    """The machines of a configuration."""

    config: dict[str, Any] = Field(
        examples=[
            {
                "search_space": {"lr": {"_type": "loguniform", "_value": [0.0001, 0.1]}},
                "trial_command": "python trial.py",
                "trial_concurrency": 2,
                "tuner": {"name": "TPE"},
                "training_service": {"platform": "remote", "machine_list": [{"host": "gpu-3", "user": "bob"}]},
            }
        ]
    )
    """The configuration as it was written."""
    directory: str = Field(examples=["/home/ada/digits"])
    """The folder that relative paths in it start from; absolute, on the manager's machine."""
    handover: str | None = Field(default=None, pattern=r"^[A-Za-z0-9._-]+$", examples=["k3v9.json"])
    """The name of a file in the home's incoming folder with the secrets."""
    machine: Annotated[int, Field(ge=0)] | None = Field(default=None, examples=[0])
    """Only this one, by its place in the list; null for all."""


class AddTrial(Request):
    """A trial with parameters chosen by a person."""

    parameters: dict[str, Any] = Field(examples=[{"lr": 0.003, "hidden": 128}])


class ImportRow(BaseModel):
    """A result from elsewhere. Rows as `export` gives them are taken as they are."""

    model_config = ConfigDict(extra="ignore", use_attribute_docstrings=True)

    parameter: dict[str, Any] = Field(examples=[{"lr": 0.003, "hidden": 128}])
    value: Any = Field(examples=[0.97])
    """The final metric: a number, or an object with a number under "default"."""

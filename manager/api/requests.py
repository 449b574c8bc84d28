"""What the REST API takes."""

from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, WithJsonSchema, model_validator

from proctor.manager.config.quantities import LONGEST_SECONDS, MOST_CONCURRENT_TRIALS_OF_AN_UPDATE
from proctor.sdk.json_input import clean_value

MOST_TRIALS = 999_999_999
"""As in NNI."""


class _Cleaned(BaseModel):
    """A body, or a part of one, that has passed the gate."""

    @model_validator(mode="before")
    @classmethod
    def _clean(cls, body: Any) -> Any:
        return clean_value(body, "the body")


class Request(_Cleaned):
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
                "objective": {"direction": "maximize"},
                "tuner": {"name": "TPE"},
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


Duration = Annotated[float, Field(gt=0, le=LONGEST_SECONDS, allow_inf_nan=False)]


def _without_defaults(schema: dict[str, Any]) -> None:
    """A field that is left out is not changed: no value stands for it."""
    for described in schema["properties"].values():
        described.pop("default", None)
    schema["minProperties"] = 1


def _not_null(value: Any) -> Any:
    if value is None:
        raise ValueError("a search space cannot be null; leave it out to keep it as it is")
    return value


SearchSpace = Annotated[Any, AfterValidator(_not_null), WithJsonSchema({"not": {"type": "null"}})]


class UpdateExperiment(Request):
    """Changes to a running experiment. What is left out stays; null takes a limit away."""

    model_config = ConfigDict(json_schema_extra=_without_defaults)

    trial_concurrency: Annotated[int, Field(ge=1, le=MOST_CONCURRENT_TRIALS_OF_AN_UPDATE)] = Field(
        default=0, examples=[4]
    )
    max_trial_number: Annotated[int, Field(ge=1, le=MOST_TRIALS)] | None = Field(default=None, examples=[48])
    max_experiment_duration_seconds: Duration | None = Field(default=None, examples=[7200.0])
    max_trial_duration_seconds: Duration | None = Field(default=None, examples=[600.0])
    search_space: SearchSpace = Field(default={}, examples=[{"lr": {"_type": "loguniform", "_value": [0.0001, 0.1]}}])
    """An object; for a tuner of the user's any JSON value but null."""


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

    parameters: Any = Field(examples=[{"lr": 0.003, "hidden": 128}])
    """An object; for a tuner of the user's any JSON value."""


class ImportRow(_Cleaned):
    """A result from elsewhere. Rows as `export` gives them are taken as they are."""

    model_config = ConfigDict(extra="ignore", use_attribute_docstrings=True)

    parameter: Any = Field(examples=[{"lr": 0.003, "hidden": 128}])
    """An object; for a tuner of the user's any JSON value."""
    value: Any = Field(examples=[0.97])
    """The final metric: a number, or an object with a number under "default"; a row with null is skipped.
    NNI's exports have it as JSON text."""

"""What the REST API takes, the bodies of its requests; `models` has what it answers."""

from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, WithJsonSchema, model_validator

from proctor.manager.api.json_types import JsonObject
from proctor.manager.config.fields import (
    LONGEST_SECONDS,
    MOST_CONCURRENT_TRIALS_OF_AN_UPDATE,
    MOST_HOURS,
    MOST_PRIORITY,
)
from proctor.manager.field_docs import DescribedFields
from proctor.sdk.json_input import clean_value

MOST_TRIALS = 999_999_999
"""As in NNI."""


Tag = Annotated[str, Field(min_length=1, max_length=50, pattern=r"^[^\s,](?:[^,\x00-\x1f\x7f]*[^\s,])?$")]
"""Without commas, and without spaces at its ends."""
Tags = Annotated[list[Tag], Field(max_length=50), AfterValidator(lambda tags: list(dict.fromkeys(tags)))]
Duration = Annotated[float, Field(gt=0, le=LONGEST_SECONDS, allow_inf_nan=False)]


class _Cleaned(DescribedFields, BaseModel):
    """A body, or a part of one, whose texts and numbers can be stored and sent on."""

    @model_validator(mode="before")
    @classmethod
    def _clean(cls, body: Any) -> Any:
        return clean_value(body, "the body")


class RequestBody(_Cleaned):
    """What every request has in common."""

    model_config = ConfigDict(extra="forbid")


class CreateExperiment(RequestBody):
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


class LoadExperiment(RequestBody):
    """An experiment that was saved."""

    archive: str = Field(pattern=r"^[A-Za-z0-9._-]+$", examples=["Ab3dE5f7-k3v9.zip"])
    """The name of the zip of `proctor experiment save` in the home's incoming folder."""
    experiment_id: str | None = Field(default=None, examples=["digits-1"])
    """An id of one's own; null for the one it had."""
    code_directory: str | None = Field(default=None, examples=["/home/ada/digits"])
    """The folder its code is in now, absolute; null for the original one."""
    keep_storage: bool = False
    """Adopt the checkpointStorage that the archive names, with what the experiment has stored there."""
    handover: str | None = Field(default=None, pattern=r"^[A-Za-z0-9._-]+$", examples=["k3v9.json"])
    """The name of a file in the incoming folder with the environment that its trials will run in."""


def _without_defaults(schema: dict[str, Any]) -> None:
    """A field that is left out is not changed: no value stands for it."""
    for described in schema["properties"].values():
        described.pop("default", None)
    schema["minProperties"] = 1


def _not_null(value: Any) -> Any:
    if value is None:
        raise ValueError("a search space cannot be null; leave it out to keep it as it is")
    return value


SearchSpaceBody = Annotated[Any, AfterValidator(_not_null), WithJsonSchema({"not": {"type": "null"}})]


class UpdateExperiment(RequestBody):
    """Changes to a running experiment. Omitted fields do not change; null removes a limit."""

    model_config = ConfigDict(json_schema_extra=_without_defaults)

    trial_concurrency: Annotated[int, Field(ge=1, le=MOST_CONCURRENT_TRIALS_OF_AN_UPDATE)] = Field(
        default=0, examples=[4]
    )
    max_trial_number: Annotated[int, Field(ge=1, le=MOST_TRIALS)] | None = Field(default=None, examples=[48])
    max_experiment_duration_seconds: Duration | None = Field(default=None, examples=[7200.0])
    max_trial_duration_seconds: Duration | None = Field(default=None, examples=[600.0])
    max_gpu_hours: Annotated[float, Field(gt=0, le=MOST_HOURS, allow_inf_nan=False)] | None = Field(
        default=None, examples=[100.0]
    )
    priority: Annotated[int, Field(ge=-MOST_PRIORITY, le=MOST_PRIORITY)] = Field(default=0, examples=[5])
    search_space: SearchSpaceBody = Field(
        default={}, examples=[{"lr": {"_type": "loguniform", "_value": [0.0001, 0.1]}}]
    )
    """An object; for a tuner of the user's any JSON value but null."""
    search_space_text: str = Field(default="", max_length=1_000_000, examples=["lr: {_type: uniform, _value: [0, 1]}"])
    """Instead of `search_space`: the same as YAML or JSON. Problems name its lines."""
    tags: Tags = Field(default=[], examples=[["baseline", "paper"]])
    """All tags that it has from now on."""
    archived: bool = Field(default=False, examples=[True])
    """Whether lists leave it out once it has ended."""


class DrainNode(RequestBody):
    """No new jobs for a node."""

    reason: str = Field(default="", max_length=500, examples=["its disk is replaced"])
    """Reason shown to other users."""


class RenderRequest(RequestBody):
    """A configuration whose objects are asked for."""

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


class PlatformRequest(RenderRequest):
    """The machines of a configuration."""

    handover: str | None = Field(default=None, pattern=r"^[A-Za-z0-9._-]+$", examples=["k3v9.json"])
    """The name of a file in the home's incoming folder with the secrets."""
    machine: Annotated[int, Field(ge=0)] | None = Field(default=None, examples=[0])
    """Only this one, by its place in the list; null for all."""


class AddTrial(RequestBody):
    """A trial with parameters chosen by a person."""

    parameters: Any = Field(examples=[{"lr": 0.003, "hidden": 128}])
    """An object; for a tuner of the user's any JSON value."""


class TrialClone(RequestBody):
    """Parameters that a clone has instead of those of the trial that it continues."""

    parameters: JsonObject = Field(default_factory=dict, examples=[{"lr": 0.003}])


class ImportRow(_Cleaned):
    """An imported result. Rows written by `export` are accepted as they are."""

    model_config = ConfigDict(extra="ignore")

    parameter: Any = Field(examples=[{"lr": 0.003, "hidden": 128}])
    """An object; for a tuner of the user's any JSON value."""
    value: Any = Field(examples=[0.97])
    """The final metric: a number, or an object with a number under "default"; a row with null is skipped.
    NNI's exports have it as JSON text."""

"""An experiment's configuration as Python objects, with the names of NNI's Python API.

    config = ExperimentConfig("local", trial_command="python trial.py", trial_concurrency=2)
    config.objective.direction = "maximize"
    config.tuner.name = "TPE"

They hold values and check only names; the manager checks the rest and answers with every problem at once. What people
write in files and as durations is read here too.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, field, fields
from enum import Enum
from pathlib import Path
from typing import Any

AnyPath = str | os.PathLike[str]


class RunMode(Enum):
    """What becomes of the experiment when the Python process that started it ends."""

    Background = "background"  # it is stopped
    Foreground = "foreground"  # it is stopped; progress is printed until then
    Detach = "detach"  # it continues


@dataclass(slots=True)
class ObjectiveConfig:
    """What is optimized: `direction` is "maximize" or "minimize", `metric` the key of the number in a mapping."""

    direction: str | None = None
    metric: str | None = None


@dataclass(slots=True)
class AlgorithmConfig:
    """A built-in tuner or assessor."""

    name: str | None = None
    class_args: dict[str, Any] = field(default_factory=dict)
    include_intermediate_results: bool | None = None
    """Of a tuner: whether a trial that was stopped early counts with its last intermediate metric; None: yes."""


@dataclass(slots=True)
class CustomAlgorithmConfig:
    """A custom tuner or assessor: `class_name` is `module.Class`, found in `code_directory`."""

    class_name: str | None = None
    code_directory: AnyPath | None = "."
    class_args: dict[str, Any] = field(default_factory=dict)
    include_intermediate_results: bool | None = None
    """Of a tuner: whether a trial that was stopped early counts with its last intermediate metric; None: no."""


@dataclass(slots=True)
class LocalConfig:
    """Trials run on the manager's machine."""

    platform: str = "local"
    use_active_gpu: bool | None = None
    max_trial_number_per_gpu: int | None = None
    gpu_indices: list[int] | int | str | None = None
    reuse_mode: bool | None = None


@dataclass(slots=True)
class RemoteMachineConfig:
    """One machine reached by SSH.

    A password or a passphrase is given itself, or by the name of an environment variable that holds it when the
    experiment is started, or asked for on the terminal then; it is never shown.
    """

    host: str
    user: str | None = None
    port: int | None = None
    password: str | None = field(default=None, repr=False)
    ssh_key_file: AnyPath | None = None
    ssh_passphrase: str | None = field(default=None, repr=False)
    use_active_gpu: bool | None = None
    max_trial_number_per_gpu: int | None = None
    gpu_indices: list[int] | int | str | None = None
    python_path: str | None = None
    password_env: str | None = None
    password_prompt: bool | None = None
    ssh_passphrase_env: str | None = None
    ssh_passphrase_prompt: bool | None = None
    trust_on_first_use: bool | None = None


@dataclass(slots=True)
class NodeCodeConfig:
    """Trial code that is on every machine already, in the folder `path_on_node`."""

    path_on_node: str


@dataclass(slots=True)
class RemoteConfig:
    """Trials run on machines reached by SSH."""

    platform: str = "remote"
    machine_list: list[RemoteMachineConfig] = field(default_factory=list)
    reuse_mode: bool | None = None
    node_timeout: str | float | None = None
    placement: str | None = None
    quarantine_after: int | None = None
    keep_alive_interval: str | float | None = None
    code: NodeCodeConfig | None = None
    collect_limit_mb: int | None = None


@dataclass(slots=True)
class OtherServiceConfig:
    """A platform without a class of its own here; its settings in snake_case."""

    platform: str
    settings: dict[str, Any] = field(default_factory=dict)


Algorithm = AlgorithmConfig | CustomAlgorithmConfig
Service = LocalConfig | RemoteConfig | OtherServiceConfig | Mapping[str, Any]


def _service(platform: str) -> Service:
    return {"local": LocalConfig, "remote": RemoteConfig}.get(platform, lambda: OtherServiceConfig(platform))()


@dataclass(slots=True)
class ExperimentConfig:
    """Everything an experiment can be asked for. Relative paths start at the current working directory."""

    training_service: Any = None
    """`ExperimentConfig("local")` becomes a LocalConfig."""
    experiment_name: str | None = None
    experiment_type: str | None = None
    search_space_file: AnyPath | None = None
    search_space: Any = None
    trial_command: str | None = None
    trial_code_directory: AnyPath | None = None
    trial_concurrency: int | None = None
    trial_gpu_number: int | None = None
    max_experiment_duration: str | int | None = None
    max_trial_number: int | None = None
    max_trial_duration: str | int | None = None
    max_trial_retries: int | None = None
    max_infrastructure_retries: int | None = None
    max_failed_trials: int | None = None
    nni_manager_ip: str | None = None
    debug: bool | None = None
    log_level: str | None = None
    experiment_working_directory: AnyPath | None = None
    tuner_gpu_indices: list[int] | int | str | None = None
    objective: ObjectiveConfig | Mapping[str, Any] | None = field(default_factory=ObjectiveConfig)
    tuner: Algorithm | None = field(default_factory=AlgorithmConfig)
    assessor: Algorithm | None = field(default_factory=AlgorithmConfig)
    advisor: Algorithm | None = None
    shared_storage: Mapping[str, Any] | None = None
    report_from: int | None = None
    code_snapshot: bool | None = None
    seed: int | None = None
    save_seconds: float | str | None = None
    lease_seconds: float | None = None

    def __post_init__(self) -> None:
        if isinstance(self.training_service, str):
            self.training_service = _service(self.training_service)
        elif isinstance(self.training_service, Sequence):
            chosen = [_service(item) if isinstance(item, str) else item for item in self.training_service]
            self.training_service = chosen[0] if len(chosen) == 1 else chosen

    def to_mapping(self) -> dict[str, Any]:
        """The configuration as the manager takes it: snake_case keys, without what was not set."""
        mapping: dict[str, Any] = _plain(self)
        for kind in ("tuner", "assessor"):
            if not mapping.get(kind, {}).get("name") and not mapping.get(kind, {}).get("class_name"):
                mapping.pop(kind, None)
        if not mapping.get("objective"):
            mapping.pop("objective", None)
        return mapping


def _is_set(field: Field[Any], value: Any) -> bool:
    """Whether a value was given: None stands for nothing, and so does what is empty from the beginning."""
    return value is not None and not (value == {} and field.default_factory is not MISSING)


def _plain(value: Any) -> Any:
    """Plain values for JSON; what was not set is left out of objects, but not out of the user's own mappings."""
    if isinstance(value, OtherServiceConfig):
        return {"platform": value.platform, **_plain(value.settings)}
    if hasattr(value, "__dataclass_fields__"):
        items = ((item, getattr(value, item.name)) for item in fields(value))
        return {item.name: _plain(given) for item, given in items if _is_set(item, given)}
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return os.fspath(value) if isinstance(value, os.PathLike) else value


def read_document(path: Path) -> Any:
    """What a YAML (1.2) or JSON file holds. Raises ValueError where it is neither."""
    from ruamel.yaml import YAML
    from ruamel.yaml.error import YAMLError

    try:
        return YAML(typ="safe", pure=True).load(path.read_text(encoding="utf-8"))
    except YAMLError as error:
        raise ValueError(f"{path} is not valid YAML: {error}") from error


def read_mapping(path: Path) -> dict[str, Any]:
    """The mapping in a YAML (1.2) or JSON file. Raises ValueError where it holds something else."""
    found = read_document(path)
    if not isinstance(found, dict):
        raise ValueError(f"{path}: expected a mapping of keys, found {type(found).__name__}")
    return found


def read_duration(value: str | float | None) -> float | None:
    """Seconds of `90`, `90s`, `10m`, `1.5h` or `2d`. Raises ValueError."""
    if value is None or isinstance(value, (int, float)):
        return value
    number, unit = (value[:-1], value[-1]) if value and value[-1] in "smhd" else (value, "s")
    try:
        seconds = float(number) * {"s": 1, "m": 60, "h": 3600, "d": 86400}[unit]
    except ValueError:
        seconds = -1.0
    if not 0 < seconds < float("inf"):
        raise ValueError(f"expected a duration such as 90s, 10m, 1.5h or 2d, found {value!r}")
    return seconds

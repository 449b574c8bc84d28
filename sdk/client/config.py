"""An experiment's configuration as Python objects, with the names of NNI's Python API.

    config = ExperimentConfig("local", trial_command="python trial.py", trial_concurrency=2)
    config.objective.direction = "maximize"
    config.tuner.name = "TPE"

They hold values and check only names, which may be in camelCase as in the YAML; the manager checks the rest and answers
with every problem at once. What people write in files and as durations is read here too.
"""

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, field, fields
from difflib import get_close_matches
from enum import Enum
from pathlib import Path
from typing import Any, Self, TypeVar

AnyPath = str | os.PathLike[str]
ConfigClass = TypeVar("ConfigClass")

COMMAND_LINE = (sys.executable, "-P", "-m", "proctor.manager.cli.main")
"""`proctor` with this interpreter. -P: the folder of the caller must not shadow what it imports."""
INVALID = 2
"""The exit code of `proctor config check` for a configuration that is not valid."""
_PATHS = frozenset(
    ("search_space_file", "trial_code_directory", "experiment_working_directory", "code_directory", "ssh_key_file")
)
_OF_THE_EXPERIMENT = ("trial_command", "trial_code_directory", "trial_gpu_number", "debug", "nni_manager_ip")
"""What may stand in the section of the training service and belongs to the experiment."""


def in_any_spelling(cls: type[ConfigClass]) -> type[ConfigClass]:
    """Let the fields of a dataclass be named in camelCase too, as attributes and in its constructor.

    An unknown name is an AttributeError (in the constructor a TypeError) that names the nearest field.
    """
    names = {_folded(item.name): item.name for item in fields(cls)}  # type: ignore[arg-type]
    construct = cls.__init__

    def initialize(self: Any, *values: Any, **named: Any) -> None:
        if unknown := [name for name in named if _folded(name) not in names]:
            raise TypeError(_no_such_field(cls, unknown[0], names))
        construct(self, *values, **{names[_folded(name)]: value for name, value in named.items()})

    def get_by_other_name(self: Any, name: str) -> Any:
        known = names.get(_folded(name), name)
        if known == name or name.startswith("_"):
            raise AttributeError(_no_such_field(cls, name, names))
        return getattr(self, known)

    def set_by_any_name(self: Any, name: str, value: Any) -> None:
        if _folded(name) not in names:
            raise AttributeError(_no_such_field(cls, name, names))
        object.__setattr__(self, names[_folded(name)], value)

    for name, method in (
        ("__init__", initialize),
        ("__getattr__", get_by_other_name),
        ("__setattr__", set_by_any_name),
    ):
        setattr(cls, name, method)
    return cls


def _folded(name: str) -> str:
    return name.replace("_", "").lower()


def _no_such_field(cls: type[Any], name: str, names: Mapping[str, str]) -> str:
    near = get_close_matches(_folded(name), names, n=1)
    return f"{cls.__name__} has no {name!r}" + (f"; did you mean {names[near[0]]!r}?" if near else "")


class RunMode(Enum):
    """What becomes of the experiment when the Python process that started it ends."""

    Background = "background"  # it is stopped
    Foreground = "foreground"  # it is stopped; progress is printed until then
    Detach = "detach"  # it continues


@in_any_spelling
@dataclass(slots=True)
class ObjectiveConfig:
    """What is optimized: `direction` is "maximize" or "minimize", `metric` the key of the number in a mapping."""

    direction: str | None = None
    metric: str | None = None


@in_any_spelling
@dataclass(slots=True)
class AlgorithmConfig:
    """A built-in tuner, assessor or trial scheduler."""

    name: str | None = None
    class_args: dict[str, Any] = field(default_factory=dict)
    include_intermediate_results: bool | None = None
    """Of a tuner: whether a trial that was stopped early counts with its last intermediate metric; None: yes."""


@in_any_spelling
@dataclass(slots=True)
class CustomAlgorithmConfig:
    """A custom tuner, assessor or trial scheduler: `class_name` is `module.Class`, found in `code_directory`."""

    class_name: str | None = None
    code_directory: AnyPath | None = "."
    class_args: dict[str, Any] = field(default_factory=dict)
    include_intermediate_results: bool | None = None
    """Of a tuner: whether a trial that was stopped early counts with its last intermediate metric; None: no."""


@in_any_spelling
@dataclass(slots=True)
class LocalConfig:
    """Trials run on the manager's machine."""

    platform: str = "local"
    use_active_gpu: bool | None = None
    max_trial_number_per_gpu: int | None = None
    gpu_indices: list[int] | int | str | None = None
    reuse_mode: bool | None = None


@in_any_spelling
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


@in_any_spelling
@dataclass(slots=True)
class NodeCodeConfig:
    """Trial code that is on every machine already, in the folder `path_on_node`."""

    path_on_node: str


@in_any_spelling
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


@in_any_spelling
@dataclass(slots=True)
class OtherServiceConfig:
    """A platform without a class of its own here; its settings in snake_case."""

    platform: str
    settings: dict[str, Any] = field(default_factory=dict)


Algorithm = AlgorithmConfig | CustomAlgorithmConfig
Service = LocalConfig | RemoteConfig | OtherServiceConfig | Mapping[str, Any]


def _service(platform: str) -> Service:
    return {"local": LocalConfig, "remote": RemoteConfig}.get(platform, lambda: OtherServiceConfig(platform))()


@in_any_spelling
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
    retry_exit_codes: Sequence[int] | None = None
    max_failed_trials: int | None = None
    max_gpu_hours: float | None = None
    priority: int | None = None
    preemptible: bool | None = None
    nni_manager_ip: str | None = None
    use_annotation: bool | None = None
    """NNI's; the manager refuses True and says what replaces annotations."""
    debug: bool | None = None
    log_level: str | None = None
    experiment_working_directory: AnyPath | None = None
    tuner_gpu_indices: list[int] | int | str | None = None
    objective: ObjectiveConfig | Mapping[str, Any] | None = field(default_factory=ObjectiveConfig)
    tuner: Algorithm | None = field(default_factory=AlgorithmConfig)
    assessor: Algorithm | None = field(default_factory=AlgorithmConfig)
    trial_scheduler: Algorithm | None = field(default_factory=AlgorithmConfig)
    """In the place of an assessor: it pauses, resumes and clones trials."""
    advisor: Algorithm | None = None
    shared_storage: Mapping[str, Any] | None = None
    report_from: int | None = None
    code_snapshot: bool | None = None
    seed: int | None = None
    keep_checkpoints: Mapping[str, Any] | int | str | None = None
    """A number is that of the newest; "all" keeps every one."""
    checkpoint_quota_mb: int | None = None
    copy_checkpoints: bool | None = None
    checkpoint_storage: Mapping[str, Any] | str | None = None
    """A folder that all nodes share, or a URL; with variables for it as {"location": …, "environment": [...]}."""
    save_seconds: float | str | None = None
    verdict_timeout: float | str | None = None
    lease_seconds: float | None = None

    def __post_init__(self) -> None:
        if isinstance(self.training_service, str):
            self.training_service = _service(self.training_service)
        elif isinstance(self.training_service, Sequence):
            chosen = [_service(item) if isinstance(item, str) else item for item in self.training_service]
            self.training_service = chosen[0] if len(chosen) == 1 else chosen

    @classmethod
    def load(cls, path: AnyPath) -> Self:
        """The configuration in a YAML or JSON file, keys in any spelling, relative paths from the file's folder.

        Values are not checked; `validate` does that. Raises ValueError for an unknown key.
        """
        file = Path(path)
        mapping = read_mapping(file)
        service = next((value for key, value in mapping.items() if _folded(key) == "trainingservice"), None)
        if isinstance(service, dict):
            inherited = {_folded(name) for name in _OF_THE_EXPERIMENT}
            own = {key: value for key, value in service.items() if _folded(key) in inherited and value is not None}
            service = {key: value for key, value in service.items() if _folded(key) not in inherited}
            replaced = {"trainingservice", *(_folded(key) for key in own)}
            kept = {key: value for key, value in mapping.items() if _folded(key) not in replaced}
            mapping = {**kept, "trainingService": service, **own}
        made: Self = _section(cls, mapping, file.parent.absolute(), str(file))
        return made

    def json(self) -> dict[str, Any]:
        """All fields as in NNI: keys in camelCase, paths absolute, None for what was not set. Passwords included."""
        found: dict[str, Any] = _camel_case(self)
        return {**found, "trialCodeDirectory": found["trialCodeDirectory"] or os.getcwd()}

    def validate(self) -> None:
        """Check all that `proctor config check` checks; nothing is started. Raises ValueError with every problem."""
        with tempfile.TemporaryDirectory(prefix="proctor-config-") as folder:  # only its owner may enter
            file = Path(folder) / "configuration.json"
            file.write_text(json.dumps(self.json(), allow_nan=False), encoding="utf-8")
            command = [*COMMAND_LINE, "config", "check", str(file)]
            done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
        if done.returncode == 0:
            return
        if done.returncode != INVALID:
            raise RuntimeError(f"the configuration could not be checked: {done.stderr.strip()}")
        said = done.stderr.partition("is not a valid configuration:\n")[2] or done.stderr
        raise ValueError(re.sub(rf"{re.escape(str(file))}(:\d+:\d+)?: ", "", said).strip())

    def to_mapping(self) -> dict[str, Any]:
        """The configuration as the manager takes it: snake_case keys, without what was not set."""
        mapping: dict[str, Any] = _plain(self)
        for kind in ("tuner", "assessor", "trial_scheduler"):
            if not mapping.get(kind, {}).get("name") and not mapping.get(kind, {}).get("class_name"):
                mapping.pop(kind, None)
        if not mapping.get("objective"):
            mapping.pop("objective", None)
        return mapping


def _section(cls: type[Any], mapping: Mapping[str, Any], folder: Path, where: str) -> Any:
    """A configuration object of a mapping in a file; what was given as null is not given. Code is in the file's folder
    unless another one is named."""
    names = {_folded(item.name): item.name for item in fields(cls)}
    given: dict[str, Any] = {}
    for key, value in mapping.items():
        name = names.get(_folded(str(key)))
        if name is None:
            hint = "; `proctor config convert` converts files of NNI's first format (v1)"
            raise ValueError(f"{where}: {_no_such_field(cls, str(key), names)}{hint}")
        if value is not None:
            given[name] = _value(name, value, folder, f"{where}: {key}")
    for name in {"trial_code_directory", "code_directory"} & set(names.values()):
        given.setdefault(name, str(folder))
    try:
        return cls(**given)
    except TypeError as error:
        raise ValueError(f"{where}: {error}") from error


def _value(name: str, value: Any, folder: Path, where: str) -> Any:
    if name in _PATHS and isinstance(value, str):
        return os.path.normpath(folder / Path(value).expanduser())
    if name == "training_service" and isinstance(value, list):
        return [_value(name, item, folder, where) for item in value]
    if name == "machine_list" and isinstance(value, list) and all(isinstance(item, dict) for item in value):
        return [_section(RemoteMachineConfig, item, folder, where) for item in value]
    if not isinstance(value, dict):
        return value
    by_name = {_folded(str(key)): item for key, item in value.items()}
    kind: type[Any] | None
    if name in ("tuner", "assessor", "trial_scheduler", "advisor"):
        kind = AlgorithmConfig if by_name.get("classname") is None else CustomAlgorithmConfig
    elif name == "training_service":
        kind = {"local": LocalConfig, "remote": RemoteConfig}.get(str(by_name.get("platform")))
    else:
        kind = {"code": NodeCodeConfig, "objective": ObjectiveConfig}.get(name)
    return value if kind is None else _section(kind, value, folder, where)


def _camel_case(value: Any) -> Any:
    """Configuration objects as NNI's JSON; an algorithm or an objective without anything set is None."""
    if isinstance(value, list):
        return [_camel_case(item) for item in value]
    if isinstance(value, OtherServiceConfig) or not hasattr(value, "__dataclass_fields__"):
        return _plain(value)
    if isinstance(value, (AlgorithmConfig, CustomAlgorithmConfig, ObjectiveConfig)) and not (
        {"name", "class_name", "direction", "metric"} & set(_plain(value))
    ):
        return None
    found = {}
    for item in fields(value):
        first, *rest = item.name.split("_")
        given = getattr(value, item.name)
        if item.name in _PATHS and given is not None:
            given = os.path.abspath(os.path.expanduser(given))
        found[first + "".join(word.capitalize() for word in rest)] = _camel_case(given)
    return found


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

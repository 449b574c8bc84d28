import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from proctor.manager.config.errors import ConfigError, ConfigProblem
from proctor.manager.config.experiment import ExperimentConfig
from proctor.manager.config.keys import KEYS, Key, Treatment
from proctor.manager.config.loading import LoadedExperiment, load_experiment, load_experiment_mapping
from proctor.manager.config.matching import section_models
from proctor.manager.config.platforms import PLATFORMS, Availability
from proctor.manager.config.reference import REQUIRED, default_words, key_description, render_key_tables
from proctor.manager.config.services import Section

DOCUMENTATION = Path(__file__).parents[4] / "docs" / "configuration.md"
NFS = {
    "storageType": "NFS",
    "nfsServer": "server",
    "exportedDirectory": "/e",
    "localMountPoint": "/l",
    "remoteMountPoint": "/r",
    "localMounted": "nomount",
}
BLOB = {
    **{key: value for key, value in NFS.items() if key not in ("nfsServer", "exportedDirectory")},
    "storageType": "AzureBlob",
    "storageAccountName": "a",
    "containerName": "c",
}


def name_of(row: Key) -> str:
    return f"{row.platform or ''}:{row.path}={row.example}"


MOUNTED = ("claim", "secret", "configMap")
"""Of which a mount has one."""


def base_for(row: Key, mapping: dict[str, Any]) -> dict[str, Any]:
    """The small configuration, with the surroundings the key of a row needs."""
    base = copy.deepcopy(mapping)
    if row.platform is not None:
        base["trainingService"] = {"platform": row.platform}
    if row.platform == "remote":
        base["trainingService"]["machineList"] = [{"host": "gpu", "user": "me"}]
    if row.platform == "kubernetes":
        base["trainingService"]["image"] = "digits"
    if row.path.startswith("trainingService.mounts[]"):
        source = "secret" if row.path.endswith(".claim") else "claim"
        base["trainingService"]["mounts"] = [{"path": "/data", source: "data"}]
    if row.path.startswith("advisor"):
        del base["tuner"]
    if row.path.startswith("assessor."):
        base["assessor"] = {"name": "Medianstop"}
    if row.path.startswith(("trialScheduler.", "verdictTimeout")):
        base["trialScheduler"] = {"name": "ASHA"}
    if row.path.startswith("checkpointStorage."):
        base["checkpointStorage"] = {"location": "/mnt/shared"}
    if row.path.startswith("sharedStorage."):
        of_nfs = row.example == "NFS" or row.path.rpartition(".")[2] in NFS
        base["sharedStorage"] = dict(NFS if of_nfs else BLOB)
    return base


def with_key(row: Key, base: dict[str, Any]) -> dict[str, Any]:
    """The configuration with the row's key set to the row's example."""
    filled = copy.deepcopy(base)
    *parents, name = row.path.removesuffix(" (a list)").split(".")
    holder: Any = filled
    for part in parents:
        if part.endswith("[]"):
            holder = holder.setdefault(part.removesuffix("[]"), [{}])[0]
        else:
            holder = holder.setdefault(part, {})
    if name in ("className", "codeDirectory"):
        holder.pop("name", None)
        holder["classArgs"] = {"optimize_mode": "maximize"}
    if name == "codeDirectory":
        holder["className"] = {"trialScheduler": "schedulers.Mine"}.get(parents[0], f"{parents[0]}s.Mine")
    if name == "searchSpaceFile":
        del filled["searchSpace"]
    if name in MOUNTED:
        for other in MOUNTED:
            holder.pop(other, None)
    if parents == ["trainingService"]:
        filled.pop(name, None)  # what the section says for the root needs no second word there
    holder[name] = row.example
    return filled


def outcome(row: Key, mapping: dict[str, Any], directory: Path) -> LoadedExperiment | ConfigError:
    return attempt(with_key(row, base_for(row, mapping)), directory)


def attempt(mapping: dict[str, Any], directory: Path) -> LoadedExperiment | ConfigError:
    try:
        return load_experiment_mapping(mapping, directory)
    except ConfigError as error:
        return error


@pytest.mark.slow
@pytest.mark.parametrize("row", [row for row in KEYS if row.effective is Treatment.HONORED], ids=name_of)
def test_an_honored_key_reaches_the_configuration(row: Key, small_mapping: dict[str, Any], directory: Path) -> None:
    loaded = outcome(row, small_mapping, directory)
    assert isinstance(loaded, LoadedExperiment), loaded
    secret = row.path.rpartition(".")[2] in ("password", "sshPassphrase")
    assert [notice.key for notice in loaded.notices] == ([row.path.replace("[]", "[0]")] if secret else [])
    base = base_for(row, small_mapping)
    if row.path.startswith("assessor") and row.path != "assessor":
        base["assessor"] = {"name": "Medianstop", "classArgs": {"start_step": 7}}
    if row.path.startswith("trialScheduler") and row.path != "trialScheduler":
        base["trialScheduler"] = {"name": "ASHA", "classArgs": {"max_t": 9}}
    if row.path == "trainingService.platform":
        assert loaded.config.training_service.platform == row.example
    elif row.path == "experimentType":
        assert loaded.config.experiment_type == row.example
    elif row.path == "objective.metric":
        assert loaded.config.objective.metric == row.example
    else:
        assert loaded.config.canonical() != load_experiment_mapping(base, directory).config.canonical()


@pytest.mark.parametrize("row", [row for row in KEYS if row.effective is Treatment.NOTICE], ids=name_of)
def test_a_key_without_effect_gets_its_notice(row: Key, small_mapping: dict[str, Any], directory: Path) -> None:
    loaded = outcome(row, small_mapping, directory)
    assert isinstance(loaded, LoadedExperiment), loaded
    assert [(notice.key, notice.message) for notice in loaded.notices] == [(row.path, row.sentence)]


@pytest.mark.slow
@pytest.mark.parametrize("row", [row for row in KEYS if row.effective is Treatment.REFUSED], ids=name_of)
def test_a_refused_key_is_refused_with_its_sentence_and_nothing_else(
    row: Key, small_mapping: dict[str, Any], directory: Path
) -> None:
    error = outcome(row, small_mapping, directory)
    assert isinstance(error, ConfigError)
    sentences = [problem.message for problem in error.problems]
    if row.platform is not None:
        assert sentences == [PLATFORMS[row.platform].refusal]
    elif row.path.startswith("sharedStorage."):
        assert sentences == [next(other.sentence for other in KEYS if other.path == "sharedStorage")]
    else:
        assert sentences == [row.sentence]


@pytest.mark.slow
@pytest.mark.parametrize("row", [row for row in KEYS if row.effective is Treatment.HONORED], ids=name_of)
def test_what_was_understood_is_understood_again(row: Key, small_mapping: dict[str, Any], directory: Path) -> None:
    loaded = outcome(row, small_mapping, directory)
    assert isinstance(loaded, LoadedExperiment), loaded
    shown = {**loaded.config.canonical(), "search_space_file": None}  # as `config show` has it
    (directory / "shown.json").write_text(json.dumps(shown))
    again = load_experiment(directory / "shown.json")
    assert again.config.canonical() == shown
    assert not again.notices


@pytest.mark.slow
@pytest.mark.parametrize(
    "row",
    [
        row
        for row in KEYS
        if row.platform in (None, "local", "remote") and not row.path.startswith(("advisor.", "sharedStorage."))
    ],
    ids=name_of,
)
def test_a_key_without_a_value_is_not_given(row: Key, small_mapping: dict[str, Any], directory: Path) -> None:
    base = {"tuner": {"name": "TPE"}, **base_for(row, small_mapping)}
    if not row.path.startswith("trialScheduler"):
        base.setdefault("assessor", {"name": "Medianstop"})
    *parents, name = row.path.removesuffix(" (a list)").split(".")
    holder: Any = base
    for part in parents:
        holder = holder[part.removesuffix("[]")][0] if part.endswith("[]") else holder.setdefault(part, {})
    holder.pop(name, None)
    without = attempt(base, directory)
    holder[name] = None
    with_null = attempt(base, directory)
    if isinstance(without, LoadedExperiment):
        assert isinstance(with_null, LoadedExperiment), with_null
        assert (with_null.config, with_null.notices) == (without.config, without.notices)
    else:
        assert isinstance(with_null, ConfigError)
        assert [problem.key for problem in with_null.problems] == [problem.key for problem in without.problems]


@pytest.mark.parametrize(
    "row", [row for row in KEYS if row.effective is Treatment.HONORED and " or " not in default_words(row)], ids=name_of
)
def test_a_key_is_required_where_the_table_says_so_and_nowhere_else(
    row: Key, small_mapping: dict[str, Any], directory: Path
) -> None:
    base = base_for(row, small_mapping)
    *parents, name = row.path.split(".")
    holder: Any = base
    for part in parents:
        holder = holder[part.removesuffix("[]")][0] if part.endswith("[]") else holder.setdefault(part, {})
    holder.pop(name, None)
    loaded = attempt(base, directory)
    assert isinstance(loaded, ConfigError if default_words(row) == REQUIRED else LoadedExperiment), loaded


@pytest.mark.parametrize("platform", PLATFORMS.values(), ids=lambda platform: platform.name)
def test_a_platform_is_treated_as_its_table_says(
    platform: Any, small_mapping: dict[str, Any], directory: Path, refused: Callable[..., tuple[ConfigProblem, ...]]
) -> None:
    small_mapping["trainingService"] = {"platform": platform.name}
    if platform.name == "remote":
        small_mapping["trainingService"]["machineList"] = [{"host": "gpu"}]
    if platform.name == "kubernetes":
        small_mapping["trainingService"]["image"] = "digits"
    if platform.availability is Availability.CONVERTED:
        roles: Any = {"kubeflow": {"worker": {"dockerImage": "digits"}}}.get(
            platform.name, {"taskRoles": [{"dockerImage": "digits"}]}
        )
        small_mapping["trainingService"] |= roles
    if platform.availability in (Availability.CONVERTED, Availability.SUPPORTED):
        read = load_experiment_mapping(small_mapping, directory).config.training_service.platform
        assert read == ("kubernetes" if platform.availability is Availability.CONVERTED else platform.name)
        return
    assert platform.refusal in [problem.message for problem in refused(small_mapping)]
    assert "use " in platform.advice or "give " in platform.advice


def model_paths(model: type[Section], prefix: str = "") -> set[str]:
    """The path of every field below a model, as the table writes it."""
    paths = set()
    for field in model.model_fields.values():
        path = f"{prefix}{field.alias}"
        paths.add(path)
        listed = "[]" if "tuple" in str(field.annotation) else ""
        for inner in section_models(field.annotation):
            paths |= model_paths(inner, f"{path}{listed}.")
    return paths


def test_every_field_of_the_models_has_a_row() -> None:
    assert model_paths(ExperimentConfig) - {row.path for row in KEYS} == set()


def test_every_honored_key_has_a_field_that_describes_it() -> None:
    rows = [row for row in KEYS if row.treatment is Treatment.HONORED]
    assert [row.path for row in rows if not key_description(row)] == []


def test_the_documentation_shows_the_table_as_it_is() -> None:
    assert render_key_tables() in DOCUMENTATION.read_text()

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from proctor.manager.config.errors import ConfigError, ConfigProblem, Notice
from proctor.manager.config.loading import LoadedExperiment, convert_file, load_experiment_mapping
from proctor.manager.config.platforms import PLATFORMS
from proctor.manager.config.secrets import REDACTED
from proctor.manager.config.services import RemoteConfig, RemoteMachineConfig
from proctor.manager.config.version1 import OLD_KEYS, OLD_MACHINE_KEYS, OldKey

OLD = """\
authorName: default
experimentName: example
trialConcurrency: 2
maxExecDuration: 1h
maxTrialNum: 10
trainingServicePlatform: local
searchSpacePath: space.json
useAnnotation: false
logDir: logs
multiPhase: false
tuner:
  codeDir: code
  classFileName: tuners.py
  className: Mine
  gpuIndices: "0"
assessor:
  builtinAssessorName: Medianstop
  classArgs: {optimize_mode: maximize}
trial:
  command: python mnist.py
  codeDir: .
  gpuNum: 1
localConfig:
  useActiveGpu: true
  maxTrialNumPerGpu: 2
"""


def test_an_old_file_is_read_as_it_was_meant(load: Callable[[str], LoadedExperiment], directory: Path) -> None:
    loaded = load(OLD)
    config = loaded.config
    assert config.max_experiment_duration_seconds == 3600
    assert config.max_trial_number == 10
    assert config.search_space == {"y": {"_type": "choice", "_value": [1e-4, 2]}}
    assert config.experiment_working_directory == directory / "logs"
    assert (config.tuner.class_name, config.tuner.code_directory) == ("tuners.Mine", directory / "code")
    assert config.tuner_gpu_indices == (0,)
    assert config.assessor is not None
    assert config.assessor.name == "Medianstop"
    assert (config.trial_command, config.trial_gpu_number) == ("python mnist.py", 1)
    assert config.training_service.model_dump() == {
        "platform": "local",
        "use_active_gpu": True,
        "max_trial_number_per_gpu": 2,
        "gpu_indices": None,
    }
    assert [notice.key for notice in loaded.notices if notice.place.line is None] == []
    assert [notice.key for notice in loaded.notices] == [
        "",  # one for all old keys
        "tuner",  # a class of the user's own, which is not given the assessor's direction
    ]
    assert str(loaded.notices[0]) == (
        f"{directory / 'experiment.yml'}:1:1: converted 17 keys of NNI's first format (v1), authorName, multiPhase, "
        "useAnnotation ignored; `proctor config convert FILE` prints the file with the present names"
    )
    assert config.objective.direction == "maximize"


def test_a_converted_file_means_the_same_and_has_no_old_key(
    load: Callable[[str], LoadedExperiment], directory: Path
) -> None:
    before = load(OLD).config
    converted, notices = convert_file(directory / "experiment.yml")
    assert {notice.key for notice in notices} == {
        *("authorName", "maxExecDuration", "maxTrialNum", "trainingServicePlatform", "searchSpacePath"),
        *("logDir", "multiPhase", "tuner.codeDir", "tuner.classFileName", "tuner.gpuIndices"),
        *("assessor.builtinAssessorName", "trial.command", "trial.codeDir", "trial.gpuNum"),
        *("localConfig.useActiveGpu", "localConfig.maxTrialNumPerGpu", "useAnnotation"),
    }
    assert list(converted)[:4] == ["experimentName", "searchSpaceFile", "trialCommand", "trialCodeDirectory"]
    after = load(json.dumps(converted))
    assert after.config == before
    assert [notice.key for notice in after.notices] == ["tuner"]
    again, nothing = convert_file(directory / "experiment.yml")
    assert (again, nothing) == (converted, ())


@pytest.mark.parametrize(
    ("text", "words"),
    [("maxTrialNumber: 3\nmaxTrialNum: 4\n", "remove maxTrialNum"), ("[1]", "a mapping of keys"), ("a: [", "YAML")],
)
def test_a_file_that_cannot_be_converted_says_why(directory: Path, text: str, words: str) -> None:
    (directory / "old.yml").write_text(text)
    with pytest.raises(ConfigError, match=words):
        convert_file(directory / "old.yml")


@pytest.mark.parametrize(("count", "notices"), [(3, 3), (4, 1)])
def test_a_few_old_keys_have_a_notice_each(
    small_mapping: dict[str, Any], directory: Path, count: int, notices: int
) -> None:
    old = {"authorName": "me", "maxTrialNum": 3, "versionCheck": True, "maxExecDuration": "1h"}
    mapping = {**small_mapping, **dict(list(old.items())[:count])}
    assert len(load_experiment_mapping(mapping, directory).notices) == notices


@pytest.mark.parametrize("old", OLD_KEYS, ids=lambda old: old.path)
def test_every_old_key_is_converted_or_dropped_with_a_notice(
    old: OldKey, small_mapping: dict[str, Any], directory: Path
) -> None:
    as_old, as_new = surroundings(old, small_mapping), surroundings(old, small_mapping)
    put(as_old, old.path, old.example)
    if old.new:
        put(as_new, old.new, old.example)
    expected, _ = outcome(as_new, directory)
    found, notices = outcome(as_old, directory)
    assert found == expected
    assert (old.path, old.notice) in [(notice.key, notice.message) for notice in notices]


def surroundings(old: OldKey, small: dict[str, Any]) -> dict[str, Any]:
    """The small configuration with what an old key needs beside it and without what it stands for."""
    mapping = copy.deepcopy(small)
    kind, _, name = old.path.partition(".")
    if kind in ("tuner", "assessor", "advisor"):
        del mapping["tuner"]
        mapping["tuner"] = {"name": "TPE"} if kind == "assessor" else None
        mapping[kind] = {"className": f"{kind}s.Mine"} if name == "codeDir" else {"name": "Medianstop"}
        if name.startswith("builtin"):
            mapping[kind] = {}
        elif kind != "assessor" and name != "codeDir":
            mapping[kind] = {"name": "TPE"}
    if old.path == "machineList":
        mapping["trainingService"] = {"platform": "remote"}
    replaced = {"searchSpaceFile": "searchSpace"}.get(old.new or "", old.new or "")
    if replaced == "trainingService.platform":
        mapping["trainingService"] = {}
    mapping.pop(replaced, None)
    return mapping


def put(mapping: dict[str, Any], path: str, value: object) -> None:
    *parents, name = path.split(".")
    for part in parents:
        mapping = mapping.setdefault(part, {})
    mapping[name] = value


def outcome(mapping: dict[str, Any], directory: Path) -> tuple[object, tuple[Notice, ...]]:
    """What a mapping means, or why it is refused, and the notices."""
    try:
        loaded = load_experiment_mapping(mapping, directory)
    except ConfigError as error:
        return [problem.message for problem in error.problems], error.notices
    return loaded.config, loaded.notices


def test_an_old_list_of_machines_gets_the_new_names(directory: Path, small_mapping: dict[str, Any]) -> None:
    old = {"ip": "gpu", "username": "me", "passwd": "x", "sshKeyPath": "id_key", "passphrase": "y"}
    small_mapping["trainingServicePlatform"] = "remote"
    small_mapping["trainingService"] = None
    small_mapping["machineList"] = [{**old, "maxTrialNumPerGpu": 2, "gpuIndices": "0,1", "port": 2222}]
    small_mapping["remoteConfig"] = {"reuse": True}
    loaded = load_experiment_mapping(small_mapping, directory)
    service = loaded.config.training_service
    assert isinstance(service, RemoteConfig)
    assert service.machine_list == (
        RemoteMachineConfig(
            host="gpu",
            user="me",
            port=2222,
            password=REDACTED,
            ssh_key_file=directory / "id_key",
            ssh_passphrase=REDACTED,
            max_trial_number_per_gpu=2,
            gpu_indices=(0, 1),
        ),
    )
    assert loaded.secrets == {
        "training_service.machine_list.0.password": "x",
        "training_service.machine_list.0.ssh_passphrase": "y",
    }
    reported = {notice.key for notice in loaded.notices}
    assert "" in reported  # one for all of them
    assert not {"machineList", "machineList[0].ip", "trainingServicePlatform"} & reported
    (directory / "old.json").write_text(json.dumps(small_mapping))
    keys = {notice.key for notice in convert_file(directory / "old.json")[1]}
    assert {f"machineList[0].{name}" for name in OLD_MACHINE_KEYS} <= keys


def test_an_old_cluster_file_is_refused_for_its_platform_alone(
    problems: Callable[[str], dict[str, ConfigProblem]], small: str
) -> None:
    text = small.replace("trainingService:\n  platform: local\n", "trainingServicePlatform: pai\n")
    found = problems(text + "paiConfig: {userName: me, token: x}\ntrial: {cpuNum: 1, image: b}\n")
    assert [problem.message for problem in found.values()] == [PLATFORMS["openpai"].refusal]


@pytest.mark.parametrize("kind", ["tuner", "assessor"])
@pytest.mark.parametrize("given", [True, False])
def test_the_old_place_of_include_intermediate_results_is_understood(
    load: Callable[[str], LoadedExperiment], kind: str, given: bool
) -> None:
    text = OLD.replace(f"{kind}:\n", f"{kind}:\n  includeIntermediateResults: {str(given).lower()}\n")
    tuner = load(text).config.tuner
    assert (tuner.include_intermediate_results, tuner.counts_intermediate_results) == (given, given)

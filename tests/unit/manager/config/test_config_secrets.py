from collections.abc import Callable
from pathlib import Path

import pytest

from proctor.manager.config.errors import ConfigProblem
from proctor.manager.config.loading import LoadedExperiment, load_experiment, load_experiment_mapping
from proctor.manager.config.secrets import REDACTED

REMOTE = """\
  machineList:
    - host: gpu-1
      user: me
      password: "hunter2"   # not this way
    - host: gpu-2
      user: me
      ssh_key_file: id_key
      sshPassphrase: open sesame
"""


@pytest.fixture
def loaded(load: Callable[[str], LoadedExperiment], small: str) -> LoadedExperiment:
    return load(small.replace("platform: local", "platform: remote") + REMOTE)


def test_secrets_are_taken_out_of_everything_but_their_own_table(loaded: LoadedExperiment) -> None:
    assert loaded.secrets == {
        "training_service.machine_list.0.password": "hunter2",
        "training_service.machine_list.1.ssh_passphrase": "open sesame",
    }
    for text in (repr(loaded), str(loaded.config.canonical()), str(loaded.mapping)):
        assert "hunter2" not in text
        assert "sesame" not in text
    assert loaded.config.canonical()["training_service"]["machine_list"][0]["password"] == REDACTED


def test_each_secret_gets_a_notice_with_its_position(loaded: LoadedExperiment) -> None:
    assert [(notice.key, notice.place.line) for notice in loaded.notices] == [
        ("trainingService.machineList[0].password", 11),
        ("trainingService.machineList[1].sshPassphrase", 15),
    ]


def test_what_is_sent_to_a_manager_means_the_same_without_its_secrets(
    loaded: LoadedExperiment, directory: Path
) -> None:
    again = load_experiment_mapping(loaded.mapping, directory)
    assert again.config == loaded.config
    assert again.secrets == {}
    assert again.notices == ()


@pytest.mark.parametrize("written", ["|\n        hunter2", "&anchor hunter2", "!!str hunter2", "'hunter2'"])
@pytest.mark.parametrize("line_end", ["\n", "\r\n"])
def test_a_secret_is_taken_out_of_the_mapping_however_it_is_written(
    small: str, directory: Path, written: str, line_end: str
) -> None:
    text = small.replace("platform: local", "platform: remote") + REMOTE
    text = text.replace('"hunter2"   # not this way', written).replace("\n", line_end)
    (directory / "experiment.yml").write_bytes(text.encode())
    loaded = load_experiment(directory / "experiment.yml")
    assert loaded.secrets["training_service.machine_list.0.password"].strip() == "hunter2"
    assert "hunter2" not in str(loaded.mapping)
    assert load_experiment_mapping(loaded.mapping, directory).config == loaded.config


def test_a_secret_of_the_wrong_kind_is_not_shown(
    problems: Callable[[str], dict[str, ConfigProblem]], small: str
) -> None:
    found = problems(small.replace("platform: local", "platform: remote") + REMOTE.replace('"hunter2"', "271828"))
    assert found["trainingService.machineList[0].password"].message == "put it in quotes"
    assert "271828" not in "".join(map(str, found.values()))


def test_remote_machines_are_validated_completely(
    problems: Callable[[str], dict[str, ConfigProblem]], small: str
) -> None:
    text = small.replace("platform: local", "platform: remote") + REMOTE
    text = text.replace("user: me\n      password", "port: 70000\n      passwort").replace("id_key", "3")
    found = problems(text)
    assert set(found) == {
        "trainingService.machineList[0].port",
        "trainingService.machineList[0].passwort",
        "trainingService.machineList[1].ssh_key_file",
    }
    assert found["trainingService.machineList[0].passwort"].nearest == "password"
    assert found["trainingService.machineList[0].port"].expected == "at most 65535"


def test_a_secret_has_one_source(problems: Callable[[str], dict[str, ConfigProblem]], small: str) -> None:
    text = small.replace("platform: local", "platform: remote") + REMOTE
    found = problems(text.replace("user: me\n      password", "passwordEnv: GPU_PASSWORD\n      password"))
    assert found["trainingService.machineList[0]"].expected == "one of password, passwordEnv and passwordPrompt"
    assert "hunter2" not in "".join(map(str, found.values()))

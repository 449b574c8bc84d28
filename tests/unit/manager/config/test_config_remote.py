import importlib.util
from collections.abc import Callable
from dataclasses import fields
from typing import Any

import pytest

from proctor.manager.config.errors import ConfigProblem
from proctor.manager.config.loading import LoadedExperiment
from proctor.manager.config.services import NodeCodeConfig, RemoteConfig, RemoteMachineConfig
from proctor.training_services.remote.settings import RemoteSettings
from proctor.training_services.ssh.settings import MachineSettings

NNI_V2 = """\
experimentName: MNIST
searchSpaceFile: space.json
trialCommand: python3 mnist.py
trialCodeDirectory: code
trialGpuNumber: 1
trialConcurrency: 4
maxTrialNumber: 20
tuner:
  name: TPE
  classArgs:
    optimize_mode: maximize
trainingService:
  platform: remote
  reuseMode: true
  machineList:
    - host: 192.0.2.1
      user: alice
      sshKeyFile: id_key
      useActiveGpu: true
      maxTrialNumberPerGpu: 2
      gpuIndices: 0,1
    - host: 192.0.2.2
      port: 10022
      user: alice
      sshKeyFile: id_key
      pythonPath: /opt/conda/bin
"""
NNI_V1 = """\
authorName: default
experimentName: example
trialConcurrency: 1
maxExecDuration: 1h
maxTrialNum: 10
trainingServicePlatform: remote
searchSpacePath: space.json
useAnnotation: false
tuner:
  builtinTunerName: TPE
trial:
  command: python3 mnist.py
  codeDir: code
  gpuNum: 0
machineList:
  - ip: 192.0.2.1
    port: 22
    username: alice
    sshKeyPath: id_key
    gpuIndices: "0"
remoteConfig:
  reuse: true
"""


def settings_of(loaded: LoadedExperiment) -> RemoteSettings:
    return RemoteSettings.read(loaded.config.canonical()["training_service"])


def remote(small: str, keys: str) -> str:
    return small.replace("platform: local", "platform: remote") + keys


def test_the_file_of_an_nni_experiment_on_machines_loads_as_it_stands(load: Callable[[str], LoadedExperiment]) -> None:
    loaded = load(NNI_V2)
    first, second = settings_of(loaded).machines
    assert (first.address, first.gpu_indices, first.use_active_gpu) == ("alice@192.0.2.1", (0, 1), True)
    assert (second.address, second.python_path) == ("alice@192.0.2.2:10022", "/opt/conda/bin")
    assert [notice.key for notice in loaded.notices] == ["trainingService.reuseMode"]


def test_the_first_format_of_an_experiment_on_machines_loads_too(load: Callable[[str], LoadedExperiment]) -> None:
    (machine,) = settings_of(load(NNI_V1)).machines
    assert machine.address == "alice@192.0.2.1:22"
    assert str(machine.ssh_key_file).endswith("/id_key")


def test_a_machine_needs_a_host_and_nothing_else(load: Callable[[str], LoadedExperiment], small: str) -> None:
    settings = settings_of(load(remote(small, "  machineList: [{host: gpu-1}]\n")))
    assert settings == RemoteSettings((MachineSettings("gpu-1"),))


def test_every_setting_of_the_service_can_be_configured(load: Callable[[str], LoadedExperiment], small: str) -> None:
    keys = """\
  machineList: [{host: gpu-1, trustOnFirstUse: yes}]
  nodeTimeout: 5m
  placement: pack
  quarantineAfter: 0
  keepAliveInterval: 20
  code: {pathOnNode: /srv/code}
  collectLimitMb: 1
"""
    assert settings_of(load(remote(small, keys))) == RemoteSettings(
        machines=(MachineSettings("gpu-1", trust_on_first_use=True),),
        node_timeout_seconds=300.0,
        placement="pack",
        quarantine_after=0,
        keep_alive_seconds=20.0,
        code_path_on_node="/srv/code",
        collect_limit_mb=1,
    )


def test_the_names_of_the_configuration_are_those_of_the_settings() -> None:
    assert {item.name for item in fields(MachineSettings)} <= set(RemoteMachineConfig.model_fields)
    others = {item.name for item in fields(RemoteSettings)} - {"machines", "code_path_on_node"}
    assert others <= set(RemoteConfig.model_fields)
    assert set(NodeCodeConfig.model_fields) == {"path_on_node"}


def test_a_machine_that_stands_in_the_list_again_is_told_where_it_stands_again(
    problems: Callable[[str], dict[str, ConfigProblem]], small: str
) -> None:
    keys = "  machineList:\n    - {host: a, user: b}\n    - {host: c}\n    - {user: b, host: a}\n    - {host: c}\n"
    found = problems(remote(small, keys))
    assert {key: (problem.line, problem.expected, problem.found) for key, problem in found.items()} == {
        "trainingService.machineList[2]": (11, "each machine once", "b@a, which machineList[0] is as well"),
        "trainingService.machineList[3]": (12, "each machine once", "c, which machineList[1] is as well"),
    }


@pytest.mark.parametrize(
    ("machine", "key"),
    [
        ("{user: ada}", "trainingService.machineList[0].host"),
        ("{host: a, password: x, passwordEnv: Y}", "trainingService.machineList[0]"),
        ("gpu-1", "trainingService.machineList[0]"),
    ],
)
def test_what_is_wrong_with_the_only_machine_is_all_that_is_told(
    problems: Callable[[str], dict[str, ConfigProblem]], small: str, machine: str, key: str
) -> None:
    assert list(problems(remote(small, f"  machineList: [{machine}]\n"))) == [key]


def test_a_key_file_that_is_not_there_is_a_notice(load: Callable[[str], LoadedExperiment], small: str) -> None:
    loaded = load(remote(small, "  machineList: [{host: a, sshKeyFile: nowhere}, {host: b}]\n"))
    [notice] = loaded.notices
    assert notice.key == "trainingService.machineList[0].sshKeyFile"
    assert notice.message.startswith("there is no file at /")
    assert "/nowhere, its machine cannot be reached" in notice.message
    assert [machine.host for machine in settings_of(loaded).machines] == ["a", "b"]


@pytest.mark.parametrize(
    ("key", "value"),
    [("nodeTimeout", 0), ("placement", "tight"), ("quarantineAfter", -1), ("collectLimitMb", 1.5), ("code", "/srv")],
)
def test_settings_out_of_their_limits_are_refused_where_they_stand(
    problems: Callable[[str], dict[str, ConfigProblem]], small: str, key: str, value: Any
) -> None:
    found = problems(remote(small, f"  machineList: [{{host: a}}]\n  {key}: {value}\n"))
    assert [(problem.key, problem.line) for problem in found.values()] == [(f"trainingService.{key}", 9)]


def test_code_on_the_machine_is_named_by_an_absolute_path(
    problems: Callable[[str], dict[str, ConfigProblem]], small: str
) -> None:
    found = problems(remote(small, "  machineList: [{host: a}]\n  code: {pathOnNode: code}\n"))
    assert "absolute path on the machine" in found["trainingService.code.pathOnNode"].expected


def test_a_missing_library_is_named_with_the_command_that_installs_it(
    problems: Callable[[str], dict[str, ConfigProblem]], small: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    found = problems(remote(small, "  machineList: [{host: a}]\n  nonsense: 1\n"))
    assert [str(problem) for problem in found.values()] == [
        "platform remote needs asyncssh: pip install 'proctor[remote]'"
    ]

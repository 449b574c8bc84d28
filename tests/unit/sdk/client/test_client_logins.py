"""Passwords that a configuration names instead of holding them."""

import resource
from pathlib import Path
from typing import Any

import pytest

from proctor.sdk.client.credentials import (
    MissingSecret,
    find_secrets,
    secret_variables,
    take_secrets,
    write_caller_environment,
)


def config(*machines: dict[str, Any]) -> dict[str, Any]:
    return {"trainingService": {"platform": "remote", "machineList": list(machines)}}


def never(prompt: str) -> str:
    raise AssertionError(f"asked {prompt}")


def test_keys_may_be_spelled_in_any_way() -> None:
    found = find_secrets(
        config({"host": "a", "PasswordEnv": "A"}, {"host": "b", "ssh_passphrase_env": "B"}),
        environment={"A": "1", "B": "2"},
        ask=never,
    )
    assert found == {
        "training_service.machine_list.0.password": "1",
        "training_service.machine_list.1.ssh_passphrase": "2",
    }


def test_a_configuration_that_names_no_secret_needs_none() -> None:
    plain = config({"host": "a", "password": "x", "passwordPrompt": False, "passwordEnv": None})
    assert find_secrets(plain, environment={}, ask=never) == {}
    assert find_secrets({"trainingService": {"platform": "local"}}, environment={}, ask=never) == {}
    assert find_secrets({"trainingService": ["local"]}, environment={}, ask=never) == {}
    assert secret_variables(plain) == set()


def test_an_empty_answer_means_the_one_before() -> None:
    answers = iter(["secret", "", "other"])
    machines = [{"host": name, "user": "bob", "port": 2222, "passwordPrompt": "yes"} for name in "abc"]
    asked: list[str] = []
    found = find_secrets(config(*machines), environment={}, ask=lambda prompt: asked.append(prompt) or next(answers))
    assert list(found.values()) == ["secret", "secret", "other"]
    assert asked[:2] == ["Password of bob@a:2222: ", "Password of bob@b:2222 (Enter: the same again): "]


def test_no_answer_at_all_is_an_error_that_names_the_machine() -> None:
    with pytest.raises(MissingSecret, match="password of a was not given"):
        find_secrets(config({"host": "a", "passwordPrompt": True}), environment={}, ask=lambda prompt: "")


@pytest.mark.parametrize(("environment", "state"), [({}, "not set"), ({"PW": ""}, "empty")])
def test_a_variable_without_a_value_is_an_error_that_names_it(environment: dict[str, str], state: str) -> None:
    with pytest.raises(MissingSecret, match=f"variable PW, which is {state}"):
        find_secrets(config({"host": "a", "passwordEnv": "PW"}), environment=environment, ask=never)


def test_the_variables_that_hold_secrets_are_known() -> None:
    assert secret_variables(config({"host": "a", "passwordEnv": "A", "sshPassphraseEnv": "B"})) == {"A", "B"}


OTHERS: "dict[str, Any]" = {"tuner": {"classArgs": {"password": "not a secret of ours"}}, "logDir": "l"}
HIDDEN = "********"


@pytest.mark.parametrize(
    ("config", "kept", "secrets"),
    [
        (
            {"machineList": [{"ip": "a", "passwd": "s1"}, {"passphrase": "s2"}]},
            {"machineList": [{"ip": "a", "passwd": HIDDEN}, {"passphrase": HIDDEN}]},
            {"machine_list.0.password": "s1", "machine_list.1.ssh_passphrase": "s2"},
        ),
        (
            {
                "trainingService": {"platform": "remote", "machineList": [{"host": "h"}, {"sshPassphrase": "s1"}]},
                "training_service": {"machine_list": [{"password": "s2"}]},
            },
            {
                "trainingService": {"platform": "remote", "machineList": [{"host": "h"}, {"sshPassphrase": HIDDEN}]},
                "training_service": {"machine_list": [{"password": HIDDEN}]},
            },
            {"machine_list.1.ssh_passphrase": "s1", "machine_list.0.password": "s2"},
        ),
    ],
    ids=["first format", "any spelling"],
)
def test_secrets_are_taken_out_by_their_canonical_path(
    config: "dict[str, Any]", kept: "dict[str, Any]", secrets: "dict[str, str]"
) -> None:
    found = {f"training_service.{path}": secret for path, secret in secrets.items()}
    assert take_secrets({**config, **OTHERS}) == ({**kept, **OTHERS}, found)


def test_a_file_of_secrets_that_cannot_be_written_is_removed(tmp_path: Path) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (16, before[1]))  # as a full disk: the beginning is written
    try:
        with pytest.raises(OSError, match="too large"):
            write_caller_environment(tmp_path, secret_values={"training_service.password": "hunter2"})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert list((tmp_path / "incoming").iterdir()) == []

"""The home's layout and what the environment says."""

import json
import os
from pathlib import Path

import pytest

from proctor.manager.settings import (
    CONFIG_FILE,
    ENVIRONMENT_FILE,
    METRICS_FILE,
    DispatcherSettings,
    Home,
    ListenAddress,
    SettingsError,
    read_dispatcher_settings,
    read_environment,
    read_heartbeat,
    read_keeper_listen,
    read_port,
    read_prefix,
)
from proctor.sdk.client import home as client_home


def test_a_home_is_named_by_argument_then_environment_then_platform(tmp_path: Path) -> None:
    assert Home.find(tmp_path, {"PROCTOR_HOME": "/elsewhere"}).path == tmp_path
    assert Home.find(None, {"PROCTOR_HOME": str(tmp_path)}).path == tmp_path
    assert Home.find(None, {}).path.name == "proctor"


def test_the_sdk_knows_the_same_files(tmp_path: Path) -> None:
    home = Home(tmp_path)
    home.token_file.write_text("secret\n")
    assert client_home.read_token(tmp_path) == "secret"
    assert client_home.find_home(tmp_path) == home.path
    home.manager_file.write_text(json.dumps({"url": "http://127.0.0.1:1/", "pid": os.getpid(), "version": "0"}))
    with home.lock_file.open("w"):
        address = client_home.read_address(tmp_path)
    assert address is not None
    assert address.url == "http://127.0.0.1:1"


def test_the_sdk_recognizes_homes_and_experiments_by_their_files(tmp_path: Path) -> None:
    home = Home(tmp_path)
    assert client_home.is_home({home.control_database.name, home.token_file.name, "run"})
    assert not client_home.is_home({home.token_file.name, "trial.py"})
    assert client_home.is_experiment({CONFIG_FILE, METRICS_FILE, ENVIRONMENT_FILE})
    assert client_home.is_experiment({CONFIG_FILE, METRICS_FILE, "trials"})
    assert not client_home.is_experiment({CONFIG_FILE, ENVIRONMENT_FILE, "trial.py"})


def test_private_folders_are_closed_to_others(home: Home) -> None:
    home.prepare()
    for folder in (home.path, home.run_directory, home.incoming_directory):
        assert folder.stat().st_mode & 0o777 == 0o700


def test_the_environment_is_read_in_one_place() -> None:
    web, log = read_environment(
        {
            "PROCTOR_HOST": "::1",
            "PROCTOR_PORT": "8090",
            "PROCTOR_ALLOW_REMOTE": "yes",
            "PROCTOR_TOKEN_FILE": "/secret/token",
            "PROCTOR_READONLY_TOKEN_FILE": "/secret/readonly-token",
            "PROCTOR_ALLOWED_HOSTS": "a.example, b.example",
            "PROCTOR_URL_PREFIX": "lab/",
            "PROCTOR_LOG_FORMAT": "json",
            "PROCTOR_LOG_LEVEL": "debug",
        }
    )
    assert (web.host, web.port, web.allowed_hosts, web.url_prefix) == (
        "::1",
        8090,
        ("a.example", "b.example"),
        "/lab",
    )
    assert web.allow_remote
    assert (web.token_file, web.readonly_token_file) == ("/secret/token", "/secret/readonly-token")
    assert (log.format, log.level) == ("json", "DEBUG")


@pytest.mark.parametrize(("text", "is_on"), [("1", True), ("True", True), ("0", False), ("no", False), ("", False)])
def test_other_machines_are_let_in_only_by_a_clear_word(text: str, is_on: bool) -> None:
    assert read_environment({"PROCTOR_ALLOW_REMOTE": text})[0].allow_remote is is_on
    with pytest.raises(SettingsError, match=r"PROCTOR_ALLOW_REMOTE: expected yes or no .*, found 'maybe'"):
        read_environment({"PROCTOR_ALLOW_REMOTE": "maybe"})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("PROCTOR_PORT", "65536"),
        ("PROCTOR_PORT", "http"),
        ("PROCTOR_ALLOW_REMOTE", "perhaps"),
        ("PROCTOR_LOG_FORMAT", "xml"),
        ("PROCTOR_LOG_LEVEL", "LOUD"),
        ("PROCTOR_URL_PREFIX", "a b"),
    ],
)
def test_a_wrong_setting_is_named(name: str, value: str) -> None:
    with pytest.raises(SettingsError, match=name):
        read_environment({name: value})


def test_ports_and_prefixes() -> None:
    assert read_port("auto", "--port") is None
    assert read_port("0", "--port") == 0
    assert read_prefix("/", "x") == ""
    assert read_prefix("/user/ada/proctor/", "x") == "/user/ada/proctor"


def test_where_to_listen_for_keepers_is_said_by_the_option_then_the_environment() -> None:
    named = {"PROCTOR_KEEPER_LISTEN": "[::]:8443"}
    assert read_keeper_listen(None, {}) is None
    assert read_keeper_listen(None, named) == ListenAddress("::", 8443)
    assert read_keeper_listen("10.0.0.1:0", named) == ListenAddress("10.0.0.1", 0)
    assert read_keeper_listen("", named) is None


def test_keepers_can_be_told_another_url_than_that_of_the_machine() -> None:
    url = {"PROCTOR_KEEPER_URL": "https://proctor-manager.lab.svc:8443"}
    assert read_keeper_listen("0.0.0.0:8443", url) == ListenAddress("0.0.0.0", 8443, url["PROCTOR_KEEPER_URL"])
    with pytest.raises(SettingsError, match="PROCTOR_KEEPER_URL: nothing listens there; set PROCTOR_KEEPER_LISTEN too"):
        read_keeper_listen(None, url)


@pytest.mark.parametrize("text", ["8443", ":8443", "host", "host:", "host:99999", "::1:80", "[::1]:80x", "host:auto"])
def test_what_is_no_host_with_a_port_is_refused(text: str) -> None:
    with pytest.raises(SettingsError, match="PROCTOR_KEEPER_LISTEN: expected HOST:PORT"):
        read_keeper_listen(None, {"PROCTOR_KEEPER_LISTEN": text})


NUMBERS = {
    "PROCTOR_DISPATCHER_PATIENCE_SECONDS": (
        read_dispatcher_settings,
        {None: DispatcherSettings(60.0), "600": DispatcherSettings(600.0)},
        ("seconds, at least 3", "2"),
    ),
    "PROCTOR_KEEPER_HEARTBEAT_SECONDS": (
        read_heartbeat,
        {None: 5.0, "0.5": 0.5},
        ("seconds from 0.1 to 5", "0.09", "5.1"),
    ),
}


@pytest.mark.parametrize("name", NUMBERS)
def test_the_patience_with_dispatchers_and_the_heartbeats_of_keepers_can_be_set(name: str) -> None:
    read, understood, (words, *beyond) = NUMBERS[name]
    for text, meant in understood.items():
        assert read({} if text is None else {name: text}) == meant
    for text in (*beyond, "-1", "inf", "nan", "a minute"):
        with pytest.raises(SettingsError, match=rf"{name}: expected a number of {words}, found '{text}'"):
            read({name: text})

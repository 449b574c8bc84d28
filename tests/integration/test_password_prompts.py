"""`proctor create` on a terminal: what is typed for a machine, is asked for once, not shown, and handed over."""

import os
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
from fakes.served_manager import ServedManager
from fakes.terminal import on_terminal

pytestmark = pytest.mark.skipif(shutil.which("setsid") is None, reason="needs setsid of util-linux")

CONFIG = """\
searchSpace: {lr: {_type: uniform, _value: [0, 1]}}
trialCommand: python3 trial.py
trialConcurrency: 1
objective: {direction: maximize}
tuner: {name: Random}
trainingService:
  platform: remote
  machineList:
    - {host: gpu-1, user: bob, passwordPrompt: true}
    - {host: gpu-2, user: bob, passwordPrompt: true}
    - {host: gpu-3, sshKeyFile: key, sshPassphrasePrompt: true}
    - {host: gpu-4}
"""


def test_passwords_are_asked_for_once_without_echo_and_handed_over(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("a key")
    file = tmp_path / "experiment.yml"
    file.write_text(CONFIG)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PROCTOR_")}
    environment |= {"PROCTOR_HOME": str(tmp_path / "home"), "TERM": "dumb"}
    command = [sys.executable, "-P", "-m", "proctor.manager.cli.main", "create", "-c", str(file), "--id", "mine"]
    handed: list[dict[str, Any]] = []
    with ServedManager(tmp_path / "home") as served, on_terminal(command, environment) as terminal:
        served.before["POST", "/experiments"] = lambda body: handed.append(served.read_handover(body))
        terminal.until_asked("Password of bob@gpu-1: ")
        terminal.type("correct horse")
        terminal.until_asked("Password of bob@gpu-2 (Enter: the same again): ")
        terminal.type("")
        terminal.until_asked("Passphrase of gpu-3 (Enter: the same again): ")
        terminal.type("open sesame")
        code, output = terminal.until_ended()
    assert (code, output.strip()) == (0, "mine"), terminal.shown
    assert handed[0]["secrets"] == {
        "training_service.machine_list.0.password": "correct horse",
        "training_service.machine_list.1.password": "correct horse",
        "training_service.machine_list.2.ssh_passphrase": "open sesame",
    }
    assert terminal.shown.count("Password of") == 2
    assert terminal.shown.count("Passphrase of") == 1
    for secret in ("correct horse", "open sesame"):
        assert secret not in terminal.shown + output
        assert secret not in str(served.asked)

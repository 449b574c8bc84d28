"""What `doctor` finds, with each thing broken in turn."""

import json
import os
import sys
from pathlib import Path

import pytest
from fakes.served_manager import ServedManager

import proctor.sdk.compat
from proctor.manager.cli import checks
from proctor.manager.cli.checks import CheckResult
from proctor.manager.settings import Home

MOUNTS = """\
/dev/sda1 / ext4 rw 0 0
filer:/home /home nfs4 rw 0 0
tmpfs /home/ada/ram tmpfs rw 0 0
/dev/sdb1 /mnt/my\\040disk xfs rw 0 0
"""


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/srv", "ext4"),
        ("/home/ada", "nfs4"),
        ("/home/ada/ram/x", "tmpfs"),
        ("/homework", "ext4"),
        ("/mnt/my disk/a", "xfs"),
    ],
)
def test_the_file_system_of_a_path_is_the_longest_mount(path: str, kind: str) -> None:
    assert checks.file_system_of(Path(path), MOUNTS) == kind


def test_a_home_on_a_network_file_system_fails(tmp_path: Path) -> None:
    (tmp_path / "mounts").write_text(f"/dev/sda1 / ext4 rw 0 0\nfiler:/x {tmp_path} nfs rw 0 0\n")
    found = checks.check_file_system(Home(tmp_path / "home"), tmp_path / "mounts")
    assert found.verdict is CheckResult.FAIL
    assert "PROCTOR_HOME" in found.advice


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_home_that_cannot_be_written_fails(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    assert checks.check_home(Home(tmp_path / "home")).verdict is CheckResult.FAIL


def test_a_home_below_a_file_fails(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert checks.check_home(Home(tmp_path / "file")).verdict is CheckResult.FAIL


@pytest.mark.parametrize("name", ["token", "keepers.pem"])
def test_a_secret_that_others_may_read_fails(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("x")
    (tmp_path / name).chmod(0o644)
    found = checks.check_secrets(Home(tmp_path))
    assert found.verdict is CheckResult.FAIL
    assert f"chmod go= {tmp_path / name}" in found.advice


def test_a_manager_that_has_died_fails(served: ServedManager, home: Path) -> None:
    assert checks.check_manager(Home(home)).verdict is CheckResult.OK
    address = json.loads((home / "manager.json").read_text())
    (home / "manager.json").write_text(json.dumps({**address, "url": "http://127.0.0.1:1"}))
    assert checks.check_manager(Home(home)).verdict is CheckResult.FAIL


def test_a_full_disk_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = type("Usage", (), {"free": 1 << 20, "total": 1 << 40})
    monkeypatch.setattr(checks.shutil, "disk_usage", lambda _: usage)
    assert checks.check_disk(Home(tmp_path)).verdict is CheckResult.FAIL


def test_files_from_another_time_fail(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = checks.time.time()
    monkeypatch.setattr(checks.time, "time", lambda: now + 100)
    found = checks.check_clock(Home(tmp_path))
    assert found.verdict is CheckResult.FAIL
    assert "-100" in found.found


def test_a_machine_in_order_ends_with_0(served: ServedManager, invoke, monkeypatch) -> None:
    result = invoke("doctor", "-o", "json")
    verdicts = {row["name"]: row["verdict"] for row in json.loads(result.stdout)}
    assert verdicts["manager"] == "ok"
    assert result.exit_code == (1 if "fail" in verdicts.values() else 0)


CONFIG = """\
searchSpace: {lr: {_type: uniform, _value: [0, 1]}}
trialCommand: COMMAND
trialConcurrency: 1
tuner: {name: Random}
trainingService: {platform: local}
"""


@pytest.mark.parametrize(
    ("command", "verdict", "words"),
    [
        ("python3 trial.py --fast", "ok", "trial.py"),
        ("A=1 B=2 python3 trial.py", "ok", "trial.py"),
        ("cd x && ./run", "ok", "cd x"),
        ("no-such-program-here; python3 trial.py", "ok", "no-such-program-here"),
        ("./run.sh", "fail", "./run.sh is not found"),
        ("no-such-program-here x", "fail", "no-such-program-here is not found"),
        ("python3 missing.py", "fail", "missing.py"),
        ("python3 'open", "fail", "quotes"),
    ],
)
def test_the_command_of_a_configuration_is_looked_for(
    invoke, tmp_path: Path, command: str, verdict: str, words: str
) -> None:
    (tmp_path / "trial.py").write_text("")
    (tmp_path / "e.yml").write_text(CONFIG.replace("COMMAND", json.dumps(command)))
    result = invoke("doctor", "--config", str(tmp_path / "e.yml"), "-o", "json")
    [row] = [row for row in json.loads(result.stdout) if row["name"] == "command"]
    assert row["verdict"] == verdict
    assert words in row["found"] + row["advice"]
    assert result.exit_code == 1 or verdict == "ok"


def test_a_configuration_that_is_not_valid_fails(invoke, tmp_path: Path) -> None:
    (tmp_path / "e.yml").write_text("trialCommand: x\n")
    assert "config" in invoke("doctor", "--config", str(tmp_path / "e.yml"), code=1).stderr


def test_a_link_to_nothing_in_the_code_is_noted(invoke, tmp_path: Path) -> None:
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "data").symlink_to("/nowhere")
    (tmp_path / "e.yml").write_text(CONFIG.replace("COMMAND", "python3 -V") + "trialCodeDirectory: code\n")
    assert "is a link to nothing" in invoke("doctor", "--config", str(tmp_path / "e.yml")).stdout


@pytest.mark.parametrize(
    ("mode", "verdict", "advice"),
    [
        (0o700, CheckResult.OK, ""),
        (0o755, CheckResult.NOTE, "chmod go="),
        (0o770, CheckResult.NOTE, "chmod go="),
        (0o777, CheckResult.FAIL, "chmod o-w"),
        (0o1777, CheckResult.FAIL, "chmod o-w"),
        (0o702, CheckResult.FAIL, "chmod o-w"),
    ],
)
def test_a_home_that_others_may_enter_or_write_is_told(
    tmp_path: Path, mode: int, verdict: CheckResult, advice: str
) -> None:
    home = tmp_path / "home"
    home.mkdir()
    home.chmod(mode)
    found = checks.check_home(Home(home))
    assert found.verdict is verdict, found
    assert found.advice == (f"`{advice} {home}`" if advice else "")


def test_a_home_in_a_folder_that_everybody_may_write_fails_unless_that_is_sticky(tmp_path: Path) -> None:
    folder = tmp_path / "open"
    (folder / "home").mkdir(mode=0o700, parents=True)
    folder.chmod(0o777)
    found = checks.check_home(Home(folder / "home"))
    assert (found.verdict, found.advice) == (CheckResult.FAIL, f"`chmod o-w {folder}`")
    folder.chmod(0o1777)
    assert checks.check_home(Home(folder / "home")).verdict is CheckResult.OK


def test_a_script_run_by_hand_is_told_how_to_find_proctors_nni(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ours = next(iter(proctor.sdk.compat.__path__))
    monkeypatch.setattr(sys, "path", [place for place in sys.path if place != ours])
    monkeypatch.delitem(sys.modules, "nni", raising=False)  # which other tests import
    advice = f"to have Proctor's there: `export PYTHONPATH={ours}:$PYTHONPATH`"
    found = checks.check_nni(Home(tmp_path))
    assert (found.verdict, found.advice) == (CheckResult.OK, advice)
    assert found.found == "Proctor's in trials, nothing in scripts run by hand"
    (tmp_path / "nni").mkdir()
    (tmp_path / "nni" / "__init__.py").write_text("raise RuntimeError('imported')")
    monkeypatch.syspath_prepend(tmp_path)
    found = checks.check_nni(Home(tmp_path))
    assert (found.verdict, found.advice) == (CheckResult.NOTE, advice)
    assert f"NNI's own in scripts run by hand ({tmp_path}/nni/__init__.py)" in found.found
    monkeypatch.syspath_prepend(ours)
    assert checks.check_nni(Home(tmp_path)).found == "Proctor's, in trials and in scripts run by hand"

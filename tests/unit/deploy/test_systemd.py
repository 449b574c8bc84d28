"""The systemd units: systemd understands them, and what trials need is not hidden from them."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from fakes.documentation import ROOT

from proctor.trial_keeper import settings

FOLDER = ROOT / "deploy" / "systemd"
ANALYZE = shutil.which("systemd-analyze")
TMPFILES = shutil.which("systemd-tmpfiles")
UNITS = ("system", "user")
MOST_EXPOSURE = 30
"""Of the system unit, in tenths: what systemd calls "OK"."""


def options_of(unit: str) -> dict[str, list[str]]:
    """What the section [Service] says, by option."""
    text = (FOLDER / unit / "proctor-manager.service").read_text(encoding="utf-8")
    section = text.partition("[Service]\n")[2].partition("\n[")[0]
    found: dict[str, list[str]] = {}
    for name, value in re.findall(r"^(\w+)=(.*)$", section, re.MULTILINE):
        found.setdefault(name, []).append(value)
    return found


@pytest.mark.parametrize("unit", UNITS)
def test_only_the_managers_own_process_is_stopped_and_none_may_gain_privileges(unit: str) -> None:
    options = options_of(unit)
    assert (options["KillMode"], options["OOMPolicy"], options["Restart"]) == (
        ["process"],
        ["continue"],
        ["on-failure"],
    )
    assert options["ExecStart"][0].endswith("/bin/proctor manager run")
    assert options["NoNewPrivileges"] == ["yes"]


def test_the_leases_of_the_machine_are_those_that_the_service_sees() -> None:
    """Were /var/lock read-only there, its keeper would take the other folder, which no other keeper looks at."""
    options = options_of("system")
    writable = options["ReadWritePaths"][0].split()
    folders = [folder.replace("/var/lock", "/run/lock") for folder in settings._LOCK_FOLDERS]
    assert [folder for folder in folders if str(Path(folder).parent) not in writable] == []
    assert options["PrivateTmp"] == ["no"]


def test_the_folder_of_leases_is_made_by_systemd_which_follows_no_link_there() -> None:
    """`install -d` as root would, in a folder that all users may write."""
    assert "ExecStartPre" not in options_of("system")
    line = (FOLDER / "system" / "proctor.conf").read_text(encoding="utf-8").splitlines()[-1]
    kind, folder, mode, owner, group, age = line.split()
    assert (kind, mode, owner, group, age) == ("d", "1777", "root", "root", "-")
    assert folder.replace("/run/lock", "/var/lock") in settings._LOCK_FOLDERS


@pytest.mark.skipif(TMPFILES is None or os.geteuid() != 0, reason="needs systemd-tmpfiles and root")
def test_systemd_makes_the_folder_of_leases_for_all_users(tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    for name in ("passwd", "group"):
        (tmp_path / "etc" / name).write_text("root:x:0:0:::\n" if name == "passwd" else "root:x:0:\n")
    command = [str(TMPFILES), "--create", f"--root={tmp_path}", str(FOLDER / "system" / "proctor.conf")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "run/lock/proctor").stat().st_mode & 0o7777 == 0o1777


def test_code_and_gpus_are_not_hidden() -> None:
    system = options_of("system")
    assert (system["ProtectSystem"], system["ProtectHome"], system["PrivateDevices"]) == (
        ["strict"],
        ["read-only"],
        ["no"],
    )
    assert "ProtectClock" not in system  # which limits devices
    assert f"PROCTOR_HOME=/var/lib/{system['StateDirectory'][0]}" in system["Environment"]
    hiding = ("Protect", "Private", "ReadOnly", "ReadWrite", "Inaccessible", "Device", "Root", "Temporary")
    assert [name for name in options_of("user") if name.startswith(hiding)] == []


@pytest.mark.skipif(ANALYZE is None, reason="needs systemd-analyze")
@pytest.mark.parametrize("unit", UNITS)
def test_systemd_understands_every_line(unit: str, tmp_path: Path) -> None:
    text = (FOLDER / unit / "proctor-manager.service").read_text(encoding="utf-8")
    copy = tmp_path / "proctor-manager.service"
    copy.write_text(re.sub(r"^ExecStart=.*$", "ExecStart=/bin/true", text, flags=re.MULTILINE))
    command = [str(ANALYZE), "verify", "--man=no", *(["--user"] if unit == "user" else []), str(copy)]
    environment = {"XDG_RUNTIME_DIR": str(tmp_path), "PATH": "/usr/bin:/bin", "HOME": str(tmp_path)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.skipif(ANALYZE is None, reason="needs systemd-analyze")
def test_systemd_finds_the_system_unit_hardened() -> None:
    unit = FOLDER / "system" / "proctor-manager.service"
    command = [str(ANALYZE), "security", "--offline=true", "--no-pager", f"--threshold={MOST_EXPOSURE}", str(unit)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr

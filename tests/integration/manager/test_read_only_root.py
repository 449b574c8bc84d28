"""A manager as its image runs it: without capabilities, on a root file system that cannot be written."""

import os
import subprocess
from pathlib import Path

import pytest
from fakes.real_manager import RealManager

SCRIPT = r"""
set -e
home=$1
shift
mount --make-rprivate /
mount --bind "$home" "$home"
while read -r _ target _; do
    case "$target" in "$home"|/proc*|/sys*|/dev*) ;; *) mount -o remount,bind,ro "$target" ;; esac
done < /proc/self/mounts
if touch /tmp/written 2>/dev/null; then echo "/tmp can be written" >&2; exit 9; fi
cd /
exec setpriv --no-new-privs --bounding-set=-all --inh-caps=-all -- "$@"
"""
TRIAL = """
import proctor
proctor.report_final_result(proctor.get_next_parameter()["x"])
"""


def can_unshare() -> bool:
    tried = ["unshare", "--mount", "sh", "-c", "mount --make-rprivate / && setpriv --no-new-privs true"]
    return os.geteuid() == 0 and subprocess.run(tried, capture_output=True, check=False).returncode == 0


@pytest.mark.skipif(not can_unshare(), reason="needs root and mount namespaces")
def test_nothing_but_the_home_is_written(tmp_path: Path) -> None:
    manager = RealManager(tmp_path / "home", tmp_path, {})
    manager.home.mkdir()
    manager.wrapper = ["unshare", "--mount", "sh", "-c", SCRIPT, "sh", str(manager.home)]
    try:
        manager.start()
        experiment = manager.create(TRIAL, maxTrialNumber=2)
        manager.until_status(experiment, "DONE")
        assert [row["status"] for row in manager.trials(experiment)] == ["SUCCEEDED", "SUCCEEDED"]
        manager.command_line("manager", "status")
    finally:
        manager.end()

"""deploy/test-control-plane, with programs in place of apt-get, make and the like that only note what is asked."""

import os
import signal
import subprocess
from pathlib import Path

import pytest
from fakes.documentation import ROOT

PROGRAMS = ("kube-apiserver", "kube-controller-manager", "kube-scheduler")
SCRIPTS = {
    "id": "echo 0",
    "etcd": "",
    "kubectl": "",
    "cp": 'case "$*" in *reflect2*) ;; *) exec /bin/cp "$@" ;; esac',
    "apt-get": """
for word; do last=$word; done
echo "apt-get $last" >>"$NOTES"
[ "$last" = kubernetes ] && mkdir -p kubernetes-1.20.5+really1.20.2/vendor/github.com/modern-go/reflect2
exit 0
""",
    # The first time that the second program is to be built, the script, the session's first process, is killed.
    "make": """
program=${1#WHAT=cmd/}
echo "make $program" >>"$NOTES"
if [ "$program" = kube-controller-manager ] && [ ! -e "$NOTES.cut" ]; then
    touch "$NOTES.cut"
    kill -KILL "$(ps -o sid= -p $$ | tr -d ' ')"
    exit 1
fi
mkdir -p _output/bin
echo "$program" >"_output/bin/$program"
chmod +x "_output/bin/$program"
""",
}

pytestmark = pytest.mark.skipif(not Path("/usr/bin/flock").exists(), reason="there is no flock")


def test_what_was_built_before_it_was_cut_off_is_not_built_again(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    for name, text in SCRIPTS.items():
        (tmp_path / "bin" / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / "bin" / name).chmod(0o755)
    notes, cache = tmp_path / "notes", tmp_path / "cache" / "proctor-tests" / "kubernetes-1.20.2"
    environment = {
        **os.environ,
        "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}",
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
        "NOTES": str(notes),
    }

    def run() -> int:
        words = [str(ROOT / "deploy" / "test-control-plane")]
        return subprocess.run(words, env=environment, start_new_session=True, check=False).returncode

    assert run() == -signal.SIGKILL
    assert [path.name for path in sorted(cache.glob("kube-*"))] == ["kube-apiserver"]
    assert run() == 0
    assert [path.name for path in sorted(cache.glob("kube-*"))] == sorted(PROGRAMS)
    asked = notes.read_text().splitlines()
    assert asked.count("apt-get kubernetes") == 1
    assert [each for each in asked if each.startswith("make ")] == [
        *("make kube-apiserver", "make kube-controller-manager", "make kube-controller-manager", "make kube-scheduler"),
    ]
    assert not (cache / "build").exists()

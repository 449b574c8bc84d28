"""What tests of platform kubernetes need of this machine: the programs of a control plane, and namespaces for pods.
`deploy/test-control-plane` builds and installs the programs. A test that lacks something is skipped with the reason, or
fails with it where `PROCTOR_TEST_REQUIRE` names `kubernetes`, as continuous integration does.
"""

import os
import subprocess
from functools import cache
from pathlib import Path
from typing import NoReturn

import pytest
from fakes.machines.requirements import find_program

VERSION = "1.20.2"
NAMESPACES = ("unshare", "--mount", "--uts", "--ipc", "--pid", "--fork", "--kill-child", "--propagation", "private")
_BUILT = ("kube-apiserver", "kube-controller-manager", "kube-scheduler")


@cache
def find_part(name: str) -> Path | None:
    """Where a program of the control plane is."""
    if name in _BUILT:
        caches = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        program = caches / "proctor-tests" / f"kubernetes-{VERSION}" / name
        return program if os.access(program, os.X_OK) else None
    found = find_program(name)
    return Path(found) if found else None


@cache
def missing_for_kubernetes() -> str:
    """Why there can be no Kubernetes cluster here; empty: there can."""
    if os.geteuid() != 0:
        return "a Kubernetes cluster for tests needs root: its pods are processes in namespaces"
    missing = [name for name in (*_BUILT, "etcd", "kubectl") if find_part(name) is None]
    if missing:
        return f"a Kubernetes cluster for tests needs {', '.join(missing)}: run deploy/test-control-plane"
    words = [*NAMESPACES, "mount", "-t", "tmpfs", "tmpfs", "/mnt"]
    tried = subprocess.run(words, capture_output=True, text=True, check=False, timeout=60)
    return "" if tried.returncode == 0 else f"a Kubernetes cluster for tests needs namespaces: {tried.stderr.strip()}"


def skip_or_fail(reason: str) -> NoReturn:
    """Skip this test, unless it must run here."""
    if "kubernetes" in os.environ.get("PROCTOR_TEST_REQUIRE", "").split():
        pytest.fail(f"PROCTOR_TEST_REQUIRE names kubernetes, but {reason}", pytrace=False)
    pytest.skip(reason)

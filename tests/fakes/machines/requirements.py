"""What the test machines need of this one; looked for once. Nothing is installed: see deploy/test-servers."""

import os
import shutil
import subprocess
from functools import cache

import pytest

_FOLDERS = "/usr/local/sbin:/usr/sbin:/sbin"
_ISOLATION = ["unshare", "--mount", "--uts", "--ipc", "--pid", "--fork", "--mount-proc"]
_NOBODY = 65534
_OLDEST_PYTHON = "import sys; sys.exit(sys.version_info < (3, 10))"


def find_program(name: str) -> str | None:
    """The path of a program, also of one that only root usually has on the PATH."""
    return shutil.which(name) or shutil.which(name, path=_FOLDERS)


@cache
def missing_for_loopback() -> str:
    """Why there can be no machines on loopback addresses here; empty: there can."""
    if os.geteuid() != 0:
        return "test machines need root"
    if find_program("sshd") is None:
        return "test machines need an SSH server: run deploy/test-servers"
    return _try([*_ISOLATION, "true"])


@cache
def missing_for_namespaces() -> str:
    """Why there can be no machines with a network of their own here; empty: there can."""
    if missing := missing_for_loopback():
        return missing
    if find_program("ip") is None:
        return "test machines with a network of their own need iproute2"
    return _try([*_ISOLATION, "--net", "ip", "link", "add", "one", "type", "veth", "peer", "name", "other"])


@cache
def missing_program(name: str) -> str:
    """Why a test that needs a program must be skipped; empty: it is there."""
    return "" if find_program(name) else f"needs {name}: run deploy/test-servers"


@cache
def system_python() -> str | None:
    """A Python that every user of a test machine may run and finds on the PATH, or None."""
    for path in ("/usr/local/bin/python3", "/usr/bin/python3"):
        if os.access(path, os.X_OK):
            tried = subprocess.run([path, "-I", "-S", "-c", _OLDEST_PYTHON], user=_NOBODY, check=False)
            if tried.returncode == 0:
                return path
            return None  # an old or private one stands in the way
    return None


def _try(words: list[str]) -> str:
    tried = subprocess.run(words, capture_output=True, text=True, check=False, timeout=60)
    return "" if tried.returncode == 0 else f"test machines need namespaces: {tried.stderr.strip()[-300:]}"


needs_loopback = pytest.mark.skipif(bool(missing_for_loopback()), reason=missing_for_loopback() or "-")
needs_namespaces = pytest.mark.skipif(bool(missing_for_namespaces()), reason=missing_for_namespaces() or "-")
needs_nft = pytest.mark.skipif(bool(missing_program("nft")), reason=missing_program("nft") or "-")

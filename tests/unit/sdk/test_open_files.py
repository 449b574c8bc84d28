"""The limit on open files is raised for our own processes, and handed back to what runs the user's code."""

import subprocess
import sys


def test_the_limit_is_raised_to_the_hard_one_and_the_one_before_is_kept_for_children() -> None:
    code = (
        "import resource; from proctor.sdk.process_limits import *\n"
        "limit = lambda: resource.getrlimit(resource.RLIMIT_NOFILE)\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (100, 300))\n"
        "print(users_open_files(), limit())\n"
        "for _ in range(2):\n"
        "    raise_open_files()\n"
        "    print(users_open_files(), limit())\n"
        "restore_open_files(100)\n"
        "print(limit())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["100 (100, 300)", "100 (300, 300)", "100 (300, 300)", "(100, 300)"]

"""`python -m benchmarks [--quick] [NAME …]`: run the benchmarks, all by default, and print one table."""

import argparse
import importlib
import os
import platform
import sqlite3
import sys

from benchmarks import harness
from benchmarks.table import Row, render

ROOMS = {
    "short_trials": "local",
    "slow_disk": "local",
    "reports": "local",
    "turnover": "local",
    "faults": "local",
    "strangers": "local",
    "many_trials": "local",
    "life_cycle": "local",
    "remote": "machines",
    "cluster_trials": "kubernetes",
    "cluster_scale": "kubernetes",
    "many_machines": "machines",
    "dashboard": "pages",
    "browser": "pages",
    "watched": "pages",
    "schedulers": "scheduling",
    "decisions": "scheduling",
    "trainer": "training",
    "digits_asha": "scheduling",
    "pbt_toy": "scheduling",
    "start_up": "local",
    "starts": "local",
}
"""The package of each benchmark, in the order in which all of them run."""


def machine() -> str:
    """What the figures were reached on."""
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return (
        f"{len(os.sched_getaffinity(0))} cores, {pages / 2**30:.0f} GiB, Linux {platform.release().split('-')[0]}, "
        f"Python {platform.python_version()}, SQLite {sqlite3.sqlite_version}"
    )


def main() -> None:
    """Run what was asked for."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="Measure; one table; no assertion.")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"which ones: {', '.join(ROOMS)} (default: all)")
    parser.add_argument("--quick", action="store_true", help="small numbers, once each: only to see that it works")
    arguments = parser.parse_args()
    names = arguments.names or list(ROOMS)
    if unknown := set(names) - set(ROOMS):
        parser.error(f"unknown: {', '.join(sorted(unknown))}; there are {', '.join(ROOMS)}")
    rows: list[Row] = []
    for name in names:
        print(f"{name} …", file=sys.stderr, flush=True)
        rows += importlib.import_module(f"benchmarks.{ROOMS[name]}.{name}").measure(arguments.quick)
    text = f"{machine()}\n\n{render(rows)}\n"
    (harness.results_folder() / "table.md").write_text(text)
    print(text)


if __name__ == "__main__":
    main()

"""How long one waits for `import proctor` and `proctor --help`."""

import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median

from benchmarks.table import Row, spread


def run_milliseconds(command: Sequence[str]) -> float:
    """How long a command takes."""
    started = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return (time.perf_counter() - started) * 1000


def measure(quick: bool) -> list[Row]:
    """Two rows."""
    repeats = 3 if quick else 20
    bare, imported, helped = [], [], []
    for _ in range(repeats):
        bare.append(run_milliseconds([sys.executable, "-c", "pass"]))
        imported.append(run_milliseconds([sys.executable, "-c", "import proctor"]))
        helped.append(run_milliseconds([str(Path(sys.executable).with_name("proctor")), "--help"]))
    added = median(after - before for before, after in zip(bare, imported, strict=True))
    return [
        Row(
            "import proctor",
            "bare interpreter: " + spread(bare, " ms"),
            f"+{added:.1f} ms",
            "–",
            "+≤ 12 ms",
            added <= 12,
        ),
        Row("proctor --help", "–", spread(helped, " ms"), "–", "≤ 200 ms", median(helped) <= 200),
    ]

"""The short trials again with 5 ms added to every fsync of manager and keeper, against the same without."""

import struct
import subprocess
from pathlib import Path

from benchmarks import harness
from benchmarks.local import short_trials
from benchmarks.table import Row, spread

ADDED_MICROSECONDS = 5000
TARGET = 0.8


def build_shim(folder: Path) -> Path:
    """Compile the library that slows fsync down."""
    library = folder / "slow_fsync.so"
    source = Path(__file__).with_name("slow_fsync.c")
    subprocess.run(["gcc", "-O2", "-shared", "-fPIC", "-o", str(library), str(source), "-ldl"], check=True)
    return library


def _environment(library: Path, counter: Path, microseconds: int) -> dict[str, str]:
    counter.write_bytes(bytes(8))
    return {
        "LD_PRELOAD": str(library),
        "SLOW_FSYNC_MICROSECONDS": str(microseconds),
        "SLOW_FSYNC_COUNTER": str(counter),
    }


def _count(counter: Path) -> int:
    return int(struct.unpack("=Q", counter.read_bytes())[0])


def measure(quick: bool) -> list[Row]:
    """One row; both managers run under the shim, one with no delay, and take turns."""
    trials, repeats = (40, 1) if quick else (short_trials.TRIALS, 5)
    pairs, syncs = [], 0
    with harness.temporary_folder() as folder:
        library, counters = build_shim(folder), (folder / "slow.count", folder / "fast.count")
        slow_environment = _environment(library, counters[0], ADDED_MICROSECONDS)
        fast_environment = _environment(library, counters[1], 0)
        with harness.manager(**slow_environment) as slow, harness.manager(**fast_environment) as fast:
            for _ in range(repeats):
                before = _count(counters[0])
                pairs.append((short_trials.trial_rate(fast, trials), short_trials.trial_rate(slow, trials)))
                syncs += _count(counters[0]) - before
    if not syncs:
        raise harness.BenchmarkError("no fsync was seen: the shim was not loaded, so nothing was measured")
    ratio = sorted(slow / fast for fast, slow in pairs)[len(pairs) // 2]
    return [
        Row(
            f"the same with 5 ms added to every fsync ({syncs / repeats / trials:.1f} a trial)",
            "without: " + spread([fast for fast, _ in pairs], "/s"),
            spread([slow for _, slow in pairs], "/s"),
            f"{ratio:.2f}",
            f"≥ {TARGET}",
            ratio >= TARGET,
        )
    ]

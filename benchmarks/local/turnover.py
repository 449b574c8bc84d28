"""From a trial's end to the next one's start: trials that only sleep, one at a time."""

import itertools
from statistics import median

from benchmarks import harness
from benchmarks.table import Row, spread

TARGET_MILLISECONDS = 25
SLEEP_SECONDS = 0.25


def gaps(lines: list[str]) -> list[float]:
    """Milliseconds from each `end` to the `start` after it."""
    stamps = [(kind, float(stamp)) for kind, stamp in (line.split() for line in lines)]
    found = [
        (start - end) * 1000
        for (kind, end), (next_kind, start) in itertools.pairwise(stamps)
        if (kind, next_kind) == ("end", "start")
    ]
    if len(found) != len(stamps) // 2 - 1:
        raise harness.BenchmarkError(f"trials overlapped: {len(stamps)} stamps, {len(found)} gaps between them")
    return found


def measure(quick: bool) -> list[Row]:
    """One row. The figure holds all that lies between two lines of bash: the exit of one process, the start of the
    next."""
    trials = 10 if quick else 60
    with harness.temporary_folder() as folder, harness.manager() as running:
        stamps = folder / "stamps"
        experiment = running.create(
            command=f"bash sleeper.sh {stamps} {SLEEP_SECONDS}", trialConcurrency=1, maxTrialNumber=trials
        )
        running.finish(experiment)
        milliseconds = gaps(stamps.read_text().splitlines())
    return [
        Row(
            "slot freed → next trial's process started (sleeping trials, Random)",
            "–",
            spread(milliseconds, " ms"),
            "–",
            f"median ≤ {TARGET_MILLISECONDS} ms",
            median(milliseconds) <= TARGET_MILLISECONDS,
        )
    ]

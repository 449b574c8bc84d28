"""How soon trouble is seen and mended: a tuner that raises, a dispatcher that is killed."""

import os
import signal
import sys
import time
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks import harness
from benchmarks.table import Row, spread

HISTORY = 1_000
AT_A_TIME = 4


def exception_seconds(running: harness.RunningManager, stamp: Path) -> float:
    """From the raise in the tuner to the traceback in the experiment over REST."""
    tuner = {
        "className": "failing_tuner.FailingTuner",
        "codeDirectory": str(harness.TRIALS),
        "classArgs": {"stamp": str(stamp)},
    }
    experiment = running.create(
        command=f"{sys.executable} short.py", tuner=tuner, trialConcurrency=1, maxTrialNumber=10
    )
    found = running.wait_for_status(experiment, "ERROR", pause_seconds=0.005)
    seconds = time.time() - float(stamp.read_text())
    if "this tuner breaks on purpose" not in found["error"] or "Traceback" not in found["error"]:
        raise harness.BenchmarkError(f"the traceback is not in the experiment: {found['error']!r}")
    stamp.unlink()
    running.stop(experiment)
    return seconds


def suggestion_seconds(running: harness.RunningManager, history: int, repeats: int, tuner: str) -> list[float]:
    """From killing the dispatcher to the next new trial, with `history` ended trials. A trial that is stopped at the
    same time makes room for it."""
    experiment = running.create(
        command=f"{sys.executable} history.py {history}",
        tuner={"name": tuner},
        trialConcurrency=AT_A_TIME,
        maxTrialNumber=history + AT_A_TIME + repeats,
    )

    def sleeping() -> list[dict[str, Any]] | None:
        rows = list(running.client.trials(experiment, status="RUNNING"))
        late = [row for row in rows if row["sequence_id"] >= history]
        return late if len(late) == AT_A_TIME else None

    seconds = []
    for _ in range(repeats):
        waiting = harness.wait_for(sleeping, "the trials after the history", 600.0, pause_seconds=0.1)
        newest = max(row["sequence_id"] for row in waiting)
        os.kill(harness.dispatcher_of(running), signal.SIGKILL)
        killed = time.time()
        running.client.kill_trial(waiting[0]["id"])
        harness.wait_for(partial(_newer, running, experiment, newest), "the next suggestion")
        seconds.append(time.time() - killed)
    running.stop(experiment)
    return seconds


def _newer(running: harness.RunningManager, experiment: str, sequence_id: int) -> bool | None:
    """Whether there is a trial after this one."""
    newest = next(running.client.trials(experiment, sort="-sequence_id", page_size=1))
    return True if newest["sequence_id"] > sequence_id else None


def measure(quick: bool) -> list[Row]:
    """Two rows; the dispatcher's with TPE, which has the most to remember."""
    history, repeats = (40, 1) if quick else (HISTORY, 5)
    with harness.temporary_folder() as folder, harness.manager() as running:
        raised = [exception_seconds(running, folder / "stamp") for _ in range(repeats)]
        killed = suggestion_seconds(running, history, repeats, "TPE")
    return [
        Row(
            "tuner exception → its traceback over REST",
            "–",
            spread(raised, " s", 2),
            "–",
            "≤ 1 s",
            median(raised) <= 1.0,
        ),
        Row(
            f"dispatcher killed → next suggestion, {history:,} trials of history (TPE)",
            "–",
            spread(killed, " s", 2),
            "–",
            "≤ 2 s",
            median(killed) <= 2.0,
        ),
    ]

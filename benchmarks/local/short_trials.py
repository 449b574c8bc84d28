"""200 trials of `python short.py`, Random, 4 at a time, against a plain script started by `xargs -P 4`."""

import json
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks import harness
from benchmarks.table import Row, spread

TRIALS = 200
AT_A_TIME = 4
TARGET = 0.4


def plain_rate(folder: Path, trials: int) -> float:
    """Scripts per second under xargs."""
    parameters = folder / "parameters.json"
    parameters.write_text(json.dumps({"x": 0.5, "y": 0.1, "z": "a"}))
    script, result = harness.TRIALS / "plain.py", folder / "results.jsonl"
    command = ["xargs", "-P", str(AT_A_TIME), "-I", "{}", sys.executable, str(script), str(parameters), str(result)]
    started = time.perf_counter()
    subprocess.run(command, input="\n".join(map(str, range(trials))), text=True, check=True)
    seconds = time.perf_counter() - started
    reported = len(result.read_text().splitlines())
    result.unlink()
    if reported != trials:
        raise harness.BenchmarkError(f"expected {trials} results of plain scripts, found {reported}")
    return trials / seconds


def trial_rate(
    running: harness.RunningManager,
    trials: int,
    *,
    at_a_time: int = AT_A_TIME,
    service: Mapping[str, Any] | None = None,
) -> float:
    """Trials per second from the request to create the experiment to its being DONE.

    :param service: the `trainingService`; None: local.
    """
    started = time.perf_counter()
    experiment = running.create(
        command=f"{sys.executable} short.py",
        trialConcurrency=at_a_time,
        maxTrialNumber=trials,
        trainingService=dict(service or {"platform": "local"}),
    )
    ended = running.finish(experiment)
    seconds = time.perf_counter() - started
    if ended["trial_counts"] != {"SUCCEEDED": trials}:
        raise harness.BenchmarkError(f"expected {trials} trials SUCCEEDED, found {ended['trial_counts']}")
    running.stop(experiment)
    return trials / seconds


def measure(quick: bool) -> list[Row]:
    """One row; rates are medians, their ratio is the median of the pairs' ratios."""
    trials, repeats = (40, 1) if quick else (TRIALS, 5)
    pairs = []
    with harness.temporary_folder() as folder, harness.manager() as running:
        for _ in range(repeats):
            pairs.append((plain_rate(folder, trials), trial_rate(running, trials)))
    ratios = [reached / plain for plain, reached in pairs]
    ratio = sorted(ratios)[len(ratios) // 2]
    return [
        Row(
            f"{trials} trials of `python trial.py`, Random, {AT_A_TIME} at a time",
            "xargs: " + spread([plain for plain, _ in pairs], "/s"),
            spread([reached for _, reached in pairs], "/s"),
            f"{ratio:.2f}",
            f"≥ {TARGET}",
            ratio >= TARGET,
        )
    ]

"""How long one waits: `import proctor`, `proctor --help`, `create` on a fresh home until the first trial runs."""

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median

from benchmarks import harness
from benchmarks.table import Row, spread

CONFIG = """\
searchSpace: {{x: {{_type: uniform, _value: [0, 1]}}}}
trialCommand: bash sleeper.sh {stamps} 0.1
trialCodeDirectory: {trials}
trialConcurrency: 1
maxTrialNumber: 1
tuner: {{name: Random}}
trainingService: {{platform: local}}
"""


def run_milliseconds(command: Sequence[str]) -> float:
    """How long a command takes."""
    started = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return (time.perf_counter() - started) * 1000


def first_trial_seconds(folder: Path) -> float:
    """From starting `proctor create`, with no manager running, to the first line of the first trial."""
    home, stamps, config = folder / "home", folder / "stamps", folder / "config.yml"
    config.write_text(CONFIG.format(stamps=stamps, trials=harness.TRIALS))
    environment = {**os.environ, "PROCTOR_HOME": str(home), "PROCTOR_PORT": "0"}
    started = time.time()
    try:
        with (folder / "create.out").open("wb") as output:
            command = [*harness.CLI, "create", "--config", str(config)]
            subprocess.run(command, env=environment, check=True, stdout=output, stderr=output)
        first = harness.wait_for(lambda: _first_stamp(stamps), "the first trial to start")
        return first - started
    finally:
        subprocess.run([*harness.CLI, "stop", "--all"], env=environment, check=False, capture_output=True)
        subprocess.run([*harness.CLI, "manager", "stop"], env=environment, check=False, capture_output=True)
        harness.end_keepers(home)


def _first_stamp(stamps: Path) -> float | None:
    """When the first trial wrote its first line, if it has."""
    words = stamps.read_text().split() if stamps.exists() else []
    return float(words[1]) if len(words) > 1 else None


def measure(quick: bool) -> list[Row]:
    """Three rows."""
    repeats = 3 if quick else 20
    bare, imported, helped = [], [], []
    for _ in range(repeats):
        bare.append(run_milliseconds([sys.executable, "-c", "pass"]))
        imported.append(run_milliseconds([sys.executable, "-c", "import proctor"]))
        helped.append(run_milliseconds([str(Path(sys.executable).with_name("proctor")), "--help"]))
    created = []
    for _ in range(1 if quick else 5):
        with harness.temporary_folder() as folder:
            created.append(first_trial_seconds(folder))
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
        Row(
            "`create`, no manager running → first trial running",
            "–",
            spread(created, " s", 2),
            "–",
            "≤ 2 s",
            median(created) <= 2.0,
        ),
    ]

"""`python -m benchmarks.peers [--quick]`: the trainer against helios-ml 2.0.1 with the same model, data and batches.

`make bench-peers` installs helios-ml into an environment of its own and runs this there. The two take turns, each in a
process of its own on one thread; only the training is timed, from the call of `fit` to its return.
"""

import argparse
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import median

from benchmarks.table import Row, render, spread
from benchmarks.trainer import take_turns

EPOCHS = 20
ROUNDS = 11
TARGET = 1.0


def rate(side: str, epochs: int) -> float:
    """Steps a second of one side in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.trials.peer_trainers", side, str(epochs)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=Path(__file__).parents[1])
    return float(done.stdout.split()[-1])


def measure(epochs: int, rounds: int) -> Sequence[Row]:
    """One row."""
    helios, ours = take_turns(lambda: rate("helios", epochs), lambda: rate("proctor", epochs), rounds)
    ratio = median(reached / peer for reached, peer in zip(ours, helios, strict=True))
    return [
        Row(
            f"digits CNN, {epochs} epochs",
            "helios-ml 2.0.1: " + spread(helios, " steps/s", 0),
            spread(ours, " steps/s", 0),
            f"{ratio:.3f}",
            f"≥ {TARGET} ×",
            ratio >= TARGET,
        )
    ]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers")
    parser.add_argument("--quick", action="store_true", help="small numbers, once: only to see that it works")
    quick = parser.parse_args().quick
    print(render(measure(2 if quick else EPOCHS, 1 if quick else ROUNDS)))

"""`python -m benchmarks.training.peers [--quick]`: the trainer against a loop by hand and against other trainers.

`make bench-peers` installs the others into an environment of its own and runs this there. In each of 21 rounds every
side runs once, in a process of its own on one thread, with the same network, data and batches; every second round
begins with the last one. Steps are counted for each second of processor time, which other work on the machine changes
less than it does the time on the clock. Only the stall of a save is time on the clock.
"""

import argparse
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median

from benchmarks.harness import temporary_folder
from benchmarks.table import Row, render, spread

EPOCHS = 20
ROUNDS = 21
SAVES = 3
PEERS = {
    "helios": "helios-ml 2.0.1",
    "fabric": "Lightning Fabric",
    "lightning": "Lightning",
    "transformers": "transformers",
}
WORK = {
    "TensorDataset": ((), 1.0),
    "own Dataset": (("--own-dataset",), 0.97),
    "log every step": (("--log",), 0.97),
    "a checkpoint every 100 steps": (("--checkpoints",), 0.97),
    "both": (("--log", "--checkpoints"), 0.95),
    "own Dataset, a checkpoint every 100 steps": (("--own-dataset", "--checkpoints"), 0.95),
}
TARGET_STALL = 1.2


def rate(side: str, epochs: int, *options: str) -> float:
    """Steps of one side in a second of processor time."""
    return float(_run("training_loops", side, "--epochs", str(epochs), *options)[-1])


def stall(side: str, folder: Path, saves: int) -> tuple[float, float]:
    """The milliseconds that a save of 200 MB takes from the training, and the MiB of memory that it takes."""
    *seconds, mebibytes = map(float, _run("save_stall", side, str(folder), str(saves)))
    return median(seconds) * 1000, mebibytes


def take_turns(sides: Sequence[Callable[[], float]], rounds: int) -> list[list[float]]:
    """What each gives in so many rounds; every second round is in reverse, lest going first be a help."""
    found: list[list[float]] = [[] for _ in sides]
    for number in range(rounds):
        turns = list(zip(found, sides, strict=True))
        for values, measure_one in reversed(turns) if number % 2 else turns:
            values.append(measure_one())
    return found


def measure_loops(epochs: int, rounds: int) -> list[Row]:
    """The trainer against a loop by hand that does the same, one row for each kind of work."""
    rows = []
    for name, (options, target) in WORK.items():
        by_hand, ours = take_turns(
            [lambda o=options: rate("hand", epochs, *o), lambda o=options: rate("proctor", epochs, *o)],  # type: ignore[misc]
            rounds,
        )
        rows.append(_compare(name, "a loop written by hand", by_hand, ours, target))
    return rows


def measure_peers(epochs: int, rounds: int) -> list[Row]:
    """The trainer against each other trainer, one row for each."""
    sides = ["proctor", *PEERS]
    ours, *others = take_turns([lambda s=side: rate(s, epochs) for side in sides], rounds)  # type: ignore[misc]
    return [_compare("TensorDataset", name, peer, ours, 1.0) for name, peer in zip(PEERS.values(), others, strict=True)]


def measure_stall(saves: int, rounds: int) -> list[Row]:
    """How long a save holds the training up, and the memory that it takes."""
    memory: dict[str, list[float]] = {"hand": [], "proctor": []}

    def one(side: str) -> float:
        with temporary_folder() as folder:
            milliseconds, mebibytes = stall(side, folder, saves)
        memory[side].append(mebibytes)
        return milliseconds

    by_hand, ours = take_turns([lambda: one("hand"), lambda: one("proctor")], rounds)
    ratio = median(reached / plain for reached, plain in zip(ours, by_hand, strict=True))
    more = median(reached / plain for reached, plain in zip(memory["proctor"], memory["hand"], strict=True))
    return [
        Row(
            "how long a save of 200 MB holds the training up",
            "a copy, and a thread that writes it: " + spread(by_hand, " ms", 0),
            spread(ours, " ms", 0),
            f"{ratio:.2f}",
            f"≤ {TARGET_STALL} ×",
            ratio <= TARGET_STALL,
        ),
        Row(
            "memory that it takes",
            spread(memory["hand"], " MiB", 0),
            spread(memory["proctor"], " MiB", 0),
            f"{more:.2f}",
            "one snapshot",
            more <= TARGET_STALL,
        ),
    ]


def _run(module: str, *arguments: str) -> list[str]:
    command = [sys.executable, "-m", f"benchmarks.trials.{module}", *arguments]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, cwd=Path(__file__).parents[2])
    return done.stdout.split()


def _compare(work: str, name: str, reference: list[float], ours: list[float], target: float) -> Row:
    ratio = median(reached / other for reached, other in zip(ours, reference, strict=True))
    unit = " steps/s of CPU"
    return Row(
        work, f"{name}: " + spread(reference, unit, 0), spread(ours, unit, 0), f"{ratio:.3f}", f"≥ {target}",
        ratio >= target,
    )  # fmt: skip


def main() -> None:
    """Measure what was asked for; all of it by default."""
    parts = {"loops": measure_loops, "peers": measure_peers, "stall": measure_stall}
    parser = argparse.ArgumentParser(prog="python -m benchmarks.training.peers", description="Measure; one table.")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"which: {', '.join(parts)} (default: all)")
    parser.add_argument("--quick", action="store_true", help="small numbers, once: only to see that it works")
    asked = parser.parse_args()
    if unknown := set(asked.names) - set(parts):
        parser.error(f"unknown: {', '.join(sorted(unknown))}; there are {', '.join(parts)}")
    rows: list[Row] = []
    for name in asked.names or parts:
        print(f"{name} …", file=sys.stderr, flush=True)
        work = SAVES if name == "stall" else EPOCHS
        rows += parts[name](2 if asked.quick else work, 1 if asked.quick else ROUNDS)
    print(render(rows))


if __name__ == "__main__":
    main()

"""The toy problem of "Population Based Training of Neural Networks" (Jaderberg et al. 2017, figure 2).

The quality Q = 1.2 - (t1² + t2²) of two weights is to be maximized, but training sees only a surrogate of it, 1.2 -
(h1 t1² + h2 t2²), whose hyperparameter h says which of them is trained. With either h that there is to choose from, one
weight stays where it is.
"""

import json
import random
import tempfile
import time
from pathlib import Path

import proctor

STEPS = 120
RATE = 0.05
NOISE = 0.01
BEGINNING = [0.9, 0.9]


def quality(weights: list[float]) -> float:
    """What is to be maximized."""
    return 1.2 - sum(weight**2 for weight in weights)


def ascend(weights: list[float], h: list[float], draw: random.Random) -> list[float]:
    """One step up the gradient of the surrogate, which is noisy, as that of a batch is."""
    return [weight - RATE * 2 * each * (weight + draw.gauss(0, NOISE)) for weight, each in zip(weights, h, strict=True)]


def main() -> None:
    h = proctor.get_next_parameter().get("h", [1, 0])
    step, weights = 0, BEGINNING
    if saved := proctor.get_checkpoint():  # its own, after a pause, or that of a better trial
        step, weights = json.loads(Path(saved, "state.json").read_text())
    draw = random.Random(f"{proctor.get_sequence_id()} {step}")
    while step < STEPS:
        time.sleep(0.01)
        step, weights = step + 1, ascend(weights, h, draw)
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, "state.json").write_text(json.dumps([step, weights]))
            proctor.report(quality(weights), checkpoint=folder, step=step)
        if proctor.should_stop():
            return
    proctor.report_final_result(quality(weights))


if __name__ == "__main__":
    main()

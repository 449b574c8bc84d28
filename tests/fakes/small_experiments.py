"""The smallest configuration of an experiment, for tests of the engine that run it on scripted jobs."""

from typing import Any

SMALL: dict[str, Any] = {
    "searchSpace": {"x": {"_type": "uniform", "_value": [0, 1]}},
    "trialCommand": "python trial.py",
    "trialConcurrency": 1,
    "tuner": {"name": "Random"},
    "trainingService": {"platform": "local"},
}

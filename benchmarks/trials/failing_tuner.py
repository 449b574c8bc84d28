"""A tuner that raises at its third suggestion and writes down when."""

import random
import time
from typing import Any

from proctor.sdk.tuner import Tuner


class FailingTuner(Tuner):
    """Random, until it breaks."""

    def __init__(self, stamp: str) -> None:
        self._stamp = stamp
        self._asked = 0

    def update_search_space(self, search_space: dict[str, Any]) -> None:
        pass

    def generate_parameters(self, parameter_id: int, **kwargs: Any) -> dict[str, Any]:
        self._asked += 1
        if self._asked > 2:
            with open(self._stamp, "w") as file:
                file.write(repr(time.time()))
            raise RuntimeError("this tuner breaks on purpose")
        return {"x": random.random(), "y": 0.1, "z": "a"}

    def receive_trial_result(self, parameter_id: int, parameters: Any, value: Any, **kwargs: Any) -> None:
        pass

"""A tuner of one's own: climb from the best place found so far, with steps that shrink when they do not help."""

import math
import random

from nni.tuner import Tuner


class HillClimber(Tuner):
    """Understands search spaces of `uniform` parameters only. Higher values are better."""

    def __init__(self, step=0.3, seed=0):
        self.step = step
        self.random = random.Random(seed)
        self.best_value = None
        self.best = None

    def update_search_space(self, search_space):
        self.ranges = {name: spec["_value"] for name, spec in search_space.items()}

    def generate_parameters(self, parameter_id, **kwargs):
        return {name: self.propose(name, low, high) for name, (low, high) in self.ranges.items()}

    def propose(self, name, low, high):
        if self.best is None:
            return self.random.uniform(low, high)
        here = self.random.gauss(self.best[name], self.step * (high - low))
        return min(max(here, low), high)

    def receive_trial_result(self, parameter_id, parameters, value, **kwargs):
        self.learn(parameters, value)

    def import_data(self, data):
        """Results of another experiment, or of this one before its tuner was started again."""
        for row in data:
            self.learn(row["parameter"], row["value"])

    def learn(self, parameters, value):
        if math.isnan(value):
            return
        if self.best_value is None or value > self.best_value:
            self.best_value, self.best = value, parameters
        else:
            self.step *= 0.95

"""Conversations with a dispatcher's session, recorded: experiments under trial schedulers, and what was decided.

    PYTHONPATH=src:tests python -m fakes.recorded_sessions

records them with the rules of the code that it runs on. Those in tests/vectors/sessions were recorded before rules of
decision had versions (rules 1), and are never recorded again: what they show is that an experiment which was begun then
continues as it would have.
"""

import json
import math
import random
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from proctor.manager.dispatcher import protocol
from proctor.manager.dispatcher.host.session import HostSession

FOLDER = Path(__file__).parents[1] / "vectors" / "sessions"
SPACE = {
    "rate": {"_type": "loguniform", "_value": [1e-4, 1.0]},
    "layers": {"_type": "randint", "_value": [1, 9]},
    "width": {"_type": "quniform", "_value": [8, 64, 8]},
    "activation": {"_type": "choice", "_value": ["relu", "tanh", "gelu"]},
}
NUMBERS = {name: SPACE[name] for name in ("rate", "width")}
_STEPS = {"time_attr": "training_iteration"}
_TPE = ("TPE", {"tpe_args": {"n_startup_jobs": 4}})
_RANDOM: tuple[str, dict[str, Any]] = ("Random", {})


@dataclass(frozen=True)
class Case:
    """What a session is made of."""

    scheduler: str
    scheduler_args: dict[str, Any]
    tuner: tuple[str, dict[str, Any]] = _RANDOM
    trials: int = 16
    places: int = 4
    length: int = 12
    digits: int = 6
    space: Any = None


CASES = {
    "asha-stopping-tpe": Case("ASHA", {"max_t": 9, "reduction_factor": 3}, _TPE, trials=24),
    "asha-promotion-tpe": Case("ASHA", {"type": "promotion", "max_t": 9, "reduction_factor": 3}, _TPE, trials=24),
    "asha-promotion-evolution": Case(
        "ASHA", {"type": "promotion", "max_t": 9, "reduction_factor": 3}, ("Evolution", {"population_size": 4})
    ),
    "asha-stopping-gp": Case("ASHA", {"max_t": 9, "reduction_factor": 3}, ("GP", {"cold_start_num": 3}), space=NUMBERS),
    "asha-promotion-cmaes": Case(
        "ASHA", {"type": "promotion", "max_t": 9, "reduction_factor": 3}, ("CmaEs", {}), space=NUMBERS
    ),
    "hyperband-50": Case("HyperBand", {"max_t": 50}, trials=40, places=6, length=60),
    "hyperband-2.5": Case("HyperBand", {"max_t": 20, "reduction_factor": 2.5}, trials=40, places=6, length=30),
    "bohb-tpe": Case("BOHB", {"max_t": 20}, _TPE, trials=30, places=6, length=30),
    "median": Case("MedianStopping", {"grace_period": 2, "min_samples_required": 2} | _STEPS, trials=30, digits=1),
    "median-pausing": Case(
        "MedianStopping", {"grace_period": 20, "min_samples_required": 2, "hard_stop": False}, trials=24, digits=1
    ),
    "pbt-tpe": Case("PBT", {"population_size": 8, "perturbation_interval": 2} | _STEPS, _TPE, length=24),
    "pbt-synchronous": Case(
        "PBT", {"population_size": 6, "perturbation_interval": 3, "synch": True} | _STEPS, length=24, digits=1
    ),
}
"""By the names of their files."""


@dataclass
class _Trial:
    parameter_id: int
    trial_id: str
    parameters: Any
    job: int = 1
    reported: int = 0
    is_running: bool = True


class RecordedExperiment:
    """A manager without machines: it asks, trials report in a drawn order, and decisions are carried out at once."""

    def __init__(self, case: Case, *, seed: int = 7, rules: int = 1) -> None:
        self.seed, self.rules = seed, rules
        self.lines: list[tuple[str, dict[str, Any]]] = []
        self._case = case
        self._random = random.Random(f"{case.scheduler}{'' if seed == 7 else seed}")
        self._session = HostSession(self._take)
        self._trials: dict[str, _Trial] = {}
        self._position = 0
        self._ids = 0
        self._waits = False
        self._ended = 0
        self._kills: list[protocol.KillTrial] = []
        self._restarts: list[protocol.ResumeTrial | protocol.CloneTrial] = []

    def play(self) -> None:
        """Play until nothing runs and nothing more is started."""
        case, (name, args) = self._case, self._case.tuner
        tuner = protocol.AlgorithmSpec(name=name, class_args=args)
        scheduler = protocol.AlgorithmSpec(name=case.scheduler, class_args=case.scheduler_args)
        space = case.space or SPACE
        first = protocol.Initialize("recorded", space, tuner, None, self.seed, "", "maximize", scheduler=scheduler)
        self._send(replace(first, rules=self.rules))
        self._send(protocol.Replayed())
        while True:
            running = [trial for trial in self._trials.values() if trial.is_running]
            if len(running) < case.places and not self._waits:
                self._ask()
            elif running:
                self._advance(self._random.choice(running))
            else:
                return

    def _send(self, message: Any) -> None:
        self.lines.append((">", json.loads(protocol.encode(message))))
        self._session.handle(message)
        while self._kills or self._restarts:
            if self._restarts:
                self._start_again(self._restarts.pop(0))
                continue
            kill = self._kills.pop(0)
            if kill.trial_id in self._trials:
                self._end(self._trials[kill.trial_id], "SUCCEEDED" if kill.is_full else "EARLY_STOPPED")

    def _start_again(self, message: protocol.ResumeTrial | protocol.CloneTrial) -> None:
        trial = self._trials[message.trial_id]
        trial.job, trial.is_running = trial.job + 1, True
        if isinstance(message, protocol.CloneTrial):
            trial.parameter_id, trial.parameters = message.parameter_id, message.parameters
            trial.reported = self._trials[message.donor_trial].reported
        self._send(
            protocol.TrialRestarted(
                self._next_position(), trial.parameter_id, trial.trial_id, trial.job, trial.reported
            )
        )

    def _next_position(self) -> int:
        self._position += 1
        return self._position

    def _ask(self) -> None:
        number = self._ids
        self._ids += 1
        can_start = len(self._trials) + self._ended < self._case.trials
        self._send(protocol.RequestTrialJobs(self._next_position(), [number], can_start=can_start))

    def proposed(self) -> list[Any]:
        """The parameters of all new trials, in their order."""
        return [body["parameters"] for _, body in self.lines if body["type"] == "NewTrial"]

    def _take(self, message: Any) -> None:
        self.lines.append(("<", json.loads(protocol.encode(message))))
        match message:
            case protocol.NewTrial():
                key = f"t{message.parameter_id}"
                self._trials[key] = _Trial(message.parameter_id, key, message.parameters)
            case protocol.ResumeTrial() | protocol.CloneTrial():
                self._restarts.append(message)
            case protocol.NoMoreTrials():
                self._waits = True
            case protocol.PauseTrial():
                self._trials[message.trial_id].is_running = False
            case protocol.KillTrial():
                self._kills.append(message)
            case protocol.Error():
                raise AssertionError(message.traceback)

    def _advance(self, trial: _Trial) -> None:
        self._waits = False
        if self._random.random() < 0.01:
            self._end(trial, "FAILED")
            return
        trial.reported += 1
        step = trial.reported
        if step > self._case.length:
            self._end(trial, "SUCCEEDED")
            return
        value = self._value(trial, step)
        row = protocol.ReportedMetric(
            trial.parameter_id, trial.trial_id, trial.job, step - 1, value, step, seconds=10.0 * step
        )
        self._send(protocol.ReportMetrics(self._next_position(), [row]))

    def _value(self, trial: _Trial, step: int) -> float:
        goodness = 1 - abs(math.log10(trial.parameters["rate"]) + 2) / 2 + trial.parameters["width"] / 640
        return round(goodness * (1 - math.exp(-step / 5)), self._case.digits)

    def _end(self, trial: _Trial, status: str) -> None:
        del self._trials[trial.trial_id]
        self._ended += 1
        self._waits = False
        value = None if status == "FAILED" else self._value(trial, min(trial.reported, self._case.length))
        self._send(
            protocol.TrialEnd(
                self._next_position(),
                trial.parameter_id,
                trial.trial_id,
                trial.parameters,
                status,
                has_value=value is not None,
                value=value,
            )
        )


def main() -> None:
    """Record all of them."""
    for name, case in CASES.items():
        experiment = RecordedExperiment(case)
        experiment.play()
        lines = [json.dumps([way, body], separators=(",", ":")) for way, body in experiment.lines]
        (FOLDER / f"{name}.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

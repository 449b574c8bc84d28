"""ASHA against random search on examples/digits: how much training it takes to reach the same accuracy.

The networks are really trained, epoch by epoch, by the example's own code. Only time is virtual: each epoch takes a
second. So the whole manager decides, on real curves, and what is compared is the number of epochs. A configuration is
trained once for each seed, and its curve is used by all searches of that seed.

Random search trains each of its trials to the end. Its best is the best accuracy of all of its trials at any epoch.
ASHA gets the same proposals of the same tuner, in the same order, and more of them after those. What it has trained
when the first of its trials reports that accuracy is counted, the epochs that run at that moment included.
"""

import asyncio
import json
import math
import multiprocessing
import os
from collections.abc import Iterator
from dataclasses import dataclass
from statistics import median
from typing import Any

from benchmarks import harness
from benchmarks.scheduling.examples import load_code, load_config, read_parameters, read_saved, save
from benchmarks.table import Row
from proctor.manager.settings import Home
from proctor.manager.simulation.simulation import Simulation
from proctor.manager.simulation.virtual_time import VirtualTimeLoop, run_virtual
from proctor.training_services.base import TrialJobForm
from proctor.training_services.in_memory.scripts import Final, ScriptedReport, Step

EXAMPLE = "digits"
SEEDS = 10
TRIALS = 24
"""Of random search."""
EPOCHS = 16
"""Of each of them."""
AT_A_TIME = 4
TARGET = 0.5
ASHA = {"grace_period": 1, "max_t": EPOCHS, "reduction_factor": 4}
SEARCHES: dict[str, dict[str, Any] | None] = {
    "random": None,
    "stopping": {"name": "ASHA", "classArgs": ASHA},
    "promotion": {"name": "ASHA", "classArgs": ASHA | {"type": "promotion"}},
}


@dataclass(frozen=True)
class Found:
    """What one search of one seed has taken."""

    best: float
    """The best accuracy that was reported."""
    at: float
    """How many epochs had been trained when the accuracy to reach was reported, or, if there was none, the best one;
    infinite if it never was."""
    epochs: int


class Curves:
    """The accuracy of each configuration after each epoch; trained when it is first asked for.

    :param seed: of the weights, the order of the data, and dropout.
    """

    def __init__(self, seed: int) -> None:
        import torch

        torch.set_num_threads(1)
        torch.set_flush_denormal(True)  # else networks that diverge train several times as slowly
        self._torch = torch
        self._example = load_code(EXAMPLE)
        self._seed = seed
        self._training, self._validation = self._example.load_data()
        self._trainings: dict[str, Iterator[float]] = {}
        self._known: dict[str, list[float]] = {}

    def at(self, parameters: dict[str, Any], epoch: int) -> float:
        """The accuracy after so many epochs."""
        key = json.dumps(parameters, sort_keys=True)
        if key not in self._known:
            self._known[key], self._trainings[key] = [], self._train(parameters)
        known = self._known[key]
        while len(known) < epoch:
            known.append(next(self._trainings[key]))
        return known[epoch - 1]

    def _train(self, parameters: dict[str, Any]) -> Iterator[float]:
        torch, example = self._torch, self._example
        torch.manual_seed(self._seed)
        model = example.build_model(parameters["hidden"], parameters["dropout"])
        optimizer = torch.optim.SGD(model.parameters(), lr=parameters["learning_rate"], momentum=parameters["momentum"])
        images, labels = self._training.tensors
        for _ in range(EPOCHS):
            order = torch.randperm(len(labels)).split(parameters["batch_size"])
            example.train_one_epoch(model, [(images[part], labels[part]) for part in order], optimizer)
            state = torch.get_rng_state()  # other configurations are trained in between
            yield example.accuracy(model, self._validation)
            torch.set_rng_state(state)


class Search:
    """Plays the trials of one search, and counts.

    :param goal: the accuracy to reach; None for the best one.
    """

    def __init__(self, curves: Curves, goal: float | None) -> None:
        self._curves = curves
        self._goal = goal
        self._best, self._at, self._epochs = -math.inf, math.inf, 0

    @property
    def found(self) -> Found:
        """What has come of it so far."""
        return Found(self._best, self._at, self._epochs)

    def is_over(self, budget: int) -> bool:
        """Whether the goal has been reached or the budget used."""
        return self._goal is not None and (self._at < math.inf or self._epochs >= budget)

    def script(self, form: TrialJobForm) -> Iterator[Step]:
        """A trial that reports an accuracy and a checkpoint after every epoch, and continues from there."""
        parameters, reached = read_parameters(form), 0.0
        for epoch in range(read_saved(form, 0) + 1, EPOCHS + 1):
            reached = self._train(parameters, epoch)
            yield ScriptedReport(1.0, reached, step=epoch)
            yield from save(form, epoch, epoch)
        yield Final(0.0, reached)

    def _train(self, parameters: dict[str, Any], epoch: int) -> float:
        reached = self._curves.at(parameters, epoch)
        self._epochs += 1
        is_new = reached > self._best if self._goal is None else reached >= self._goal and self._at == math.inf
        if is_new:
            self._at = self._epochs
        self._best = max(self._best, reached)
        return reached


def search(curves: Curves, seed: int, scheduler: dict[str, Any] | None, *, trials: int, goal: float | None) -> Found:
    """Run one search through a whole manager, until all is trained or the goal is reached."""
    played = Search(curves, goal)
    budget = trials * EPOCHS

    async def main(loop: VirtualTimeLoop) -> Found:
        with harness.temporary_folder() as folder:
            simulation = Simulation(Home(folder / "home"), loop, script=played.script)
            config = {
                "searchSpace": load_config(EXAMPLE)["searchSpace"],
                "trialCommand": "true",
                "trialConcurrency": AT_A_TIME,
                "maxTrialNumber": trials if scheduler is None else budget,
                "seed": seed,
                "objective": {"direction": "maximize"},
                "tuner": {"name": "Random"},
                "trainingService": {"platform": "local"},
                **({} if scheduler is None else {"trialScheduler": scheduler}),
            }
            async with simulation.manager() as manager:
                created = await manager.create_experiment(config=config, directory=str(folder))
                while not played.is_over(budget):
                    row = await manager.experiment(created.id)
                    if row.status.has_ended:
                        break
                    await asyncio.sleep(0.5)
            return played.found

    return run_virtual(main)


def compare(seed: int, trials: int) -> dict[str, Found]:
    """All searches of one seed."""
    curves = Curves(seed)
    random = search(curves, seed, None, trials=trials, goal=None)
    others = {
        name: search(curves, seed, scheduler, trials=trials, goal=random.best)
        for name, scheduler in SEARCHES.items()
        if scheduler is not None
    }
    return {"random": random, **others}


def measure(quick: bool) -> list[Row]:
    """A row for each kind of ASHA; seeds share the cores."""
    seeds, trials = (2, 9) if quick else (SEEDS, TRIALS)
    cores = len(os.sched_getaffinity(0))
    with multiprocessing.get_context("spawn").Pool(cores) as pool:
        results = pool.starmap(compare, [(seed, trials) for seed in range(seeds)], chunksize=1)
    whole = [result["random"].epochs for result in results]
    rows = []
    for name in ("stopping", "promotion"):
        needed = [result[name].at for result in results]
        ratios = [at / all_of_it for at, all_of_it in zip(needed, whole, strict=True)]
        rows.append(
            Row(
                f"ASHA ({name}) on examples/digits until it reaches the best accuracy of random search, {seeds} seeds",
                f"random search, {trials} trials of {EPOCHS} epochs: {median(whole):.0f} epochs, its best after "
                f"{median(result['random'].at for result in results):.0f}",
                f"{_epochs(needed)}",
                f"{median(ratios):.2f}",
                f"≤ {TARGET} ×",
                median(ratios) <= TARGET,
            )
        )
    return rows


def _epochs(needed: list[float]) -> str:
    reached = [at for at in needed if at < math.inf]
    if not reached:
        return "never"
    never = len(needed) - len(reached)
    ends = f"{min(reached):.0f} to {max(reached):.0f}" + (f"; {never} never" if never else "")
    return f"{median(needed):.0f} epochs ({ends})"

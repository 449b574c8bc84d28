"""A run of the trainer as the tests compare it: what every rank came to, the history, the place of the end.

Called in incarnations (see `incarnations`), which have torch imported. There the ranks are forks too: a real start
takes each of them seconds. That the trainer's own way of starting them works is tested by itself.
"""

import json
import random
import warnings
from pathlib import Path
from typing import Any

import torch
from fakes.trained_models import DigitsData, DigitsModel, Recipe, hash_state
from fakes.watches import make_watch

from proctor.sdk.pytorch import Model, Plugin, Trainer, TrainerError, get_rng_state_dict
from proctor.sdk.pytorch.distributed import launch

RUN = "run"
SAMPLE_FILE = "samples"  # what was trained on: a file for each rank, a line for each batch, of all incarnations
EQUAL_OF_RANK = ("weights", "optimizer", "streams")  # to the last bit
EQUAL = ("state", "history", "reason")


class Teller(Plugin):
    """Hands over what its rank has come to, also when there was nothing left to do."""

    def __init__(self) -> None:
        super().__init__("teller")
        self._model: Any = None

    def setup(self, model: Model) -> None:
        self._model = model

    def close(self) -> None:
        self._model.queue.put(describe_rank(self._model))


def describe_rank(model: Any) -> "dict[str, Any]":
    """Hash what this process has come to."""
    state = model.state_dict()
    return {
        "rank": model.ranks.rank,
        "weights": hash_state(state.get("net")),
        "optimizer": hash_state([state.get("optimizer"), state.get("scheduler")]),
        "streams": hash_state(get_rng_state_dict()),
        "batches": len(model.samples),
    }


def train(
    recipe: "dict[str, Any]",
    root: str,
    *,
    options: "dict[str, Any] | None" = None,
    start: str = "fork",
    **watch: Any,
) -> "dict[str, Any]":
    """Train from the latest checkpoint to the end, or until a process dies, and return what came of it.

    :param start: how ranks are started; "spawn" is the trainer's own way.
    :param watch: the arguments of `make_watch`.
    """
    random.seed()  # an incarnation begins with streams of its own, as a new process does
    launch.START_METHOD = start
    cell = Recipe(**recipe)
    Path(root).mkdir(exist_ok=True)
    trainer = Trainer(RUN, **{**cell.options(), **(options or {}), "chkpt_root": root})
    trainer.register_plugin(Teller())
    model = DigitsModel(cell, make_watch(**watch), Path(root) / SAMPLE_FILE)
    try:
        outcome = trainer.fit(model, DigitsData(cell))
    except TrainerError as problem:
        return {"killed": "was ended by SIGKILL" in str(problem), "error": str(problem)}
    ranks = sorted(trainer.queue.get_all(), key=lambda values: values["rank"])
    return {
        "killed": False,
        "error": None,
        "reason": None if outcome.reason is None else outcome.reason.value,
        "resumed": outcome.resumed_from is not None,
        "state": outcome.state.state_dict(),
        "history": read_history(Path(root) / RUN / "history.jsonl"),
        "ranks": ranks,
        "batches": ranks[0]["batches"],
        "draw": torch.rand(1).item(),  # from the stream of the caller
    }


def train_warned(**arguments: Any) -> "dict[str, Any]":
    """`train`, which continues when it is warned; `reported` has the texts of its warnings."""
    with warnings.catch_warnings(record=True) as reported:
        warnings.simplefilter("always")
        return {**train(**arguments), "told": [str(warning.message) for warning in reported]}


def read_history(path: Path) -> "list[dict[str, Any]]":
    """The rows of a history, without the times at which they were written."""
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    return [{key: value for key, value in row.items() if key != "time_ms"} for row in rows]


def check_equal(found: "dict[str, Any]", expected: "dict[str, Any]", *, what: str = "run") -> None:
    """Two runs ended with the same bits, on every rank."""
    assert (found["error"], found["killed"]) == (None, False), what
    assert len(found["ranks"]) == len(expected["ranks"])
    for rank, (here, there) in enumerate(zip(found["ranks"], expected["ranks"], strict=True)):
        for part in EQUAL_OF_RANK:
            assert here[part] == there[part], f"{part} of rank {rank} of {what}"
    for part in EQUAL:
        assert found[part] == expected[part], f"{part} of {what}"


def read_samples(root: Path) -> "dict[str, list[tuple[int, str]]]":
    """The batches of every rank, by the name of its file: their numbers and samples, as they were trained on."""
    found = {}
    for path in sorted(root.glob(f"{SAMPLE_FILE}.*")):
        lines = [line.partition(" ") for line in path.read_text().splitlines()]
        found[path.name] = [(int(batch), samples) for batch, _, samples in lines]
    return found


def check_samples(reference: Path, killed: Path) -> None:
    """Each batch of each incarnation had the samples that it has in the uninterrupted run, and none was left out."""
    found = read_samples(killed)
    for rank, batches in read_samples(reference).items():
        expected = dict(batches)
        for batch, samples in found[rank]:
            assert samples == expected[batch], f"batch {batch} of {rank}"
        assert {batch for batch, _ in found[rank]} == set(expected)

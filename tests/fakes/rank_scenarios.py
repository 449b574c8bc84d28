"""What ranks do in the tests of how they are started, how they talk, and how they end. Called in incarnations."""

import contextlib
import io
import os
import signal
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from fakes.left_behind import wait_for_the_end_of_others
from fakes.recording_model import RangeData, RecordingModel
from fakes.trained_models import DigitsData, DigitsModel, Recipe, hash_state
from fakes.trained_runs import Teller, train
from torch.utils.data import Sampler, WeightedRandomSampler

from proctor.sdk.protocol import find_rank
from proctor.sdk.pytorch import (
    EMA,
    ConfigurationError,
    DataLoaderParams,
    HandoverQueue,
    Trainer,
    TrainingState,
    all_reduce_tensors,
    barrier,
    gather_into_tensor,
    get_ranks,
    get_rng_state_dict,
    global_print,
    local_print,
    unwrap,
    wrap_for_ranks,
)
from proctor.sdk.pytorch.distributed import launch
from proctor.sdk.pytorch.distributed.ranks import GroupOptions, Ranks

CPU = torch.device("cpu")


class OddError(Exception):
    """An exception whose constructor takes other arguments than `args` holds."""

    def __init__(self, place: str, *, number: int) -> None:
        super().__init__(f"{place} number {number}")
        self.number = number


class OneOf(Ranks):
    """A rank of several that says nothing to the others."""

    def __init__(self, rank: int, world_size: int) -> None:
        self.rank, self.world_size = rank, world_size


def talk() -> "dict[str, Any]":
    """Let three ranks talk in every way they can, and return what each saw."""
    launch.START_METHOD = "fork"
    queue = HandoverQueue()
    result = launch.spawn_ranks(_talk, devices=[CPU] * 3, options=GroupOptions(timeout_seconds=60.0), queue=queue)
    seen = sorted(queue.get_all(), key=lambda values: values["rank"])
    return {"result": result, "seen": seen, "left": wait_for_the_end_of_others()}


def _talk(ranks: Ranks, device: torch.device, queue: HandoverQueue) -> str:
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        global_print("for all")
        local_print("for a machine")
    mine = torch.tensor([ranks.rank, 10 * ranks.rank], dtype=torch.float64)
    transposed = torch.full((2, 3), float(ranks.rank)).t()
    values = {
        "rank": ranks.rank,
        "gathered tensor": gather_into_tensor(mine).tolist(),
        "gathered scalar": gather_into_tensor(torch.tensor(ranks.rank)).tolist(),
        "gathered shape": list(gather_into_tensor(mine, (3, 2)).shape),
        "stacked": ranks.gather_tensor(mine).tolist(),
        "sum": all_reduce_tensors(mine).tolist(),
        "sum in place": mine.tolist(),
        "sum of several": all_reduce_tensors([torch.tensor(1.0), torch.tensor(float(ranks.rank))]).tolist(),
        "sum of a transposed one": all_reduce_tensors(transposed).tolist(),
        "device": str(gather_into_tensor(mine).device),
        "gathered objects": ranks.gather({"rank": ranks.rank}),
        "told": ranks.broadcast(f"rank {ranks.rank} speaks"),
        "any": [ranks.any(ranks.rank == 2), ranks.any(False), ranks.any(True)],
        "printed": printed.getvalue(),
        "threads": torch.get_num_threads(),
        "reports as rank": find_rank(os.environ),
    }
    barrier()
    queue.put(values)
    return f"from rank {ranks.rank}"


def order_sets() -> "list[Any]":
    """Return in which order two ranks, started as the trainer does, have the items of a set; and what is left of it."""
    queue = HandoverQueue()
    launch.spawn_ranks(_order_set, devices=[CPU] * 2, options=GroupOptions(), queue=queue)
    return [*queue.get_all(), os.environ.get("PYTHONHASHSEED")]


def _order_set(ranks: Ranks, device: torch.device, queue: HandoverQueue) -> None:
    queue.put(list({f"class {number}" for number in range(20)}))


def take_back(root: str) -> "dict[str, Any]":
    """Train on two ranks and return what the caller has of it: of its own model, and in the checkpoint."""
    launch.START_METHOD = "fork"
    recipe = Recipe(processes=2)
    trainer = Trainer("run", **{**recipe.options(), "total_steps": 1, "chkpt_root": root})
    trainer.register_plugin(Teller())
    model = DigitsModel(recipe)
    outcome = trainer.fit(model, DigitsData(recipe))
    saved = torch.load(str(outcome.checkpoint), weights_only=True)["model"]["net"]
    return {
        "own": hasattr(model, "net"),
        "saved": hash_state(saved),
        "trained": [values["weights"] for values in trainer.queue.get_all()],
    }


class Scored(DigitsModel):
    """Is best after the first of its epochs, and hands over the weights that are tested."""

    def on_validation_end(self, validation_cycle: int) -> None:
        self.log({"score": -validation_cycle})

    def on_testing_start(self) -> None:
        weights = hash_state(unwrap(self.net).state_dict())
        folder, epoch = str(self.trainer.checkpoint_folder), self.trainer.state.epoch
        self.queue.put({"rank": self.ranks.rank, "weights": weights, "folder": folder, "epoch": epoch})


def examine(root: str) -> "dict[str, Any]":
    """Train on two ranks, test the best checkpoint on them, and return what each tested, and what is missing."""
    launch.START_METHOD = "fork"
    recipe = Recipe(processes=2)
    options = {**recipe.options(), "chkpt_root": root, "best_metric": "score", "keep_best": 1, "keep_last": 1}
    trainer = Trainer("run", **options)
    trainer.fit(Scored(recipe), DigitsData(recipe))
    outcome = trainer.test(Scored(recipe), DigitsData(recipe), ckpt_path="best")
    saved = torch.load(str(outcome.checkpoint), weights_only=True)["model"]["net"]
    error = ""
    try:
        Trainer("other", **options).test(Scored(recipe), DigitsData(recipe), ckpt_path="best")
    except ConfigurationError as problem:
        error = str(problem)
    tested = sorted(trainer.queue.get_all(), key=lambda values: values["rank"])
    return {"epoch": outcome.state.epoch, "tested": tested, "saved": hash_state(saved), "error": error}


class Judging(DigitsModel):
    """Hands over what its rank found in each validation."""

    def on_validation_end(self, validation_cycle: int) -> None:
        super().on_validation_end(validation_cycle)
        judged = hash_state([unwrap(self.net).state_dict(), self.valid_losses])
        self.queue.put((self.ranks.rank, validation_cycle, judged))


def average(root: str, epochs: "list[int]") -> "dict[str, Any]":
    """Train on two ranks, until after so many epochs in turn; return what was judged by, and the average."""
    launch.START_METHOD = "fork"
    judged: list[Any] = []
    for total in epochs:
        recipe = Recipe(processes=2)
        trainer = Trainer("run", **{**recipe.options(), "total_steps": total, "chkpt_root": root})
        trainer.register_plugin(EMA(0.8, "net"))
        outcome = trainer.fit(Judging(recipe), DigitsData(recipe))
        judged += trainer.queue.get_all()
    content = torch.load(str(outcome.checkpoint), weights_only=True)
    averaged = content["plugins"]["ema"]["average"]
    return {
        "judged": sorted(judged),
        "average": hash_state(averaged),
        "weights": hash_state(content["model"]["net"]),
        "names": [list(averaged), list(content["model"]["net"])],
    }


class Shared(RangeData):
    """A phase of weighted draws, and one of batches whose number differs by epoch."""

    def setup(self) -> None:
        draws = WeightedRandomSampler([1.0] * 10, 11)
        self.add_train_phase(range(10), DataLoaderParams(batch_size=2, sampler=draws))
        self.add_train_phase(range(9), DataLoaderParams(batch_sampler=Ragged(9)))


class Ragged(Sampler[list[int]]):
    """Batches of one to three samples, in a new order each epoch."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __iter__(self) -> "Iterator[list[int]]":
        order = torch.randperm(self.length).tolist()
        while order:
            size = int(torch.randint(1, 4, ()))
            yield order[:size]
            order = order[size:]


class HandingOver(RecordingModel):
    """Hands over which batches its rank had."""

    def __init__(self, stop_after: "int | None") -> None:
        super().__init__(stop_after=stop_after, on_batch=_pass_by)  # which can be sent to another process

    def should_advance_dataset_phase(self, state: TrainingState) -> bool:
        return state.epoch >= 2

    def on_training_end(self) -> None:
        self.queue.put((self.ranks.rank, self.batches))


def _pass_by(state: TrainingState) -> None:
    pass


def share(root: str, stops: "list[int]") -> "list[list[list[int]]]":
    """Train on two ranks, stopped after so many batches in turn, and return each rank's batches."""
    launch.START_METHOD = "fork"
    found: list[list[list[int]]] = [[], []]
    for stop in [*stops, None]:
        options: dict[str, Any] = {"total_steps": 5, "chkpt_root": root, "use_cpu": True, "processes": 2}
        trainer = Trainer("run", enable_progress_bar=False, **options)
        trainer.fit(HandingOver(stop_after=stop), Shared())
        for rank, batches in trainer.queue.get_all():
            found[rank] += batches
    return found


class Differing(RangeData):
    """Has another order on each rank, as that of a set may be."""

    def setup(self) -> None:
        order = list(range(8))
        self.add_train_phase(order[get_ranks().rank :] + order[: get_ranks().rank], self.params)


def differ(root: str, is_distributed: "bool | None") -> str:
    """Train on two ranks whose datasets differ, and return what is said of it."""
    launch.START_METHOD = "fork"
    options: dict[str, Any] = {"total_steps": 1, "chkpt_root": root, "use_cpu": True, "processes": 2}
    trainer = Trainer("run", enable_progress_bar=False, **options)
    try:
        trainer.fit(HandingOver(stop_after=None), Differing(is_distributed=is_distributed))
    except ConfigurationError as problem:
        return str(problem)
    return ""


def talk_at_a_time(groups: int) -> "list[Any]":
    """Let several pairs of ranks, each with a launcher of its own, work at the same time; return what each came to."""
    launch.START_METHOD = "fork"
    pipes = []
    for _ in range(groups):
        reader, writer = os.pipe()
        if os.fork() == 0:
            try:
                result = launch.spawn_ranks(_agree, devices=[CPU] * 2, options=GroupOptions(), queue=HandoverQueue())
                os.write(writer, str(result).encode())
            finally:
                os._exit(0)
        os.close(writer)
        pipes.append(reader)
    found = []
    for reader in pipes:
        with os.fdopen(reader) as file:
            found.append(file.read())
    return found


def _agree(ranks: Ranks, device: torch.device, queue: HandoverQueue) -> str:
    return f"from rank {ranks.broadcast(ranks.rank)} of {ranks.world_size}"


def hand_over(megabytes: int) -> "list[int]":
    """Let two ranks hand over more than a pipe holds, and return the sizes that arrived."""
    launch.START_METHOD = "fork"
    queue = HandoverQueue()
    work = partial(_hand_over, megabytes)
    launch.spawn_ranks(work, devices=[CPU] * 2, options=GroupOptions(), queue=queue)
    return [len(value) for value in queue.get_all()]


def _hand_over(megabytes: int, ranks: Ranks, device: torch.device, queue: HandoverQueue) -> None:
    queue.put(bytes(megabytes * 2**20))


def wrap() -> "list[dict[str, Any]]":
    """Wrap a network on two ranks, and return what that changed on each, and that they have the same weights."""
    launch.START_METHOD = "fork"
    queue = HandoverQueue()
    launch.spawn_ranks(_wrap, devices=[CPU] * 2, options=GroupOptions(), queue=queue)
    return queue.get_all()


def _wrap(ranks: Ranks, device: torch.device, queue: HandoverQueue) -> None:
    torch.manual_seed(ranks.rank)
    network = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.BatchNorm1d(3), torch.nn.Dropout())
    streams, buffers = hash_state(get_rng_state_dict()), hash_state(dict(network.named_buffers()))
    replica = wrap_for_ranks(network, ranks)
    queue.put(
        {
            "streams stay": streams == hash_state(get_rng_state_dict()),
            "buffers stay": buffers == hash_state(dict(unwrap(replica).named_buffers())),
            "weights": hash_state(replica.state_dict()),
        }
    )


def train_under_a_killed_launcher(recipe: "dict[str, Any]", root: str) -> "list[str]":
    """Train in a process that a rank kills, and return the commands of what is left after that."""
    launcher = os.fork()
    if launcher == 0:
        try:
            train(recipe, root, kill_launcher=("batch of rank 1", 9))
        finally:
            os._exit(0)
    _, status = os.waitpid(launcher, 0)
    assert os.WIFSIGNALED(status), f"the launcher was to be killed and ended with {status}"
    return wait_for_the_end_of_others()


class FailingModel(DigitsModel):
    """A model whose second rank fails at its second batch."""

    def __init__(self, fail: "Callable[[], Any]") -> None:
        super().__init__()
        self.fail = fail

    def train_step(self, batch: Any, state: Any) -> None:
        if state.global_iteration == 2 and self.ranks.rank == 1:
            self.queue.put("about to fail")
            self.fail()
        self.ranks.barrier()


class FailingData(DigitsData):
    """Data that records its teardown."""

    def teardown(self) -> None:
        with open(self.path, "a") as file:
            file.write(f"{self._ranks.rank}\n")

    path = ""


def fail(kinds: "list[str]", path: str) -> "dict[str, Any]":
    """Let a rank fail in each way, and return what its caller saw."""
    launch.START_METHOD = "fork"
    return {kind: _see(kind, f"{path}-{kind}") for kind in kinds}


def _see(kind: str, path: str) -> "dict[str, Any]":
    trainer = Trainer("run", total_steps=1, use_cpu=True, processes=2, train_exceptions=(OddError,))
    data = FailingData()
    data.path = path
    try:
        trainer.fit(FailingModel(WAYS[kind]), data)
    except BaseException as problem:
        cause = problem.__cause__
        return {
            "type": type(problem).__name__,
            "text": str(problem),
            "number": getattr(problem, "number", None),
            "cause": type(cause).__name__,
            "cause text": str(cause),
            "cause of the cause": str(getattr(cause, "__cause__", None)),
            "handed over": trainer.queue.get_all(),
            "torn down": _read(path),
            "left": wait_for_the_end_of_others(),
        }
    return {"type": "no failure"}


def _read(path: str) -> "list[str]":
    try:
        with open(path) as file:
            return sorted(file.read().split())
    except FileNotFoundError:
        return []


def _fail_oddly() -> None:
    raise OddError("a place", number=7)


def _fail_plainly() -> None:
    raise LookupError("nothing there")


def _fail_locally() -> None:
    class LocalError(Exception):
        pass

    raise LocalError("of a class that has no name elsewhere")


def _leave() -> None:
    raise SystemExit(0)


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _end() -> None:
    os._exit(3)


WAYS: "dict[str, Callable[[], Any]]" = {
    "oddly": _fail_oddly,
    "plainly": _fail_plainly,
    "locally": _fail_locally,
    "by leaving": _leave,
    "by a signal": _die,
    "by an exit code": _end,
}

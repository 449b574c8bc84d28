"""What changes out of sight is as it was after a resume, or is named in a warning: it is never silently different."""

import functools
import queue
import random
import types
import warnings
from collections import deque, namedtuple
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy
import pytest
import torch
from fakes.trained_models import hash_state
from sklearn.linear_model import SGDClassifier
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState
from torch.nn.utils import parametrize, prune
from torch.optim.swa_utils import AveragedModel
from torch.utils.data import Subset, TensorDataset

from proctor.sdk.pytorch import (
    ConfigurationError,
    DataLoaderParams,
    DataModule,
    Model,
    NotExactWarning,
    Plugin,
    Trainer,
    TrainingState,
)

STEPS, SAMPLES = 6, 12


class Data(DataModule):
    def setup(self) -> None:
        self.add_train_phase(torch.randn(SAMPLES, 3), DataLoaderParams(batch_size=4))


class Changing(Model):
    """A small network; what a test adds is in two methods.

    :param stop_after: the number of batches after which this start ends, as if it had been killed.
    """

    def __init__(self, stop_after: "int | None" = None) -> None:
        self.stop_after = stop_after

    def add(self) -> None:
        """Called in `setup`."""

    def change(self, step: int) -> "float | torch.Tensor | None":
        """Called before each step; the loss is multiplied by what it returns."""
        return None

    def setup(self) -> None:
        self.network = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 1))
        self.optimizer = torch.optim.SGD(self.network.parameters(), lr=0.1, momentum=0.9)
        self.add()

    def train_step(self, batch: Any, state: TrainingState) -> None:
        factor = self.change(state.global_iteration)
        loss = self.network(batch).square().mean() * (1.0 if factor is None else factor)
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()

    def on_training_batch_end(self, state: TrainingState, should_log: bool = False) -> None:
        if state.global_iteration == self.stop_after:
            raise KeyboardInterrupt


def fit(
    kind: "type[Changing]",
    root: Path,
    stop_after: "int | None" = None,
    *callbacks: Plugin,
    data: "type[DataModule]" = Data,
) -> str:
    """One start, and a digest of the weights at its end."""
    model = kind(stop_after)
    options: dict[str, Any] = {"train_unit": "iteration", "total_steps": STEPS, "chkpt_frequency": 1}
    trainer = Trainer("run", use_cpu=True, chkpt_root=root, callbacks=callbacks, **options)
    try:
        trainer.fit(model, data())
    except KeyboardInterrupt:
        assert stop_after is not None
    return hash_state([model.network.state_dict(), model.optimizer.state_dict()])


def check_exact(
    kind: "type[Changing]",
    root: Path,
    begin: Any = lambda: None,
    *callbacks: "type[Plugin]",
    data: "type[DataModule]" = Data,
) -> None:
    """Stop a run at some of its batches: it ends with the weights of one that is not stopped, and without a warning.

    :param begin: what a process has that starts anew.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        begin()
        whole = fit(kind, root / "whole", None, *[make() for make in callbacks], data=data)
        for stop in (2, 5):
            begin()
            fit(kind, root / str(stop), stop, *[make() for make in callbacks], data=data)
            begin()
            again = fit(kind, root / str(stop), None, *[make() for make in callbacks], data=data)
            assert again == whole, f"stopped after {stop}"


def find_told(kind: "type[Changing]", root: Path) -> str:
    """What a run warns of."""
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        fit(kind, root)
    return "\n".join(str(one.message) for one in found if issubclass(one.category, NotExactWarning))


# -- past the version of a tensor --------------------------------------------------------------------------------------


def test_a_tensor_that_is_changed_past_its_version_goes_on(tmp_path: Path) -> None:
    class Weighing(Changing):
        def add(self) -> None:
            self.weight = torch.ones(2)
            self.weights = [torch.ones(1) for _ in range(3)]

        def change(self, step: int) -> torch.Tensor:
            self.weight.data.mul_(1.1)
            self.weights[1].data.add_(1)
            return self.weight[0] * self.weights[1][0]

    check_exact(Weighing, tmp_path)


def test_a_tensor_that_is_changed_by_its_array_goes_on_and_stays_the_arrays(tmp_path: Path) -> None:
    class Sharing(Changing):
        def add(self) -> None:
            self.weight = torch.ones(2)
            self.array = self.weight.numpy()

        def change(self, step: int) -> torch.Tensor:
            self.array[step % 2] += 0.5
            return self.weight.sum()

    check_exact(Sharing, tmp_path)


@pytest.mark.slow
def test_a_large_array_that_is_changed_everywhere_goes_on(tmp_path: Path) -> None:
    class Large(Changing):
        def add(self) -> None:
            self.array = numpy.ones(((1 << 17) + 1, 4))[:, 0]
            self.tensor = torch.ones((1 << 18) + 1)

        def change(self, step: int) -> float:
            self.array *= 1.1
            self.tensor.data.mul_(1.1)
            return float(self.array[7] + self.tensor[7])

    check_exact(Large, tmp_path)


# -- collections -------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_long_list_that_is_changed_in_its_middle_goes_on(tmp_path: Path) -> None:
    class Long(Changing):
        def add(self) -> None:
            self.losses, self.pairs = [1.0] * 11_000, {number: (number, "a") for number in range(100)}
            self.tensors, self.histories = [torch.ones(1) for _ in range(70)], [[1.0] for _ in range(1_100)]

        def change(self, step: int) -> Any:
            self.losses[7_777] += 0.5
            self.pairs[77] = (self.pairs[77][0] + 1, "b")
            self.tensors[67] += 0.5
            self.histories[77].append(1.0)
            return self.losses[7_777] * self.pairs[77][0] * self.tensors[67] * len(self.histories[77]) / 1e3

    check_exact(Long, tmp_path)


class Point(NamedTuple):
    weight: float
    counts: "list[int]"


def test_a_named_tuple_goes_on(tmp_path: Path) -> None:
    class Named(Changing):
        def add(self) -> None:
            self.point, self.points = Point(1.0, []), [Point(1.0, [])]

        def change(self, step: int) -> float:
            self.point = Point(self.point.weight + 0.1, [*self.point.counts, step])
            self.points[0].counts.append(step)
            return self.point.weight * len(self.point.counts) * len(self.points[0].counts)

    check_exact(Named, tmp_path)


def test_a_named_tuple_whose_class_no_module_has_is_named(tmp_path: Path) -> None:
    local = namedtuple("local", "weight")

    class Named(Changing):
        def change(self, step: int) -> None:
            self.point = local(step)

    assert "Named.point has changed since training began and is a local" in find_told(Named, tmp_path)


def test_a_queue_a_namespace_and_an_array_of_bytes_go_on(tmp_path: Path) -> None:
    class Holding(Changing):
        def add(self) -> None:
            self.waiting: queue.Queue[float] = queue.Queue()
            self.waiting.put(1.0)
            self.space, self.bytes = types.SimpleNamespace(level=1.0), bytearray(b"a")

        def change(self, step: int) -> float:
            first = self.waiting.get_nowait()
            self.waiting.put(first + 1)  # no one calls task_done
            self.space.level += 0.1
            self.bytes.append(step)
            return first * self.space.level * len(self.bytes)

    check_exact(Holding, tmp_path)


def test_what_a_thread_changes_meanwhile_does_not_end_a_training(tmp_path: Path) -> None:
    waiting: deque[float] = deque()

    class Feeding(float):
        """A number that changes the collection when it is looked at, as a thread might."""

        def hex(self) -> str:
            waiting.append(1.0)
            return super().hex()

    class Fed(Changing):
        def add(self) -> None:
            self.waiting = waiting
            self.waiting.extend([Feeding(1.0), Feeding(2.0)])

    find_told(Fed, tmp_path)


def test_the_labels_of_torchs_own_datasets_and_the_indices_of_subsets_go_on(tmp_path: Path) -> None:
    class Labeled(DataModule):
        def setup(self) -> None:
            torch.manual_seed(1)
            self.rows = TensorDataset(torch.randn(SAMPLES, 3))
            self.part = Subset(self.rows, list(range(SAMPLES)))
            self.add_train_phase(self.part, DataLoaderParams(batch_size=4))

    class Labeling(Changing):
        def train_step(self, batch: Any, state: TrainingState) -> None:
            rows: Any = self.datamodule
            rows.rows.tensors[0].mul_(0.9)
            rows.part.indices = rows.part.indices[1:] + rows.part.indices[:1]
            super().train_step(batch[0], state)

    check_exact(Labeling, tmp_path, data=Labeled)


# -- classes and modules -----------------------------------------------------------------------------------------------

LEVEL, TABLE, LAZY = 1.0, {"a": [1.0]}, None
GENERATOR, NETWORK = random.Random(1), nn.Linear(1, 1)


class Counted:
    total: ClassVar[float] = 1.0


OBJECT = Counted()


class Global(Changing):
    def change(self, step: int) -> Any:
        global LEVEL, LAZY
        LEVEL += 0.1
        LAZY = LAZY or object()
        TABLE["a"].append(LEVEL)
        if step < 2:
            vars(OBJECT).pop("once", None)
        Counted.total += 0.1
        with torch.no_grad():
            NETWORK.weight.add_(0.1)


def test_what_changes_in_classes_and_modules_is_named_and_stays_as_it_is(tmp_path: Path) -> None:
    told = find_told(Global, tmp_path)
    for name in ("LEVEL", "TABLE", "NETWORK"):
        assert told.count(f"the module {__name__}.{name} has changed since training began") == 1, name
    assert f"the class {__name__}.Counted.total has changed since training began" in told
    assert "LAZY" not in told
    level, table, lazy = LEVEL, [*TABLE["a"]], LAZY
    globals()["A_NEW_NAME"] = 1  # as a warning adds one
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fit(Global, tmp_path)  # continues where the run has ended
        assert (LEVEL, TABLE["a"], LAZY) == (level, table, lazy)
        OBJECT.once = True  # type: ignore[attr-defined]
        fit(Global, tmp_path / "stopped", 3)
        OBJECT.once = "again"  # type: ignore[attr-defined]
        fit(Global, tmp_path / "stopped")
    assert vars(OBJECT) == {"once": "again"}


class Drawing(Changing):
    def change(self, step: int) -> float:
        return GENERATOR.random()


def test_random_generators_of_modules_go_on(tmp_path: Path) -> None:
    check_exact(Drawing, tmp_path, lambda: GENERATOR.seed(1))


def test_a_generator_that_is_made_when_it_is_first_needed_is_named(tmp_path: Path) -> None:
    class Lazy(Changing):
        generator: "numpy.random.Generator | None" = None

        def change(self, step: int) -> float:
            self.generator = self.generator or numpy.random.default_rng(1)
            return self.generator.random()

    assert "Lazy.generator was made after training had begun" in find_told(Lazy, tmp_path)


class Cached(Changing):
    @functools.cache  # noqa: B019
    def noise(self, number: int) -> float:
        return random.random()

    @staticmethod
    @functools.cache
    def double(number: int) -> int:
        return 2 * number

    def add(self) -> None:
        self.shift = functools.cache(self.draw)

    def draw(self, number: int) -> float:
        return random.random()

    def change(self, step: int) -> float:
        return self.noise(step // 4) + self.double(step) + self.shift(step // 4)


def test_the_cache_of_a_method_that_draws_is_named(tmp_path: Path) -> None:
    Cached.noise.cache_clear()
    told = find_told(Cached, tmp_path)
    assert ".Cached.noise has changed since training began, and no checkpoint holds what classes" in told
    assert "Cached.shift has changed since training began and is a cache (lru_cache) of a function that draws" in told
    assert "double" not in told


# -- objects of libraries ----------------------------------------------------------------------------------------------


def test_an_estimator_that_learns_and_the_states_of_hooks_are_named(tmp_path: Path) -> None:
    class Estimating(Changing):
        def add(self) -> None:
            self.estimator, self.idle = SGDClassifier(), SGDClassifier()
            self.states = [PowerSGDState(None)]
            self.wrapper = nn.DataParallel(self.network)
            self.wrapper._comm_hooks = [(print, PowerSGDState(None))]  # as DistributedDataParallel has it

        def change(self, step: int) -> None:
            self.estimator.partial_fit([[float(step)]], [step % 2], classes=[0, 1])
            self.states[0].iter += 1
            self.wrapper._comm_hooks[0][1].iter += 1  # type: ignore[index, union-attr]

    told = find_told(Estimating, tmp_path)
    assert "Estimating.estimator has changed since training began and is a SGDClassifier" in told
    assert "Estimating.states[0] has changed since training began and is a PowerSGDState" in told
    assert "Estimating.wrapper._comm_hooks[0][1] has changed since training began and is a PowerSGDState" in told
    assert "idle" not in told


class Optimizing(Plugin):
    """A callback that trains a network of its own, with an optimizer that it makes in the middle."""

    def __init__(self) -> None:
        super().__init__("optimizing")
        self.network = nn.Linear(1, 1)
        self.optimizer: torch.optim.Optimizer | None = None

    def on_training_batch_end(self, state: TrainingState) -> None:
        self.optimizer = self.optimizer or torch.optim.Adam(self.network.parameters())
        self.network(torch.ones(1, 1)).sum().backward()
        self.optimizer.step()


def test_an_optimizer_that_a_callback_makes_is_named(tmp_path: Path) -> None:
    with pytest.warns(NotExactWarning, match=r"the callback optimizing\.optimizer has changed .* and is an Adam"):
        fit(Changing, tmp_path, None, Optimizing())


# -- what networks become ----------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_network_that_is_pruned_while_training_goes_on(tmp_path: Path) -> None:
    class Pruning(Changing):
        def change(self, step: int) -> None:
            if step in (2, 4):
                prune.l1_unstructured(self.network[0], "weight", amount=0.3)
            if step == 6:
                prune.remove(self.network[0], "weight")

    check_exact(Pruning, tmp_path)


class Shadow(Plugin):
    """An average of a network in a callback without a `state_dict`."""

    def __init__(self) -> None:
        super().__init__("shadow")

    def setup(self, model: Model) -> None:
        self.model = model

    def on_training_start(self) -> None:
        self.average = AveragedModel(self.model.network)  # type: ignore[attr-defined]
        self.model.shadow = [self.average]  # type: ignore[attr-defined]

    def on_training_batch_end(self, state: TrainingState) -> None:
        self.average.update_parameters(self.model.network)  # type: ignore[attr-defined]


class Averaged(Changing):
    transient = ("shadow",)
    shadow: Any = ()

    def change(self, step: int) -> Any:
        return 1 + self.shadow[0].module[0].weight.abs().sum().detach()


def test_a_network_that_only_a_callback_holds_goes_on(tmp_path: Path) -> None:
    check_exact(Averaged, tmp_path, lambda: None, Shadow)


def test_what_networks_and_optimizers_become_is_refused_at_the_first_save_behind_it(tmp_path: Path) -> None:
    class Late(Changing):
        def change(self, step: int) -> None:
            if step == 4:
                self.become()

        def become(self) -> None:
            raise NotImplementedError

    class Parametrized(Late):
        def become(self) -> None:
            parametrize.register_parametrization(self.network[0], "weight", nn.Identity())

    class Averaging(Late):
        def become(self) -> None:
            self.average = AveragedModel(self.network)

    class Growing(Late):
        def become(self) -> None:
            self.optimizer.add_param_group({"params": [nn.Parameter(torch.zeros(1))]})

    for kind, told in (
        (Parametrized, r"Parametrized\.network has another structure .* Make it in setup .* parametrizations"),
        (Averaging, r"Averaging\.average was made after training had begun.* Make it in setup"),
        (Growing, r"Growing\.optimizer has another structure .* put all parameters into the optimizer from the start"),
    ):
        with pytest.raises(ConfigurationError, match=told):
            fit(kind, tmp_path / kind.__name__)
        assert [path.name for path in (tmp_path / kind.__name__ / "run").glob("*_iter_3.pth")] != []

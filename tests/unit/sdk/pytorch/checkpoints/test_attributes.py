"""What ordinary code changes while it trains, outside of networks and optimizers, is as it was after a resume."""

import copy
import importlib
import itertools
import pickle
import random
import re
import warnings
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from fakes.trained_models import hash_state
from torch import nn
from torch.utils.data import DataLoader

from proctor.sdk.pytorch import (
    ConfigurationError,
    DataLoaderParams,
    DataModule,
    DefaultNumpyRNG,
    Model,
    NotExactError,
    NotExactWarning,
    Trainer,
    TrainingState,
)
from proctor.sdk.pytorch.checkpoints.attributes import TrackedAttributes
from proctor.sdk.pytorch.checkpoints.values import decode, encode

SAMPLES, BATCH, EPOCHS = 12, 4, 3


class Numbers:
    """Samples with a draw from generators of the dataset's own."""

    def __init__(self) -> None:
        self.numpy = numpy.random.default_rng(1)
        self.torch = torch.Generator().manual_seed(2)

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> "torch.Tensor":
        return torch.tensor([index / SAMPLES, float(self.numpy.random()), float(torch.rand(1, generator=self.torch))])


class Data(DataModule):
    """Training data and data to validate on."""

    def __init__(self, dataset: Any = None, **params: Any) -> None:
        self.dataset = dataset
        self.params = params

    def setup(self) -> None:
        dataset = torch.randn(SAMPLES, 3) if self.dataset is None else copy.deepcopy(self.dataset)
        self.add_train_phase(dataset, DataLoaderParams(batch_size=BATCH, **self.params))
        self.set_validation(torch.randn(4, 3), DataLoaderParams(batch_size=4))


class Ordinary(Model):
    """A small network, and what a test adds: functions by the name of a hook, called with the model.

    :param stop_after: the number of batches after which this start ends, as if it had been killed.
    """

    def __init__(self, stop_after: "int | None" = None, **hooks: "Callable[[Any], None]") -> None:
        self.hooks = hooks
        self.stop_after = stop_after

    def call(self, name: str) -> None:
        if name in self.hooks:
            self.hooks[name](self)

    def setup(self) -> None:
        self.network = nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.2), nn.Linear(4, 1))
        self.optimizer = torch.optim.SGD(self.network.parameters(), lr=0.1)
        self.call("setup")

    def on_training_start(self) -> None:
        self.call("on_training_start")

    def train_step(self, batch: Any, state: TrainingState) -> None:
        self.network(batch).square().mean().backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.call("train_step")

    def on_training_batch_end(self, state: TrainingState, should_log: bool = False) -> None:
        if state.global_iteration == self.stop_after:
            raise KeyboardInterrupt

    def on_validation_start(self, validation_cycle: int) -> None:
        self.call("on_validation_start")

    def on_validation_end(self, validation_cycle: int) -> None:
        self.call("on_validation_end")


def fit(root: Path, data: "DataModule | None" = None, *, stop_after: "int | None" = None, **options: Any) -> Any:
    """One start: the model as it was left."""
    make = options.pop("model", Ordinary)
    hooks = {name: options.pop(name) for name in list(options) if callable(options[name])}
    model = make(stop_after, **hooks)
    common = {
        "chkpt_root": root,
        "total_steps": EPOCHS * 3,
        "train_unit": "iteration",
        "valid_frequency": 2,
        "chkpt_frequency": 1,
    }
    trainer = Trainer("run", use_cpu=True, **{**common, **options})  # type: ignore[arg-type]
    try:
        trainer.fit(model, data or Data())
    except KeyboardInterrupt:
        assert stop_after is not None
    return model


def check_exact(root: Path, show: "Callable[[Any], Any]", data: "Callable[[], DataModule]" = Data, **hooks: Any) -> Any:
    """Stop a run at each of its batches: what a resumed run comes to is what an uninterrupted one does."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        reference = fit(root / "whole", data(), **hooks)
        for stop in (2, 3, 4, 8):
            fit(root / str(stop), data(), stop_after=stop, **hooks)
            resumed = fit(root / str(stop), data(), **hooks)
            assert show(resumed) == show(reference), f"stopped after {stop}"
            assert hash_state(resumed.network.state_dict()) == hash_state(reference.network.state_dict())
    return show(reference)


# -- parts that appear or vanish ---------------------------------------------------------------------------------------


class Average:
    def __init__(self) -> None:
        self.value = 0.0

    def state_dict(self) -> "dict[str, float]":
        return {"value": self.value}

    def load_state_dict(self, state: "dict[str, float]") -> None:
        self.value = state["value"]


def make_loss(model: Any) -> None:
    model.criterion = nn.CrossEntropyLoss()


def make_alias(model: Any) -> None:
    model.head = model.network[2]


class Metric(nn.Module):
    """A module without a state that keeps plain values and functions in collections."""

    def __init__(self) -> None:
        super().__init__()
        self.total, self.reductions = 0.0, {"total": lambda: None}


def make_metric(model: Any) -> None:
    model.metric = Metric()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("hook", "make", "show"),
    [
        ("on_training_start", make_loss, lambda model: type(model.criterion)),
        ("train_step", make_loss, lambda model: type(model.criterion)),
        ("on_validation_start", make_loss, lambda model: type(model.criterion)),
        ("on_validation_start", make_metric, lambda model: type(model.metric)),
        ("on_training_start", make_alias, lambda model: model.head is model.network[2]),
        ("train_step", make_alias, lambda model: model.head is model.network[2]),
    ],
)
def test_a_module_without_state_and_another_name_for_a_layer_may_be_made_in_any_hook(
    tmp_path: Path, hook: str, make: Any, show: Any
) -> None:
    check_exact(tmp_path, show, strict_resume=True, **{hook: make})


def test_the_trainers_own_state_may_be_kept_as_an_attribute(tmp_path: Path) -> None:
    class Keeping(Ordinary):
        def train_step(self, batch: Any, state: TrainingState) -> None:
            super().train_step(batch, state)
            self.state = state

    check_exact(tmp_path, lambda model: model.state.global_iteration, model=Keeping)


def test_what_is_made_when_training_starts_gets_its_state_back(tmp_path: Path) -> None:
    def make(model: Any) -> None:
        model.average = Average()
        model.scheduler = torch.optim.lr_scheduler.StepLR(model.optimizer, 2)

    def count(model: Any) -> None:
        model.average.value = model.average.value * 0.9 + 1.0
        model.scheduler.step()

    def show(model: Any) -> Any:
        return model.average.value, model.scheduler.last_epoch

    value, _ = check_exact(tmp_path, show, on_training_start=make, train_step=count)
    assert value > 5


def test_what_is_made_anew_when_training_starts_gets_its_state_back(tmp_path: Path) -> None:
    def remake(model: Any) -> None:
        model.optimizer = torch.optim.SGD(model.network.parameters(), lr=0.1, momentum=0.9)

    check_exact(tmp_path, lambda model: len(model.optimizer.state_dict()["state"]), on_training_start=remake)


def test_what_is_removed_when_training_starts_is_not_missed(tmp_path: Path) -> None:
    def make(model: Any) -> None:
        model.pretrained = nn.Linear(2, 2)

    def remove(model: Any) -> None:
        del model.pretrained

    check_exact(tmp_path, lambda model: hasattr(model, "pretrained"), setup=make, on_training_start=remove)


def make_average_late(model: Any) -> None:
    model.average = Average()


def make_network_late(model: Any) -> None:
    model.late = nn.Linear(2, 1)


def remove_optimizer(model: Any) -> None:
    del model.optimizer


def change_optimizer(model: Any) -> None:
    model.optimizer = torch.optim.Adam(model.network.parameters())


def add_group(model: Any) -> None:
    model.optimizer.add_param_group({"params": [nn.Parameter(torch.zeros(1))]})


def add_layer(model: Any) -> None:
    model.network.append(nn.Linear(1, 1))


def weigh_loss(model: Any) -> None:
    model.criterion = nn.CrossEntropyLoss(weight=torch.ones(2))


def make_two(model: Any) -> None:
    model.other, model.active = copy.deepcopy(model.network), model.network
    model.layers = nn.ModuleList([nn.Linear(1, 1), nn.Linear(1, 1)])
    model.losses = nn.ModuleList([nn.CrossEntropyLoss(), nn.L1Loss()])
    model.layer, model.loss = model.layers[0], model.losses[0]


def alternate(model: Any) -> None:
    model.active = model.other


def swap(model: Any) -> None:
    model.network, model.other = model.other, model.network


def separate(model: Any) -> None:
    model.active = copy.deepcopy(model.network)


def move_on(model: Any) -> None:
    model.layer = model.layers[1]


def change_loss(model: Any) -> None:
    model.loss = model.losses[1]


BOUND_ANEW = r"Ordinary\.{} was bound to another object .* that of Ordinary\.{}, so a resumed run"


@pytest.mark.parametrize(
    ("hook", "change", "message"),
    [
        ("on_validation_start", make_average_late, r"Ordinary\.average was made after training had begun"),
        ("train_step", make_network_late, r"Ordinary\.late was made after training had begun"),
        ("train_step", remove_optimizer, r"Ordinary\.optimizer is no longer there"),
        ("train_step", change_optimizer, r"Ordinary\.optimizer has another structure"),
        ("train_step", add_group, r"Ordinary\.optimizer has another structure"),
        ("train_step", add_layer, r"Ordinary\.network has another structure than when training began"),
        ("train_step", weigh_loss, r"Ordinary\.criterion has another structure than when training began"),
        ("train_step", alternate, BOUND_ANEW.format("active", "network")),
        ("train_step", swap, BOUND_ANEW.format("network", "other")),
        ("train_step", separate, BOUND_ANEW.format("active", "network")),
        ("train_step", move_on, BOUND_ANEW.format("layer", "layers")),
        ("train_step", change_loss, BOUND_ANEW.format("loss", "losses")),
    ],
)
def test_what_no_resumed_run_could_load_is_refused_at_the_first_save(
    tmp_path: Path, hook: str, change: Any, message: str
) -> None:
    def setup(model: Any) -> None:
        make_two(model)
        make_loss(model)

    with pytest.raises(ConfigurationError, match=message):
        fit(tmp_path, setup=setup, **{hook: change}, valid_frequency=1)
    assert list((tmp_path / "run").glob("*.pth")) == []


def test_a_model_that_extends_state_dict_is_refused_at_the_first_save_too(tmp_path: Path) -> None:
    class Extending(Ordinary):
        def state_dict(self) -> "dict[str, Any]":
            return {**super().state_dict(), "more": 1}

        def load_state_dict(self, state: "dict[str, Any]") -> None:
            super().load_state_dict({name: value for name, value in state.items() if name != "more"})

    with pytest.raises(ConfigurationError, match=r"Extending\.average was made after training had begun"):
        fit(tmp_path, model=Extending, train_step=make_average_late)
    check_exact(tmp_path / "alias", lambda model: hasattr(model, "head"), model=Extending, train_step=make_alias)


@pytest.mark.slow
def test_a_copy_of_a_network_that_training_makes_goes_on_as_the_best_one(tmp_path: Path) -> None:
    def make(model: Any) -> None:
        model.best, model.seen = None, 0

    def keep(model: Any) -> None:
        model.seen += 1
        if model.seen != 3:
            model.best = copy.deepcopy(model.network)

    def drop(model: Any) -> None:
        if model.seen == 2:
            model.best = None

    def show(model: Any) -> Any:
        return model.best and hash_state(model.best.state_dict()), model.seen

    check_exact(tmp_path, show, setup=make, on_validation_end=keep, on_validation_start=drop)


def test_parts_may_be_made_anew_while_training(tmp_path: Path) -> None:
    def make(model: Any) -> None:
        model.wrapper, model.loss = nn.DataParallel(model.network), nn.MSELoss()
        model.second = torch.optim.SGD(model.network.parameters(), lr=0.1)

    def remake(model: Any) -> None:
        model.wrapper, model.loss = nn.DataParallel(model.network), nn.MSELoss()
        for name in ("optimizer", "second"):
            setattr(model, name, torch.optim.SGD(model.network.parameters(), lr=0.1))

    assert pickle.loads(pickle.dumps(fit(tmp_path / "once"))).network is not None
    check_exact(tmp_path, lambda model: model.wrapper.module is model.network, setup=make, train_step=remake)


class ClearedAverages:
    """Means by name, whose state is empty at first."""

    def __init__(self) -> None:
        self.values: dict[str, float] = {}

    def state_dict(self) -> "dict[str, float]":
        return dict(self.values)

    def load_state_dict(self, state: "dict[str, float]") -> None:
        self.values = dict(state)


def test_the_state_of_an_object_may_become_empty_after_a_resume(tmp_path: Path) -> None:
    def make(model: Any) -> None:
        model.means = ClearedAverages()

    def count(model: Any) -> None:
        step = model.trainer.state.global_iteration
        model.means.values = {"step": model.means.values.get("step", 0.0) + step} if step % 3 else {}

    check_exact(tmp_path, lambda model: model.means.values, setup=make, train_step=count)


class Shadow:
    """An average of a network, without a state of its own."""

    def __init__(self, network: nn.Module) -> None:
        self.networks = {"shadow": copy.deepcopy(network)}


class Stepper:
    def __init__(self, optimizer: Any) -> None:
        self.optimizer = optimizer


class SavedShadow(Shadow):
    def state_dict(self) -> "dict[str, Any]":
        return self.networks["shadow"].state_dict()

    def load_state_dict(self, state: "dict[str, Any]") -> None:
        self.networks["shadow"].load_state_dict(state)


def hold(make: "Callable[[Any], Any]") -> "Callable[[Any], None]":
    def setup(model: Any) -> None:
        model.helper = make(model)

    return setup


@pytest.mark.parametrize(
    "make",
    [
        lambda model: Shadow(model.network),
        lambda model: Stepper(torch.optim.Adam(model.network.parameters())),
        lambda model: [Stepper(torch.optim.lr_scheduler.StepLR(model.optimizer, 2))],
        lambda model: Stepper(nn.Parameter(torch.zeros(1))),
        lambda model: Stepper(SavedShadow(model.network)),
    ],
    ids=["network", "optimizer", "scheduler", "parameter", "state of an object in an object"],
)
def test_parts_inside_objects_without_a_state_are_refused_before_the_first_batch(
    tmp_path: Path, make: "Callable[[Any], Any]"
) -> None:
    with pytest.raises(ConfigurationError, match=r"Ordinary\.helper holds parameters, networks or optimizers"):
        fit(tmp_path, setup=hold(make), train_step=lambda _: pytest.fail("a batch was trained on"))
    fit(tmp_path / "unsaved", setup=hold(make), chkpt_root=None, chkpt_frequency=None)


def test_objects_may_hold_parts_that_are_saved_elsewhere(tmp_path: Path) -> None:
    def make(model: Any) -> None:
        model.shadow = SavedShadow(model.network)
        model.helper = Stepper([model, model.optimizer, model.network[0], list(model.network.parameters())])
        model.other = Stepper(model.shadow.networks["shadow"])

    fit(tmp_path, setup=make)


def test_objects_named_as_transient_may_hold_parts(tmp_path: Path) -> None:
    class Frozen(Ordinary):
        transient = ("helper",)

    fit(tmp_path, model=Frozen, setup=hold(lambda model: Shadow(model.network)))


# -- plain attributes --------------------------------------------------------------------------------------------------


@dataclass
class Meter:
    """A plain object of the user's."""

    total: float = 0.0
    seen: int = 0


@pytest.mark.slow
def test_plain_attributes_and_those_of_plain_objects_go_on(tmp_path: Path) -> None:
    def make(model: Any) -> None:
        model.best, model.losses, model.counts, model.meter = None, [], Counter(), Meter()
        model.memory, model.array = torch.zeros(2), numpy.zeros(2)

    def count(model: Any) -> None:
        step = len(model.losses)
        model.losses.append({"step": step, "weight": float(model.network[0].weight.detach().sum())})
        model.best = max(model.best or 0.0, model.losses[-1]["weight"])
        model.counts[step % 2] += 1
        model.meter.seen += 1
        model.memory += step
        model.array[0] += step
        model.latest = deque([step], maxlen=3)

    def show(model: Any) -> Any:
        arrays = (model.memory.tolist(), model.array.tolist(), model.latest)
        return model.best, model.losses, model.counts, model.meter.seen, *arrays

    *_, seen, memory, _, _ = check_exact(tmp_path, show, setup=make, train_step=count)
    assert (seen, memory) == (EPOCHS * 3, [36.0, 36.0])
    check_exact(tmp_path / "started", show, on_training_start=make, train_step=count)


@dataclass(slots=True)
class SlotMeter:
    """A plain object without a `__dict__`."""

    total: float = 0.0


class InheritingMeter(SlotMeter):
    """The same, with a private slot more and a `__dict__`."""

    __slots__ = ("__seen",)

    def count(self) -> int:
        self.__seen = getattr(self, "_InheritingMeter__seen", 0) + 1
        return self.__seen


def test_objects_with_slots_and_objects_in_a_deque_go_on(tmp_path: Path) -> None:
    def make(model: Any) -> None:
        model.meter, model.inheriting, model.recent = SlotMeter(), InheritingMeter(), deque([Meter(), SlotMeter()])
        model.counted = 0

    def count(model: Any) -> None:
        model.meter.total += 1
        model.counted = model.inheriting.count()
        for meter in model.recent:
            meter.total += 2

    def show(model: Any) -> Any:
        return model.meter.total, model.counted, [meter.total for meter in model.recent]

    assert check_exact(tmp_path, show, setup=make, train_step=count) == (9.0, 9, [18.0, 18.0])


def test_only_the_users_own_objects_are_followed_where_packages_are_installed_beside_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "class Counter:\n    count = 0\n"
    for module in ("installed_package/inner.py", "installed_module.py", "own_package/inner.py", "own_module.py"):
        (tmp_path / module).parent.mkdir(exist_ok=True)
        (tmp_path / module).write_text(text)
    (tmp_path / "installed-1.dist-info").mkdir()
    record = "installed_package/inner.py,,\ninstalled_module.py,,\ninstalled-1.dist-info/RECORD,,\n"
    (tmp_path / "installed-1.dist-info" / "RECORD").write_text(record)
    monkeypatch.syspath_prepend(tmp_path)
    names = ["installed_package.inner", "installed_module", "own_package.inner", "own_module"]
    modules = {name: importlib.import_module(name) for name in names}
    counters = {name: module.Counter() for name, module in modules.items()}
    model: Any = Model()
    model.device, model.held = torch.device("cpu"), list(counters.values())
    tracked = TrackedAttributes(model)
    tracked.mark()
    for counter in counters.values():
        counter.count += 1
    assert [place[2][1] for place, _ in tracked.take()] == [2, 3]


def test_what_is_removed_while_training_stays_removed(tmp_path: Path) -> None:
    def make(model: Any) -> None:
        model.warm, model.meter, model.loss, model.slots = True, Meter(), nn.MSELoss(), SlotMeter()
        model.meters, model.nested = [Meter() for _ in range(12)], {"a": Meter(), "b": lambda: None}

    def use(model: Any) -> None:
        assert model.warm

    def remove(model: Any) -> None:
        if model.trainer.state.global_iteration == 3:
            del model.warm, model.meter.total, model.loss, model.slots.total, model.nested["a"], model.nested["b"]
            del model.meters[1:]
        if model.trainer.state.global_iteration == 6:
            del model.meter

    def show(model: Any) -> Any:
        names = ("warm", "meter", "loss", "slots", "meters")
        return [hasattr(model, name) for name in names], hasattr(model.slots, "total"), len(model.meters), model.nested

    hooks: Any = {"setup": make, "on_training_start": use, "train_step": remove}
    assert check_exact(tmp_path, show, **hooks) == ([False, False, False, True, True], False, 1, {})


def test_a_run_that_its_model_stops_by_a_plain_counter_stops_at_the_same_batch(tmp_path: Path) -> None:
    class Counting(Ordinary):
        seen = 0

        def train_step(self, batch: Any, state: TrainingState) -> None:
            super().train_step(batch, state)
            self.seen += 1

        def should_training_stop(self) -> bool:
            return self.seen == 5

    fit(tmp_path, model=Counting, stop_after=3)
    assert fit(tmp_path, model=Counting).seen == 5
    assert fit(tmp_path, model=Counting).seen == 5


def test_what_never_changes_is_that_of_this_start(tmp_path: Path) -> None:
    class Configured(Ordinary):
        def __init__(self, stop_after: "int | None", **hooks: Any) -> None:
            super().__init__(stop_after, **hooks)
            self.rate = 1.0 if stop_after else 2.0

    fit(tmp_path, model=Configured, stop_after=4)
    assert fit(tmp_path, model=Configured).rate == 2.0


def test_attributes_named_as_transient_begin_anew(tmp_path: Path) -> None:
    class Caching(Ordinary):
        transient = ("cache",)

        def setup(self) -> None:
            super().setup()
            self.cache: list[int] = []

        def train_step(self, batch: Any, state: TrainingState) -> None:
            super().train_step(batch, state)
            self.cache.append(state.global_iteration)

    fit(tmp_path, model=Caching, stop_after=4)
    assert fit(tmp_path, model=Caching).cache[0] == 4


def test_switches_of_networks_go_on(tmp_path: Path) -> None:
    def make(model: Any) -> None:
        model.network[0].register_buffer("seen", torch.zeros(1), persistent=False)

    def change(model: Any) -> None:
        model.network[0].seen += 1
        if model.network[0].seen >= 2:
            model.network[1].p = 0.5
            model.network[0].bias.requires_grad_(False)

    def show(model: Any) -> Any:
        return model.network[0].seen.item(), model.network[1].p, model.network[0].bias.requires_grad

    assert check_exact(tmp_path, show, setup=make, train_step=change) == (9.0, 0.5, False)


def test_what_a_wrapper_of_networks_keeps_for_itself_is_left_alone() -> None:
    class Wrapper(nn.parallel.DataParallel):
        calls = 0

    model = Ordinary()
    model.network = nn.Sequential(nn.Dropout(0.1))
    model.wrapper = Wrapper(model.network)  # type: ignore[attr-defined]
    tracked = TrackedAttributes(model)
    tracked.mark()
    model.wrapper.calls, model.network[0].p = 1, 0.5  # type: ignore[attr-defined]
    assert tracked.take() == [
        [[["root", "model"], ["attribute", "network"], ["attribute", "0"], ["attribute", "p"]], 0.5]
    ]


# -- random generators -------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_generators_of_the_model_go_on(tmp_path: Path) -> None:
    def make(model: Any) -> None:
        model.generators = {"torch": torch.Generator().manual_seed(1), "random": [random.Random(1)]}
        model.numpy, model.legacy = numpy.random.default_rng(1), numpy.random.RandomState(1)
        model.own, model.philox = (DefaultNumpyRNG(2),), numpy.random.Generator(numpy.random.Philox(1))

    def draw(model: Any) -> None:
        drawn = (
            float(torch.rand(1, generator=model.generators["torch"])),
            model.generators["random"][0].random(),
            *(float(generator.random()) for generator in (model.numpy, model.philox, model.own[0])),
            float(model.legacy.random_sample()),
        )
        model.drawn = drawn

    assert len(set(check_exact(tmp_path, lambda model: model.drawn, setup=make, train_step=draw))) == 6


def test_generators_of_a_dataset_that_is_read_in_this_process_go_on(tmp_path: Path) -> None:
    check_exact(tmp_path, lambda model: model.network[0].weight.tolist(), lambda: Data(Numbers()))


def test_a_generator_of_a_collate_function_goes_on(tmp_path: Path) -> None:
    def make() -> DataModule:
        generator = numpy.random.default_rng(1)

        def collate(samples: "list[Any]") -> "torch.Tensor":
            return torch.stack(samples) + float(generator.random())

        return Data(collate_fn=collate)

    check_exact(tmp_path, lambda model: model.network[0].weight.tolist(), make)


def reported(root: Path, data: "DataModule | None" = None, **options: Any) -> "list[str]":
    """What the first save of a run warns of; with `strict_resume` it is refused."""
    with pytest.raises(NotExactError, match="no resume could repeat"):
        fit(root / "strict", data, strict_resume=True, **options)
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        fit(root, data, **options)
    return [str(warning.message) for warning in found if issubclass(warning.category, NotExactWarning)]


def test_a_generator_of_a_dataset_that_workers_read_is_told(tmp_path: Path) -> None:
    [text] = reported(tmp_path, Data(Numbers(), num_workers=1))
    assert "training 0 has a random generator of its own, and each worker draws from a copy" in text


def keep_iterators(model: Any) -> None:
    model.batches = iter(DataLoader(torch.zeros(8, 3), batch_size=2))
    model.cycled = itertools.cycle([1, 2])


def replace_loss(model: Any) -> None:
    model.criterion = lambda: None


def make_meter(model: Any) -> None:
    model.meter = Meter(1.0)


def grow(model: Any) -> None:
    model.features = torch.zeros(1 << 19)


CHANGED = "has changed since training began and is a"


@pytest.mark.parametrize(
    ("hooks", "told"),
    [
        ({"setup": keep_iterators}, ["Ordinary.batches is an iterator", "Ordinary.cycled is an iterator"]),
        (
            {"setup": make_loss, "train_step": replace_loss},
            [f"Ordinary.criterion {CHANGED} function.*transient"],
        ),
        ({"train_step": make_meter}, ["Ordinary.meter was made after training had begun"]),
        ({"train_step": grow}, [f"Ordinary.features {CHANGED} tensor or array of 2 MiB"]),
    ],
    ids=["iterators", "a function", "an object that is made late", "a value that is too large"],
)
def test_what_cannot_be_saved_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hooks: "dict[str, Any]", told: "list[str]"
) -> None:
    monkeypatch.setattr("proctor.sdk.pytorch.checkpoints.values._LARGEST_BYTES", 1 << 20)
    for text, expected in zip(reported(tmp_path, **hooks), told, strict=True):
        assert re.match(f"not exact: {expected}", text)


def test_what_cannot_be_saved_after_a_later_batch_is_told_once_at_the_save_behind_it(tmp_path: Path) -> None:
    def replace(model: Any) -> None:
        if model.trainer.state.global_iteration == 5:
            model.function = lambda: None

    def setup(model: Any) -> None:
        model.function = len

    [text] = reported(tmp_path, setup=setup, train_step=replace)
    assert "Ordinary.function has changed since training began" in text
    assert len(list((tmp_path / "strict" / "run").glob("*_iter_4.pth"))) == 1
    assert list((tmp_path / "strict" / "run").glob("*_iter_5.pth")) == []


def test_a_place_that_a_resumed_run_does_not_have_is_told(tmp_path: Path) -> None:
    def make(model: Any) -> None:
        model.meter = Meter() if model.stop_after else None

    def count(model: Any) -> None:
        if model.meter is not None:
            model.meter.seen += 1

    fit(tmp_path, stop_after=4, setup=make, train_step=count)
    with pytest.warns(NotExactWarning, match=r"Ordinary\.meter\.seen could not be given back its value"):
        fit(tmp_path, setup=make, train_step=count)


# -- the form in checkpoints -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "value",
    [
        {"a": [1, (2.5, None)], 3: {"b"}},
        OrderedDict([("b", 1), ("a", 2)]),
        defaultdict(list, {"a": [1]}),
        frozenset({1, 2}),
        deque([1, 2], maxlen=2),
        Path("a/b"),
        numpy.float32(1.5),
        numpy.array([["a", "bc"]]),
        numpy.arange(6, dtype=">u2").reshape(2, 3)[:, ::2],
        float("nan"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_values_keep_kind_and_content(value: Any, tmp_path: Path) -> None:
    torch.save(encode(value, {}), tmp_path / "saved")
    found = decode(torch.load(tmp_path / "saved", weights_only=True), {}, "cpu")
    assert type(found) is type(value)
    assert repr(found) == repr(value)
    assert getattr(found, "dtype", None) == getattr(value, "dtype", None)


def test_what_is_shared_stays_shared() -> None:
    shared = [1]
    first, second = (encode(value, memo) for memo in [{}] for value in (shared, {"a": shared}))
    memo: dict[int, Any] = {}
    assert decode(first, memo, "cpu") is decode(second, memo, "cpu")["a"]

"""The trainer: options in, a trained model and a folder of checkpoints out.

Its task runs here on one device, in a new process for each of several devices, or where torchrun has put this process.

Before that the hooks are checked. One that cannot take what it is called with would fail hours later, at the first
validation or checkpoint; one of another trainer's name would never be called, and what it was to save would be lost.
"""

import inspect
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch

from proctor.sdk.pytorch import trial
from proctor.sdk.pytorch.callbacks.base import Callback, Callbacks
from proctor.sdk.pytorch.config import Settings, taking
from proctor.sdk.pytorch.data.module import DataModule
from proctor.sdk.pytorch.distributed.launch import (
    choose_devices,
    choose_local_device,
    find_torchrun,
    join_torchrun,
    on_device,
    spawn_ranks,
)
from proctor.sdk.pytorch.distributed.processes import HandoverQueue
from proctor.sdk.pytorch.distributed.ranks import GroupOptions, Ranks
from proctor.sdk.pytorch.errors import ConfigurationError, TrainerError
from proctor.sdk.pytorch.loop import fit, make_callbacks, test
from proctor.sdk.pytorch.model import Model, overrides
from proctor.sdk.pytorch.run import Outcome, Place, Run
from proctor.sdk.pytorch.snapshots import check_tested

_DATA_HOOKS = ("prepare_data", "setup", "teardown", "make_sampler")
_BY_THE_MODEL = ("", "plug-ins have on_evaluation_start(phase) and on_evaluation_end(phase); or do it in the model's")
# Hooks of Helios that are not called here: by name, the hook to use, and what to do.
_HELIOS: "dict[type, dict[str, tuple[str, str]]]" = {
    Model: {
        "user_state_dict": ("state_dict", "call it state_dict"),
        "load_user_state_dict": ("load_state_dict", "call it load_state_dict(state)"),
        "append_to_banner": ("", "no banner is printed here; leave it out"),
    },
    Callback: {
        "configure_trainer": ("", "give the options to Trainer"),
        "configure_model": ("", "do it in setup(model)"),
        **{f"on_{phase}_{end}": _BY_THE_MODEL for phase in ("validation", "testing") for end in ("start", "end")},
    },
}


class Trainer:
    """Runs that can be stopped anywhere and continued bit for bit.

    :param run_name: names the checkpoints; a run with the same name and root continues the one before.
    The options are those of `Settings`. `train_exceptions` and `test_exceptions` are lists, to which more may be added.

    :raises ConfigurationError: an option is unknown, out of its range, or contradicts another.
    """

    @taking(Settings)
    def __init__(self, settings: Settings) -> None:
        self.settings = replace(settings, callbacks=())
        self.queue = HandoverQueue()  # what the model's processes have put into `model.queue`
        self.train_exceptions, self.test_exceptions = [*settings.train_exceptions], [*settings.test_exceptions]
        self._callbacks = Callbacks(settings.callbacks)

    def register_plugin(self, plugin: Callback) -> None:
        """Add a callback to the runs to come.

        :raises KeyError: another one has its id.
        :raises ConfigurationError: its id is reserved, or another one has claimed one of its overrides.
        """
        self._callbacks.add(plugin)

    def fit(self, model: Model, datamodule: DataModule) -> Outcome:
        """Train until `total_steps` are done or a rule stops the run; continue from the latest checkpoint if any.

        A run that is finished is left as it is.

        :raises TrainerError: the trainer refuses something.
        :raises RuntimeError: something else failed; its cause is what was raised, unless `train_exceptions` names it.
        """
        with trial.deferring_termination():
            return self._launch(fit, model, datamodule, exceptions=self.train_exceptions)

    def test(
        self, model: Model, datamodule: DataModule, *, ckpt_path: "str | os.PathLike[str] | None" = None
    ) -> Outcome:
        """Test a checkpoint; `Outcome.checkpoint` is the one that was tested.

        :param ckpt_path: "last"; "best" by `best_metric`; the path of a checkpoint; None: the last one or, if there is
            none, what `Model.load_for_testing` loads.
        :raises ConfigurationError: there is no such checkpoint.
        :raises TrainerError: the trainer refuses something.
        :raises RuntimeError: something else failed; its cause is what was raised, unless `test_exceptions` names it.
        """
        check_tested(self.settings, ckpt_path)
        work = partial(test, ckpt_path=ckpt_path)
        return self._launch(work, model, datamodule, exceptions=self.test_exceptions)

    def _launch(
        self, work: "Callable[[Run], Outcome]", model: Model, datamodule: DataModule, *, exceptions: "Sequence[Any]"
    ) -> Outcome:
        _check_kind("model", model, Model)
        _check_kind("data module", datamodule, DataModule)
        check_hooks(model, datamodule, self._callbacks.own)
        try:
            return launch(Task(work, self.settings, model, datamodule, self._callbacks), self.queue)
        except (*exceptions, TrainerError):
            raise
        except (Exception, SystemExit) as problem:  # no failure may look like a trial that has done its work
            name = getattr(work, "func", work).__name__
            raise RuntimeError(
                f"{name} of run {self.settings.run_name} failed: {type(problem).__name__}: {problem}"
            ) from problem


@dataclass(frozen=True)
class Task:
    """What is to be done, picklable if its parts are: `work` is `loop.fit` or `loop.test`."""

    work: "Callable[[Run], Outcome]"
    settings: Settings
    model: Model
    datamodule: DataModule
    callbacks: Callbacks

    def execute(self, ranks: Ranks, device: torch.device, queue: HandoverQueue) -> Outcome:
        """Do it in this process; all processes of a run call this."""
        run = Run(
            self.settings,
            self.model,
            datamodule=self.datamodule,
            callbacks=make_callbacks(self.settings, self.callbacks, is_main=ranks.is_main),
            place=Place(device=device, ranks=ranks, queue=queue),
        )
        return self.work(run)


def launch(task: Task, queue: HandoverQueue) -> Outcome:
    """Prepare the data once, do the task in every process of the run, and return the main rank's outcome.

    Under torchrun this process is one of them already, and the outcome its own.
    """
    settings, devices, place = task.settings, choose_devices(task.settings), find_torchrun()
    options = GroupOptions(settings.backend, settings.group_timeout_seconds)
    if place is None and len(devices) > 1:
        task.datamodule.prepare_data()
        begin = trial.defer_termination
        outcome: Outcome = spawn_ranks(task.execute, devices=devices, options=options, queue=queue, initializer=begin)
        return outcome
    device = choose_local_device(place, devices)
    ranks = Ranks() if place is None else join_torchrun(device, options)
    if ranks.local_rank == 0:
        task.datamodule.prepare_data()
    ranks.barrier()
    with on_device(device):
        return task.execute(ranks, device, queue)


def _check_kind(what: str, found: Any, expected: type) -> None:
    if isinstance(found, expected):
        return
    is_class = isinstance(found, type) and issubclass(found, expected)
    raise ConfigurationError(
        f"the {what} must be an object of a class that derives from {expected.__name__}; found {found!r}."
        + (f" Make one: {found.__name__}(…)." if is_class else "")
    )


def check_hooks(model: Model, datamodule: DataModule, callbacks: "Iterable[Callback]") -> None:
    """Check all of a run.

    :raises ConfigurationError: a hook cannot be called, or never would be; the text names it.
    """
    for part, base in [(model, Model), (datamodule, DataModule), *((callback, Callback) for callback in callbacks)]:
        own = f"{type(part).__name__}."
        for name, expected in vars(base).items():
            is_hook = name in _DATA_HOOKS if base is DataModule else not name.startswith("_")
            if is_hook and inspect.isfunction(expected) and overrides(part, expected):
                _check_hook(own + name, getattr(part, name), expected)
        for name, (own_name, advice) in _HELIOS.get(base, {}).items():
            uses_own = bool(own_name) and overrides(part, vars(base)[own_name])  # which may well call the other
            if callable(getattr(part, name, None)) and not uses_own:
                raise ConfigurationError(
                    f"{own}{name} is a hook of Helios, which this trainer does not call: {advice}."
                )


def _check_hook(place: str, own: Any, expected: "Callable[..., Any]") -> None:
    """:raises ConfigurationError: it is none that can be called as the base class's is."""
    given = list(inspect.signature(expected).parameters.values())[1:]
    called = _describe(given)
    if not callable(own):
        raise ConfigurationError(
            f"{place} hides the hook {place.rpartition('.')[2]}{called}; found {own!r}. Rename it."
        )
    if inspect.iscoroutinefunction(own) or inspect.isgeneratorfunction(own):
        raise ConfigurationError(
            f"{place} would never run: it is a coroutine or has a yield. Make it a plain function."
        )
    try:
        found = inspect.signature(own, follow_wrapped=False)  # a decorator may add what the function itself takes
    except (TypeError, ValueError):  # not written in Python
        return
    names = [parameter.name for parameter in given if parameter.kind is not parameter.KEYWORD_ONLY]
    keywords = {parameter.name: None for parameter in given if parameter.kind is parameter.KEYWORD_ONLY}
    try:
        found.bind(*names, **keywords)
    except TypeError as problem:
        raise ConfigurationError(
            f"{place} must take what the trainer calls it with, {called}; found "
            f"{_describe(found.parameters.values())}. Give it these parameters."
        ) from problem


def _describe(parameters: "Iterable[inspect.Parameter]") -> str:
    return str(inspect.Signature([parameter.replace(annotation=parameter.empty) for parameter in parameters]))

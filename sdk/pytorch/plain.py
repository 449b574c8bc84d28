"""Resuming bit for bit in a training loop of your own, in three functions.

    def make_parts():                                     # called when the streams have been seeded
        network = build_network()
        return {"network": network, "optimizer": torch.optim.SGD(network.parameters(), lr=0.1)}

    params = DataLoaderParams(batch_size=32, shuffle=True)
    options = {"chkpt_root": "checkpoints", "chkpt_frequency": 100}
    with open_run("digits", make_parts, dataset=dataset, params=params, **options) as run:
        network, optimizer = run.model.network, run.model.optimizer
        while run.state.epoch < 3:
            for images, labels in remaining_batches(run):
                loss = nn.functional.cross_entropy(network(images), labels)
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
                run.log({"loss": loss})
                if save_if_due(run):                      # the manager wants the run to stop; it will be continued
                    return

What your loop keeps from one call of `save_if_due` to the next must be in the parts (each has `state_dict` and
`load_state_dict`), in `run.state` or in the random streams, or a resumed run does not have it.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from math import inf
from typing import Any

from proctor.sdk.pytorch import trial
from proctor.sdk.pytorch.callbacks.base import Callbacks
from proctor.sdk.pytorch.checkpoints.walk import has_state
from proctor.sdk.pytorch.config import Phase, TrainUnit, make_settings, show_options
from proctor.sdk.pytorch.data.loaders import DataLoaderParams
from proctor.sdk.pytorch.data.module import DataModule
from proctor.sdk.pytorch.distributed.launch import choose_devices, choose_local_device, find_torchrun, on_device
from proctor.sdk.pytorch.distributed.ranks import get_ranks
from proctor.sdk.pytorch.errors import ConfigurationError
from proctor.sdk.pytorch.loop import begin, finish_start, make_callbacks, opening, resume
from proctor.sdk.pytorch.model import Model
from proctor.sdk.pytorch.run import Place, Run
from proctor.sdk.pytorch.snapshots import save_checkpoint

MakeParts = Callable[[], "dict[str, Any]"]
_DECIDED_BY_THE_LOOP = {
    "train_unit": "it counts batches",
    "total_steps": "the run ends where the loop does",
    "valid_frequency": "the loop says when to validate",
    "early_stop_cycles": "the loop says when to stop",
    "print_frequency": "the loop says when to log",
    "accumulation_steps": "the loop says when to step the optimizer; save only where no gradients wait",
    "flush_at_epoch_end": "the loop says when to step the optimizer",
    "processes": "no process is started; run the script under torchrun, with a process group of yours",
    "backend": "the process group is yours",
    "group_timeout_seconds": "the process group is yours",
    "train_exceptions": "every exception passes as it is",
    "test_exceptions": "nothing is tested",
    "callbacks": "the loop does itself what they would do",
}


class OpenRun(Run):
    """A run whose loop is the caller's; it knows where it was saved last."""

    saved_at = 0  # batches that were done at the newest checkpoint

    def save(self) -> None:
        """Make a checkpoint of the present position (collective)."""
        save_checkpoint(self)
        self.saved_at = self.state.global_iteration


@partial(show_options, but=_DECIDED_BY_THE_LOOP)
@contextmanager
def open_run(
    run_name: str,
    make_parts: MakeParts,
    *,
    dataset: Any,
    params: "DataLoaderParams | None" = None,
    **options: Any,
) -> "Iterator[OpenRun]":
    """Open a run, at its latest checkpoint if it has one; afterwards everything is stored and closed.

    The parts are attributes of `run.model`; `run.state` has the counters, `run.device` the device.

    :param make_parts: makes networks, optimizers and whatever else is saved, by name; the streams are seeded by then.
    :param options: see `TrainerOptions`, without those that your loop decides itself; progress is shown only with
        `enable_progress_bar=True`. Processes are not started: run
        the script under torchrun with a process group of yours to train in several.
    :raises ConfigurationError: an option is out of its range or the loop's own, `chkpt_frequency` has no `chkpt_root`,
        or a part has no state or a name that is taken.
    :raises NotExactError: `strict_resume` is set and the resumed run could not be exact.
    """
    refuse_decided(options)
    decided = {"train_unit": TrainUnit.ITERATION, "total_steps": inf}
    progress = options.get("enable_progress_bar") or False  # what the loop prints is the caller's business
    settings = make_settings(run_name, {**options, **decided, "enable_progress_bar": progress})
    place = Place(device=choose_local_device(find_torchrun(), choose_devices(settings)), ranks=get_ranks())
    model, data = PartsModel(make_parts), OneDataset(dataset, params)
    callbacks = make_callbacks(settings, Callbacks(), is_main=place.ranks.is_main)
    run = OpenRun(settings, model, datamodule=data, callbacks=callbacks, place=place)
    with trial.deferring_termination(), on_device(run.device), opening(run):
        content = resume(run)
        run.saved_at = run.state.global_iteration
        run.parts.finish_loading()
        begin(run, content)
        finish_start(run, content)
        yield run
        run.finish(None)
        run.callbacks.call("on_fit_end", None)


def remaining_batches(run: OpenRun) -> "Iterator[Any]":
    """Yield what is left of the present epoch, each batch with its tensors on `run.device`, and end the epoch.

    A batch counts as done once it was yielded, so save when its step is done. Leaving the loop in the middle and
    calling this again continues where it was left. `run.state.optimizer_step_now` is true at each batch.
    """
    state = run.state
    loader = run.datamodule.open(Phase.TRAINING)
    if state.batch == 0:
        state.global_epoch += 1
    loader.set_epoch(state.epoch, state.batch)
    run.callbacks.call("on_training_epoch_start", state, loader.epoch_length or 0)
    run.attributes.mark_epoch()
    for batch in run.read(loader):
        state.begin_batch(ends_window=True, by_epoch=False)
        run.callbacks.call("on_training_batch_end", state)
        state.end_batch()
        state.optimizer_step_now = True  # until the next batch: the step is made after the count
        yield run.model.batch_to_device(batch, Phase.TRAINING)
    state.optimizer_step_now = False
    run.callbacks.call("on_training_epoch_end", state)
    state.end_epoch()


def save_if_due(run: OpenRun) -> bool:
    """Save when the manager wants the run to stop, which is returned, or `chkpt_frequency` batches after the last save.

    Call it where nothing is half done, with no gradients waiting, for a checkpoint holds none. All ranks must call it,
    at the same batches; those at which it is not called are made up for at the next one at which it is.
    """
    wants_stop = run.ranks.any(trial.should_stop())
    frequency = run.settings.chkpt_frequency
    is_due = frequency is not None and run.state.global_iteration - run.saved_at >= frequency
    if run.storage is not None and (wants_stop or is_due):
        run.save()
    return wants_stop


class PartsModel(Model):
    """The parts as attributes, which a model saves and restores."""

    def __init__(self, make_parts: MakeParts) -> None:
        self._make_parts = make_parts

    def setup(self) -> None:
        """:raises ConfigurationError: a part would be in no checkpoint, or has a name that the run itself uses."""
        for name, part in self._make_parts().items():
            if hasattr(self, name):
                raise ConfigurationError(f"run.model.{name} is the run's own; give the part {name!r} another name.")
            if not has_state(part):
                raise ConfigurationError(
                    f"a part must have state_dict and load_state_dict, or no checkpoint would hold it; found {name!r}, "
                    f"of type {type(part).__name__}. Put what changes into an object with these two methods, and keep "
                    "what does not out of the parts."
                )
            setattr(self, name, part)


class OneDataset(DataModule):
    """The one dataset that is trained on."""

    def __init__(self, dataset: Any, params: "DataLoaderParams | None") -> None:
        self._dataset = dataset
        self._params = params

    def setup(self) -> None:
        self.add_train_phase(self._dataset, self._params)


def refuse_decided(options: "Iterable[str]") -> None:
    """Refuse options that would be without effect.

    :raises ConfigurationError: one of them is decided by the loop itself.
    """
    if found := [name for name in options if name in _DECIDED_BY_THE_LOOP]:
        reasons = "; ".join(f"{name} ({_DECIDED_BY_THE_LOOP[name]})" for name in found)
        raise ConfigurationError(f"open_run has no option {reasons}. A loop of your own decides that: leave it out.")

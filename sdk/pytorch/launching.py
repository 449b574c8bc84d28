"""Where a task runs: here on one device, in a new process for each of several, or where torchrun has put this one."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch

from proctor.sdk.pytorch.data import DataModule
from proctor.sdk.pytorch.devices import choose_devices, on_device
from proctor.sdk.pytorch.distributed import adopt_ranks
from proctor.sdk.pytorch.groups import GroupOptions
from proctor.sdk.pytorch.model import Model
from proctor.sdk.pytorch.plugins import Plugins
from proctor.sdk.pytorch.queues import HandoverQueue
from proctor.sdk.pytorch.ranks import Ranks
from proctor.sdk.pytorch.run import Outcome, Place, Run
from proctor.sdk.pytorch.settings import Settings
from proctor.sdk.pytorch.spawning import spawn_ranks
from proctor.sdk.pytorch.torchrun import TorchrunPlace, choose_local_device, find_torchrun, join_torchrun


@dataclass(frozen=True)
class Task:
    """What is to be done, picklable if its parts are: `work` is `run.fit` or `run.test`."""

    work: "Callable[[Run], Outcome]"
    settings: Settings
    model: Model
    datamodule: DataModule
    plugins: Plugins

    def execute(self, place: Place) -> Outcome:
        """Do it in this process; all processes of a run call this."""
        run = Run(self.settings, self.model, datamodule=self.datamodule, plugins=self.plugins, place=place)
        return self.work(run)


def launch(task: Task, queue: HandoverQueue) -> Outcome:
    """Prepare the data once, do the task in every process of the run, and return the main rank's outcome.

    Under torchrun this process is one of them already, and the outcome its own.
    """
    devices = choose_devices(task.settings)
    if (place := find_torchrun()) is not None:
        return _join(task, queue, place=place, device=choose_local_device(place, devices))
    task.datamodule.prepare_data()
    work = partial(_execute, task)
    if len(devices) == 1:
        with on_device(devices[0]):
            return work(Ranks(), devices[0], queue)
    outcome: Outcome = spawn_ranks(work, devices=devices, options=_group_options(task), queue=queue)
    return outcome


def choose_device(settings: Settings) -> torch.device:
    """Return the device of this process where no others are started: its own under torchrun, else the first.

    :raises ConfigurationError: there is none for it, or options contradict each other.
    """
    devices, place = choose_devices(settings), find_torchrun()
    return devices[0] if place is None else choose_local_device(place, devices)


def _join(task: Task, queue: HandoverQueue, *, place: TorchrunPlace, device: torch.device) -> Outcome:
    ranks = join_torchrun(place, device, _group_options(task))
    adopt_ranks(ranks)
    with on_device(device):
        if ranks.local_rank == 0:
            task.datamodule.prepare_data()
        ranks.barrier()
        return _execute(task, ranks, device, queue)


def _execute(task: Task, ranks: Ranks, device: torch.device, queue: HandoverQueue) -> Outcome:
    return task.execute(Place(device=device, ranks=ranks, queue=queue))


def _group_options(task: Task) -> GroupOptions:
    return GroupOptions(task.settings.backend, task.settings.group_timeout_seconds)

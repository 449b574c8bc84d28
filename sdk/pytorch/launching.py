"""Where a task runs: in this process on one device; the launcher of several processes goes here, too."""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from proctor.sdk.pytorch.data import DataModule
from proctor.sdk.pytorch.model import Model
from proctor.sdk.pytorch.plugins import Plugins
from proctor.sdk.pytorch.ranks import Ranks
from proctor.sdk.pytorch.run import Outcome, Place, Run
from proctor.sdk.pytorch.settings import Settings


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


def launch(task: Task) -> Outcome:
    """Do the task in as many processes as its settings ask for and return the main rank's outcome."""
    return task.execute(Place(device=torch.device("cpu"), ranks=Ranks()))

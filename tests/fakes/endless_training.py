"""A training of very many short epochs whose workers are started again at each, for kills at any moment."""

from typing import Any

from proctor.sdk.pytorch import DataLoaderParams, DataModule, Model, TrainingState


class EndlessModel(Model):
    """Learns nothing, together with the other ranks."""

    def train_step(self, batch: Any, state: TrainingState) -> None:
        self.ranks.barrier()


class EndlessData(DataModule):
    """A few batches, read by two workers."""

    def setup(self) -> None:
        self.add_train_phase(list(range(24)), DataLoaderParams(num_workers=2))

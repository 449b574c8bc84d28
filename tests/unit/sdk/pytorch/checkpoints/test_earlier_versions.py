"""What an earlier version of the trainer has left is continued: its own folder, and what a trial was handed.

Recorded by the version of 28 November 2026: two epochs of this very run, in a trial.
"""

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from fakes.attempts import begin_attempt
from torch.utils.data import TensorDataset

from proctor.sdk.pytorch import DataLoaderParams, DataModule, Model, Outcome, Trainer, TrainingState, read_history

FILES = Path(__file__).parents[1] / "files"


class Data(DataModule):
    def setup(self) -> None:
        params = DataLoaderParams(batch_size=2, shuffle=True)
        self.add_train_phase(TensorDataset(torch.arange(8.0).unsqueeze(1)), params)


class Small(Model):
    def setup(self) -> None:
        self.network = torch.nn.Linear(1, 1)
        self.optimizer = torch.optim.Adam(self.network.parameters(), lr=0.1)

    def on_training_start(self) -> None:
        self.begun = {name: value.clone() for name, value in self.network.state_dict().items()}

    def train_step(self, batch: Any, state: TrainingState) -> None:
        (self.network(batch[0]) ** 2).mean().backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.log({"loss": float(state.global_iteration)})


def fit(root: "Path | None" = None) -> "tuple[Outcome, Small]":
    model = Small()
    options: dict[str, Any] = {"chkpt_root": root, "chkpt_frequency": 1, "keep_last": 2, "use_cpu": True}
    return Trainer("run", total_steps=3, **options).fit(model, Data()), model


@pytest.mark.filterwarnings("ignore:not exact")  # another machine, and perhaps another version of torch
@pytest.mark.parametrize(("handed", "continued"), [(False, "run_epoch_2_iter_8.pth"), (True, "run_epoch_1_iter_4.pth")])
def test_a_run_of_an_earlier_version_is_continued(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, handed: bool, continued: str
) -> None:
    if handed:
        begin_attempt(monkeypatch, tmp_path / "job", resume=str(FILES / "earlier_registered"))
        outcome, model = fit()
    else:
        shutil.copytree(FILES / "earlier_run", tmp_path / "root" / "run")
        outcome, model = fit(tmp_path / "root")
    assert outcome.resumed_from is not None
    assert outcome.checkpoint is not None
    assert outcome.resumed_from.name == continued
    assert [row["step"] for row in read_history(outcome.checkpoint.with_name("history.jsonl"))] == [*range(1, 13)]
    saved = torch.load(FILES / "earlier_run" / continued, weights_only=True)["model"]["network"]
    assert {name: value.tolist() for name, value in model.begun.items()} == {
        name: value.tolist() for name, value in saved.items()
    }

"""One line on standard error says that a run continues, from where, and what is not as it was."""

import logging
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from fakes.recording_model import RangeData

from proctor.sdk.pytorch import Model, NotExactWarning, Trainer, TrainingState, plain
from proctor.sdk.pytorch.checkpoints.serialization import FORMAT

OPTIONS: "dict[str, Any]" = {"use_cpu": True, "valid_frequency": 1, "chkpt_frequency": 1, "enable_progress_bar": False}


class Line(Model):
    """One weight, and perhaps a schedule."""

    def __init__(self, rate: float, *, decays: bool = False) -> None:
        self.rate, self.decays = rate, decays

    def setup(self) -> None:
        self.net = torch.nn.Linear(1, 1)
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=self.rate)
        if self.decays:
            self.schedule = torch.optim.lr_scheduler.ExponentialLR(self.optimizer, 0.5)

    def train_step(self, batch: Any, state: TrainingState) -> None:
        self.net(batch.float().reshape(-1, 1)).sum().backward()
        self.optimizer.step()
        self.optimizer.zero_grad()

    def on_training_epoch_end(self, epoch: int) -> None:
        if self.decays:
            self.schedule.step()
        else:
            self.optimizer.param_groups[0]["lr"] *= 0.5  # by hand

    def on_validation_end(self, validation_cycle: int) -> None:
        self.log({"score": 10.0 - validation_cycle, "loss": 1.0})


def fit(root: Path, rate: float = 0.5, *, decays: bool = False, **options: Any) -> Any:
    trainer = Trainer("run", chkpt_root=root, **{**OPTIONS, "total_steps": 2, **options})
    return trainer.fit(Line(rate, decays=decays), RangeData(3))


@pytest.mark.slow
@pytest.mark.parametrize("decays", [True, False])
def test_a_run_that_continues_says_from_where_and_what_differs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], decays: bool
) -> None:
    first = fit(tmp_path, decays=decays)
    assert capsys.readouterr() == ("", "")
    fit(tmp_path, decays=decays, total_steps=3)
    begin = f"proctor: run run continues from {first.checkpoint}, epoch 2, step 6, batch 6"
    assert capsys.readouterr().err == f"{begin}; total_steps was 2, is 3\n"
    for total_steps in (4, 5):  # told again as long as it is so
        fit(tmp_path, 0.25, decays=decays, total_steps=total_steps, chkpt_frequency=2)
        told = capsys.readouterr().err
        assert told.count("\n") == 1
        assert "; the learning rate of optimizer continues at 0.5 although setup gives 0.25" in told
        assert ("chkpt_frequency was 1, is 2" in told) is (total_steps == 4)


def test_a_run_that_has_ended_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first = fit(tmp_path)
    fit(tmp_path, print_frequency=7)
    assert capsys.readouterr().err == (
        f"proctor: run run has ended already (completed), nothing is done: {first.checkpoint}, epoch 2, step 6, "
        "batch 6; print_frequency was None, is 7\n"
    )


def test_a_log_that_goes_to_standard_error_says_it_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    fit(tmp_path)
    logger = logging.getLogger("proctor.sdk.pytorch")
    handler = logging.StreamHandler(sys.stderr)
    monkeypatch.setattr(logger, "handlers", [handler])
    monkeypatch.setattr(logger, "level", logging.INFO)
    logger.manager._clear_cache()  # type: ignore[attr-defined]
    fit(tmp_path, total_steps=3, enable_file_logging=True, log_path=tmp_path)
    logger.manager._clear_cache()  # type: ignore[attr-defined]
    told = capsys.readouterr().err
    assert told.count("continues from") == 1
    (log,) = tmp_path.glob("*.log")
    assert log.read_text().count("continues from") == 1


def test_a_checkpoint_of_before_that_was_saved_has_the_rates_of_its_optimizers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    checkpoint = fit(tmp_path, decays=True).checkpoint
    content = torch.load(checkpoint, weights_only=True)
    assert content["format"] == FORMAT
    del content["settings"]
    torch.save(content, checkpoint)
    (checkpoint.parent / "latest.json").unlink()
    fit(tmp_path, 0.25, decays=True, total_steps=3)
    told = capsys.readouterr().err
    assert told.endswith(
        "batch 6; the learning rate of optimizer continues at 0.5 although setup gives 0.25 "
        "(set it in on_training_start)\n"
    )


def test_another_metric_that_judges_begins_with_no_best_score(tmp_path: Path) -> None:
    options = {"best_metric": "score", "early_stop_cycles": 9}
    assert fit(tmp_path, **options).state.best_score == 10.0
    assert fit(tmp_path, total_steps=3, **options).state.best_score == 10.0
    assert fit(tmp_path, total_steps=4, best_mode="min", **options).state.best_score == 7.0


def test_a_loop_of_ones_own_says_it_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def make_parts(rate: float) -> "dict[str, Any]":
        net = torch.nn.Linear(1, 1)
        return {"net": net, "optimizer": torch.optim.SGD(net.parameters(), lr=rate)}

    for rate in (0.5, 0.25):
        with plain.open_run(
            "run", partial(make_parts, rate), dataset=range(4), chkpt_root=tmp_path, use_cpu=True
        ) as run:
            next(iter(plain.remaining_batches(run)))
            run.save()
    told = capsys.readouterr().err
    assert told.count("\n") == 1
    assert "continues at 0.5 although setup gives 0.25" in told


def test_what_the_fingerprint_has_is_told_by_its_warning(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fit(tmp_path)
    with pytest.warns(NotExactWarning, match="seed was"):
        fit(tmp_path, total_steps=3, random_seed=5)
    assert "seed" not in capsys.readouterr().err

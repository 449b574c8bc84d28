"""The trainer's pages in docs/ say what the code does, and their samples run."""

import os
import re
import subprocess
import sys
import textwrap
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import torch
from fakes.guide_samples import GUIDE, QUICK_START, check_calls, find_sample, read_hooks
from fakes.recording_model import RangeData
from torch import nn
from torch.utils.data import TensorDataset

from proctor.sdk.pytorch import DataLoaderParams, Model, Trainer, TrainingState, TrainUnit, plain
from proctor.sdk.pytorch.config import Settings


def documented_defaults() -> "dict[str, str]":
    table = GUIDE.partition("## Settings")[2].partition("\n\n")[0]
    found: dict[str, str] = {}
    for line in table.splitlines()[3:]:
        names, defaults = (re.findall(r"`([^`]*)`", cell) for cell in line.split("|")[1:3])
        found.update(zip(names, defaults, strict=True))
    return found


def test_every_setting_is_in_the_table_with_its_default() -> None:
    expected = {field.name: repr(field.default) for field in fields(Settings) if field.name != "run_name"}
    expected |= {"train_unit": repr(TrainUnit.EPOCH.value), "random_seed": "None"}
    assert documented_defaults() == {name: value.replace("'", '"') for name, value in expected.items()}


def test_every_parameter_of_a_loader_is_named() -> None:
    assert [field.name for field in fields(DataLoaderParams) if f"`{field.name}`" not in GUIDE] == []


def make_images(count: int) -> TensorDataset:
    return TensorDataset(torch.arange(4.0 * count).reshape(count, 4).sin(), torch.arange(count) % 3)


def build_network() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.1), nn.Linear(8, 3))


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine without GPUs, and a folder in which the samples write."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("proctor.sdk.pytorch.distributed.launch.find_gpus", list)
    return tmp_path


def run_quick_start(folder: Path, sample: str) -> str:
    (folder / "train.py").write_text(sample)
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "train.py"], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.thorough
@pytest.mark.slow
def test_the_quick_start_is_a_whole_script_and_does_nothing_when_it_is_run_again(
    elsewhere: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sample = find_sample("## A whole script", QUICK_START)
    said = run_quick_start(elsewhere, sample)
    checkpoint = elsewhere / "checkpoints" / "patterns" / "patterns_epoch_20_iter_2500.pth"
    assert re.fullmatch(rf"completed: accuracy 0\.9\d*, loss \d\.\d+, in {checkpoint}\n", said)
    assert checkpoint.exists()
    names: dict[str, Any] = {"__name__": "__main__"}
    exec(sample, names)
    assert capsys.readouterr().out == said
    assert names["outcome"].resumed_from == checkpoint
    assert names["outcome"].state.epoch == 20


@pytest.mark.slow
@pytest.mark.thorough
def test_the_quick_start_trains_on_several_processes_as_on_a_machine_with_several_gpus(tmp_path: Path) -> None:
    sample = find_sample("## A whole script", QUICK_START)
    sample = sample.replace('{"total_steps": 20', '{"use_cpu": True, "processes": 2, "total_steps": 3')
    checkpoint = tmp_path / "checkpoints" / "patterns" / "patterns_epoch_3_iter_189.pth"
    said = run_quick_start(tmp_path, sample)
    assert re.fullmatch(rf"completed: accuracy 0\.\d+, loss \d\.\d+, in {checkpoint}\n", said)
    assert checkpoint.exists()


def test_the_loop_of_ones_own_trains_and_goes_on_from_its_checkpoint(elsewhere: Path) -> None:
    assert plain.__doc__ is not None
    loop = plain.__doc__.partition("\n\n")[2].rpartition("\n\nWhat ")[0]
    code = "def train():\n" + textwrap.indent(textwrap.dedent(loop), "    ") + "\n    return run.state, network\n"
    names: dict[str, Any] = {"__name__": "own_loop", "torch": torch, "nn": nn, "DataLoaderParams": DataLoaderParams}
    names |= {name: getattr(plain, name) for name in ("open_run", "remaining_batches", "save_if_due")}
    names |= {"dataset": make_images(32 * 50), "build_network": build_network}
    exec(code, names)
    state, network = names["train"]()
    again, same = names["train"]()
    assert state == again
    assert (state.epoch, state.global_iteration) == (3, 150)
    assert [path.name for path in elsewhere.glob("checkpoints/digits/*.pth")] == ["digits_epoch_2_iter_100.pth"]
    for one, other in zip(network.parameters(), same.parameters(), strict=True):
        assert torch.equal(one, other)


def test_a_frozen_part_stays_frozen_if_train_says_so(elsewhere: Path) -> None:
    class Frozen(Model):
        def setup(self) -> None:
            self.network = build_network()

        def train(self) -> None:
            super().train()
            self.network[1].eval()

        def train_step(self, batch: Any, state: TrainingState) -> None:
            modes.append([layer.training for layer in self.network])

    modes: list[list[bool]] = []
    Trainer("frozen", total_steps=2, valid_frequency=1).fit(Frozen(), RangeData(2))
    assert modes == [[True, False, True]] * 4


def test_the_hooks_of_the_table_are_those_that_there_are() -> None:
    hooks = read_hooks(3)
    assert len(hooks) == 19
    assert [name for name in hooks if not hasattr(Model, name) and name not in Model.__annotations__] == []
    assert set(read_hooks(2)) - set(hooks) == {"user_state_dict", "load_user_state_dict"}  # which are refused


def test_an_argument_that_a_call_does_not_take_is_found() -> None:
    with pytest.raises(TypeError, match="unexpected keyword argument 'sorts'"):
        check_calls("DataLoaderParams(batch_size=3, sorts=True)")

"""A training loop of one's own, resumed bit for bit."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from fakes.trained_models import SAMPLES, DigitsModel, DisturbedDigits, hash_state

from proctor.sdk.pytorch import ConfigurationError, DataLoaderParams, NotExactWarning
from proctor.sdk.pytorch.checkpoints.history import read_history
from proctor.sdk.pytorch.distributed.ranks import Ranks
from proctor.sdk.pytorch.plain import open_run, remaining_batches, save_if_due

BATCHES = -(-SAMPLES // 4)
PARAMS = DataLoaderParams(batch_size=4, shuffle=True)


class Killed(Exception):
    """As if the process had been killed."""


TORCHRUN = {
    "TORCHELASTIC_RUN_ID": "id",
    "RANK": "5",
    "LOCAL_RANK": "1",
    "WORLD_SIZE": "8",
    "LOCAL_WORLD_SIZE": "2",
    "MASTER_ADDR": "localhost",
    "MASTER_PORT": "1",
}


@pytest.mark.parametrize(("environment", "chosen"), [({}, 0), (TORCHRUN, 1)])
def test_a_loop_works_on_its_own_gpu_whose_stream_is_then_the_one_that_is_saved(
    environment: "dict[str, str]", chosen: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    current: list[Any] = []

    @contextmanager
    def on_device(device: Any) -> "Iterator[None]":
        current.append(device)
        yield
        current.pop()

    def read_state() -> "dict[str, Any]":
        assert current == [torch.device("cuda", chosen)]
        return {}

    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    gpus = (torch.device("cuda", 0), torch.device("cuda", 1))
    monkeypatch.setattr("proctor.sdk.pytorch.plain.choose_devices", lambda settings: gpus)
    monkeypatch.setattr("proctor.sdk.pytorch.plain.on_device", on_device)
    with open_run("run", read_state, dataset=range(3)) as run:
        assert run.device == current[0]


def make_parts() -> "dict[str, Any]":
    model = DigitsModel()
    model.ranks = Ranks()
    model.setup()
    return {"network": model.net, "optimizer": model.optimizer, "scheduler": model.scheduler}


def train(root: Path, *, kill: int = 0, epochs: int = 3, params: DataLoaderParams = PARAMS) -> "tuple[str, list[Any]]":
    """Train and return the hash of what came of it and the samples of every batch; `kill` is a batch, 0 never."""
    samples = []
    options: dict[str, Any] = {"chkpt_root": root, "chkpt_frequency": 4, "use_cpu": True}
    with open_run("run", make_parts, dataset=DisturbedDigits(), params=params, **options) as run:
        network, optimizer = run.model.network, run.model.optimizer
        while run.state.epoch < epochs:
            for images, labels, indices in remaining_batches(run):
                samples.append(indices.tolist())
                loss = torch.nn.functional.cross_entropy(network(images), labels)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                run.model.scheduler.step()
                run.log({"loss": loss})
                if run.state.global_iteration == kill:
                    raise Killed
                if save_if_due(run):
                    return "stopped", samples
        return hash_state(run.model.state_dict()), samples


@pytest.mark.slow
@pytest.mark.parametrize("kill", [5, BATCHES, BATCHES + 1, 2 * BATCHES + 3])
def test_a_loop_that_was_killed_ends_with_the_bits_of_one_that_was_not(tmp_path: Path, kill: int) -> None:
    whole, all_samples = train(tmp_path / "whole")
    with pytest.raises(Killed):
        train(tmp_path / "cut", kill=kill)
    resumed, rest = train(tmp_path / "cut")
    assert resumed == whole
    assert rest == all_samples[kill // 4 * 4 :]
    steps = [row["step"] for row in read_history(tmp_path / "cut" / "run" / "history.jsonl")]
    assert steps == list(range(1, 3 * BATCHES + 1))


def test_a_loop_that_is_asked_to_stop_saves_and_goes_on_with_the_next_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, all_samples = train(tmp_path / "whole", epochs=1)
    monkeypatch.setattr("proctor.sdk.pytorch.trial.should_stop", lambda: True)
    assert train(tmp_path / "cut", epochs=1) == ("stopped", all_samples[:1])
    monkeypatch.undo()
    assert train(tmp_path / "cut", epochs=1) == (whole, all_samples[1:])


def test_a_loop_that_is_resumed_with_another_batch_size_is_told(tmp_path: Path) -> None:
    train(tmp_path, epochs=1)
    with pytest.warns(NotExactWarning, match="batch size of .* was 4, is 2"):
        train(tmp_path, epochs=2, params=DataLoaderParams(batch_size=2, shuffle=True))


def test_a_frequency_without_a_folder_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="chkpt_frequency needs chkpt_root"):
        with open_run("run", make_parts, dataset=DisturbedDigits(), params=PARAMS, chkpt_frequency=1):
            pass


def test_a_loop_that_seldom_asks_is_saved_when_it_asks_and_a_resumed_one_counts_on(tmp_path: Path) -> None:
    saved = []
    for _ in range(2):
        options: dict[str, Any] = {"chkpt_root": tmp_path, "chkpt_frequency": 3, "keep_last": None, "use_cpu": True}
        with open_run("run", make_parts, dataset=range(30), **options) as run:
            before = run.saved_at
            for _ in remaining_batches(run):
                if run.state.global_iteration % 4 == 0:
                    save_if_due(run)
                    saved.append(run.saved_at)
                if run.state.global_iteration == before + 10:
                    break
    assert saved == [4, 8, 12, 16]
    assert len(list((tmp_path / "run").glob("*.pth"))) == 4


def test_a_loop_that_asks_at_every_batch_is_saved_at_the_multiples_of_the_frequency(tmp_path: Path) -> None:
    train(tmp_path, epochs=1)
    names = {path.name for path in (tmp_path / "run").glob("*.pth")}
    assert names == {f"run_epoch_1_iter_{number}.pth" for number in list(range(4, BATCHES + 1, 4))[-3:]}


def test_each_batch_of_a_loop_of_ones_own_is_a_window_of_its_own() -> None:
    with open_run("run", make_parts, dataset=range(3), use_cpu=True) as run:
        assert [run.state.optimizer_step_now for _ in remaining_batches(run)] == [True] * 3
        assert not run.state.optimizer_step_now
        assert run.state.current_iteration == 3


class Counter:
    """A part that is no network."""

    best = 0.0

    def state_dict(self) -> "dict[str, Any]":
        return {"best": self.best}

    def load_state_dict(self, state: "dict[str, Any]") -> None:
        self.best = state["best"]


def test_a_part_with_a_state_of_its_own_is_kept(tmp_path: Path) -> None:
    seen = []
    for best in (0.5, 0.7):
        options: dict[str, Any] = {"chkpt_root": tmp_path, "chkpt_frequency": 1, "use_cpu": True}
        with open_run("run", lambda: {"counter": Counter()}, dataset=range(3), **options) as run:
            seen.append(run.model.counter.best)
            next(remaining_batches(run))
            run.model.counter.best = best
            save_if_due(run)
    assert seen == [0.0, 0.5]


@pytest.mark.parametrize("part", [0.0, None, [torch.nn.Linear(1, 1)], torch.zeros(1), torch.nn.Linear])
def test_a_part_that_no_checkpoint_would_hold_is_refused(part: Any) -> None:
    with pytest.raises(ConfigurationError, match=f"found 'best', of type {type(part).__name__}"):
        with open_run("run", lambda: {"best": part}, dataset=range(3), use_cpu=True):
            pass


@pytest.mark.parametrize(
    "name", ["trainer", "device", "ranks", "averages", "amp_scaler", "log", "state_dict", "_make_parts"]
)
def test_a_part_does_not_take_a_name_that_the_run_uses(name: str) -> None:
    with pytest.raises(ConfigurationError, match=f"give the part '{name}' another name"):
        with open_run("run", lambda: {name: Counter()}, dataset=range(3), use_cpu=True):
            pass


@pytest.mark.parametrize(
    "option",
    [
        {"processes": 4},
        {"accumulation_steps": 4},
        {"valid_frequency": 1},
        {"early_stop_cycles": 2},
        {"total_steps": 9},
        {"train_unit": "epoch"},
    ],
)
def test_what_the_loop_decides_itself_is_no_option(option: "dict[str, Any]") -> None:
    with pytest.raises(ConfigurationError, match=f"no option {next(iter(option))} .*leave it out"):
        with open_run("run", make_parts, dataset=range(3), use_cpu=True, **option):
            pass

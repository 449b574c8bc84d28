"""`python -m benchmarks.trials.save_stall hand|proctor FOLDER SAVES`: how long a save of 200 MB holds the training up.

Prints the seconds of each save, and then how many MiB the process took at most above what it had before the first one.
Each save is written completely before the next one begins. By hand: copy every tensor, and have a thread write them.
"""

import sys
import threading
import time
from pathlib import Path
from typing import Any

import torch
from benchmarks.trials.training_loops import copy_tensors

LAYERS = 8
LAYER_SIZE = 2500  # 8 × 2,500 × 2,500 × 4 bytes: 200 MB


def make_network() -> torch.nn.Module:
    """A network of 200 MB."""
    return torch.nn.Sequential(*(torch.nn.Linear(LAYER_SIZE, LAYER_SIZE, bias=False) for _ in range(LAYERS)))


def save_by_hand(folder: Path, saves: int) -> None:
    """Copy and have a thread write."""
    network = make_network()
    before = _start_memory()
    for number in range(saves):
        began = time.perf_counter()
        state = copy_tensors(network.state_dict())
        thread = threading.Thread(target=_write, args=(state, folder / f"{number}.pth"))
        del state  # the thread has it alone
        thread.start()
        print(time.perf_counter() - began)
        thread.join()
        del thread
    print(_peak_mib() - before)


def _write(state: "dict[str, Any]", path: Path) -> None:
    torch.save(state, path.with_suffix(".new"))
    path.with_suffix(".new").rename(path)


def save_with_proctor(folder: Path, saves: int) -> None:
    """A run that saves after every step; a step waits until what was saved before has been written."""
    from proctor.sdk.pytorch import DataLoaderParams, DataModule, Model, Trainer, TrainUnit

    class Numbers(DataModule):
        def setup(self) -> None:
            self.add_train_phase(torch.utils.data.TensorDataset(torch.zeros(saves + 1)), DataLoaderParams())

    class Network(Model):
        def setup(self) -> None:
            self.network = make_network()
            self.ended = 0.0
            self.before = 0

        def on_training_start(self) -> None:
            self.before = _start_memory()

        def on_training_batch_start(self, state: Any) -> None:
            if state.global_iteration > 1:
                print(time.perf_counter() - self.ended)
                _wait_for_checkpoint(folder / "run", state.global_iteration - 1)

        def train_step(self, batch: Any, state: Any) -> None:
            self.ended = time.perf_counter()

        def on_training_end(self) -> None:
            print(_peak_mib() - self.before)

        transient = ("ended", "before")

    Trainer(
        "run",
        train_unit=TrainUnit.ITERATION,
        total_steps=saves + 1,
        chkpt_frequency=1,
        chkpt_root=folder,
        keep_last=1,
        use_cpu=True,
        enable_progress_bar=False,
    ).fit(Network(), Numbers())


def _wait_for_checkpoint(folder: Path, count: int) -> None:
    deadline = time.monotonic() + 60
    while not any(path.stat().st_size > 0 for path in folder.glob(f"*iter_{count}*.pth")):
        if time.monotonic() > deadline:
            raise TimeoutError(f"no checkpoint of step {count} in {folder}: {sorted(folder.iterdir())}")
        time.sleep(0.01)
    time.sleep(0.2)  # it is synced, and the one before removed


def _start_memory() -> int:
    """Begin to measure the peak; return the MiB of the process."""
    Path("/proc/self/clear_refs").write_text("5")
    return _peak_mib()


def _peak_mib() -> int:
    text = Path("/proc/self/status").read_text()
    return int(text.partition("VmHWM:")[2].split()[0]) // 1024


if __name__ == "__main__":
    torch.set_num_threads(1)
    {"hand": save_by_hand, "proctor": save_with_proctor}[sys.argv[1]](Path(sys.argv[2]), int(sys.argv[3]))

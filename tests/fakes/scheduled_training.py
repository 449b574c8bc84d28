"""Scripts of the trainer, Lightning and transformers for trial schedulers, with no line about them in the trial's code.

Each step of training adds the learning rate to the only weight, which begins at 0. So the weight tells with which rates
a trial, and those that it continues, have been trained, step by step.
"""

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from fakes.loaded_python import loaded_python
from fakes.real_manager import RealManager, real_manager

EPOCH = 5
"""Its steps."""
EPOCHS = 6
LAST = EPOCH * EPOCHS

BEGINNING = f"""
import json, os, sys, time
import torch
import proctor

EPOCH, EPOCHS = {EPOCH}, {EPOCHS}
rate = proctor.get_next_parameter()["rate"]
ledger = open(os.path.join(sys.argv[1], os.environ["PROCTOR_JOB_ID"]), "a", buffering=1)
torch.set_num_threads(1)

def make_network():
    network = torch.nn.Linear(1, 1, bias=False)
    torch.nn.init.zeros_(network.weight)
    return network

def note(step, weight):
    ledger.write(json.dumps([step, float(weight)]) + chr(10))
    time.sleep(0.02)
"""
SCRIPTS = {
    "trainer": """
from proctor.sdk.pytorch import DataLoaderParams, DataModule, Model, StopReason, Trainer

class Line(Model):
    def setup(self):
        self.net = make_network()
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=rate)

    def train_step(self, batch, state):
        self.optimizer.zero_grad()
        (-self.net(batch)).mean().backward()
        self.optimizer.step()
        note(state.global_iteration, self.net.weight)

    def on_training_epoch_end(self, epoch):
        self.log({"weight": self.net.weight})

class Ones(DataModule):
    def setup(self):
        self.add_train_phase(torch.ones(2 * EPOCH, 1), DataLoaderParams(batch_size=2))

outcome = Trainer(
    "run", train_unit="epoch", total_steps=EPOCHS, chkpt_frequency=1, best_metric="weight", use_cpu=True
).fit(Line(), Ones())
if outcome.reason is not StopReason.REQUESTED:
    proctor.report_final_result(outcome.metrics["weight"])
""",
    "lightning": """
import lightning.pytorch as lightning
from proctor.sdk.pytorch import DataLoaderParams
from proctor.sdk.pytorch.lightning import ProctorCallback, ResumableLoader

class Line(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = make_network()

    def training_step(self, batch, index):
        self.log("weight", self.net.weight.detach().reshape(()) + rate)
        return -self.net(batch).mean()

    def on_train_batch_end(self, outputs, batch, index):
        note(self.trainer.global_step, self.net.weight)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=rate)

callback = ProctorCallback("checkpoints", every_n_steps=2, metric="weight")
quiet = dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False)
trainer = lightning.Trainer(max_epochs=EPOCHS, callbacks=[callback], accelerator="cpu", **quiet)
loader = ResumableLoader(torch.ones(2 * EPOCH, 1), DataLoaderParams(batch_size=2))
trainer.fit(Line(), loader, ckpt_path=callback.find_checkpoint(), weights_only=True)
if not proctor.should_stop():
    proctor.report_final_result(trainer.callback_metrics["weight"])
""",
    "transformers": """
import transformers
from proctor.sdk.pytorch.huggingface import ProctorCallback

class Line(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.net = make_network()

    def forward(self, ones):
        return {"loss": -self.net(ones).mean()}

class Noting(transformers.TrainerCallback):
    def on_step_end(self, args, state, control, model=None, **kwargs):
        note(state.global_step, model.net.weight)

    def on_log(self, args, state, control, logs=None, model=None, **kwargs):
        if "loss" in logs:  # not the summary at the end, which is reported without it
            logs["weight"] = float(model.net.weight)

class Ones:
    def __len__(self):
        return 2 * EPOCH

    def __getitem__(self, index):
        return {"ones": torch.ones(1)}

callback = ProctorCallback("output", metric="weight")
arguments = transformers.TrainingArguments(
    callback.folder, num_train_epochs=EPOCHS, per_device_train_batch_size=2, save_steps=2, logging_steps=EPOCH,
    report_to=[], use_cpu=True, remove_unused_columns=False, disable_tqdm=True,
    optim="sgd", learning_rate=rate, lr_scheduler_type="constant",
)
line = Line()
trainer = transformers.Trainer(line, arguments, train_dataset=Ones(), callbacks=[Noting(), callback])
trainer.train(resume_from_checkpoint=callback.find_checkpoint())
if not proctor.should_stop():
    proctor.report_final_result(float(line.net.weight))
""",
}
NEEDED = {"trainer": (), "lightning": ("lightning",), "transformers": ("transformers", "accelerate")}
_STEPS = {"time_attr": "training_iteration"}
ASHA = {"grace_period": EPOCH, "max_t": LAST, "reduction_factor": 3}
MEDIAN = {"grace_period": EPOCH, "min_samples_required": 2} | _STEPS
PBT = {
    "population_size": 2,
    "perturbation_interval": 4 * EPOCH,
    "quantile_fraction": 0.5,
    "resample_probability": 0,
} | _STEPS
SCHEDULERS: dict[str, tuple[int, dict[str, Any]]] = {
    "ASHA, stopping": (4, {"name": "ASHA", "classArgs": ASHA}),
    "ASHA, promotion": (3, {"name": "ASHA", "classArgs": ASHA | {"type": "promotion"}}),
    "HyperBand": (5, {"name": "HyperBand", "classArgs": {"max_t": LAST, "reduction_factor": 9} | _STEPS}),
    "BOHB": (5, {"name": "BOHB", "classArgs": {"max_t": LAST, "reduction_factor": 9} | _STEPS}),
    "MedianStopping": (4, {"name": "MedianStopping", "classArgs": MEDIAN}),
    "MedianStopping, pausing": (4, {"name": "MedianStopping", "classArgs": MEDIAN | {"hard_stop": False}}),
    "PBT": (2, {"name": "PBT", "classArgs": PBT}),
    "PBT, synchronous": (2, {"name": "PBT", "classArgs": PBT | {"synch": True}}),
}
"""With how many trials each is tried."""
Ledgers = dict[str, list[tuple[int, float]]]
"""By job: every step that it has trained, with the weight after it."""


class Trained:
    """An experiment that has ended, and what its jobs have noted."""

    def __init__(self, manager: RealManager, experiment: str, ledgers: Path) -> None:
        self.trials = manager.trials(experiment)
        self.jobs = {row["id"]: list(manager.client.jobs(row["id"])) for row in self.trials}
        self.curves = {row["id"]: list(manager.client.trial_curve(row["id"])) for row in self.trials}
        self.ledgers: Ledgers = {
            path.name: [tuple(json.loads(line)) for line in path.read_text().splitlines()] for path in ledgers.iterdir()
        }


def train_scheduled(directory: Path, *pairs: tuple[str, str]) -> dict[tuple[str, str], Trained]:
    """Run an experiment of each framework under its scheduler to its end, all of them side by side in one manager."""
    needed = {package for framework, _ in pairs for package in NEEDED[framework]}
    if missing := sorted(name for name in needed if find_spec(name) is None):
        pytest.skip(f"{' and '.join(missing)} cannot be imported")
    experiments = {}
    with real_manager(directory) as manager, loaded_python(*sorted(needed)) as interpreter:
        for number, (framework, scheduler) in enumerate(pairs):
            ledgers = directory / f"ledgers-{number}"
            ledgers.mkdir()
            count, settings = SCHEDULERS[scheduler]
            experiment = manager.create(
                BEGINNING + SCRIPTS[framework],
                ledgers,
                interpreter=interpreter,
                searchSpace={"rate": {"_type": "uniform", "_value": [0.1, 1]}},
                trialConcurrency=2,
                maxTrialNumber=count,
                seed=3,
                trialScheduler=settings,
            )
            experiments[framework, scheduler] = (experiment, ledgers)
        for experiment, _ in experiments.values():
            manager.until_status(experiment, "DONE")
        return {pair: Trained(manager, *made) for pair, made in experiments.items()}


def check(trained: Trained) -> set[str]:
    """Every job has continued where the one that it continues had saved, with its own rate, and a trial that was paused
    has trained no step twice. Returns what has happened: resume, clone."""
    happened = set()
    for trial, jobs in trained.jobs.items():
        steps = [point["step"] for point in trained.curves[trial] if "weight" in point["data"]]
        assert steps == sorted(set(steps)), f"{trial}: {steps}"
        for before, job in zip([None, *jobs], jobs, strict=False):
            if not (noted := trained.ledgers.get(job["id"])):
                continue
            start, weight = noted[0][0] - 1, 0.0
            if (origin := job["resumed_from_job"]) is None:
                assert start == 0, job
            else:
                weight = dict(trained.ledgers[origin])[start]
                is_own = before is not None and origin == before["id"]
                happened.add("resume" if is_own else "clone")
                assert not is_own or trained.ledgers[origin][-1][0] == start, f"{job} has trained steps twice"
                assert is_own or job["parameters"] != before["parameters"]
            rate = job["parameters"]["rate"]
            expected = [
                (start + more, pytest.approx(weight + more * rate, rel=1e-4)) for more in range(1, len(noted) + 1)
            ]
            assert noted == expected, f"{job}: {noted}"
    return happened

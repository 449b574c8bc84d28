"""Validations and tests: the model judged on data, without gradients, by the same steps for both."""

from typing import Any

import torch

from proctor.sdk.pytorch.kernels import without_benchmark
from proctor.sdk.pytorch.options import Phase
from proctor.sdk.pytorch.plugins import Override

TYPE_CHECKING = False
if TYPE_CHECKING:
    from proctor.sdk.pytorch.run import Run


def validate(run: "Run") -> bool:
    """Validate and return whether the metrics have improved, as the main rank sees it (collective)."""
    evaluate(run, Phase.VALIDATION)
    run.state.validation_cycles += 1
    run.model.train()
    improved: bool = run.ranks.broadcast(bool(run.model.have_metrics_improved()))
    run.state.early_stop_count = 0 if improved else run.state.early_stop_count + 1
    return improved


def evaluate(run: "Run", phase: Phase) -> None:
    """Run one pass over the data of a phase."""
    model, is_test = run.model, phase is Phase.TESTING
    cycle = 0 if is_test else run.state.validation_cycles
    loader = run.datamodule.open(phase)
    loader.set_epoch(cycle)
    model.eval()
    run.observers.on_evaluation_start(phase.value, len(loader))
    with torch.no_grad(), without_benchmark():
        if is_test:
            model.on_testing_start()
        else:
            model.on_validation_start(cycle)
        for step, batch in enumerate(loader):
            if is_test:
                _test(run, batch, step)
            else:
                _validate(run, batch, step)
            run.observers.on_evaluation_batch_end()
        if is_test:
            model.on_testing_end()
        else:
            model.on_validation_end(cycle)
    run.observers.on_evaluation_end()


def _validate(run: "Run", batch: Any, step: int) -> None:
    model = run.model
    model.on_validation_batch_start(step)
    if run.plugins.claims(Override.VALIDATION_BATCH) is None:
        batch = model.batch_to_device(batch, Phase.VALIDATION)
    for plugin in run.plugins:
        batch = plugin.process_validation_batch(batch, step)
    model.valid_step(batch, step)
    model.on_validation_batch_end(step)


def _test(run: "Run", batch: Any, step: int) -> None:
    model = run.model
    model.on_testing_batch_start(step)
    if run.plugins.claims(Override.TESTING_BATCH) is None:
        batch = model.batch_to_device(batch, Phase.TESTING)
    for plugin in run.plugins:
        batch = plugin.process_testing_batch(batch, step)
    model.test_step(batch, step)
    model.on_testing_batch_end(step)

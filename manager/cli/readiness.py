"""Whether the trials of an experiment can run: what is known before `create` starts it, and what its machines say."""

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from proctor.manager.cli.exits import CommandError, ExitCode
from proctor.manager.cli.session import Session

if TYPE_CHECKING:
    from proctor.manager.config import ExperimentConfig

CONNECTING_SECONDS = 20.0
"""How long `create` waits for machines that are being connected."""
LOOK_SECONDS = 0.2
_STARTING = frozenset({"INITIALIZED", "RUNNING", "NO_MORE_TRIAL", "TUNER_NO_MORE_TRIAL"})


def require_runnable(config: "ExperimentConfig", file: Path) -> None:
    """Raise CommandError where trials on this machine could not run, as far as that is certain before one has."""
    if config.training_service.platform != "local":
        return
    from proctor.manager.trial_commands import problem_of

    if problem := problem_of(config.trial_command, str(config.trial_code_directory), os.environ):
        raise CommandError(f"{file}: trialCommand: {problem}", ExitCode.USAGE)
    if problem := _gpu_problem(config):
        raise CommandError(f"{file}: {problem}", ExitCode.USAGE)


def _gpu_problem(config: "ExperimentConfig") -> str:
    wanted = config.trial_gpu_number or 0
    if wanted == 0:
        return ""
    from proctor.manager.cli.checks import gpu_names

    names, note = gpu_names()
    chosen = getattr(config.training_service, "gpu_indices", None)
    allowed = len(names) if chosen is None else len(set(chosen) & set(range(len(names))))
    if allowed >= wanted:
        return ""
    there = f"this machine has {len(names) or 'no'} GPU{'s' * (len(names) > 1)}" + (f" ({note})" if note else "")
    restricted = "" if chosen is None else f", of which gpuIndices allows {allowed}"
    return f"trialGpuNumber is {wanted}, and {there}{restricted}; no trial could run"


def until_machines_are_known(session: Session, created: dict[str, Any]) -> dict[str, Any]:
    """The experiment once each of its machines is connected or known to be unusable, or when that takes too long."""
    experiment = created
    deadline = time.monotonic() + CONNECTING_SECONDS
    while _is_connecting(experiment) and time.monotonic() < deadline:
        time.sleep(LOOK_SECONDS)
        experiment = session.client.experiment(created["id"])
    return experiment


def _is_connecting(experiment: dict[str, Any]) -> bool:
    machines = experiment.get("machines")
    return bool(experiment["status"] in _STARTING and machines and machines["pending"] and not machines["never"])


def report_machines(session: Session, experiment: dict[str, Any]) -> ExitCode:
    """Say which machines cannot be used. OK while a trial may run on one of them."""
    identifier, machines = experiment["id"], experiment.get("machines")
    if experiment["status"] == "ERROR":
        session.say(f"Experiment {identifier} cannot run: {experiment['reason']}")
        return ExitCode.EXPERIMENT_FAILED
    if not machines:
        return ExitCode.OK
    if machines["never"]:
        session.say(f"No trial of experiment {identifier} can ever run: {machines['never']}")
        return ExitCode.EXPERIMENT_FAILED
    unusable, pending = machines["unusable"], machines["pending"]
    usable = machines["total"] - len(unusable) - len(pending)
    if unusable:
        session.say(f"{len(unusable)} of {machines['total']} machines cannot be used now:")
    for machine in unusable:
        session.say(f"  {machine['reason']}")
    if pending:
        session.say(f"Still being connected: {', '.join(pending)}")
    if usable or pending:
        return ExitCode.OK
    session.say(f"No trial can run until one of them can be used; to give up: proctor stop {identifier}")
    return ExitCode.EXPERIMENT_FAILED

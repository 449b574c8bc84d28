"""`proctor create`: from a YAML file to a running experiment.

Whether its trials can run is checked as far as it is known before the start; afterwards its machines are reported.
"""

import os
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from proctor.manager.cli.columns import EXPERIMENT
from proctor.manager.cli.commands.config import describe_plan, describe_scheduler
from proctor.manager.cli.config_file import config_file_argument, load_checked, posted_mapping
from proctor.manager.cli.exits import CommandError, ExitCode
from proctor.manager.cli.lazy import examples, nnictl_option
from proctor.manager.cli.machines import Logins, find_logins, handover_file
from proctor.manager.cli.output import Format, echo, output_option, print_documents, print_one
from proctor.manager.cli.session import CliSession, with_session

if TYPE_CHECKING:
    from proctor.manager.config.experiment import ExperimentConfig
    from proctor.sdk.client.client import Client

CONNECTING_SECONDS = 20.0
"""How long `create` waits for machines that are being connected."""
POLL_INTERVAL_SECONDS = 0.2
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


def until_machines_are_known(session: CliSession, created: dict[str, Any]) -> dict[str, Any]:
    """The experiment once each of its machines is connected or known to be unusable, or when that takes too long."""
    experiment = created
    deadline = time.monotonic() + CONNECTING_SECONDS
    while _is_connecting(experiment) and time.monotonic() < deadline:
        time.sleep(POLL_INTERVAL_SECONDS)
        experiment = session.client.experiment(created["id"])
    return experiment


def _is_connecting(experiment: dict[str, Any]) -> bool:
    machines = experiment.get("machines")
    return bool(experiment["status"] in _STARTING and machines and machines["pending"] and not machines["never"])


def report_machines(session: CliSession, experiment: dict[str, Any]) -> ExitCode:
    """Say which machines cannot be used, and whether the experiment has started. OK while a trial may run on one of
    them."""
    identifier, machines = experiment["id"], experiment.get("machines")
    if experiment["status"] == "ERROR":
        session.report(f"Experiment {identifier} cannot run: {experiment['reason']}")
        return ExitCode.EXPERIMENT_FAILED
    if not machines:
        session.report(f"Experiment {identifier} has started.")
        return ExitCode.OK
    if machines["never"]:
        session.report(f"No trial of experiment {identifier} can ever run: {machines['never']}")
        return ExitCode.EXPERIMENT_FAILED
    unusable, pending = machines["unusable"], machines["pending"]
    usable = machines["total"] - len(unusable) - len(pending)
    if unusable:
        session.report(f"{len(unusable)} of {machines['total']} machines cannot be used now:")
    for machine in unusable:
        session.report(f"  {machine['reason']}")
    if pending:
        session.report(f"Still connecting: {', '.join(pending)}")
    if usable:
        session.report(f"Experiment {identifier} has started.")
    if usable or pending:
        return ExitCode.OK
    session.report(f"No trial can run until one of them is usable. To give up: proctor stop {identifier}")
    return ExitCode.EXPERIMENT_FAILED


@click.command(
    epilog=examples(
        "proctor create experiment.yml",
        "proctor create experiment.yml --foreground    # watch it until it ends",
        "proctor create experiment.yml --dry-run       # only check whether it would start",
        "proctor create experiment.yml --render        # show the Job of a trial, as YAML",
    )
)
@config_file_argument()
@nnictl_option("--foreground", nnictl=["-f"], is_flag=True, help="Watch it until it ends. Ctrl-C only stops watching.")
@click.option("--dry-run", is_flag=True, help="Check everything without starting anything.")
@click.option("--render", is_flag=True, help="Print the Kubernetes objects that would be created, and start nothing.")
@click.option("-p", "--port", type=click.IntRange(0, 65535), help="Port to use if a manager has to be started.")
@click.option("--id", "identifier", metavar="ID", help="Use this id for the experiment.")
@nnictl_option("--debug", nnictl=["-d"], is_flag=True, help="Set `debug: true` in the configuration.")
@click.option("-u", "--url-prefix", "--url_prefix", metavar="PATH", help="URL prefix if a manager has to be started.")
@output_option
@with_session
def create(
    session: CliSession,
    file: Path,
    foreground: bool,
    dry_run: bool,
    render: bool,
    port: int | None,
    identifier: str | None,
    debug: bool,
    url_prefix: str | None,
    output: str,
) -> int:
    """Start an experiment from a YAML or JSON file; NNI's v2 files are valid as they are.

    The manager is started in the background if none runs. Trials run with this shell's environment. The new
    experiment's id goes to stdout, or with -o all of it; everything else goes to stderr.

    Waits up to 20 seconds for the machines to be connected, and reports which of them cannot be used. The exit code
    is 100 if no trial can run on any of them.
    """
    loaded = load_checked(session, file)
    if dry_run:
        require_runnable(loaded.config, file)
        session.report(f"{file}: valid; nothing was started. It would run {describe_plan(loaded.config)}")
        for line in describe_scheduler(loaded.config):
            session.report(line)
        return ExitCode.OK
    logins = Logins({}) if render else find_logins(loaded.config.canonical(), loaded.secrets)
    client = session.ensure_client(port=port, url_prefix=url_prefix)
    if render:
        print_documents(client.render_platform(posted_mapping(loaded), directory=os.path.abspath(file.parent)))
        return ExitCode.OK
    if debug:
        others = {key: value for key, value in loaded.mapping.items() if key.lower() != "debug"}
        loaded = replace(loaded, mapping={**others, "debug": True})
    created = submit(client, loaded, file, identifier=identifier, logins=logins)
    if output == Format.TABLE:
        echo(created["id"])
    else:
        print_one(created, EXPERIMENT, output)
    for notice in created["notices"]:
        if notice not in map(str, loaded.notices):  # those were reported when the file was read
            session.report(f"Notice: {notice}")
    _report_next_steps(session, created, foreground)
    code = report_machines(session, until_machines_are_known(session, created))
    if not foreground:
        return code
    from proctor.manager.cli.watching import watch_to_the_end

    return watch_to_the_end(session, created["id"])


def submit(
    client: "Client", loaded: Any, file: Path, *, identifier: str | None = None, logins: Logins | None = None
) -> dict[str, Any]:
    """Hand the environment and the secrets over and post the configuration as it was written, less the secrets."""
    with handover_file(client, logins or Logins(loaded.secrets)) as handover:
        return client.create_experiment(
            posted_mapping(loaded),
            directory=os.path.abspath(file.parent),
            handover=handover,
            experiment_id=identifier,
        )


def _report_next_steps(session: CliSession, created: dict[str, Any], foreground: bool) -> None:
    identifier = created["id"]
    session.report(f"Created experiment {identifier} ({created['name']}).")
    session.report(f"  page:   {session.client.page_url(f'/experiments/{identifier}')}")
    session.report(f"  files:  {created['directory']}")
    if not foreground:
        session.report("  watch:  proctor top")
        session.report(f"  trials: proctor trial ls {identifier}")
        session.report(f"  stop:   proctor stop {identifier}")

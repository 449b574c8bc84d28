"""`proctor platform`: the machines of a configuration, without an experiment."""

from pathlib import Path

import click

from proctor.manager.cli.config import CONFIG_PATH, load_checked
from proctor.manager.cli.exits import CommandError, ExitCode
from proctor.manager.cli.logins import find_logins
from proctor.manager.cli.machines import COLUMNS, Machines
from proctor.manager.cli.output import output_option, print_list
from proctor.manager.cli.session import Session, with_session


@click.group()
def platform() -> None:
    """Clean the machines of a configuration."""


@platform.command()
@click.option("-c", "--config", "file", required=True, type=CONFIG_PATH, help="The experiment's YAML or JSON file.")
@output_option
@with_session
def clean(session: Session, file: Path, output: str) -> int:
    """Remove everything of this home's manager from the machines: keepers, their trials, its folders.

    A machine that a running experiment uses is left alone; stop the experiment first. One that was stopped and is still
    leaving its machines is waited for, up to 5 minutes. The exit code is 1 when something is or may be left.
    """
    loaded = load_checked(session, file)
    service = loaded.config.training_service
    if not getattr(service, "machine_list", ()):
        raise CommandError(f"{file}: platform {service.platform} has no machines to clean", ExitCode.USAGE)
    logins = find_logins(loaded.config.canonical(), loaded.secrets)
    client = session.ensure_client()
    steps = Machines(client, loaded, file, logins).ask(client.clean_platform, session.say)
    print_list(steps, COLUMNS, output, empty="")
    failed = dict.fromkeys(step["machine"] for step in steps if step["verdict"] == "fail")
    if failed:
        session.say(f"Not clean: {', '.join(failed)}.")
    return ExitCode.FAILED if failed else ExitCode.OK

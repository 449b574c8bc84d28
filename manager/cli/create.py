"""`proctor create`: from a YAML file to a running experiment."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from proctor.manager.cli.config import CONFIG_PATH, describe_plan, load_checked
from proctor.manager.cli.exits import CommandError, ExitCode
from proctor.manager.cli.logins import Logins, find_logins, handed_over
from proctor.manager.cli.output import echo
from proctor.manager.cli.readiness import report_machines, require_runnable, until_machines_are_known
from proctor.manager.cli.session import Session, with_session

if TYPE_CHECKING:
    from proctor.sdk.client.client import Client


@click.command()
@click.option("-c", "--config", "file", required=True, type=CONFIG_PATH, help="The experiment's YAML or JSON file.")
@click.option("-f", "--foreground", is_flag=True, help="Watch it until it ends. Ctrl-C stops watching, nothing else.")
@click.option("--dry-run", is_flag=True, help="Check everything, start nothing.")
@click.option("-p", "--port", type=click.IntRange(0, 65535), help="Port of a manager that must be started first.")
@click.option("--id", "identifier", metavar="ID", help="An id of your own for the experiment.")
@with_session
def create(
    session: Session, file: Path, foreground: bool, dry_run: bool, port: int | None, identifier: str | None
) -> int:
    """Start an experiment from a YAML file; NNI's v2 files are valid as they are.

    The manager is started in the background if none runs. Trials run with this shell's environment. The new
    experiment's id goes to stdout, everything else to stderr.

    Waits up to 20 seconds until the machines are connected, and says which of them cannot be used. The exit code is
    100 if no trial can run on any of them.
    """
    loaded = load_checked(session, file)
    if dry_run:
        require_runnable(loaded.config, file)
        session.say(f"{file}: valid; nothing was started. It would run {describe_plan(loaded.config)}")
        return ExitCode.OK
    logins = find_logins(loaded.config.canonical(), loaded.secrets)
    client = session.ensure_client(port=port)
    created = submit(client, loaded, file, identifier=identifier, logins=logins)
    echo(created["id"])
    _say_what_next(session, created, foreground)
    code = report_machines(session, until_machines_are_known(session, created))
    if not foreground:
        return code
    from proctor.manager.cli.foreground import watch_to_the_end

    return watch_to_the_end(session, created["id"])


def submit(
    client: "Client", loaded: Any, file: Path, *, identifier: str | None = None, logins: Logins | None = None
) -> dict[str, Any]:
    """Hand the environment and the secrets over and post the configuration as it was written, less the secrets."""
    with handed_over(client, logins or Logins(loaded.secrets)) as handover:
        return client.create_experiment(
            posted_mapping(loaded, file),
            directory=os.path.abspath(file.parent),
            handover=handover,
            experiment_id=identifier,
        )


def posted_mapping(loaded: Any, file: Path) -> dict[str, Any]:
    """The configuration as the manager gets it."""
    return with_classes(written_mapping(loaded.source_text, str(file)), loaded.config)


def written_mapping(text: str, file: str) -> dict[str, Any]:
    """The mapping of a configuration's text, read exactly as the check has read it."""
    from proctor.manager.config.document import parse
    from proctor.manager.config.errors import Report
    from proctor.manager.config.tree import plain

    root = parse(text, file, Report())
    found = plain(root) if root is not None else None
    if not isinstance(found, dict):
        raise CommandError(f"{file} holds no mapping", ExitCode.USAGE)
    return found


def with_classes(mapping: dict[str, Any], config: Any) -> dict[str, Any]:
    """The mapping with the class in place of a name registered in this home; the manager may have another one."""
    for kind, spellings in (("tuner", ("tuner", "advisor")), ("assessor", ("assessor",))):
        key = next((name for name in mapping if name.lower() in spellings), None)
        algorithm = getattr(config, kind)
        if key is not None and algorithm is not None and algorithm.class_name is not None:
            mapping = {name: value for name, value in mapping.items() if name != key}
            mapping[kind] = algorithm.model_dump(mode="json", by_alias=False, exclude_none=True)
    return mapping


def _say_what_next(session: Session, created: dict[str, Any], foreground: bool) -> None:
    identifier = created["id"]
    session.say(f"Experiment {identifier} ({created['name']}) has started.")
    session.say(f"  page:   {session.client.page_url(f'/experiments/{identifier}')}")
    session.say(f"  files:  {created['directory']}")
    if not foreground:
        session.say("  watch:  proctor top")
        session.say(f"  trials: proctor trial ls {identifier}")
        session.say(f"  stop:   proctor stop {identifier}")

"""`proctor`: the command line. Its help imports nothing but click; every command is imported when it is asked for."""

import click

from proctor.manager.cli.lazy import Lazy, RootGroup
from proctor.manager.cli.output import echo
from proctor.manager.cli.session import CliSession

EXPERIMENTS, TRIALS, MANAGER, TOOLS = "Experiments", "Watching", "Manager", "Tools"

COMMANDS = {
    "create": Lazy("create:create", "Start an experiment from a YAML file.", EXPERIMENTS),
    "resume": Lazy("lifecycle:resume", "Resume a stopped or paused experiment.", EXPERIMENTS),
    "pause": Lazy("lifecycle:pause", "Create no new trials; running ones continue.", EXPERIMENTS),
    "view": Lazy("lifecycle:view", "Open an experiment for reading.", EXPERIMENTS),
    "stop": Lazy("lifecycle:stop", "Stop an experiment and its trials.", EXPERIMENTS),
    "update": Lazy("update:update", "Change limits or search space while it runs.", EXPERIMENTS),
    "experiment": Lazy("experiment:experiment", "List, show, delete, export, import, save, load.", EXPERIMENTS),
    "trial": Lazy("trial:trial", "List, show, kill, retry, add; read logs.", EXPERIMENTS),
    "top": Lazy("top:top", "Watch experiments and running trials.", TRIALS),
    "log": Lazy("log:log", "Logs of the manager, a dispatcher or a trial.", TRIALS),
    "nodes": Lazy("nodes:nodes", "The machines trials run on; check, drain, resume.", TRIALS),
    "webui": Lazy("manager:webui", "The URL of the page.", TRIALS),
    "manager": Lazy("manager:manager", "Run, start or stop the manager, or show its status.", MANAGER),
    "platform": Lazy("doctor:platform", "Clean the machines of a configuration.", MANAGER),
    "doctor": Lazy("doctor:doctor", "Check this machine, a configuration and its machines.", MANAGER),
    "config": Lazy("config:config", "Check a configuration, or show an experiment's.", TOOLS),
    "algo": Lazy("algo:algo", "Built-in algorithms, and your own by name.", TOOLS),
    "completion": Lazy("completion:completion", "The completion script for your shell.", TOOLS),
    "version": Lazy("manager:version", "The version of the command line and the manager.", TOOLS),
}

ALIASES = {"experiments": "experiment", "trials": "trial", "logs": "log", "node": "nodes", "algorithm": "algo"}


def _print_version(context: click.Context, parameter: click.Parameter, wanted: bool) -> None:
    if wanted and not context.resilient_parsing:
        from proctor.manager.cli.commands.manager import installed_version

        echo(f"proctor {installed_version()}")
        context.exit()


@click.group(
    cls=RootGroup,
    lazy=COMMANDS,
    aliases=ALIASES,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Exit codes: 0 done, 1 failed, 2 wrong input, 3 not found, 4 not authorized, 5 conflict or ambiguous, "
    "6 no manager; when waiting for an experiment: 100 it failed, 101 still running, 103 it was stopped; 130 Ctrl-C.",
)
@click.option("--home", metavar="DIR", help="The folder of the manager's state  [env: PROCTOR_HOME]")
@click.option("--url", metavar="URL", help="A manager elsewhere  [env: PROCTOR_URL, PROCTOR_TOKEN]")
@click.option("--debug", is_flag=True, help="Show tracebacks of errors.")
@click.option("-v", "--version", is_flag=True, expose_value=False, is_eager=True, callback=_print_version)
@click.pass_context
def cli(context: click.Context, home: str | None, url: str | None, debug: bool) -> None:
    """Proctor runs machine-learning experiments: one YAML file in, the best trial out.

    An ID that is left out means the only running experiment; ids may be shortened while they are unique.
    """
    session = CliSession(home=home, url=url, debug=debug)
    context.obj = session
    context.call_on_close(session.close)


def main() -> None:
    """The console script."""
    cli.main(prog_name="proctor")


if __name__ == "__main__":
    main()

"""`proctor`: the command line. Its help imports nothing but click; every command is imported when it is asked for."""

import click

from proctor.manager.cli.lazy import Lazy, RootGroup, examples, nnictl_option
from proctor.manager.cli.output import echo
from proctor.manager.cli.session import CliSession

EXPERIMENTS, TRIALS, MANAGER, TOOLS = "Experiments", "Watching", "Manager", "Tools"

COMMANDS = {
    "create": Lazy("create:create", "Start an experiment from a YAML file.", EXPERIMENTS),
    "resume": Lazy("lifecycle:resume", "Resume a stopped or paused experiment.", EXPERIMENTS),
    "pause": Lazy("lifecycle:pause", "Stop starting new trials; running trials finish.", EXPERIMENTS),
    "view": Lazy("lifecycle:view", "Open an experiment for viewing.", EXPERIMENTS),
    "stop": Lazy("lifecycle:stop", "Stop an experiment and its trials.", EXPERIMENTS),
    "update": Lazy("update:update", "Change an experiment's limits or search space.", EXPERIMENTS),
    "experiment": Lazy("experiment:experiment", "List, show, wait, delete, export, import, save, load.", EXPERIMENTS),
    "trial": Lazy("trial:trial", "List, show, pause, resume, clone, kill, retry, add; read logs.", EXPERIMENTS),
    "top": Lazy("top:top", "Watch experiments and running trials.", TRIALS),
    "log": Lazy("log:log", "Print the log of the manager, a dispatcher or a trial.", TRIALS),
    "nodes": Lazy("nodes:nodes", "List the machines trials run on; check, drain, resume.", TRIALS),
    "webui": Lazy("manager:webui", "Print the URL of the web UI.", TRIALS),
    "tensorboard": Lazy("nnictl:tensorboard", "Start TensorBoard on the files of an experiment's trials.", TRIALS),
    "manager": Lazy("manager:manager", "Run, start or stop the manager, or show its status.", MANAGER),
    "token": Lazy("token:token", "Make, list and revoke tokens of people and programs.", MANAGER),
    "platform": Lazy("doctor:platform", "Clean the machines of a configuration.", MANAGER),
    "doctor": Lazy("doctor:doctor", "Check this machine, a configuration and its machines.", MANAGER),
    "config": Lazy("config:config", "Write, check, convert or show a configuration.", TOOLS),
    "algo": Lazy("algo:algo", "List built-in algorithms; register your own.", TOOLS),
    "completion": Lazy("completion:completion", "Print the completion script for your shell.", TOOLS),
    "version": Lazy("manager:version", "Print the version of the command line and the manager.", TOOLS),
    "hello": Lazy("nnictl:hello", "", hidden=True),
    "ss_gen": Lazy("nnictl:ss_gen", "", hidden=True),
    "package": Lazy("nnictl:package", "", hidden=True),
    "trainingservice": Lazy("nnictl:trainingservice", "", hidden=True),
    "jupyter-extension": Lazy("nnictl:jupyter_extension", "", hidden=True),
}

ALIASES = {
    "experiments": "experiment",
    "trials": "trial",
    "logs": "log",
    "node": "nodes",
    "algorithm": "algo",
    "tokens": "token",
}


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
    epilog=examples(
        "proctor config init train.py         # write experiment.yml for a script",
        "proctor create experiment.yml        # start the experiment",
        "proctor top                          # watch it",
        "proctor trial ls --sort best         # its results",
    )
    + "\n\nExit codes: 0 done, 1 failed, 2 wrong input, 3 not found, 4 not authorized, 5 conflict or ambiguous, "
    "6 no manager; when waiting for an experiment: 100 it failed, 101 still running, 103 it was stopped; 130 Ctrl-C.",
)
@click.option("--home", metavar="DIR", help="Folder of the manager's state  [env: PROCTOR_HOME]")
@click.option("--url", metavar="URL", help="URL of a manager on another host  [env: PROCTOR_URL, PROCTOR_TOKEN]")
@click.option("--debug", is_flag=True, help="Show tracebacks of errors.")
@nnictl_option(
    "--version",
    nnictl=["-v"],
    is_flag=True,
    expose_value=False,
    is_eager=True,
    callback=_print_version,
    help="Print the version of the command line.",
)
@click.pass_context
def cli(context: click.Context, home: str | None, url: str | None, debug: bool) -> None:
    """Proctor runs machine-learning experiments: one YAML file in, the best trial out.

    If ID is omitted, the only running experiment is used. Any unique prefix of an id works.
    """
    session = CliSession(home=home, url=url, debug=debug)
    context.obj = session
    context.call_on_close(session.close)


def main() -> None:
    """The console script."""
    cli.main(prog_name="proctor")


if __name__ == "__main__":
    main()

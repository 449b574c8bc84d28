"""nnictl's verbs that are not Proctor's: each answers with one sentence. And `proctor tensorboard`, which NNI 2 had."""

import shutil
import subprocess
import sys
from pathlib import Path

import click

from proctor.manager.cli.exits import CommandError, ExitCode
from proctor.manager.cli.identifiers import find_experiment, find_trial
from proctor.manager.cli.lazy import examples
from proctor.manager.cli.session import CliSession, with_session

ANY_ARGUMENTS = {"ignore_unknown_options": True, "allow_extra_args": True}


def _answering(name: str, sentence: str) -> click.Command:
    """A command that does nothing but say what to do instead, whatever its arguments are."""

    def answer() -> None:
        raise CommandError(f"there is no `proctor {name}`: {sentence}", ExitCode.USAGE)

    return click.Command(
        name, callback=answer, help=f"{sentence[0].upper()}{sentence[1:]}.", context_settings=ANY_ARGUMENTS, hidden=True
    )


hello = _answering(
    "hello", "nnictl's copied a demo; examples/nni-unchanged in Proctor's repository has NNI's three files to copy"
)
ss_gen = _answering(
    "ss_gen", "it generated a search space from annotations, which are not offered; write searchSpace in the YAML file"
)
package = _answering("package", "it is called `proctor algo` (as in nnictl): `proctor algo register -m META`")
trainingservice = _answering(
    "trainingservice",
    "a training service is a Python package here: install it with pip and name it under trainingService.platform",
)
jupyter_extension = _answering(
    "jupyter-extension",
    "JupyterLab needs no extension: `proctor webui url` prints the page, and proctor.Experiment works in a notebook",
)


@click.command(epilog=examples("proctor tensorboard", "proctor tensorboard k3x9 -T 7 --port 6007"))
@click.argument("words", metavar="[ID]", nargs=-1)
@click.option("-T", "--trial", "--trial_id", "trial", metavar="TRIAL", help="Show only this trial.")
@click.option("-p", "--port", type=click.IntRange(0, 65535), help="Port of TensorBoard.  [default: 6006]")
@with_session
def tensorboard(session: CliSession, words: tuple[str, ...], trial: str | None, port: int | None) -> int:
    """Start TensorBoard on the files of an experiment's trials; Ctrl-C ends it.

    It shows what is on this machine: trials on other machines appear when their files have been collected.
    """
    names = list(words)
    if names[:1] == ["stop"]:
        raise CommandError("TensorBoard runs in the terminal that started it; Ctrl-C ends it there", ExitCode.USAGE)
    if names[:1] == ["start"]:  # nnictl's
        names.pop(0)
    if len(names) > 1:
        raise click.UsageError(f"expected at most one ID, found {' '.join(names)}")
    identifier = names[0] if names else None
    if trial is None:
        found = find_experiment(session.client, identifier, ended_too=True)
    else:
        found = find_trial(session.client, trial, identifier)
    directory = Path(found["directory"])
    if not directory.is_dir():
        raise CommandError(f"{directory} is not on this machine; run it where the manager runs")
    beside_python = Path(sys.executable).with_name("tensorboard")  # in an environment that is not activated
    program = shutil.which("tensorboard") or shutil.which(beside_python)
    if program is None:
        raise CommandError(
            "TensorBoard is not installed: `pip install tensorboard`, then run this again, or elsewhere: "
            f"tensorboard --logdir {directory}"
        )
    session.report(f"TensorBoard shows {directory}; Ctrl-C ends it.")
    return subprocess.call([program, "--logdir", str(directory), *([] if port is None else ["--port", str(port)])])

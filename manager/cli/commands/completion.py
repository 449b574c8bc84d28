"""`proctor completion`."""

import click
from click.shell_completion import get_completion_class

from proctor.manager.cli.identifiers import OneOf
from proctor.manager.cli.lazy import examples
from proctor.manager.cli.output import echo


@click.command(
    epilog=examples(
        "proctor completion bash > ~/.local/share/bash-completion/completions/proctor",
        "proctor completion zsh > ~/.zfunc/_proctor      # with ~/.zfunc in $fpath",
        "proctor completion fish > ~/.config/fish/completions/proctor.fish",
    )
)
@click.argument("shell", type=OneOf(["bash", "zsh", "fish"]))
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Print the completion script for your shell."""
    kind = get_completion_class(shell)
    assert kind is not None, "click knows the three shells"
    script = kind(context.find_root().command, {}, "proctor", "_PROCTOR_COMPLETE")
    echo(script.source_template % script.source_vars())

"""A configuration file as it is named, as it is checked, and as it is posted to the manager."""

from collections.abc import Callable
from functools import partial, wraps
from pathlib import Path
from typing import Any

import click

from proctor.manager.cli.exits import CommandError, ExitCode
from proctor.manager.cli.session import CliSession

CONFIG_PATH = click.Path(path_type=Path)


def config_file_argument(*, required: bool = True) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Adds the FILE of an experiment; `-c/--config FILE`, as nnictl has it, is the same. The function gets `file`."""

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(function)
        def call(*arguments: Any, file: Path | None, config: Path | None, **options: Any) -> Any:
            if file is not None and config is not None:
                raise click.UsageError(f"give one FILE; found {file} and --config {config}")
            if required and file is None and config is None:
                raise click.UsageError("give the FILE of an experiment (YAML or JSON)")
            return function(*arguments, file=file or config, **options)

        also = click.option("-c", "--config", type=CONFIG_PATH, metavar="FILE", help="The same as FILE.")
        metavar = "FILE" if required else "[FILE]"
        return click.argument("file", metavar=metavar, required=False, type=CONFIG_PATH)(also(call))

    return decorate


def load_checked(session: CliSession, path: Path) -> Any:
    """The LoadedExperiment of a file; notices go to stderr. Raises CommandError with every problem."""
    from proctor.manager.config.errors import ConfigError, MissingPackage, describe_problems
    from proctor.manager.config.loading import load_experiment
    from proctor.manager.dispatcher.algorithms.registered import registered_algorithms
    from proctor.manager.dispatcher.class_args import Caller, refusal

    registered = registered_algorithms(session.home.path)
    try:
        loaded = load_experiment(path, registered=registered, refusal=partial(refusal, caller=Caller.captured({})))
    except MissingPackage as error:
        raise CommandError(str(error), ExitCode.USAGE) from error
    except ConfigError as error:
        raise CommandError(
            f"{path} is not a valid configuration:\n{describe_problems(error)}", ExitCode.USAGE
        ) from error
    for notice in loaded.notices:
        session.report(f"Notice: {notice}")
    return loaded


def posted_mapping(loaded: Any) -> dict[str, Any]:
    """The configuration as the manager gets it: as it was written, less the secrets, with the class in place of a name
    that is registered in this home; the manager may have another one."""
    config, mapping = loaded.config, dict(loaded.mapping)
    spellings = {"tuner": ("tuner", "advisor"), "assessor": ("assessor",), "trial_scheduler": ("trialscheduler",)}
    for kind, spelled in spellings.items():
        key = next((name for name in mapping if name.lower().replace("_", "") in spelled), None)
        algorithm = getattr(config, kind)
        if key is not None and algorithm is not None and algorithm.class_name is not None:
            del mapping[key]
            mapping[kind] = algorithm.model_dump(mode="json", by_alias=False, exclude_none=True)
    return mapping

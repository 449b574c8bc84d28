"""A configuration file as it is checked, and as it is posted to the manager."""

from functools import partial
from pathlib import Path
from typing import Any

from proctor.manager.cli.exits import CommandError, ExitCode
from proctor.manager.cli.session import CliSession


def load_checked(session: CliSession, path: Path) -> Any:
    """The LoadedExperiment of a file; notices go to stderr. Raises CommandError with every problem."""
    from proctor.manager.config.errors import ConfigError, describe_problems
    from proctor.manager.config.loading import load_experiment
    from proctor.manager.dispatcher.algorithms.registered import registered_algorithms
    from proctor.manager.dispatcher.class_args import Caller, refusal

    registered = registered_algorithms(session.home.path)
    try:
        loaded = load_experiment(path, registered=registered, refusal=partial(refusal, caller=Caller.captured({})))
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
    for kind, spellings in (("tuner", ("tuner", "advisor")), ("assessor", ("assessor",))):
        key = next((name for name in mapping if name.lower() in spellings), None)
        algorithm = getattr(config, kind)
        if key is not None and algorithm is not None and algorithm.class_name is not None:
            del mapping[key]
            mapping[kind] = algorithm.model_dump(mode="json", by_alias=False, exclude_none=True)
    return mapping

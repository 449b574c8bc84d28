"""A configuration file as it is checked, and as it is posted to the manager."""

from functools import partial
from pathlib import Path
from typing import Any

from proctor.manager.cli.exits import CommandError, ExitCode
from proctor.manager.cli.session import CliSession


def load_checked(session: CliSession, path: Path) -> Any:
    """The LoadedExperiment of a file; notices go to stderr. Raises CommandError with every problem."""
    from proctor.manager.config import ConfigError, describe_problems, load_experiment
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
        session.say(f"Notice: {notice}")
    return loaded


def posted_mapping(loaded: Any, file: Path) -> dict[str, Any]:
    """The configuration as the manager gets it."""
    return with_classes(written_mapping(loaded.source_text, str(file)), loaded.config)


def written_mapping(text: str, file: str) -> dict[str, Any]:
    """The mapping of a configuration's text, read exactly as the check has read it."""
    from proctor.manager.config.document import parse
    from proctor.manager.config.errors import ConfigReport
    from proctor.manager.config.tree import plain

    root = parse(text, file, ConfigReport())
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

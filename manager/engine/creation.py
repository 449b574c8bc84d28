"""Making an experiment: checked, written into its folder, then into the store; and removing it.

What a killed manager has left half done is removed when the next one starts (`remove_leftovers`).
"""

import asyncio
import json
import logging
import os
import re
import shutil
import sqlite3
import stat
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from proctor.manager.actors import Actor
from proctor.manager.dispatcher.algorithms.catalog import CURRENT_RULES
from proctor.manager.dispatcher.algorithms.registered import RegistrationError, registered_algorithms
from proctor.manager.dispatcher.class_args import Caller, refusal
from proctor.manager.engine import code
from proctor.manager.engine.context import EngineContext
from proctor.manager.engine.loop.checkpoint_storage import owner_of
from proctor.manager.engine.loop.starts import new_id
from proctor.manager.errors import BadRequest, Unavailable
from proctor.manager.lifecycle.states import ExperimentStatus
from proctor.manager.settings import CONFIG_FILE, ENVIRONMENT_FILE, METRICS_FILE, UNFINISHED_FILE, Home
from proctor.manager.store.database import Database
from proctor.manager.store.errors import DatabaseUnusable
from proctor.manager.store.rows import ExperimentRow
from proctor.manager.store.tables import events, experiments
from proctor.manager.trial_commands import problem_of
from proctor.sdk import files
from proctor.sdk.checkpoints.ownership import OWNER_FILE, FolderPlace, Owner, describe_other
from proctor.sdk.client.credentials import HELD_PREFIX, wanted_secrets
from proctor.training_services.base import TrainingService
from proctor.training_services.providers import SECRETS_FILE, read_secrets
from proctor.training_services.registry import ServiceContext
from proctor.training_services.shared_storage import MarkNote

if TYPE_CHECKING:
    from proctor.manager.config.experiment import ExperimentConfig
    from proctor.manager.config.loading import LoadedExperiment

log = logging.getLogger(__name__)

CHECKPOINT_FOLDER = "checkpoint"
"""Where a tuner of the user's own keeps its state."""
_TOKEN_DRAFT = re.compile(r"\.(readonly\.)?token\.[0-9a-f]{8}")
_DRAFT = re.compile(
    r"((manager|named-tokens|algorithms)\.json|manager\.id|keeper\.key|keepers\.pem|control\.witness|(readonly\.)?token|"
    r"run/(socket|endpoint|port))(\.\d+)?\.new"
)
"""How files of the home are called before they are complete, see `files.replace_file`. Others are not ours."""
_OURS = frozenset({CONFIG_FILE, UNFINISHED_FILE, OWNER_FILE})
"""Files that show that a folder is an experiment's."""
HANDOVER_SECONDS = 3600.0
"""A handed-over file that is older was left by a `create` that was killed."""
LOCK_SECONDS = 2.0
"""A held file that is younger may not be locked yet."""


@dataclass(frozen=True)
class CreationRequest:
    """What `create` left in the home's `incoming` folder: it must not travel over REST."""

    environment: Mapping[str, Any]
    secrets: Mapping[str, str]


def check(config: Mapping[str, Any], directory: str, home: Path, *, caller: Caller | None = None) -> "LoadedExperiment":
    """Validate a configuration as it was written; it may name the algorithms that are registered in the home.

    :param caller: where their validators are run; None: they are not asked.

    Raises BadRequest with every problem, Unavailable when the registered algorithms cannot be read. Blocks; the first
    call loads the models of configurations.
    """
    from proctor.manager.config.errors import ConfigError, describe_problems
    from proctor.manager.config.loading import load_experiment_mapping

    try:
        refuses = None if caller is None else partial(refusal, caller=caller)
        return load_experiment_mapping(config, directory, registered=registered_algorithms(home), refusal=refuses)
    except ConfigError as error:
        text = "; ".join(describe_problems(error).splitlines())
        raise BadRequest(f"the configuration is not valid: {text}", error.problems) from error
    except RegistrationError as error:
        raise Unavailable(str(error)) from error


def check_command(config: "ExperimentConfig", environment: Mapping[str, str] | None) -> None:
    """Raise BadRequest where trials on this machine could never run the command.

    :param environment: that of the caller, which trials will have; None: it is not known, and nothing is checked.
    """
    if config.training_service.platform != "local" or environment is None:
        return
    if problem := problem_of(config.trial_command, str(config.trial_code_directory), environment):
        raise BadRequest(f"the configuration is not valid: trialCommand: {problem}", [f"trialCommand: {problem}"])


def handover_path(home: Home, name: str) -> Path:
    """The path of a file in the home's `incoming` folder. Raises BadRequest for a name that is not one."""
    path = home.incoming_directory / name
    if path.parent != home.incoming_directory or os.path.islink(path) or not os.path.isfile(path):
        raise BadRequest(f"there is no request file {name!r} in {home.incoming_directory}")
    return path


def read_handover(home: Home, name: str | None) -> CreationRequest:
    """Read a handed-over file. Raises BadRequest for a name that is not one, and for a damaged file."""
    if name is None:
        return CreationRequest({}, {})
    try:
        body = json.loads(handover_path(home, name).read_bytes())
        secrets = body.pop("secrets", None) or {}
        if not _are_texts(secrets) or not _is_environment(body):
            raise TypeError("a value of the wrong type")
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        raise BadRequest(
            f"the handed-over file {name!r} should be a JSON object with environment, cwd, executable, umask and "
            f"secrets, but: {error}; `proctor create` writes it"
        ) from error
    return CreationRequest(body, secrets)


def _is_environment(body: Mapping[str, Any]) -> bool:
    are_paths = all(isinstance(body.get(name) or "", str) for name in ("cwd", "executable"))
    umask = body.get("umask", 0)
    return are_paths and _are_texts(body.get("environment") or {}) and type(umask) is int and 0 <= umask <= 0o777


def _are_texts(values: Any) -> bool:
    return isinstance(values, dict) and all(isinstance(value, str) for value in values.values())


def take_handover(home: Home, name: str | None) -> CreationRequest:
    """Read and remove a handed-over file. Raises BadRequest for a name that is not one."""
    handover = read_handover(home, name)
    if name is not None:
        handover_path(home, name).unlink()
    return handover


def check_secrets(config: "ExperimentConfig", secrets: Mapping[str, str]) -> None:
    """Whether what the configuration names (`passwordEnv`, `passwordPrompt` …) was handed over. Raises BadRequest."""
    missing = [wanted for wanted in wanted_secrets(config.canonical()) if not secrets.get(wanted.path)]
    if missing:
        labels = ", ".join(wanted.label for wanted in missing)
        raise BadRequest(
            f"the configuration names secrets that were not provided: {labels}; `proctor create` looks them up, "
            f"other callers pass them under `secrets` in the request file, by path: {missing[0].path!r}"
        )


def write_folder(
    directory: Path,
    loaded: "LoadedExperiment",
    handover: CreationRequest,
    note: MarkNote | None = None,
    *,
    owner: Owner | None = None,
) -> None:
    """Everything about the experiment that is not in the store, durably: the store relies on it. What shows that the
    folder is ours comes first.

    :param note: about the mark in the place of its checkpoints, if it may have one.
    :param owner: whose it is, if it is outside the home.
    """
    make_folder(directory, loaded.config, owner=owner)
    if note is not None:
        note.write(directory)
    if loaded.config.code_snapshot:
        code.freeze(Path(loaded.config.trial_code_directory), directory)
        files.sync_tree(str(directory))
    write_handover(directory, CreationRequest(handover.environment, {**loaded.secrets, **handover.secrets}))
    files.sync_folder(str(directory))


def make_folder(directory: Path, config: "ExperimentConfig", *, owner: Owner | None = None) -> None:
    """A new folder, marked as unfinished, with what shows that it is ours. Raises FileExistsError.

    :param owner: whose it is, if it is outside the home.
    """
    files.make_folder(str(directory.parent))
    directory.mkdir(mode=0o700)
    (directory / UNFINISHED_FILE).touch(mode=0o600)
    files.sync_folder(str(directory))
    if owner is not None:
        FolderPlace(str(directory)).write(OWNER_FILE, owner.encode())
    _write(directory / CONFIG_FILE, config.canonical())
    for name in ("log", CHECKPOINT_FOLDER, "trials"):
        (directory / name).mkdir(mode=0o700)


async def make_metrics(directory: Path, *, threads: bool) -> None:
    """The experiment's metrics database, empty, on the disk when this returns: from now on it must be there. Raises
    DatabaseUnusable, OSError."""
    await (await Database.open(str(directory / METRICS_FILE), "metrics", threads=threads)).close()
    for folder in (directory, directory.parent):
        await asyncio.to_thread(files.sync_folder, str(folder))


def finish_folder(directory: Path) -> None:
    """The experiment's rows are written."""
    (directory / UNFINISHED_FILE).unlink(missing_ok=True)


def write_handover(directory: Path, handover: CreationRequest) -> None:
    """The caller's environment and secrets, for the owner only."""
    if handover.environment:
        _write(directory / ENVIRONMENT_FILE, handover.environment)
    if handover.secrets:
        _write(directory / SECRETS_FILE, handover.secrets)


def make_service(context: EngineContext, experiment: ExperimentRow) -> TrainingService:
    """A new instance of the experiment's training service. Raises whatever is in the way."""
    settings = experiment.config["training_service"]
    directory = Path(experiment.directory)
    service_context = ServiceContext(
        experiment.id,
        directory,
        context.pool,
        context.hub,
        settings,
        providers=context.providers,
        secrets=read_secrets(directory),
    )
    return context.create_service(settings["platform"], service_context)


def _write(path: Path, body: Mapping[str, Any]) -> None:
    files.replace_file(str(path), json.dumps(dict(body), indent=1).encode(), durable=True)


def experiment_directory(home: Home, loaded: "LoadedExperiment", experiment_id: str) -> Path:
    """`experimentWorkingDirectory`/<id>, or the experiment's folder in the home."""
    chosen = loaded.config.experiment_working_directory
    return home.experiment_directory(experiment_id) if chosen is None else Path(chosen) / experiment_id


def new_row(loaded: "LoadedExperiment", experiment_id: str, directory: Path, now: float) -> ExperimentRow:
    """The experiment's first row."""
    config = loaded.config
    return ExperimentRow(
        id=experiment_id,
        name=config.experiment_name or experiment_id,
        status=ExperimentStatus.INITIALIZED,
        reason="starting",
        error="",
        config=config.canonical(),
        directory=str(directory),
        seed=new_seed(config),
        trial_concurrency=config.trial_concurrency,
        max_trial_number=config.max_trial_number,
        max_experiment_seconds=config.max_experiment_duration_seconds,
        max_trial_seconds=config.max_trial_duration_seconds,
        max_gpu_hours=config.max_gpu_hours,
        priority=config.priority,
        search_space=config.search_space,
        created_at=now,
        rules=CURRENT_RULES,
    )


def new_seed(config: "ExperimentConfig") -> int:
    """The configuration's seed, or a random one."""
    return config.seed if config.seed is not None else int.from_bytes(os.urandom(4))


def insert(connection: sqlite3.Connection, row: ExperimentRow, notices: Sequence[str], actor: Actor) -> None:
    """Store the experiment, and the notices about its configuration and its platform."""
    experiments.insert(connection, row, actor=actor)
    for notice in notices:
        events.append(connection, time=row.created_at, kind=events.NOTICE, data={"text": notice}, experiment_id=row.id)


def make_id(wanted: str | None) -> str:
    """The user's id, checked, or a new one."""
    if wanted is None:
        return new_id()
    if not (1 <= len(wanted) <= 32 and all(c.isascii() and (c.isalnum() or c in "_-") for c in wanted)):
        raise BadRequest(f"experiment id {wanted!r}: expected 1 to 32 letters, digits, '_' or '-'")
    return wanted


def is_unfinished(directory: Path) -> bool:
    """Whether a folder without an experiment in the store may be removed: it was still being made. Raises OSError."""
    return (directory / UNFINISHED_FILE).exists() or (directory.is_dir() and not any(directory.iterdir()))


def is_in_home(home: Home, directory: Path) -> bool:
    """Whether a folder is below the home, and not by way of a link that leads out of it."""
    return Path(os.path.realpath(directory)).is_relative_to(os.path.realpath(home.path))


async def find_stranger(home: Home, control: Database, row: ExperimentRow, *, only_outside: bool = False) -> str:
    """Return why what is at the place of an experiment's folder is not that, as a clause; "" if it is, or nothing is
    there. Raises DatabaseUnusable where that cannot be looked at.

    :param only_outside: believe what is in the home.
    """
    directory, owner = Path(row.directory), None
    try:
        if not await asyncio.to_thread(is_in_home, home, directory):
            owner = await owner_of(control, row.id, row.created_at)
        elif only_outside:
            return ""
        return await asyncio.to_thread(_why_strange, directory, owner, row.config)
    except OSError as error:
        raise DatabaseUnusable(f"{directory} cannot be read: {error.strerror or error}") from error


def _why_strange(directory: Path, owner: Owner | None, config: Mapping[str, Any]) -> str:
    """Look at the folder for `find_stranger`. Blocks.

    :param owner: whose the folder must be; None: it is in the home, and so this manager's.
    :param config: the experiment's, which an earlier version has left as the only proof.
    """
    place = FolderPlace(str(directory))
    names = set(place.names())
    if not names:
        return ""
    if owner is not None and (mark := place.read(OWNER_FILE)) is not None:
        found = Owner.decode(mark)
        return "" if found == owner else describe_other(found, owner)
    if names & _OURS if owner is None else _read_config(directory) == config:
        return ""
    return "nothing shows that it is this experiment's"


def _read_config(directory: Path) -> Any:
    try:
        return json.loads((directory / CONFIG_FILE).read_bytes())
    except (FileNotFoundError, ValueError):
        return None


def remove_folder(directory: Path) -> None:
    """Delete an experiment's folder, and the link that has taken its place. Does nothing where there is none, or where
    it is not ours.

    What shows that it is ours, or unfinished, goes last, so that a manager that is killed here can begin again.
    """
    found = list(directory.iterdir()) if directory.is_dir() else []
    if (found or not directory.is_dir()) and _OURS.isdisjoint(path.name for path in found):
        return
    for path in sorted(found, key=lambda path: (path.name in _OURS, path.name == OWNER_FILE)):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()
    directory.resolve().rmdir()
    if directory.is_symlink():
        directory.unlink()
    files.sync_folder(str(directory.parent))  # before the store forgets the experiment


# ---- what killed managers have left half done -----------------------------------------------------------------------


def remove_leftovers(home: Home, known: Collection[str]) -> None:
    """Remove drafts of files, handed-over files that were not used, and the folders of experiments that were being
    created or loaded: not `known`, and marked as unfinished. Any other folder that is not known is left alone, with a
    warning: it may be an experiment whose row was lost.

    Only for the home's one manager, before it serves. A file that cannot be removed is no reason not to start.
    """
    for path in (*_drafts(home), *_unborn(home, known)):
        log.info("removing %s, left by a killed manager", path, extra={"action": "leftover.remove"})
        try:
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)
        except OSError as error:
            log.warning("%s cannot be removed: %s", path, error, extra={"action": "leftover.remove"})


def _drafts(home: Home) -> Iterator[Path]:
    for path in (*home.path.glob(".*token.*"), *home.path.glob("*.new"), *home.run_directory.glob("*.new")):
        name = str(path.relative_to(home.path))
        if _DRAFT.fullmatch(name) or _TOKEN_DRAFT.fullmatch(name):
            yield path
    now = time.time()
    for path in home.incoming_directory.glob("*"):
        with suppress(FileNotFoundError):  # its writer has removed it just now
            facts = path.lstat()
            if not stat.S_ISREG(facts.st_mode) or facts.st_mode & stat.S_IRWXO:
                continue  # a user's, in a folder that was not always a home
            age = now - facts.st_mtime
            if path.name.startswith(HELD_PREFIX):
                is_left = age > LOCK_SECONDS and not files.is_locked(path)
            else:
                is_left = age > HANDOVER_SECONDS and path.suffix == ".json"
            if is_left:
                yield path


def _unborn(home: Home, known: Collection[str]) -> Iterator[Path]:
    for path in home.experiments_directory.glob("*"):
        if path.name in known:
            if (path / UNFINISHED_FILE).exists():
                yield path / UNFINISHED_FILE
        elif is_unfinished(path):
            yield path
        else:
            text = "%s does not belong to any experiment in the database; it is left alone"
            log.warning(text, path, extra={"action": "leftover.keep"})

"""How an experiment's dispatcher process is started: with which interpreter, in which environment.

Built-in algorithms run in the manager's own interpreter. A class of the user's runs in the interpreter that `create`
was called with, so that it finds what it imports; `proctor` and the `nni` shim are put first on its path.
"""

import json
import os
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import proctor
from proctor.manager.dispatcher.client.client import Opener
from proctor.manager.dispatcher.client.liveness import Patience
from proctor.manager.dispatcher.client.process import open_process
from proctor.manager.settings import ENVIRONMENT_FILE, Home
from proctor.manager.store.rows import ExperimentRow
from proctor.sdk.process_limits import users_open_files, users_umask

if TYPE_CHECKING:
    from proctor.manager.config.experiment import ExperimentConfig

PATH_FOLDER = "dispatcher-path"
"""In the home: a folder with nothing but links to `proctor` and `nni`, to be put on a dispatcher's path."""


class ProcessDispatchers:
    """Makes openers of dispatcher processes; called with an experiment's row and configuration."""

    def __init__(self, home: Home, patience: Patience = Patience()) -> None:  # noqa: B008 - frozen
        self._patience = patience
        self._path_folder = home.path / PATH_FOLDER

    def __call__(self, row: ExperimentRow, config: "ExperimentConfig") -> Opener:
        directory = Path(row.directory)
        custom = config.has_own_algorithm
        captured = _captured(directory)
        executable = str(captured.get("executable") or sys.executable) if custom else sys.executable

        def opener() -> Any:
            return open_process(
                log_path=directory / "log" / "dispatcher.log",
                directory=Path(captured.get("cwd") or directory) if custom else directory,
                environment=self._environment(captured if custom else {}, config),
                umask=int(captured.get("umask", users_umask())),
                executable=executable if Path(executable).exists() else sys.executable,
                patience=self._patience,
                open_files=users_open_files(),
            )

        return opener

    def _environment(self, captured: Mapping[str, Any], config: "ExperimentConfig") -> dict[str, str]:
        environment = dict(captured.get("environment") or os.environ)
        ours = {name: value for name, value in os.environ.items() if name.startswith("PROCTOR_FAILPOINT")}
        before = environment.get("PYTHONPATH")
        environment["PYTHONPATH"] = os.pathsep.join([str(self._prepared_path()), *([before] if before else [])])
        counts = config.tuner.counts_intermediate_results
        environment["NNI_INCLUDE_INTERMEDIATE_RESULTS"] = "true" if counts else "false"
        if config.tuner_gpu_indices is not None:
            environment["CUDA_VISIBLE_DEVICES"] = ",".join(str(index) for index in config.tuner_gpu_indices)
        return environment | ours

    def _prepared_path(self) -> Path:
        """The folder of links, made when it is missing or points elsewhere."""
        package = Path(next(iter(proctor.__path__))).resolve()
        self._path_folder.mkdir(mode=0o700, exist_ok=True)
        for name, target in (("proctor", package), ("nni", package / "sdk" / "compat" / "nni")):
            link = self._path_folder / name
            if not link.is_symlink() or link.readlink() != target:
                with suppress(FileNotFoundError):
                    link.unlink()
                link.symlink_to(target)
        return self._path_folder


def _captured(directory: Path) -> dict[str, Any]:
    """What `create` captured of its caller's environment; nothing when there is no such file."""
    try:
        return dict(json.loads((directory / ENVIRONMENT_FILE).read_text()))
    except FileNotFoundError:
        return {}

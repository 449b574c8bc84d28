"""The environment a trial starts in: the captured one of the user, the launch's own, ours on top. And its command, in
which assignments of PYTHONPATH keep the folder that makes `import proctor` work."""

import json
import os
import re
from collections.abc import Mapping

from proctor.sdk.file_modes import users_umask
from proctor.sdk.protocol import ENV_INHERITED_LAUNCHES, describe_launches, trial_environment
from proctor.trial_keeper.protocol import Launch

BUNDLE_VARIABLE = "PROCTOR_PYTHONPATH"
"""The variable of a trial's environment that names the folder first on PYTHONPATH."""

_ASSIGNMENT = re.compile(r"""(?<![^\s;&|(`"'])PYTHONPATH=(?P<end>[\s;&|)]|$)?""")
"""PYTHONPATH=… where a shell or `env` takes it for an assignment; `end` matches where the value is empty."""
_PLAIN_PATH = re.compile(r"[\w@%+=:,./-]+", re.ASCII)

_KEPT_FROM_TRIALS = ("PROCTOR_FAILPOINT", "PROCTOR_FAILPOINT_LOG", "PROCTOR_FAILPOINT_COUNTER")


class CapturedEnvironments:
    """What `create` captured of its caller, in files that are each read once as long as they do not change."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[tuple[int, int], dict[str, str], int]] = {}

    def read(self, path: str | None) -> Mapping[str, str]:
        """The environment in the file; without a file, the keeper's own. Raises OSError and ValueError."""
        return os.environ if path is None else self._document(path)[0]

    def umask(self, path: str | None) -> int:
        """The umask in the file; where there is none, the keeper's own at its start. Raises as `read`."""
        return users_umask() if path is None else self._document(path)[1]

    def _document(self, path: str) -> tuple[dict[str, str], int]:
        facts = os.stat(path)
        identity = (facts.st_ino, facts.st_mtime_ns)
        if path not in self._known or self._known[path][0] != identity:
            with open(path, encoding="utf-8") as file:
                document = json.load(file)
            environment = {str(name): str(value) for name, value in document["environment"].items()}
            self._known = {path: (identity, environment, int(document.get("umask", users_umask())))}
        return self._known[path][1:]


def visible_devices(launch: Launch) -> str | None:
    """CUDA_VISIBLE_DEVICES for this launch; None when its GPUs are not managed."""
    if launch.gpus is None:
        return None
    return ",".join(dict.fromkeys(slot.uuid for slot in launch.gpus))


def build_environment(launch: Launch, captured: Mapping[str, str], bundle: str) -> dict[str, str]:
    """Everything the trial will find in its environment.

    :param bundle: the folder that makes `import proctor` work; it goes first on PYTHONPATH.
    """
    environment = {**captured, **launch.environment}
    for name in _KEPT_FROM_TRIALS:
        environment.pop(name, None)
    python_path = environment.get("PYTHONPATH")
    environment["PYTHONPATH"] = f"{bundle}{os.pathsep}{python_path}" if python_path else bundle
    environment[BUNDLE_VARIABLE] = bundle
    if launch.search_path:
        environment["PATH"] = f"{launch.search_path}{os.pathsep}{environment.get('PATH') or os.defpath}"
    devices = visible_devices(launch)
    if devices is not None:
        environment["CUDA_VISIBLE_DEVICES"] = devices
    environment.pop(ENV_INHERITED_LAUNCHES, None)
    if launches := describe_launches(environment):
        environment[ENV_INHERITED_LAUNCHES] = launches
    environment.update(
        trial_environment(
            experiment_id=launch.experiment_id,
            trial_id=launch.trial_id,
            job_id=launch.job_id,
            sequence_id=launch.sequence_id,
            job_directory=launch.directory,
            code_directory=launch.code_directory,
            platform=launch.platform,
            resume_checkpoint=launch.resume_checkpoint,
        )
    )
    return environment


def keep_bundle(command: str, bundle: str) -> str:
    """The trial's command, with the bundle first in every value that it assigns to PYTHONPATH. What a script sets that
    the command calls is not seen here (docs/decisions/0025).

    A path with characters that are special to a shell is named by a variable, because how the assignment is quoted is
    not known.
    """
    prefix = bundle if _PLAIN_PATH.fullmatch(bundle) else f"${{{BUNDLE_VARIABLE}}}"

    def assign(found: "re.Match[str]") -> str:
        end: str | None = found["end"]
        return f"PYTHONPATH={prefix}{os.pathsep if end is None else end}"

    return _ASSIGNMENT.sub(assign, command)

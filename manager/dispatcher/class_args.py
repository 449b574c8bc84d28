"""Asks the validator of a registered algorithm about its `classArgs`, and a class whether it can be registered.

Both are the user's code, so they run in a process of their own, as the algorithm itself will: in the interpreter, the
environment and the directory of the caller who creates the experiment, with `proctor` and the `nni` shim first on
its path. This module is both sides: `refusal` and `class_problem` start the process, which runs the module again.
"""

import importlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import proctor
from proctor.sdk.files import replace_file

TIME_LIMIT_SECONDS = 30.0
"""Importing a framework takes seconds; NNI gives a tuner 10."""
MOST_CHARACTERS = 2000
"""Of a refusal."""


class Validated(Protocol):
    """A registered algorithm."""

    @property
    def code_directory(self) -> str:
        """The folder that its modules are imported from."""

    @property
    def class_args_validator(self) -> str | None:
        """`module.Class` with a method validate_class_args(**class_args), or None."""


@dataclass(frozen=True)
class Caller:
    """Who creates an experiment: where the user's code runs."""

    executable: str
    environment: Mapping[str, str]
    directory: str | None = None

    @classmethod
    def captured(cls, handover: Mapping[str, Any]) -> "Caller":
        """The caller as `create` captured it; this process for what is not there."""
        executable, directory = str(handover.get("executable") or ""), str(handover.get("cwd") or "")
        return cls(
            executable if os.path.isfile(executable) else sys.executable,
            handover.get("environment") or os.environ,
            directory if os.path.isdir(directory) else None,
        )


def refusal(algorithm: Validated, class_args: Mapping[str, Any], caller: Caller) -> str:
    """Why the algorithm's validator does not accept the arguments, in a sentence; "" where it does or there is none.

    Takes TIME_LIMIT_SECONDS at most. Never raises for what the user's code does.
    """
    if algorithm.class_args_validator is None:
        return ""
    name = algorithm.class_args_validator
    question = {"validator": name, "code_directory": algorithm.code_directory, "class_args": dict(class_args)}
    answer, problem = _answer(question, caller)
    if problem:
        return f"{name}, which checks them, could not be asked: {problem}"
    return answer and f"{name} refuses them: {answer}"


def class_problem(kind: str, class_name: str, code_directory: str, caller: Caller) -> str:
    """Why `module.Class` is no algorithm of this kind that can be used, in a sentence; "" where it is one.

    The module is imported from the folder. Takes TIME_LIMIT_SECONDS at most. Never raises for what the user's code
    does.
    """
    question = {"class": class_name, "kind": kind, "code_directory": code_directory}
    answer, problem = _answer(question, caller)
    return f"{class_name} could not be checked: {problem}" if problem else answer


def _answer(question: Mapping[str, Any], caller: Caller) -> tuple[str, str]:
    """What the other side of this module answers, and why there is no answer: one of them is empty."""
    with tempfile.TemporaryDirectory(prefix="proctor-class-args-") as folder:
        path = Path(folder)
        package = Path(next(iter(proctor.__path__))).resolve()
        (path / "proctor").symlink_to(package)
        (path / "nni").symlink_to(package / "sdk" / "compat" / "nni")
        (path / "question.json").write_text(json.dumps(question))
        problem = _run(path, caller)
        try:
            return str(json.loads((path / "answer.json").read_text())["refusal"]), ""
        except (OSError, ValueError, KeyError, TypeError):
            return "", problem or "it gave no answer"


def _run(folder: Path, caller: Caller) -> str:
    """Run the other side of this module; what went wrong with its process, or ''."""
    environment = dict(caller.environment)
    before = environment.get("PYTHONPATH")
    environment["PYTHONPATH"] = os.pathsep.join([str(folder), *([before] if before else [])])
    log = folder / "output"
    try:
        with log.open("wb") as output:
            process = subprocess.Popen(
                [caller.executable, "-m", "proctor.manager.dispatcher.class_args", str(folder)],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                cwd=caller.directory,
                env=environment,
                start_new_session=True,
            )
    except OSError as error:
        return f"{caller.executable} cannot be started: {error}"
    try:
        process.wait(TIME_LIMIT_SECONDS)
    except subprocess.TimeoutExpired:
        return f"it took longer than {TIME_LIMIT_SECONDS:g} s"
    finally:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    lines = log.read_bytes()[-MOST_CHARACTERS:].decode(errors="replace").strip().splitlines()
    return f"its process ended with {process.returncode}" + (f" ({lines[-1]})" if lines else "")


def main(folder: Path) -> None:
    """Answer the question in a folder, as a process of its own."""
    question = json.loads((folder / "question.json").read_text())
    try:
        sys.path.insert(0, question["code_directory"])
        if "class" in question:
            answer = _look_at(question["class"], question["kind"])
        else:
            answer = _ask(question["validator"], question["class_args"])
    except BaseException as error:  # the user's code may raise SystemExit and the like, too
        answer = f"{type(error).__name__}: {error}"
    replace_file(folder / "answer.json", json.dumps({"refusal": answer[:MOST_CHARACTERS]}).encode(), durable=False)


def _look_at(class_name: str, kind: str) -> str:
    from proctor.sdk.assessor import Assessor
    from proctor.sdk.scheduler import TrialScheduler
    from proctor.sdk.tuner import Tuner

    module_name, _, name = class_name.rpartition(".")
    try:
        module = importlib.import_module(module_name)
    except Exception as error:
        return f"{module_name} cannot be imported: {type(error).__name__}: {error}"
    found = getattr(module, name, None)
    if not isinstance(found, type):
        return f"{module.__file__} has no class {name}"
    bases: dict[str, type[Any]] = {"tuner": Tuner, "assessor": Assessor, "trialScheduler": TrialScheduler}
    if issubclass(found, bases[kind]):
        return ""
    other = next((word for word, base in bases.items() if issubclass(found, base)), None)
    if other is not None:
        return f"{class_name} is derived from {bases[other].__name__}: set algoType to {other}"
    base = bases[kind]
    of_nni = "" if base is TrialScheduler else f"nni.{kind}.{base.__name__} or "
    return f"{class_name} must be derived from {of_nni}{base.__module__}.{base.__name__}"


def _ask(validator: str, class_args: dict[str, Any]) -> str:
    module_name, _, name = validator.rpartition(".")
    check = getattr(importlib.import_module(module_name), name)().validate_class_args
    try:
        check(**class_args)
    except Exception as error:
        text = "; ".join(str(error).split("\n")).strip()
        return text or type(error).__name__
    return ""


if __name__ == "__main__":
    main(Path(sys.argv[1]))
    sys.stdout.flush()
    os._exit(0)  # without waiting for threads of the user's code

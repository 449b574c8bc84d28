"""Algorithms of the user's own that have been given a name, `proctor algo register`: home/algorithms.json.

A registered name stands for a class wherever a configuration may name a built-in algorithm.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from proctor.manager.dispatcher.algorithms.catalog import KINDS
from proctor.sdk.files import make_folder, name_beside, replace_file

FILE = "algorithms.json"
ADVISOR = "advisor"
"""NNI's word for a tuner that also judges."""


class RegistrationError(ValueError):
    """A meta file cannot be used, a name is taken, or the registry cannot be read; the text says what to do."""


@dataclass(frozen=True)
class RegisteredAlgorithm:
    """A class with a name."""

    name: str
    kind: str
    """tuner, assessor or trialScheduler; advisor (read as tuner) if an earlier version registered it."""
    class_name: str
    """`module.Class`."""
    code_directory: str
    """Absolute folder the module is imported from."""
    class_args_validator: str | None = None
    """`module.Class` with a method validate_class_args(**class_args)."""


def registered_algorithms(home: Path) -> dict[str, RegisteredAlgorithm]:
    """The registered algorithms of a home by lower-case name. Raises RegistrationError for an unreadable file."""
    path = home / FILE
    try:
        rows = json.loads(path.read_text(encoding="utf-8"))["algorithms"]
        found = [RegisteredAlgorithm(**row) for row in rows]
    except (FileNotFoundError, NotADirectoryError):  # a home that is no folder is complained of by who needs one
        return {}
    except (ValueError, KeyError, TypeError) as error:
        raise RegistrationError(f"{path} is damaged ({error}); repair it, or delete it and register again") from error
    return {algorithm.name.lower(): algorithm for algorithm in found}


def register(home: Path, algorithm: RegisteredAlgorithm) -> None:
    """Add an algorithm, or replace the one of the same name. Raises OSError, RegistrationError."""
    _write(home, {**registered_algorithms(home), algorithm.name.lower(): algorithm})


def unregister(home: Path, name: str) -> bool:
    """Remove an algorithm; whether there was one of that name."""
    known = registered_algorithms(home)
    removed = known.pop(name.lower(), None)
    if removed is not None:
        _write(home, known)
    return removed is not None


def read_meta(mapping: Mapping[str, Any], directory: Path) -> RegisteredAlgorithm:
    """An algorithm from NNI's meta file: algoType, builtinName, className, classArgsValidator; keys in any case.

    `codeDirectory` is an addition; without it the folder of the meta file is taken where the module is there.
    Raises RegistrationError.
    """
    given = {str(key).replace("_", "").lower(): value for key, value in mapping.items()}
    known = {"algotype", "builtinname", "classname", "classargsvalidator", "codedirectory"}
    unknown = sorted(set(given) - known)
    if unknown:
        raise RegistrationError(f"unknown key {unknown[0]!r}; expected algoType, builtinName, className")
    kind, name = _text(given, "algotype", "algoType").lower(), _text(given, "builtinname", "builtinName")
    kind = next((each for each in KINDS if each.lower() == kind), kind)
    class_name = _text(given, "classname", "className")
    if kind == ADVISOR:
        raise RegistrationError(
            f"algoType: advisor {name} is not offered: write a Tuner (and an Assessor that stops trials) and register "
            "those. Hyperband and BOHB are built in, as tuners"
        )
    if kind not in KINDS:
        raise RegistrationError(f"algoType: expected tuner, assessor or trialScheduler, found {kind!r}")
    if "." not in class_name:
        raise RegistrationError(f"className: expected module.Class, found {class_name!r}")
    validator = _text(given, "classargsvalidator", "classArgsValidator") if given.get("classargsvalidator") else None
    if validator is not None and "." not in validator:
        raise RegistrationError(f"classArgsValidator: expected module.Class, found {validator!r}")
    return RegisteredAlgorithm(
        name=name,
        kind=kind,
        class_name=class_name,
        code_directory=_code_directory(given.get("codedirectory"), class_name, directory),
        class_args_validator=validator,
    )


def _code_directory(given: Any, class_name: str, directory: Path) -> str:
    """Where the module is: as given, beside the meta file, or installed. No code of it is run to find out."""
    if given is not None:
        chosen = (directory / Path(str(given)).expanduser()).absolute()
        if not chosen.is_dir():
            raise RegistrationError(f"codeDirectory: there is no folder {chosen}")
        return str(chosen)
    module = directory.joinpath(*class_name.split(".")[:-1])
    if module.with_suffix(".py").is_file() or module.is_dir():
        return str(directory.absolute())
    found = find_spec(class_name.partition(".")[0])
    if found is None or found.origin is None:
        where = f"neither next to the meta file, in {directory.absolute()}, nor installed"
        raise RegistrationError(f"className: the module of {class_name} is {where}; add codeDirectory")
    package = Path(found.origin).parent
    return str(package.parent if found.submodule_search_locations else package)


def _text(given: Mapping[str, Any], key: str, written: str) -> str:
    value = given.get(key)
    if not isinstance(value, str) or not value.strip():
        raise RegistrationError(f"{written}: expected text, found {value!r}")
    return value.strip()


def _write(home: Path, algorithms: Mapping[str, RegisteredAlgorithm]) -> None:
    make_folder(str(home))
    body = {"version": 1, "algorithms": [asdict(algorithms[name]) for name in sorted(algorithms)]}
    text = json.dumps(body, indent=2) + "\n"
    unfinished = name_beside(home / FILE, of_thread=True)
    replace_file(home / FILE, text.encode(), durable=True, unfinished=unfinished)

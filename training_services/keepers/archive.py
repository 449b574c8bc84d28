"""The keeper archive, the one file that is brought to a machine or a pod: a zip archive that any Python ≥ 3.10 runs.

It holds the keeper, what the keeper needs of the SDK, what trials there import (`proctor.sdk.bundle`), and `pynvml`
from the installed nvidia-ml-py, whose metadata must say that it is pure Python and runs on 3.10. Nothing else of the
manager's environment. The same files give the same bytes, and its name holds their hash.

The one for pods holds the keeper compiled, too, for Pythons of the manager's version: a pod starts a keeper for each
trial. Machines, on which it is started once, get a file of half the size instead (decision 0013).
"""

import asyncio
import hashlib
import io
import marshal
import zipfile
from dataclasses import dataclass
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from importlib.resources import files
from importlib.resources.abc import Traversable
from importlib.util import MAGIC_NUMBER, source_hash
from pathlib import Path

from proctor.sdk.bundle import PACKAGES, bundle_files
from proctor.sdk.files import name_beside, replace_file
from proctor.training_services.errors import TrainingServiceError

__all__ = ["OLDEST_PYTHON", "ArchiveBuilder", "ArchiveNotBuilt", "KeeperArchive", "build"]

OLDEST_PYTHON = "3.10"

_NVML = "nvidia-ml-py"
_NVML_MODULE = "pynvml"
_HASH_LENGTH = 20
_KEEPER = "proctor/trial_keeper/"
_SDK = ("proctor/__init__.py", "proctor/sdk/")
_NOT_OF_PODS = (
    *(f"proctor/{package}/" for package in PACKAGES),
    "proctor/sdk/assessor.py",
    "proctor/sdk/compat/",
    "proctor/sdk/tuner.py",
    "proctor/trial_keeper/commands/",
    "proctor/trial_keeper/probe.py",
)
"""What no keeper of a pod imports."""
_UNCHECKED_HASH = (0b01).to_bytes(4, "little")
_MARSHAL_VERSION = 2
"""Later ones write what depends on the process that does it."""
_WITHOUT_DOCSTRINGS = 2
"""The level of optimization: docstrings would be a tenth of the archive."""
_DATE = (1980, 1, 1, 0, 0, 0)
_MODE = 0o644 << 16
_SDK_MODULES = ("sdk/bundle.py", "sdk/json_input.py")
"""What the keeper needs besides the trial side."""
_MAIN = b"""import sys

from proctor.trial_keeper.__main__ import main

sys.exit(main())
"""


class ArchiveNotBuilt(TrainingServiceError):
    """The keeper's archive cannot be built from what is installed here."""


@dataclass(frozen=True)
class KeeperArchive:
    """A built archive. `name` is `keeper-<first 20 of sha256>.pyz`."""

    path: Path
    sha256: str
    name: str


def build(folder: Path, *, is_compiled: bool = False) -> KeeperArchive:
    """Make sure that the archive of this version is in `folder`, which holds nothing else; blocks on the disk.

    :param is_compiled: whether the keeper is in it compiled, too.
    :raises ArchiveNotBuilt: what is installed cannot travel; says what to do.
    :raises OSError: the folder cannot be written.
    """
    content = archive_files()
    data = _zip(content | compile_keeper(content) if is_compiled else content)
    sha256 = hashlib.sha256(data).hexdigest()
    name = f"keeper-{sha256[:_HASH_LENGTH]}.pyz"
    path = folder / name
    if not path.is_file() or path.read_bytes() != data:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        unfinished = name_beside(path, of_thread=True)
        replace_file(path, data, durable=False, unfinished=unfinished)  # its bytes are compared before it is used
    for other in folder.glob("keeper-*.pyz*"):
        if other.name != name:
            other.unlink(missing_ok=True)
    return KeeperArchive(path, sha256, name)


class ArchiveBuilder:
    """Builds the archive in a folder when it is first needed, once. Concurrent calls wait for the same one."""

    def __init__(self, folder: Path, *, is_compiled: bool = False) -> None:
        self._folder = folder
        self._is_compiled = is_compiled
        self._lock = asyncio.Lock()
        self._built: KeeperArchive | None = None

    async def get(self) -> KeeperArchive:
        """The archive. Raises as `build`; the next call tries again."""
        async with self._lock:
            if self._built is None:
                self._built = await asyncio.to_thread(build, self._folder, is_compiled=self._is_compiled)
            return self._built


def archive_files() -> dict[str, bytes]:
    """The archive's files by name. Raises ArchiveNotBuilt."""
    package = files("proctor")
    content = {_source(name): data for name, data in bundle_files().items()}
    for name in _SDK_MODULES:
        content[f"proctor/{name}"] = package.joinpath(*name.split("/")).read_bytes()
    content.update(_read_package(package.joinpath("trial_keeper"), _KEEPER.rstrip("/")))
    content["__main__.py"] = _MAIN
    return content | _read_nvml()


def compile_keeper(content: dict[str, bytes]) -> dict[str, bytes]:
    """The modules that the keeper of a pod imports for this version of Python, by their names; any other one compiles
    the sources."""
    compiled: dict[str, bytes] = {}
    for name, source in content.items():
        if name.startswith((_KEEPER, *_SDK)) and not name.startswith(_NOT_OF_PODS):
            module = compile(source, name, "exec", dont_inherit=True, optimize=_WITHOUT_DOCSTRINGS)
            code = marshal.dumps(module, _MARSHAL_VERSION)
            compiled[f"{name}c"] = MAGIC_NUMBER + _UNCHECKED_HASH + source_hash(source) + code
    return compiled


def _read_package(folder: Traversable, target: str) -> dict[str, bytes]:
    """The Python files of a package and of the packages in it, by their names in the archive."""
    found: dict[str, bytes] = {}
    for entry in folder.iterdir():
        if entry.is_dir():
            found.update(_read_package(entry, f"{target}/{entry.name}"))
        elif entry.name.endswith(".py"):
            found[f"{target}/{entry.name}"] = entry.read_bytes()
    return found


def _source(name: str) -> str:
    """Where the bundle takes a file from, so that it can be made again out of the archive."""
    for source, target in PACKAGES.items():
        if name.startswith(f"{target}/"):
            return f"proctor/{source}{name.removeprefix(target)}"
    return name


def _zip(content: dict[str, bytes]) -> bytes:
    """Deflated: a quarter of the size on the wire, and no slower to import (both measured)."""
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for name in sorted(content):
            entry = zipfile.ZipInfo(name, _DATE)
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = _MODE
            entry.create_system = 3
            archive.writestr(entry, content[name])
    return target.getvalue()


def _read_nvml() -> dict[str, bytes]:
    """`pynvml` as it is installed here, once it is known that it runs elsewhere."""
    try:
        found = distribution(_NVML)
    except PackageNotFoundError as error:
        raise ArchiveNotBuilt(f"{_NVML} is not installed beside the manager; pip install '{_NVML}>=13'") from error
    _check_that_it_travels(found)
    content = {
        str(file): Path(str(file.locate())).read_bytes()
        for file in found.files or ()
        if file.suffix == ".py" and file.parts[0] in (_NVML_MODULE, f"{_NVML_MODULE}.py")
    }
    if not content:
        raise ArchiveNotBuilt(
            f"the installed {_NVML} {found.version} does not contain {_NVML_MODULE}; install it again"
        )
    return content


def _check_that_it_travels(found: Distribution) -> None:
    try:
        from packaging.specifiers import InvalidSpecifier, SpecifierSet
    except ImportError as error:
        raise ArchiveNotBuilt("packaging is not installed; pip install 'proctor[remote]'") from error
    name = f"the installed {_NVML} {found.version}"
    wheel = (found.read_text("WHEEL") or "").splitlines()
    tags = [line.partition(":")[2].strip() for line in wheel if line.startswith("Tag:")]
    if not any(tag.startswith(("py3-", "py2.py3-")) and tag.endswith("-none-any") for tag in tags):
        raise ArchiveNotBuilt(
            f"{name} should be pure Python (tag py3-none-any) to be copied to machines, found tags {tags}; install it "
            "from its wheel"
        )
    requires = (found.metadata.get_all("Requires-Python") or [""])[0]
    try:
        admitted = SpecifierSet(requires).contains(f"{OLDEST_PYTHON}.0")
    except InvalidSpecifier:
        admitted = False
    if not admitted:
        raise ArchiveNotBuilt(
            f"{name} should run on Python {OLDEST_PYTHON}, the oldest that a machine may have, but says it requires "
            f"{requires}; install an older release of it"
        )
    needs = [requirement for requirement in found.requires or () if "extra ==" not in requirement]
    if needs:
        raise ArchiveNotBuilt(f"{name} should need no other package, found {needs}; install another release of it")

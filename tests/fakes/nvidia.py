"""GPUs that do not exist: a fake NVML library, built by the C compiler, whose state is a text file."""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path

SOURCE = Path(__file__).parent / "nvml" / "nvml.c"


def find_compiler() -> str | None:
    """The C compiler of this machine, or None."""
    return shutil.which("cc") or shutil.which("gcc")


@cache
def _library() -> bytes:
    """The library, built once in this process."""
    compiler = find_compiler()
    assert compiler is not None
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "libnvidia-ml.so.1"
        subprocess.run([compiler, "-shared", "-fPIC", "-Wall", "-Werror", "-o", path, SOURCE], check=True)
        return path.read_bytes()


class FakeGpus:
    """A folder with `libnvidia-ml.so.1` and the state it reads. A process started with `environment` sees the GPUs."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._state = folder / "gpus"
        (folder / "libnvidia-ml.so.1").write_bytes(_library())
        self.set([])

    @property
    def environment(self) -> dict[str, str]:
        """What a process needs in its environment to load the fake."""
        return {"LD_LIBRARY_PATH": str(self._folder), "FAKE_NVML_STATE": str(self._state)}

    def set(self, lines: Sequence[str]) -> None:
        """Replace the state; see nvml.c for the lines."""
        swap = self._state.with_suffix(".new")
        swap.write_text("".join(f"{line}\n" for line in lines))
        os.replace(swap, self._state)


def gpu(uuid: str, *, processes: dict[int, int] | None = None, used: int = 10, load: int = 0) -> str:
    """One GPU of 1000 MiB; `processes` maps pids to MiB."""
    running = ",".join(f"{pid}:{memory}" for pid, memory in (processes or {}).items()) or "-"
    return f"{uuid} {used} 1000 {load} {running} Fake GPU 1000"

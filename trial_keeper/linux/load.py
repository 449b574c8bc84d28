"""How busy this machine is, as the kernel says: processors and memory."""

import os

from proctor.trial_keeper.protocol import SystemLoad


def read_system_load(folder: str = "/proc") -> SystemLoad | None:
    """The load of this moment; None where the kernel does not say. Does not block.

    :param folder: where procfs is.
    """
    try:
        load = float(_read(f"{folder}/loadavg").split()[0])
        sizes = _sizes(_read(f"{folder}/meminfo"))
        total, available = sizes["MemTotal"], sizes.get("MemAvailable", sizes.get("MemFree", 0))
    except (OSError, ValueError, LookupError):  # not mounted, or hidden from this user
        return None
    return SystemLoad(load, os.cpu_count() or 1, (total - min(available, total)) // 1024, total // 1024)


def _read(path: str) -> str:
    with open(path, encoding="ascii", errors="replace") as file:
        return file.read(16 * 1024)


def _sizes(text: str) -> dict[str, int]:
    """The lines of meminfo: name → KiB."""
    lines = (line.partition(":") for line in text.splitlines())
    return {name: int(rest.split()[0]) for name, _, rest in lines if rest.strip()}

"""How one machine is reached, as the user has configured it: its address, and the secrets of its login."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any


@dataclass(frozen=True)
class Login:
    """What must be kept secret about getting into one machine. Never printed: its text shows only what there is."""

    password: str | None = field(default=None, repr=False)
    passphrase: str | None = field(default=None, repr=False)


@dataclass(frozen=True)
class MachineSettings:
    """One entry of `machineList`. What is None comes from ~/.ssh/config, then from SSH's own defaults."""

    host: str
    """Name or address, or a Host of ~/.ssh/config."""
    port: int | None = None
    user: str | None = None
    ssh_key_file: str | None = None
    """Absolute path of a private key; None: those of ~/.ssh/config, the agent's, SSH's defaults."""
    use_active_gpu: bool = False
    """Use GPUs that other processes use; own trials never count."""
    max_trial_number_per_gpu: int = 1
    """How many trials may share one GPU."""
    gpu_indices: tuple[int, ...] | None = None
    """The GPUs trials may use; None: all."""
    python_path: str | None = None
    """A directory of the machine to put first on PATH, for the keeper and for trials."""
    trust_on_first_use: bool = False
    """Accept and remember the host key of a machine that was never connected before."""

    @property
    def address(self) -> str:
        """What makes it this machine and no other: [user@]host[:port], as written."""
        user = f"{self.user}@" if self.user else ""
        return f"{user}{self.host}" + (f":{self.port}" if self.port else "")

    @classmethod
    def read(cls, entry: Mapping[str, Any]) -> "MachineSettings":
        """From an entry of the canonical configuration; secrets and keys of other sections are ignored."""
        known = {item.name for item in fields(cls)}
        given = {key: value for key, value in entry.items() if key in known and value is not None}
        if "gpu_indices" in given:
            given["gpu_indices"] = tuple(given["gpu_indices"])
        return cls(**given)

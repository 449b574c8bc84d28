"""The settings of platform `remote`: the machines, and how they are used."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

_SECTION = "training_service.machine_list"


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
    """Use GPUs on which processes of others run; own trials never count."""
    max_trial_number_per_gpu: int = 1
    """How many trials may share one GPU."""
    gpu_indices: tuple[int, ...] | None = None
    """The GPUs trials may use; None: all."""
    python_path: str | None = None
    """A directory of the machine to put first on PATH, for the keeper and for trials."""
    trust_on_first_use: bool = False
    """Accept and remember the host key of a machine that was never seen."""

    @property
    def address(self) -> str:
        """What makes it this machine and no other: [user@]host[:port], as written."""
        user = f"{self.user}@" if self.user else ""
        return f"{user}{self.host}" + (f":{self.port}" if self.port else "")

    @classmethod
    def read(cls, entry: Mapping[str, Any]) -> "MachineSettings":
        """From an entry of the canonical configuration; secrets and keys of other parts are left alone."""
        known = {item.name for item in fields(cls)}
        return cls(**{key: _tupled(value) for key, value in entry.items() if key in known and value is not None})


@dataclass(frozen=True)
class RemoteSettings:
    """The `trainingService` section."""

    machines: tuple[MachineSettings, ...]
    node_timeout_seconds: float = 600.0
    """A machine that stays away longer loses its trial jobs; they run elsewhere."""
    placement: str = "spread"
    """`spread`: the least loaded machine gets the next trial; `pack`: the fullest one that has room."""
    quarantine_after: int = 3
    """After so many failed trials in a row, while they succeed elsewhere, a machine gets no more; 0: never."""
    keep_alive_seconds: float = 15.0
    """How often a silent connection is tested; it is given up after three tests without an answer."""
    code_path_on_node: str | None = None
    """Where the trial code lies on every machine already; None: it is copied there."""
    collect_limit_mb: int = 100
    """Files of a trial up to this size are copied to the manager when its job has ended, larger ones when the
    experiment is stopped."""

    @classmethod
    def read(cls, settings: Mapping[str, Any]) -> "RemoteSettings":
        """From the canonical configuration's section."""
        known = {item.name for item in fields(cls)} - {"machines", "code_path_on_node"}
        chosen = {key: value for key, value in settings.items() if key in known and value is not None}
        return cls(
            machines=tuple(MachineSettings.read(entry) for entry in settings["machine_list"]),
            code_path_on_node=(settings.get("code") or {}).get("path_on_node"),
            **chosen,
        )


def read_logins(secrets: Mapping[str, str], number: int) -> tuple[Login, ...]:
    """The logins of an experiment's machines, in their order, from its secrets."""
    return tuple(
        Login(secrets.get(f"{_SECTION}.{index}.password"), secrets.get(f"{_SECTION}.{index}.ssh_passphrase"))
        for index in range(number)
    )


def _tupled(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value

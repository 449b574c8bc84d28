"""The settings of platform `remote`, and its cluster metadata.

The metadata are the machines as they are now; some of their settings can be changed while the experiment runs.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from proctor.training_services.capacity import GpuRules
from proctor.training_services.errors import UnknownNode
from proctor.training_services.nodes.pool import NodePool
from proctor.training_services.ssh.settings import Login, MachineSettings

__all__ = ["MACHINES", "ClusterMetadata", "RemoteSettings", "read_logins"]

MACHINES = "machines"
"""Read-only key of the metadata: a list with one object for each machine."""
_CHANGEABLE = ("use_active_gpu", "max_trial_number_per_gpu", "gpu_indices")
"""Keys that are set for all machines at once. Read as one value, or by node where the machines differ."""
_REDACTED = "<redacted>"
_SECTION = "training_service.machine_list"


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
    """How often a silent connection is tested; it is closed after three tests without an answer."""
    code_path_on_node: str | None = None
    """Where the trial code is on every machine already; None: it is copied there."""
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


class ClusterMetadata:
    """The metadata of one experiment's machines, by node."""

    def __init__(self, machines: Iterable[tuple[str, MachineSettings, Login]], pool: NodePool) -> None:
        self._machines: dict[str, MachineSettings] = {}
        self._logins: dict[str, Login] = {}
        self._pool = pool
        for node_id, machine, login in machines:
            self._machines.setdefault(node_id, machine)
            self._logins.setdefault(node_id, login)

    def machine(self, node_id: str) -> MachineSettings | None:
        """How a node is used now; None for a node that the experiment no longer uses."""
        return self._machines.get(node_id)

    def rules(self, node_id: str) -> GpuRules:
        """How its GPUs are used now."""
        machine = self._machines.get(node_id)
        if machine is None:
            return GpuRules()
        return GpuRules(
            max_trials_per_gpu=machine.max_trial_number_per_gpu,
            use_active_gpu=machine.use_active_gpu,
            gpu_indices=machine.gpu_indices,
        )

    def get(self, key: str) -> Any:
        """Raises KeyError for an unknown key."""
        if key == MACHINES:
            return [self._facts(node_id, machine) for node_id, machine in self._machines.items()]
        if key not in _CHANGEABLE:
            raise KeyError(key)
        values = {node_id: getattr(machine, key) for node_id, machine in self._machines.items()}
        first = next(iter(values.values()), None)
        return first if all(value == first for value in values.values()) else values

    def set(self, key: str, value: Any) -> None:
        """Change a setting of every machine. Raises KeyError for an unknown key, and for a read-only one."""
        if key not in _CHANGEABLE:
            raise KeyError(key)
        chosen = tuple(value) if isinstance(value, list) else value
        changes: Mapping[str, Any] = {key: chosen}
        self._machines = {node_id: replace(machine, **changes) for node_id, machine in self._machines.items()}

    def _facts(self, node_id: str, machine: MachineSettings) -> dict[str, Any]:
        login = self._logins[node_id]
        return {
            "node_id": node_id,
            "ip": machine.host,
            "port": machine.port,
            "username": machine.user,
            "password": _REDACTED if login.password else None,
            "ssh_key_path": machine.ssh_key_file,
            "passphrase": _REDACTED if login.passphrase else None,
            "gpu_summary": self._gpus(node_id),
            "reservations": self._reservations(node_id),
            **{key: getattr(machine, key) for key in _CHANGEABLE},
        }

    def _gpus(self, node_id: str) -> list[dict[str, Any]] | None:
        """None until the node has reported its devices."""
        try:
            devices = self._pool.node(node_id).devices
        except UnknownNode:
            return None
        if devices is None:
            return None
        return [
            {
                "index": device.index,
                "uuid": device.uuid,
                "name": device.name,
                "memory_total_mb": device.memory_total_mb,
                "memory_used_mb": device.memory_used_mb,
                "utilization": device.utilization,
                "foreign_processes": [process.pid for process in device.processes if process.job_id is None],
            }
            for device in devices
        ]

    def _reservations(self, node_id: str) -> dict[int, list[str]]:
        """GPU index → the trial jobs of this manager that hold shares of it."""
        gpus = {gpu["uuid"]: gpu["index"] for gpu in self._gpus(node_id) or ()}
        held: dict[int, list[str]] = {}
        for reservation in self._pool.reservations(node_id):
            for share in reservation.gpus or ():
                if share.uuid in gpus:
                    held.setdefault(gpus[share.uuid], []).append(reservation.job_id)
        return held

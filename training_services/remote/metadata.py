"""The cluster metadata of platform `remote`: the machines as they are, and what of their use can be changed."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from proctor.training_services.capacity import GpuRules
from proctor.training_services.errors import UnknownNode
from proctor.training_services.nodes import NodePool
from proctor.training_services.remote.settings import Login, MachineSettings

__all__ = ["MACHINES", "Metadata"]

MACHINES = "machines"
"""Read only: a list with one object for each machine."""
_CHANGEABLE = ("use_active_gpu", "max_trial_number_per_gpu", "gpu_indices")
"""Of all machines at once. Read as one value, or by node where the machines differ."""
_REDACTED = "<redacted>"


class Metadata:
    """What is known of one experiment's machines, by node."""

    def __init__(self, machines: Iterable[tuple[str, MachineSettings, Login]], pool: NodePool) -> None:
        self._machines: dict[str, MachineSettings] = {}
        self._logins: dict[str, Login] = {}
        self._pool = pool
        for node_id, machine, login in machines:
            self._machines.setdefault(node_id, machine)
            self._logins.setdefault(node_id, login)

    def machine(self, node_id: str) -> MachineSettings | None:
        """How a node is used now; None for one that is not the experiment's any more."""
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
        """Change a setting of every machine. Raises KeyError for an unknown key, and for one that is only read."""
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
        """None while the node has not told what it has."""
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

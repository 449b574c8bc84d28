"""What GPUs this node has and who uses them: devices and processes from NVML through `pynvml`, and the leases on this
machine, of any manager and any user. Where there is no driver there are no GPUs, which is logged once.
"""

import ctypes
import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from proctor.trial_keeper.linux.locks import find_danger
from proctor.trial_keeper.linux.processes import descendants, read_tag, survey
from proctor.trial_keeper.protocol import Device, DeviceProcess, Lease
from proctor.trial_keeper.reaper.leases import Note, allowed_trials, guard, list_shares, read_held

log = logging.getLogger(__name__)

_GUARD_SECONDS = 0.25
_DRIVER = "libnvidia-ml.so.1"
_MEBIBYTE = 1024 * 1024


def read(folder: str) -> dict[str, list[Lease]]:
    """The leases that are held now, by GPU UUID, each GPU's by share. Does not disturb processes that acquire one.

    May block for a quarter of a second per GPU when another process holds a guard.

    :param folder: the machine's directory of leases; one that is not there holds none.
    :raises OSError: the directory cannot be read.
    """
    found = {uuid: _read_gpu(folder, uuid, slots) for uuid, slots in list_shares(folder).items() if slots}
    return {uuid: leases for uuid, leases in found.items() if leases}


def _read_gpu(folder: str, uuid: str, slots: list[int]) -> list[Lease]:
    try:
        with guard(folder, uuid, shared=True, make=False, seconds=_GUARD_SECONDS):
            held = read_held(folder, uuid, slots)
    except OSError:  # it was removed, or a process was suspended while holding it: a note may be unfinished then
        held = read_held(folder, uuid, slots)
    return [_lease(slot, note) for slot, note in held]


def _lease(slot: int, note: Note) -> Lease:
    """What a note says."""
    job_id, pid = note.get("job_id"), note.get("pid")
    return Lease(
        slot=slot,
        holder=str(note.get("holder", "")),
        job_id=job_id if isinstance(job_id, str) else None,
        pid=pid if isinstance(pid, int) else None,
        since=str(note.get("since", "")),
        max_trials_per_gpu=allowed_trials(note),
    )


@dataclass(frozen=True)
class DeviceFacts:
    """The devices of this moment, and sentences about those that cannot be used."""

    devices: list[Device]
    notes: list[str]


class DeviceSurvey:
    """Asks NVML; all methods may block for as long as the driver does.

    :param lock_folder: the machine's directory of GPU leases.
    """

    def __init__(self, lock_folder: str) -> None:
        self._lock_folder = lock_folder
        self._nvml: Any = None
        self.driver_note = ""

    def open(self) -> None:
        """Load the driver's library, if there is one; without, pynvml is spared: it takes as long as all the rest."""
        try:
            ctypes.CDLL(_DRIVER)
        except OSError as error:
            self.driver_note = f"no GPUs: the NVIDIA driver cannot be used ({error})"
            return
        try:
            import pynvml
        except ImportError:
            self.driver_note = "no GPUs: pynvml (nvidia-ml-py) is not installed for the keeper's Python"
            return
        try:
            pynvml.nvmlInit()
        except pynvml.NVMLError as error:
            self.driver_note = f"no GPUs: the NVIDIA driver cannot be used ({_error_text(error)})"
            return
        self._nvml = pynvml

    def close(self) -> None:
        """Let go of the driver."""
        if self._nvml is not None:
            self._nvml.nvmlShutdown()
            self._nvml = None

    @property
    def has_driver(self) -> bool:
        """Whether there is anything to ask."""
        return self._nvml is not None

    def read(self, trials: Mapping[int, str]) -> DeviceFacts:
        """All devices as they are now, and all leases on them, this keeper's own included. A device that does not
        answer is left out, with a note.

        :param trials: this keeper's living trials: pid → job id.
        """
        if self._nvml is None:
            return DeviceFacts([], [])
        try:
            count = self._nvml.nvmlDeviceGetCount()
        except self._nvml.NVMLError as error:
            return DeviceFacts([], [f"the NVIDIA driver does not answer: {_error_text(error)}"])
        leases, note = self._read_leases()
        devices, notes = [], [note] if note else []
        owners = _Owners(trials, leases)
        for index in range(count):
            try:
                devices.append(self._read_one(index, owners))
            except self._nvml.NVMLError as error:
                notes.append(f"GPU {index} cannot be used: {_error_text(error)}")
        leases, _ = self._read_leases()  # again: the driver may have taken its time, and leases come and go
        return DeviceFacts([replace(device, leases=leases.get(device.uuid, [])) for device in devices], notes)

    def _read_leases(self) -> tuple[dict[str, list[Lease]], str]:
        try:
            danger = find_danger(self._lock_folder)
            return read(self._lock_folder), f"GPUs cannot be leased: {danger}" if danger else ""
        except OSError as error:
            return {}, f"the GPU leases in {self._lock_folder} cannot be read: {error.strerror}"

    def _read_one(self, index: int, owners: "_Owners") -> Device:
        nvml = self._nvml
        handle = nvml.nvmlDeviceGetHandleByIndex(index)
        memory = nvml.nvmlDeviceGetMemoryInfo(handle)
        return Device(
            index=index,
            uuid=_text(nvml.nvmlDeviceGetUUID(handle)),
            name=_text(nvml.nvmlDeviceGetName(handle)),
            memory_total_mb=int(memory.total) // _MEBIBYTE,
            memory_used_mb=int(memory.used) // _MEBIBYTE,
            utilization=self._read_utilization(handle),
            processes=self._read_processes(handle, owners),
        )

    def _read_utilization(self, handle: Any) -> int:
        try:
            return int(self._nvml.nvmlDeviceGetUtilizationRates(handle).gpu)
        except self._nvml.NVMLError_NotSupported:
            return 0

    def _read_processes(self, handle: Any, owners: "_Owners") -> list[DeviceProcess]:
        found: dict[int, int] = {}
        for kind in ("Compute", "Graphics"):
            for process in self._ask_processes(kind, handle):
                found[int(process.pid)] = int(process.usedGpuMemory or 0) // _MEBIBYTE
        return [DeviceProcess(pid, memory, owners.job_of(pid)) for pid, memory in sorted(found.items())]

    def _ask_processes(self, kind: str, handle: Any) -> list[Any]:
        """By the newest function that the driver has: `pynvml` refuses the unversioned name on older drivers."""
        for version in ("_v3", "_v2"):
            ask = getattr(self._nvml, f"nvmlDeviceGet{kind}RunningProcesses{version}", None)
            if ask is None:
                continue
            try:
                return list(ask(handle))
            except self._nvml.NVMLError_FunctionNotFound:
                continue
            except self._nvml.NVMLError_NotSupported:
                break
        return []


class _Owners:
    """Which job a process belongs to: by its tag, or because it descends from a trial, or from who holds a lease. A
    trial with a lease is known, whatever its manager: its lease says what it allows."""

    def __init__(self, trials: Mapping[int, str], leases: Mapping[str, list[Lease]]) -> None:
        held = [lease for shares in leases.values() for lease in shares]
        self._trials = {lease.pid: lease.job_id for lease in held if lease.pid is not None and lease.job_id is not None}
        self._trials.update(trials)
        self._below: dict[int, str] | None = None

    def job_of(self, pid: int) -> str | None:
        """The job's id, None for a process that belongs to none."""
        if pid in self._trials:
            return self._trials[pid]
        tag = read_tag(pid)
        if tag is not None and tag[0] in self._trials.values():
            return tag[0]
        if self._below is None:
            table = survey()
            self._below = {
                child: job_id for trial, job_id in self._trials.items() for child in descendants(table, (trial,))
            }
        return self._below.get(pid)


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def _error_text(error: Exception) -> str:
    return str(error) or type(error).__name__

"""Who has which share of which GPU of a node: reservations of this manager's jobs, and leases of others."""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace

from proctor.training_services.capacity import ForeignProcess, GpuCapacity, Holding, SharingPolicy
from proctor.trial_keeper.protocol import Device, GpuSlot, Lease

__all__ = ["Reservation", "find_holdings", "foreign_leases", "gpu_capacity", "without_leases"]


@dataclass(frozen=True)
class Reservation:
    """A tokened claim of one trial job on a node and shares of its GPUs. `gpus` None: it does not manage GPUs."""

    job_id: str
    token: str
    holder: str
    node_id: str
    gpus: tuple[GpuSlot, ...] | None
    policy: SharingPolicy = field(default_factory=SharingPolicy)


def find_holdings(reservations: Iterable[Reservation], devices: Iterable[Device]) -> dict[str, list[Holding]]:
    """All holdings of a node by GPU UUID. The lease of a job that holds a reservation there is that reservation's; any
    other is somebody else's: another manager's, or that of a job which was given up and still runs."""
    holdings: dict[str, list[Holding]] = {}
    jobs = set()
    for reservation in reservations:
        jobs.add(reservation.job_id)
        for share in reservation.gpus or ():
            holding = Holding(reservation.job_id, share.slot, reservation.holder, reservation.policy)
            holdings.setdefault(share.uuid, []).append(holding)
    for device in devices:
        for lease in foreign_leases(device, jobs):
            holding = Holding(lease.job_id or "", lease.slot, _holder(lease), SharingPolicy(lease.max_trials_per_gpu))
            holdings.setdefault(device.uuid, []).append(holding)
    return holdings


def foreign_leases(device: Device, jobs: Collection[str]) -> list[Lease]:
    """The leases on a GPU that none of these jobs holds."""
    return [lease for lease in device.leases if lease.job_id not in jobs]


def without_leases(devices: tuple[Device, ...], job_id: str) -> tuple[Device, ...]:
    """The devices without what a job held, which was heard to have ended; the same object if it held nothing."""
    if not any(lease.job_id == job_id for device in devices for lease in device.leases):
        return devices
    return tuple(replace(device, leases=foreign_leases(device, {job_id})) for device in devices)


def gpu_capacity(device: Device, holdings: Sequence[Holding]) -> GpuCapacity:
    """One GPU as placement sees it."""
    foreign = (ForeignProcess(each.pid, each.memory_mb) for each in device.processes if each.job_id is None)
    return GpuCapacity(device.index, device.uuid, device.name, tuple(holdings), tuple(foreign))


def _holder(lease: Lease) -> str:
    """A phrase for people that says whose job it is and since when."""
    holder = lease.holder or "somebody who left no note"
    return f"{holder}, since {lease.since}" if lease.since else holder

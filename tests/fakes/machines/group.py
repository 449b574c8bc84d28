"""Groups of test machines, and who uses them.

`loopback_group`: machines on addresses 127.x.y.z, reached from anywhere on this machine. `cabled_group`: machines with
a cable each to a network of their own, to be used in the place of its manager. Several test processes may have groups
at the same time: nothing of a group has a name or a port that another one could have.
"""

import os
import random
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fakes.machines.leavings import Leavings
from fakes.machines.machine import Machine, Place
from fakes.machines.network import Network
from fakes.machines.person import Person, User, make_users
from fakes.machines.requirements import system_python

_SSH_PORT = 22


class Group:
    """Machines `m1`, `m2`, … with the same users, whose keys the person has."""

    def __init__(self, folder: Path, *, users: Sequence[str], person: Person) -> None:
        self._folder = folder
        self.person = person
        self.users = make_users(tuple(users), powerful=system_python() is None)
        self.machines: list[Machine] = []
        self.leavings: Leavings

    def add(self, place: Place, *, homes: str | None, disk_mb: int | None) -> None:
        """One more machine, still without power."""
        name = f"m{len(self.machines) + 1}"
        folder = self._folder / name
        base = self._folder / "homes" / (homes or name)
        self.machines.append(
            Machine(
                name,
                folder,
                place=place,
                person=self.person,
                users=self.users,
                homes={user.name: _make_home(base / user.name, user) for user in self.users},
                disk_mb=disk_mb,
            )
        )

    def machine_list(self, **more: object) -> list[dict[str, Any]]:
        """The whole `machineList`."""
        return [machine.entry(**more) for machine in self.machines]


@contextmanager
def loopback_group(
    folder: Path,
    number: int,
    *,
    users: Sequence[str] = ("trial",),
    homes: str | None = None,
    disk_mb: int | None = None,
) -> Iterator[Group]:
    """Machines with power on loopback addresses, and ports of their own. Needs `requirements.needs_loopback`.

    :param folder: for everything that belongs to the group.
    :param homes: the name of the one home all machines share for each user; None: each has its own.
    :param disk_mb: the homes lie on disks of this size.
    """
    group = Group(folder, users=users, person=Person(folder / "person"))
    for _ in range(number):
        group.add(_free_place(), homes=homes, disk_mb=disk_mb)
    with _powered(group):
        yield group


@contextmanager
def cabled_group(
    folder: Path,
    number: int,
    *,
    network: Network,
    person: Person,
    users: Sequence[str] = ("trial",),
    homes: str | None = None,
    disk_mb: int | None = None,
) -> Iterator[Group]:
    """Machines with power on a network, port 22. Needs `requirements.needs_namespaces`.

    :param person: who uses them; may use other machines of the network, too.
    :param users: these and the rest as for `loopback_group`.
    """
    group = Group(folder, users=users, person=person)
    with network.places(number) as indices:
        for index in indices:
            group.add(Place(network.address(index), _SSH_PORT, network, index), homes=homes, disk_mb=disk_mb)
        with _powered(group):
            yield group


@contextmanager
def _powered(group: Group) -> Iterator[None]:
    try:
        for machine in group.machines:
            machine.begin_power_on()
        for machine in group.machines:
            machine.finish_power_on()
        group.leavings = Leavings(group.machines)
        yield
    finally:
        for machine in group.machines:
            machine.power_off()


def _make_home(path: Path, user: User) -> Path:
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    os.chown(path, user.uid, user.uid)
    return path


def _free_place() -> Place:
    address = f"127.{random.randint(1, 254)}.{random.randint(0, 255)}.{random.randint(2, 254)}"
    with socket.socket() as probe:
        probe.bind((address, 0))
        return Place(address, probe.getsockname()[1])

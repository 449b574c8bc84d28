"""Groups of test machines, and who uses them.

`loopback_group`: machines on addresses 127.x.y.z, reached from anywhere on this machine. `namespace_group`: machines on
a network of their own with a cable each, to be used inside `group.manager_network`. Several test processes may have
groups at the same time: nothing of a group has a name or a port that another one could have.
"""

import os
import random
import socket
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
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

    def __init__(self, folder: Path, *, users: Sequence[str], network: Network | None) -> None:
        self._folder = folder
        self.network = network
        self.person = Person(folder / "person")
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
    group = Group(folder, users=users, network=None)
    for _ in range(number):
        group.add(_free_place(), homes=homes, disk_mb=disk_mb)
    with _powered(group):
        yield group


@contextmanager
def namespace_group(
    folder: Path,
    number: int,
    *,
    users: Sequence[str] = ("trial",),
    homes: str | None = None,
    disk_mb: int | None = None,
) -> Iterator[Group]:
    """Machines with power on a network of their own, port 22. Needs `requirements.needs_namespaces`. The calling thread
    is in the manager's place on that network meanwhile; parameters as for `loopback_group`."""
    network = Network(number)
    group = Group(folder, users=users, network=network)
    for index in range(number):
        place = Place(network.address(index), _SSH_PORT, network, index)
        group.add(place, homes=homes, disk_mb=disk_mb)
    with ExitStack() as stack:
        stack.callback(network.close)
        stack.enter_context(network.manager.entered())
        stack.enter_context(_powered(group))
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

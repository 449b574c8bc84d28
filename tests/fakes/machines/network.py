"""A switch with cables to the manager and to each machine; all of it in namespaces that no packet can leave."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

from fakes.machines.namespaces import Namespace, lower_interface, raise_interface

_MANAGER = 1
_LAST = 254


class Network:
    """10.77.0.0/24: the manager is .1, the machines follow, each with an address of its own. Made by `open_network`."""

    def __init__(self) -> None:
        self._switch = Namespace()
        self.manager = Namespace()
        self.machines: dict[int, Namespace] = {}
        self._next = 0
        self._lossy: dict[int, int] = {}
        self._connect({_MANAGER: self.manager}, "link add br0 type bridge", "link set br0 up")

    @property
    def room(self) -> int:
        """How many machines can still be added."""
        return _LAST - _MANAGER - self._next

    @contextmanager
    def places(self, number: int) -> Iterator[list[int]]:
        """Places for so many machines; on leaving, their cables are gone."""
        indices = [*range(self._next, self._next + number)]
        self._next += number
        self.machines |= {index: Namespace() for index in indices}
        try:
            self._connect({index + _MANAGER + 1: self.machines[index] for index in indices})
            yield indices
        finally:
            for index in indices:
                self.machines.pop(index).close()
                self._lossy.pop(index, None)

    @property
    def manager_address(self) -> str:
        """That of the manager's place."""
        return _address(_MANAGER)

    def address(self, index: int) -> str:
        """Of a machine."""
        return _address(index + _MANAGER + 1)

    def cut(self, index: int) -> None:
        """Packets from and to a machine vanish; neither side notices."""
        self._switch.run(lambda: lower_interface(_cable(index + _MANAGER + 1)))

    def heal(self, index: int) -> None:
        """Undo `cut`."""
        self._switch.run(lambda: raise_interface(_cable(index + _MANAGER + 1)))

    def cut_manager(self) -> None:
        """The manager's own interface is switched off: it learns at once that it has no route to any machine."""
        self.manager.run(lambda: lower_interface("eth0"))

    def heal_manager(self) -> None:
        """Undo `cut_manager`."""
        self.manager.run(lambda: raise_interface("eth0"))

    def lose(self, index: int, percent: int) -> None:
        """This share of the packets to a machine is lost, at random: 0 to 99. Needs nft."""
        self._lossy[index] = percent
        rules = [
            f'    oifname "{_cable(number + _MANAGER + 1)}" numgen random mod 1000 < {10 * min(share, 99)} drop'
            for number, share in self._lossy.items()
            if share
        ]
        chain = ["  chain forward {", "    type filter hook forward priority 0;", *rules, "  }"]
        table = ["add table bridge faults", "delete table bridge faults", "table bridge faults {", *chain, "}"]
        self._run(["nft", "-f", "-"], "\n".join(table) + "\n")

    def slow(self, index: int, kbit: int) -> None:
        """A narrow cable to a machine. 0: a wide one again. Needs tc."""
        device = _cable(index + _MANAGER + 1)
        limit = ["root", "tbf", "rate", f"{kbit}kbit", "burst", "32kbit", "latency", "400ms"]
        words = ["replace", "dev", device, *limit] if kbit else ["del", "dev", device, "root"]
        self._run(["tc", "qdisc", *words])

    def close(self) -> None:
        """All of it goes with the last process in it."""
        for namespace in (self._switch, self.manager, *self.machines.values()):
            namespace.close()

    def _connect(self, ends: dict[int, Namespace], *lines: str) -> None:
        """A cable from the switch to each of these."""
        told = list(lines)
        for number, end in ends.items():
            told.append(f"link add {_cable(number)} type veth peer name eth0 netns {end.path}")
            told.append(f"link set {_cable(number)} master br0")
            told.append(f"link set {_cable(number)} up")
        self._run(["ip", "-batch", "-"], "\n".join(told) + "\n")
        for number, end in ends.items():
            end.run(lambda number=number: raise_interface("eth0", _address(number)))  # type: ignore[misc]

    def _run(self, words: list[str], told: str = "") -> None:
        done = self._switch.run(lambda: subprocess.run(words, input=told, capture_output=True, text=True, check=False))
        assert done.returncode == 0, f"{' '.join(words)} of\n{told}ended with {done.returncode}: {done.stderr}"


@contextmanager
def open_network() -> Iterator[Network]:
    """A network without machines. The calling thread is in the manager's place on it once it enters `manager`."""
    network = Network()
    try:
        yield network
    finally:
        network.close()


def _cable(number: int) -> str:
    return f"cable{number}"


def _address(number: int) -> str:
    return f"10.77.0.{number}"

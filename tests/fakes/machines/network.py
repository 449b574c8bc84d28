"""A switch with cables to the manager and to each machine; all of it in namespaces that no packet can leave."""

import subprocess

from fakes.machines.namespaces import Namespace, lower_interface, raise_interface

_MANAGER = 1


class Network:
    """10.77.0.0/24: the manager is .1, the machines follow. Used by `namespace_group`.

    :param machines: how many there are.
    """

    def __init__(self, machines: int) -> None:
        self._switch = Namespace()
        self.manager = Namespace()
        self.machines = [Namespace() for _ in range(machines)]
        lines = ["link add br0 type bridge", "link set br0 up"]
        for number, end in enumerate([self.manager, *self.machines], _MANAGER):
            lines.append(f"link add {_cable(number)} type veth peer name eth0 netns {end.path}")
            lines.append(f"link set {_cable(number)} master br0")
            lines.append(f"link set {_cable(number)} up")
        self._run(["ip", "-batch", "-"], "\n".join(lines) + "\n")
        for number, end in enumerate([self.manager, *self.machines], _MANAGER):
            end.run(lambda number=number: raise_interface("eth0", _address(number)))  # type: ignore[misc]
        self._lossy: dict[int, int] = {}

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
        for namespace in (self._switch, self.manager, *self.machines):
            namespace.close()

    def _run(self, words: list[str], told: str = "") -> None:
        done = self._switch.run(lambda: subprocess.run(words, input=told, capture_output=True, text=True, check=False))
        assert done.returncode == 0, f"{' '.join(words)} of\n{told}ended with {done.returncode}: {done.stderr}"


def _cable(number: int) -> str:
    return f"cable{number}"


def _address(number: int) -> str:
    return f"10.77.0.{number}"

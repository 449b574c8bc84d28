"""A scene: a real manager, test machines, and trials on them that write down on their machine what they do.

One manager has many scenes, one after the other: each has machines of its own, and ends when the manager has left them.
Keepers report every half second, and commands run in the test's own process, so that little is waited for.

The records lie in the machine's own folder `/run/machine/records`, which is neither collected nor removed by anybody,
so a test can compare what the manager says with what has happened.
"""

import json
import os
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from click.testing import CliRunner
from fakes.machines.group import Group, cabled_group
from fakes.machines.machine import Machine
from fakes.machines.network import Network, open_network
from fakes.machines.person import Person
from fakes.machines.processes import read_state
from fakes.real_manager import RealManager, Row

from proctor.manager.cli.main import cli
from proctor.manager.settings import ENV_KEEPER_HEARTBEAT

NODE_TIMEOUT = {"nodeTimeout": 3}
"""Of a training service whose machines are lost soon."""
MOST_MACHINES = 40  # of a scene; a manager whose network has no room for so many gets no more scenes

TRIAL = '''\
"""Write down what happens, hold for so many seconds or until the file `go` appears, and report every step."""
import json, os, sys, time

import proctor

records = "/run/machine/records"
seconds = float(sys.argv[1]) if len(sys.argv) > 1 else None
ours = "%s.%d.json" % (os.environ["PROCTOR_JOB_ID"], time.time_ns())
file = open(os.path.join(records, ours), "a")


def write(**facts):
    file.write(json.dumps(dict(facts, at=time.monotonic())) + "\\n")
    file.flush()


def is_over():
    return os.path.exists(os.path.join(records, "go")) if seconds is None else time.monotonic() - began >= seconds


parameters = proctor.get_next_parameter()
began = time.monotonic()
write(what="begin", gpus=os.environ.get("CUDA_VISIBLE_DEVICES"), pid=os.getpid(), cwd=os.getcwd())
print("trial begins", flush=True)
step = 0
while True:
    proctor.report_intermediate_result(float(step))
    write(what="step", step=step)
    step += 1
    if is_over():
        break
    time.sleep(0.05)
proctor.report_final_result(float(step))
write(what="end", step=step)
'''


@dataclass(frozen=True)
class Record:
    """What one process of a trial has written down. Times are the machine's monotonic clock; `end` None: it did not
    come to its end."""

    job_id: str
    gpus: tuple[str, ...] | None
    begin: float
    end: float | None
    steps: int

    @property
    def trial_id(self) -> str:
        """Whose attempt it is."""
        return self.job_id.partition(".")[0]


def read_records(machine: Machine) -> list[Record]:
    """What the trials on a machine have written down, in the order in which they began."""
    found = [_read(path) for path in machine.records.glob("*.json")]
    return sorted((record for record in found if record is not None), key=lambda record: record.begin)


def _read(path: Path) -> Record | None:
    lines = [json.loads(line) for line in path.read_text().splitlines() if line.endswith("}")]
    if not lines:
        return None
    gpus = lines[0]["gpus"]
    return Record(
        job_id=path.name.rsplit(".", 2)[0],
        gpus=None if gpus is None else tuple(uuid for uuid in gpus.split(",") if uuid),
        begin=lines[0]["at"],
        end=lines[-1]["at"] if lines[-1]["what"] == "end" else None,
        steps=sum(line["what"] == "step" for line in lines),
    )


class SceneManager(RealManager):
    """A manager whose commands run in this process, with the environment that a process would have."""

    def is_running(self) -> bool:
        """Whether it has neither ended nor been suspended."""
        return self._process is not None and read_state(self._process.pid) not in (b"T", b"Z")

    def attempt(self, *words: object) -> "subprocess.CompletedProcess[str]":
        """Run `proctor …` on this home."""
        arguments = [str(word) for word in words]
        environment = dict.fromkeys(os.environ) | self.environment | {"PROCTOR_HOME": str(self.home)}
        done = CliRunner().invoke(cli, arguments, prog_name="proctor", env=environment)
        if done.exception is not None and not isinstance(done.exception, SystemExit):
            raise done.exception
        return subprocess.CompletedProcess(arguments, done.exit_code, done.stdout, done.stderr)


class Scene:
    """See the module. Made by `Site.scene` and `another_scene`."""

    def __init__(self, manager: RealManager, group: Group) -> None:
        self.manager, self.group, self.machines = manager, group, group.machines
        manager.logs[1:] = [self._logs]

    @property
    def network(self) -> Network:
        """On which the machines are."""
        network = self.machines[0].place.network
        assert network is not None
        return network

    def config(
        self, *, machines: list[Row] | None = None, seconds: float | None = None, script: str = TRIAL, **config: Any
    ) -> Row:
        """A configuration: one trial at a time that holds for `seconds` or, None, until `release_trials`, on all.

        :param machines: their `machineList`.
        :param config: more keys; those of `trainingService` are added to its own.
        """
        code = self.manager.code / f"code-{len(list(self.manager.code.iterdir()))}"
        code.mkdir()
        (code / "trial.py").write_text(script)
        service = {
            "platform": "remote",
            "machineList": self.group.machine_list() if machines is None else machines,
            "keepAliveInterval": 0.5,
            **config.pop("trainingService", {}),
        }
        return {
            "searchSpace": {"x": {"_type": "uniform", "_value": [0, 1]}},
            "trialCommand": "python3 trial.py" + ("" if seconds is None else f" {seconds}"),
            "trialCodeDirectory": str(code),
            "trialConcurrency": 1,
            "objective": {"direction": "maximize"},
            "tuner": {"name": "Random"},
            "trainingService": service,
            **config,
        }

    def create(self, *, secrets: Mapping[str, str] | None = None, **config: Any) -> str:
        """A new experiment of `config`; returns its id.

        :param secrets: what is handed over, by path in the configuration.
        """
        handover = None if secrets is None else self.manager.hand_over(secrets)
        created = self.manager.client.create_experiment(
            self.config(**config), directory=self.manager.code, handover=handover
        )
        return str(created["id"])

    def spread(self, number: int, **config: Any) -> tuple[str, list[Row]]:
        """An experiment with so many trials running at once, fairly shared by all machines, and these trials."""
        experiment = self.create(**{"maxTrialNumber": number, **config})
        return experiment, self.widen(experiment, number)

    def widen(self, experiment_id: str, number: int, *, nodes: int | None = None) -> list[Row]:
        """Once all machines are there, let so many trials run at once; returns them, fairly shared by all machines.

        :param nodes: how many nodes there are; None: one for each machine.
        """
        expected = len(self.machines) if nodes is None else nodes

        def look() -> bool:
            found = [node["status"] for node in self.manager.client.nodes() if node["kind"] == "remote"]
            return found == ["CONNECTED"] * expected

        self.manager.poll_for(look, f"{expected} connected machines")
        self.manager.client.update_experiment(experiment_id, {"trial_concurrency": number})
        running = self.until_running(experiment_id, number)
        used = [trial["node_id"] for trial in running]
        assert len(set(used)) == min(number, expected), used
        return running

    def write_config(self, **config: Any) -> Path:
        """`config` as a file for the command line."""
        path = self.manager.code / f"experiment-{len(list(self.manager.code.iterdir()))}.yml"
        path.write_text(json.dumps(self.config(**config)))  # JSON is YAML
        return path

    def release_trials(self, *machines: Machine) -> None:
        """Trials there end, now and from now on; on all machines if none is named."""
        for machine in machines or self.machines:
            (machine.records / "go").touch()

    def hold_trials(self) -> None:
        """Undo `release_trials`, for trials that begin from now on."""
        for machine in self.machines:
            (machine.records / "go").unlink()

    def node(self, machine: Machine, *, user: str | None = None) -> Row:
        """The manager's node of a machine; its status is "" before there is one."""
        place, name = machine.place, user or machine.users[0].name
        address = f"{name}@{place.address}:{place.port}"
        found = [node for node in self.manager.client.nodes() if node["address"] == address]
        return found[0] if found else {"id": "", "status": "", "reason": "", "hold": "", "facts": {}}

    def until_node(self, machine: Machine, *statuses: str, reason: str = "") -> Row:
        """The node of a machine, once it is in one of these statuses with this in its reason."""

        def look() -> Row | None:
            node = self.node(machine)
            return node if node["status"] in statuses and reason in node["reason"] else None

        what = f"{machine.name} to be {' or '.join(statuses)} because of {reason!r}"
        return self.manager.poll_for(look, what)

    def reconnect(self, machine: Machine) -> Row:
        """Have the manager try a machine at once; its node, once it is connected."""
        self.manager.client.check_node(self.node(machine)["id"])
        return self.until_node(machine, "CONNECTED")

    def jobs(self, trial_id: str) -> list[Row]:
        """Its attempts, the first one first."""
        return sorted(self.manager.client.jobs(trial_id), key=lambda job: int(job["number"]))

    def until_attempt(self, trial_id: str, number: int) -> None:
        """Wait until the attempt of this number of a trial runs."""

        def look() -> bool:
            found = self.manager.client.trial(trial_id)
            return bool(found["status"] == "RUNNING" and found["jobs"] == number)

        self.manager.until(lambda: look() or None, f"attempt {number} of trial {trial_id} to run")

    def until_running(self, experiment_id: str, number: int) -> list[Row]:
        """Its running trials, once there are so many of them and each has begun to report."""

        def look() -> list[Row] | None:
            rows = [row for row in self.manager.trials(experiment_id) if row["status"] == "RUNNING"]
            return rows if len(rows) == number and all(row["intermediate_count"] for row in rows) else None

        return self.manager.until(look, f"{number} running trials")

    def machine_of(self, trial: Row) -> Machine:
        """The machine on which a trial runs or ran, as the manager says."""
        [found] = [machine for machine in self.machines if self.node(machine)["id"] == trial["node_id"]]
        return found

    def expect_all_reports(self, experiment_id: str) -> None:
        """Every report of every trial is stored once and in order, and its final metric says how many there were."""
        for trial in self.manager.trials(experiment_id):
            values = [metric["value"] for metric in self.manager.client.metrics(trial["id"], kind="intermediate")]
            assert values == [float(number) for number in range(len(values))], f"trial {trial['id']}: {values}"
            assert trial["final_value"] == len(values), trial

    def leave(self) -> None:
        """Stop and delete every experiment; nothing of it may be left on any machine, nor in the manager's books unless
        a machine has no power."""
        for experiment in list(self.manager.client.experiments()):
            self.remove(experiment["id"])
        self.expect_nothing_left()
        if all(machine.has_power for machine in self.machines):
            self.until_left()

    def remove(self, experiment_id: str) -> None:
        """Stop and delete an experiment."""
        self.manager.client.stop_experiment(experiment_id)
        self.manager.until_status(experiment_id, "STOPPED")
        self.manager.client.delete_experiment(experiment_id)

    def until_left(self) -> None:
        """Wait until the manager has no machine any more."""

        def look() -> bool:
            return not any(node["kind"] == "remote" for node in self.manager.client.nodes())

        self.manager.poll_for(look, "the machines to be left")

    def expect_nothing_left(self) -> None:
        """Neither a process nor a file on any machine."""
        try:
            self.group.leavings.expect_none()
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.manager.said()}") from None

    def _logs(self) -> list[Path]:
        logs = [machine.folder / "log" for machine in self.machines]
        for machine in self.machines:
            logs += [found for user in machine.users for found in machine.home(user.name).glob(".proctor/nodes/*/log")]
        return logs


@contextmanager
def another_scene(group: Group, folder: Path) -> Iterator[Scene]:
    """One more manager of the same person that uses the same machines."""
    with _open_manager(folder, group.person) as manager:
        yield Scene(manager, group)


class Site:
    """A network with a manager, who has one scene after the other there. Made by `open_site`."""

    def __init__(self, network: Network, person: Person, manager: SceneManager) -> None:
        self._network, self._person, self._manager = network, person, manager
        self._environment = dict(manager.environment)

    @contextmanager
    def scene(self, folder: Path, number: int, **options: Any) -> Iterator[Scene]:
        """So many new machines, made with the options of `cabled_group`. The calling thread is in the manager's place
        meanwhile."""
        self._person.forget_all()
        place = {"network": self._network, "person": self._person}
        with self._network.manager.entered(), cabled_group(folder, number, **place, **options) as group:
            yield Scene(self._manager, group)

    def is_as_new(self) -> bool:
        """Whether the manager runs as it was started, with no experiment and no machine, and there is room for more."""
        if not self._manager.is_running() or self._manager.environment != self._environment:
            return False
        with self._network.manager.entered():
            left = [*self._manager.client.experiments()]
            left += [node for node in self._manager.client.nodes() if node["kind"] == "remote"]
        return not left and self._network.room >= MOST_MACHINES


@contextmanager
def open_site(folder: Path) -> Iterator[Site]:
    """A site without machines. Needs `requirements.needs_namespaces`. On leaving, nothing of the manager runs."""
    person = Person(folder / "person")
    with open_network() as network, ExitStack() as stack:
        with network.manager.entered():
            manager = stack.enter_context(_open_manager(folder / "manager", person))
        yield Site(network, person, manager)


@contextmanager
def _open_manager(folder: Path, person: Person) -> Iterator[SceneManager]:
    environment = {**person.environment, ENV_KEEPER_HEARTBEAT: "0.5"}
    manager = SceneManager(folder / "home", folder, environment)
    try:
        manager.start()
        yield manager
    finally:
        manager.end()

"""The checks of the machines of a configuration: every hop to each of them, for `proctor doctor`; and the removal of
everything this manager has there, for `proctor platform clean`.

A check copies its files to a folder of their own, removes them again, and touches no keeper.
"""

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any

from proctor.training_services.errors import TrainingServiceError
from proctor.training_services.providers import CheckStep, CheckVerdict
from proctor.training_services.remote.bootstrap.keeper_commands import NodeKeeper
from proctor.training_services.remote.bootstrap.node import (
    NodeContact,
    NodeFacts,
    Site,
    detach,
    open_contact,
    require_clock,
    require_home,
    require_python_path,
    require_room,
    require_system,
)
from proctor.training_services.remote.bootstrap.tunnel import Relay
from proctor.training_services.remote.machines.keeper_session import remove_keeper
from proctor.training_services.remote.machines.machine import MachineContext
from proctor.training_services.remote.machines.records import Claim, keeper_folder
from proctor.training_services.ssh.base import NodeConnection
from proctor.training_services.ssh.errors import ForwardingRefused, RemoteError
from proctor.training_services.ssh.route import RouteTrace
from proctor.training_services.ssh.settings import MachineSettings
from proctor.trial_keeper.protocol import Device, from_json

__all__ = ["STEPS", "TrialNeeds", "clean_machines", "inspect_machines"]

STEPS = ("python", "clock", "disk", "home", "sftp", "forwarding", "keeper", "gpus", "trials", "code")
"""After those of the route: "name", "port", "host key", "login"."""


@dataclass(frozen=True)
class TrialNeeds:
    """What the trials of a configuration need of a machine."""

    code_path: str | None = None
    """The folder there in which the code is already."""
    gpu_number: int = 0


async def inspect_machines(
    claims: Sequence[Claim], context: MachineContext, needs: TrialNeeds
) -> tuple[CheckStep, ...]:
    """The steps of all machines, which are inspected concurrently, in the order of the machines. A machine that could
    never run a trial is a failure, unless another one can."""
    async with asyncio.TaskGroup() as group:
        inspections = [Inspection(claim, context, needs) for claim in claims]
        for inspection in inspections:
            group.create_task(inspection.run(), name=f"inspection of {inspection.name}")
    steps = [step for inspection in inspections for step in inspection.steps]
    if any(step.name == "trials" and step.verdict is CheckVerdict.OK for step in steps):
        for number, step in enumerate(steps):
            if step.name == "trials" and step.verdict is CheckVerdict.FAIL:
                steps[number] = replace(step, verdict=CheckVerdict.NOTE)
    return tuple(steps)


@dataclass
class _Finding:
    """What one step has found."""

    found: str = ""
    advice: str = ""
    verdict: CheckVerdict = CheckVerdict.OK

    def note(self, found: str, advice: str = "", *, verdict: CheckVerdict = CheckVerdict.NOTE) -> None:
        """Something else than that all is well."""
        self.found, self.advice, self.verdict = found, advice, verdict


class Inspection:
    """The inspection of one machine. `steps` is complete once `run` has returned; a machine's failure is a step."""

    def __init__(self, claim: Claim, context: MachineContext, needs: TrialNeeds) -> None:
        self.name = claim.machine.address
        self.steps: list[CheckStep] = []
        self._claim = claim
        self._context = context
        self._needs = needs
        self._key = f"{context.provider.manager_id}-check-{secrets.token_hex(4)}"

    async def run(self) -> None:
        """Take every step up to the first one that rules out the rest."""
        trace = RouteTrace(self.name)
        async with AsyncExitStack() as stack:
            try:
                connection = await stack.enter_async_context(self._context.connect(self._claim, trace))
            except (TrainingServiceError, OSError) as error:
                trace_steps = trace.steps()
                self.steps.extend(trace_steps)
                if not any(step.verdict is CheckVerdict.FAIL for step in trace_steps):
                    self.steps.append(_failure(self.name, "login", error))
            else:
                self.steps.extend(trace.steps())
                async with self._context.gate:
                    await self._inspect(connection)
        done = {step.name for step in self.steps}
        self.steps.extend(
            CheckStep(self.name, name, CheckVerdict.SKIPPED, "not reached") for name in STEPS if name not in done
        )

    async def _inspect(self, connection: NodeConnection) -> None:
        keeper: NodeKeeper | None = None
        try:
            async with open_contact(
                connection, self._key, python_path=self._claim.machine.python_path, now=self._context.now
            ) as contact:
                if self._check_facts(contact.facts):
                    keeper = await self._install(contact)
        except (TrainingServiceError, OSError) as error:
            self.steps.append(_failure(self.name, "python", error))
        if keeper is not None:
            await self._check_keeper(connection, keeper)

    def _check_facts(self, facts: NodeFacts) -> bool:
        """Whether files may be copied there."""
        with self._step("python") as python:
            require_python_path(facts)
            require_system(facts)
            python.found = f"{facts.python} is {facts.version}"
            if facts.kills_at_logout:
                note = f"{python.found}; its logind kills a user's processes at logout (KillUserProcesses)"
                python.note(note, f"run `loginctl enable-linger {facts.user}` there")
        with self._step("clock") as clock:
            require_clock(facts)
            clock.found = f"within {abs(facts.clock_ahead_seconds):.0f} s of the manager's"
        with self._step("disk") as disk:
            require_room(facts)
            free = None if facts.free_mb is None else f"{facts.free_mb:,} MiB free at {facts.home}"
            disk.found = free or "no limit is known"
        with self._step("home") as home:
            require_home(facts)
            home.found = f"{facts.home} can be written by {facts.user}"
        return all(step.verdict is not CheckVerdict.FAIL for step in (python, disk, home))

    async def _install(self, contact: NodeContact) -> NodeKeeper | None:
        """Copy the keeper archive; a partial copy is removed again."""
        try:
            return detach(await contact.install_keeper(await self._context.archives.get()))
        except (TrainingServiceError, OSError) as error:
            self.steps.append(_failure(self.name, "keeper", error))
            await self._remove(contact.remove_directory)
            return None

    async def _check_keeper(self, connection: NodeConnection, keeper: NodeKeeper) -> None:
        """The steps that need the keeper archive there, which is removed again in any case."""
        try:
            with self._step("sftp") as sftp:  # as a large code archive would be copied
                archive = await self._context.archives.get()
                await connection.upload(archive.path, f"{keeper.directory}/{archive.name}.sftp")
                sftp.found = f"{archive.path.stat().st_size / 2**20:.1f} MiB copied there"
            with self._step("forwarding") as forwarding:
                await self._forward(connection, keeper, forwarding)
            with self._step("keeper") as probe:
                answer = await keeper.probe(*filter(None, [self._needs.code_path]))
                probe.found = f"version {answer['version']} runs there with Python {answer['python']}"
            if probe.verdict is CheckVerdict.OK:
                with self._step("gpus") as gpus:
                    _check_gpus(answer, gpus)
                with self._step("trials") as trials:
                    _check_trials(answer, self._claim.machine, self._needs.gpu_number, trials)
                with self._step("code") as code:
                    code.found = _find_code(answer, self._needs.code_path)
        finally:
            await self._remove(keeper.remove)

    async def _forward(self, connection: NodeConnection, keeper: NodeKeeper, step: _Finding) -> None:
        prepared = await keeper.prepare()
        manager = self._context.provider.socket_pointer.read_text(encoding="utf-8").strip()
        try:
            await connection.forward(prepared.socket, manager)
            step.found = "a socket there leads to this manager"
        except ForwardingRefused as error:
            await Relay(connection, keeper, socket=prepared.socket, manager=manager).check()
            step.note(f"{error}; a relay over the same connection is used instead")

    async def _remove(self, remove: Callable[[], Awaitable[str]]) -> None:
        try:
            left = await remove()
        except (TrainingServiceError, OSError) as error:
            left = str(error)
        if left:
            found, advice = f"the files copied for this check are still there: {left}", "run `proctor platform clean`"
            self.steps.append(CheckStep(self.name, "clean up", CheckVerdict.FAIL, found, advice))

    @contextmanager
    def _step(self, name: str) -> Iterator[_Finding]:
        """Take one step. An error in it is its failure, and no reason to stop."""
        finding = _Finding()
        try:
            yield finding
        except (TrainingServiceError, OSError) as error:
            finding.verdict = CheckVerdict.FAIL
            self.steps.append(_failure(self.name, name, error))
        else:
            self.steps.append(CheckStep(self.name, name, finding.verdict, finding.found, finding.advice))


def _check_gpus(answer: dict[str, Any], step: _Finding) -> None:
    devices = [from_json(Device, device) for device in answer["devices"]]
    if not devices:
        note = answer["driver_note"] or "no GPUs were found"
        step.note(note, "trials with trialGpuNumber above 0 cannot run there")
        return
    if answer["gpu_lock_problem"]:
        raise RemoteError(answer["gpu_lock_problem"])
    names = sorted({device.name for device in devices})
    step.found = f"{len(devices)} × {' and '.join(names)}"


def _check_trials(answer: dict[str, Any], machine: MachineSettings, wanted: int, step: _Finding) -> None:
    """By the rule of placement: what could never hold a trial, even with no other process on it."""
    there = {int(device["index"]) for device in answer["devices"]}
    missing = sorted(set(machine.gpu_indices or ()) - there)
    allowed = len(there if machine.gpu_indices is None else there & set(machine.gpu_indices))
    if missing:
        found = f"gpuIndices names {_gpu_list(missing)}, it has {_gpu_list(sorted(there))}"
        step.note(found, "correct gpuIndices", verdict=CheckVerdict.FAIL if wanted else CheckVerdict.NOTE)
    elif allowed < wanted:
        restricted = f", of which gpuIndices allows {allowed}" if allowed < len(there) else ""
        found = f"no trial can run there: trialGpuNumber is {wanted}, it has {_number(len(there))}{restricted}"
        step.note(found, "remove the machine, or request fewer GPUs", verdict=CheckVerdict.FAIL)
    else:
        step.found = f"need {_number(wanted)}, may use {allowed}" if wanted else "need no GPU"


def _number(gpus: int) -> str:
    return f"{gpus or 'no'} GPU" + ("s" if gpus > 1 else "")


def _gpu_list(indices: Sequence[int]) -> str:
    if not indices:
        return "no GPU"
    return ("GPU " if len(indices) == 1 else "GPUs ") + ", ".join(str(index) for index in indices)


def _find_code(answer: dict[str, Any], code_path: str | None) -> str:
    if code_path is None:
        return "it is copied there when a trial needs it"
    if (kind := answer["paths"].get(code_path)) != "folder":
        raise RemoteError(f"{code_path} should be a folder there, and is {kind}; correct code.pathOnNode")
    return f"{code_path} exists"


def _failure(machine: str, name: str, error: Exception) -> CheckStep:
    """The advice is the last clause of an error's text."""
    found, _, advice = str(error).rpartition("; ")
    return CheckStep(machine, name, CheckVerdict.FAIL, found or advice, advice if found else "")


# ---- cleaning


async def clean_machines(
    claims: Sequence[Claim],
    node_ids: Sequence[str],
    context: MachineContext,
    *,
    holders: Callable[[str], Sequence[str]],
    forget: Callable[[str], None],
) -> tuple[CheckStep, ...]:
    """One step for each machine, all at once, in their order.

    :param holders: the experiments that claim a node; such a node is left alone.
    :param forget: called with a node without a claim, when nothing of this manager is left there.
    """
    async with asyncio.TaskGroup() as group:
        tasks = [
            group.create_task(
                _clean(claim, node_id, context, holders=holders, forget=forget), name=f"cleaning of {node_id}"
            )
            for claim, node_id in zip(claims, node_ids, strict=True)
        ]
    return tuple(task.result() for task in tasks)


async def _clean(
    claim: Claim,
    node_id: str,
    context: MachineContext,
    *,
    holders: Callable[[str], Sequence[str]],
    forget: Callable[[str], None],
) -> CheckStep:
    name = claim.machine.address
    if holders(node_id):
        return _in_use(name, holders(node_id))
    try:
        async with context.connect(claim, None) as connection, context.locks[node_id], context.gate:
            if holders(node_id):  # claimed meanwhile
                return _in_use(name, holders(node_id))
            removed, left = await _remove_all(connection, claim, node_id, context)
            if not left and not holders(node_id):
                forget(node_id)
    except (TrainingServiceError, OSError) as error:
        return _failure(name, "clean", error)
    if left:
        return CheckStep(name, "clean", CheckVerdict.FAIL, f"something could not be removed: {'; '.join(left)}")
    found = f"{' and '.join(removed)} removed" if removed else "nothing of this manager was there"
    return CheckStep(name, "clean", CheckVerdict.OK, found)


def _in_use(name: str, experiments: Sequence[str]) -> CheckStep:
    found = f"experiment {', '.join(experiments)} uses it; it was not changed"
    return CheckStep(name, "clean", CheckVerdict.FAIL, found, f"stop it first: proctor stop {experiments[0]}")


async def _remove_all(
    connection: NodeConnection, claim: Claim, node_id: str, context: MachineContext
) -> tuple[list[str], list[str]]:
    """What was removed there and what is left, folders of interrupted checks included."""
    python_path, archive = claim.machine.python_path, await context.archives.get()
    manager_id = context.provider.manager_id
    key = keeper_folder(manager_id, node_id)
    async with open_contact(connection, key, python_path=python_path, now=context.now) as contact:
        keys = [key] if contact.facts.exists else []
        keys += await contact.list_directories(f"{manager_id}-check-")
    left = []
    for key in keys:
        site = Site(node_id, key, python_path, archive)
        if problem := await remove_keeper(connection, site, now=context.now):
            left.append(problem)
    return [f"~/.proctor/nodes/{key}" for key in keys], left

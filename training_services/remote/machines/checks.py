"""The checks of the machines of a configuration: every hop to each of them, for `proctor doctor`; and the removal of
everything this manager has there, for `proctor platform clean`.

A check copies its files to a folder of their own, removes them again, and touches no keeper.
"""

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
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

Found = CheckStep | str


@dataclass(frozen=True)
class TrialNeeds:
    """What the trials of a configuration need of a machine."""

    code_path: str | None = None
    """The folder there in which the code lies already."""
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
        steps = [_as_note(step) if step.name == "trials" else step for step in steps]
    return tuple(steps)


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
                if await self._check_facts(contact.facts):
                    keeper = await self._install(contact)
        except (TrainingServiceError, OSError) as error:
            self.steps.append(_failure(self.name, "python", error))
        if keeper is not None:
            await self._check_keeper(connection, keeper)

    async def _check_facts(self, facts: NodeFacts) -> bool:
        """Whether files may be copied there."""
        usable = await self._try("python", lambda: _python(facts))
        await self._try("clock", lambda: _clock(facts))
        usable &= await self._try("disk", lambda: _room(facts))
        usable &= await self._try("home", lambda: _home(facts))
        return usable

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
            await self._try("sftp", lambda: self._upload(connection, keeper))
            await self._try("forwarding", lambda: self._forward(connection, keeper))
            answer: dict[str, Any] = {}
            if await self._try("keeper", lambda: self._probe(keeper, answer)):
                await self._try("gpus", lambda: _gpus(answer))
                await self._try("trials", lambda: _trials(answer, self._claim.machine, self._needs.gpu_number))
                await self._try("code", lambda: _code(answer, self._needs.code_path))
        finally:
            await self._remove(keeper.remove)

    async def _upload(self, connection: NodeConnection, keeper: NodeKeeper) -> Found:
        """As a large code archive would be."""
        archive = await self._context.archives.get()
        await connection.upload(archive.path, f"{keeper.directory}/{archive.name}.sftp")
        return f"{archive.path.stat().st_size / 2**20:.1f} MiB copied there"

    async def _forward(self, connection: NodeConnection, keeper: NodeKeeper) -> Found:
        prepared = await keeper.prepare()
        manager = self._context.provider.socket_pointer.read_text(encoding="utf-8").strip()
        try:
            await connection.forward(prepared.socket, manager)
        except ForwardingRefused as error:
            await Relay(connection, keeper, socket=prepared.socket, manager=manager).check()
            found = f"{error}; a relay over the same connection is used instead"
            return CheckStep(self.name, "forwarding", CheckVerdict.NOTE, found)
        return "a socket there leads to this manager"

    async def _probe(self, keeper: NodeKeeper, answer: dict[str, Any]) -> Found:
        answer.update(await keeper.probe(*filter(None, [self._needs.code_path])))
        return f"version {answer['version']} runs there with Python {answer['python']}"

    async def _remove(self, remove: Callable[[], Awaitable[str]]) -> None:
        try:
            left = await remove()
        except (TrainingServiceError, OSError) as error:
            left = str(error)
        if left:
            found, advice = f"what was copied for this check is still there: {left}", "run `proctor platform clean`"
            self.steps.append(CheckStep(self.name, "clean up", CheckVerdict.FAIL, found, advice))

    async def _try(self, name: str, check: Callable[[], Awaitable[Found] | Found]) -> bool:
        """Take one step; whether it did not fail."""
        try:
            found = check()
            if not isinstance(found, CheckStep | str):
                found = await found
        except (TrainingServiceError, OSError) as error:
            self.steps.append(_failure(self.name, name, error))
            return False
        step = found if isinstance(found, CheckStep) else CheckStep(self.name, name, CheckVerdict.OK, found)
        step = CheckStep(self.name, name, step.verdict, step.found, step.advice)
        self.steps.append(step)
        return step.verdict is not CheckVerdict.FAIL


def _python(facts: NodeFacts) -> Found:
    require_python_path(facts)
    require_system(facts)
    found = f"{facts.python} is {facts.version}"
    if facts.kills_at_logout:
        note = f"{found}; its logind ends what a user leaves running at logout (KillUserProcesses)"
        advice = f"run `loginctl enable-linger {facts.user}` there"
        return CheckStep("", "python", CheckVerdict.NOTE, note, advice)
    return found


def _clock(facts: NodeFacts) -> Found:
    require_clock(facts)
    return f"{abs(facts.clock_ahead_seconds):.0f} s apart from the manager's"


def _room(facts: NodeFacts) -> Found:
    require_room(facts)
    return "no limit is known" if facts.free_mb is None else f"{facts.free_mb:,} MiB free at {facts.home}"


def _home(facts: NodeFacts) -> Found:
    require_home(facts)
    return f"{facts.home} can be written by {facts.user}"


def _gpus(answer: dict[str, Any]) -> Found:
    devices = [from_json(Device, device) for device in answer["devices"]]
    if not devices:
        note = answer["driver_note"] or "no GPUs were found"
        return CheckStep("", "gpus", CheckVerdict.NOTE, note, "trials with trialGpuNumber above 0 cannot run there")
    if answer["gpu_lock_problem"]:
        raise RemoteError(answer["gpu_lock_problem"])
    names = sorted({device.name for device in devices})
    return f"{len(devices)} × {' and '.join(names)}"


def _trials(answer: dict[str, Any], machine: MachineSettings, wanted: int) -> Found:
    """By the rule of placement: what could never hold a trial, even with no other process on it."""
    there = {int(device["index"]) for device in answer["devices"]}
    missing = sorted(set(machine.gpu_indices or ()) - there)
    allowed = len(there if machine.gpu_indices is None else there & set(machine.gpu_indices))
    if missing:
        verdict = CheckVerdict.FAIL if wanted else CheckVerdict.NOTE
        found = f"gpuIndices names {_gpu_list(missing)}, it has {_gpu_list(sorted(there))}"
        return CheckStep("", "trials", verdict, found, "correct gpuIndices")
    if allowed < wanted:
        restricted = f", of which gpuIndices allows {allowed}" if allowed < len(there) else ""
        found = f"no trial can run there: trialGpuNumber is {wanted}, it has {_number(len(there))}{restricted}"
        return CheckStep("", "trials", CheckVerdict.FAIL, found, "take it out, or ask for fewer GPUs")
    return f"need {_number(wanted)}, may use {allowed}" if wanted else "need no GPU"


def _number(gpus: int) -> str:
    return f"{gpus or 'no'} GPU" + ("s" if gpus > 1 else "")


def _gpu_list(indices: Sequence[int]) -> str:
    if not indices:
        return "no GPU"
    return ("GPU " if len(indices) == 1 else "GPUs ") + ", ".join(str(index) for index in indices)


def _code(answer: dict[str, Any], code_path: str | None) -> Found:
    if code_path is None:
        return "it is copied there when a trial needs it"
    if (kind := answer["paths"].get(code_path)) != "folder":
        raise RemoteError(f"{code_path} should be a folder there, and is {kind}; correct code.pathOnNode")
    return f"{code_path} is there"


def _as_note(step: CheckStep) -> CheckStep:
    """The same as a note, because another machine can run the trials."""
    return replace(step, verdict=CheckVerdict.NOTE) if step.verdict is CheckVerdict.FAIL else step


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
    :param forget: called with a node without a claim, when nothing of this manager is there any more.
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
    found = f"experiment {', '.join(experiments)} uses it; it was left as it is"
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

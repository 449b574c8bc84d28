"""The keeper of the manager's own machine: started when it is not there, and again when it dies; replaced when it is of
another version."""

import asyncio
import contextlib
import logging
import os
import secrets
from pathlib import Path

from proctor.training_services.keepers.hub import KeeperHub
from proctor.training_services.local.service import LOCAL_NODE
from proctor.training_services.nodes.pool import LOCAL_KIND, NodePool, NodeStatus
from proctor.trial_keeper.errors import TrialKeeperError
from proctor.trial_keeper.linux.backoff import growing_pause
from proctor.trial_keeper.linux.identity import describe_stop, start_time
from proctor.trial_keeper.settings import SECRET_FILE
from proctor.trial_keeper.start import read_facts, start_keeper

__all__ = ["LocalKeeper", "ensure_local_keeper"]

log = logging.getLogger(__name__)

FIRST_PAUSE_SECONDS = 0.1
LONGEST_PAUSE_SECONDS = 30.0
LINGER_SECONDS = 60.0
"""How long a keeper waits for a manager once none of its jobs runs. The manager may have ended while they were being
stopped; what it has not delivered is delivered by the keeper that the next manager starts."""
POLL_INTERVAL_SECONDS = 2.0  # how often it is looked whether the keeper is suspended
_SECRET_BYTES = 32
_SECRET_CHARACTERS = len(secrets.token_urlsafe(_SECRET_BYTES))
SETTLED_SECONDS = 10.0  # a keeper that has lived so long has not failed at its start


class LocalKeeper:
    """Keeps the keeper of node `local` running.

    :param directory: the keeper's own, `<home>/nodes/local`.
    :param pointer: the file that holds the path of the manager's socket, `<home>/run/socket`.
    :param gpu_lock_directory: where this machine's GPU leases are; empty for the default.
    """

    def __init__(
        self, directory: Path, pointer: Path, hub: KeeperHub, pool: NodePool, *, gpu_lock_directory: str = ""
    ) -> None:
        self._directory = directory
        self._pointer = pointer
        self._hub = hub
        self._pool = pool
        self._gpu_lock_directory = gpu_lock_directory
        self._secret = _read_secret(directory) or secrets.token_urlsafe(_SECRET_BYTES)

    def announce(self) -> None:
        """Make the node known to pool and hub, so that a keeper that runs already may register. One of another version
        may not: `start` replaces it."""
        facts = read_facts(self._directory)
        if facts is None or facts.is_current:
            self._pool.add(LOCAL_NODE, LOCAL_KIND, reason="its keeper is being started")
            self._hub.add_node(LOCAL_NODE, self._secret)
            return
        reason = f"its keeper is of another version ({facts.version}) and is being replaced; its trials keep running"
        log.info("node %s: %s", LOCAL_NODE, reason, extra={"action": "keeper.replace", "node_id": LOCAL_NODE})
        self._pool.add(LOCAL_NODE, LOCAL_KIND, reason=reason)

    async def start(self) -> int:
        """Make sure that a keeper of this version runs, and accept it; returns its pid.

        Raises proctor.trial_keeper.errors.TrialKeeperError or OSError when none can be started.
        """
        pid = await asyncio.to_thread(
            start_keeper,
            self._directory,
            node_id=LOCAL_NODE,
            manager_pointer=self._pointer,
            secret=self._secret,
            gpu_lock_directory=self._gpu_lock_directory,
            linger_seconds=LINGER_SECONDS,
        )
        self._hub.add_node(LOCAL_NODE, self._secret)
        return pid

    async def run(self) -> None:
        """Keep a keeper running until canceled; on cancellation it continues, with its trials."""
        loop = asyncio.get_running_loop()
        failures = 0
        while True:
            since = loop.time()
            try:
                await self._until_gone(await self.start())
            except (TrialKeeperError, OSError) as error:
                log.error("the keeper of this machine cannot be started: %s", error)
                self._pool.set_status(LOCAL_NODE, NodeStatus.FAILED, f"its keeper cannot be started: {error}")
            else:
                log.warning("the keeper of this machine has died and is being started again; its trials keep running")
                reason = "its keeper has died and is being started again; its trials keep running"
                self._pool.set_status(LOCAL_NODE, NodeStatus.CONNECTING, reason)
            failures = 1 if loop.time() - since > SETTLED_SECONDS else failures + 1
            await asyncio.sleep(growing_pause(failures, FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS))

    async def _until_gone(self, pid: int) -> None:
        """Wait until the keeper's process has ended; report meanwhile that it is suspended, when it is."""
        try:
            descriptor = os.pidfd_open(pid)
        except ProcessLookupError:
            return
        loop = asyncio.get_running_loop()
        gone = asyncio.Event()
        loop.add_reader(descriptor, gone.set)
        try:
            while not gone.is_set():
                self._explain_stop(pid)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(POLL_INTERVAL_SECONDS):
                        await gone.wait()
        finally:
            loop.remove_reader(descriptor)
            os.close(descriptor)

    def _explain_stop(self, pid: int) -> None:
        """A keeper that is resumed reports that itself."""
        try:
            clause = describe_stop(pid, start_time(pid) or 0)
        except OSError:  # no descriptors left: not known now
            return
        if clause:
            reason = f"its keeper {clause}; its trials keep running, and their reports are delayed"
            if self._pool.node(LOCAL_NODE).reason != reason:
                log.warning("node %s: %s", LOCAL_NODE, reason)
                self._pool.set_status(LOCAL_NODE, NodeStatus.SILENT, reason)


def ensure_local_keeper(home: Path, hub: KeeperHub, pool: NodePool, *, gpu_lock_directory: str = "") -> LocalKeeper:
    """Announce node `local` for a manager on `home`. Call it before the experiments are taken up, and run the result's
    `run` in a task group once the manager's socket is open."""
    keeper = LocalKeeper(
        home / "nodes" / LOCAL_NODE, home / "run" / "socket", hub, pool, gpu_lock_directory=gpu_lock_directory
    )
    keeper.announce()
    return keeper


def _read_secret(directory: Path) -> str:
    """The secret of a keeper that may still run; "" where there is none, or none that is whole (a power cut)."""
    try:
        found = (directory / SECRET_FILE).read_text(encoding="ascii").strip()
    except (FileNotFoundError, ValueError):
        return ""
    return found if len(found) == _SECRET_CHARACTERS else ""

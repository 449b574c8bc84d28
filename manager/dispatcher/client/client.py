"""The manager's end of a dispatcher process: starts it, sends it the input log, restarts it when it dies.

The store's input log is the truth. `send` is called after an input was committed; a dispatcher
that has just been started is brought up to date from the log, so an input is never sent twice and never skipped.
"""

import asyncio
import errno
import logging
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, suppress

from proctor.manager.dispatcher import protocol
from proctor.manager.dispatcher.client.liveness import Liveness, LivenessMonitor, Patience, ProcessStats
from proctor.manager.dispatcher.protocol import FromDispatcher, News, ToDispatcher
from proctor.sdk import disk_errors
from proctor.sdk.failpoints import failpoint
from proctor.trial_keeper.linux.backoff import growing_pause

log = logging.getLogger(__name__)

PAGE = 500
FINISH_SECONDS = 30.0
"""How long a dispatcher may take to handle what it was sent last and to leave."""
SLOW_TUNER_SECONDS = 15.0
"""After that long without a suggestion that was asked for, users are notified that the tuner computes."""
RESTART_DELAYS_SECONDS = (0.0, 0.25, 1.0, 4.0, 10.0)
"""Before the next start, by how many dispatchers in a row have ended without a suggestion."""
FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 0.5, 30.0
"""Before the next attempt to start one where the machine is in the way."""
PASSING = disk_errors.PASSING | {  # its log cannot be written
    *(errno.EMFILE, errno.ENFILE, errno.EAGAIN, errno.ENOMEM),  # no descriptors, processes or memory left
    errno.ENOENT,  # the disk of its folder is away
}
"""Why a process cannot be started though nothing is wrong with it."""


class LineChannel(ABC):
    """One conversation with one dispatcher: lines there, lines back."""

    patience: Patience | None = None
    """How long it may leave a ping unanswered; None: it cannot, and gets none."""

    @abstractmethod
    async def send(self, data: bytes) -> None:
        """Send whole lines. Raises ConnectionError when the dispatcher is gone."""

    @abstractmethod
    def lines(self) -> AsyncIterator[bytes]:
        """The dispatcher's lines until it closes its end."""

    @abstractmethod
    def exit_message(self) -> str:
        """Why the conversation ended, for people: exit status and the last of the log."""

    async def limit_log(self) -> None:
        """Keep what the dispatcher prints in bounds, for as long as the conversation lasts; then this is canceled.
        Returns where there is nothing to do."""
        return

    def process_stats(self) -> ProcessStats:
        """What the system says of the dispatcher now. Returns at once."""
        return ProcessStats(processor_seconds=None)

    async def kill(self) -> None:
        """End a dispatcher that does not answer: its lines come to their end soon, and this is then canceled. Only
        called where there is a `patience`."""
        raise NotImplementedError


Opener = Callable[[], AbstractAsyncContextManager[LineChannel]]
"""Starts a dispatcher and ends it on leaving."""

InputReader = Callable[[int, int], Awaitable[Sequence[ToDispatcher]]]
"""(after position, limit) → the next inputs of the log, requests with the answers that are already stored."""

Receiver = Callable[[News], None]


class DispatcherGone(Exception):
    """The dispatcher ended again and again."""


class DispatcherClient:
    """Keeps one experiment's dispatcher alive and informed."""

    def __init__(
        self,
        *,
        open_channel: Opener,
        initialize: Callable[[], protocol.Initialize],
        read_inputs: InputReader,
        receive: Receiver,
        restarted: Callable[[str], None],
        silent: Callable[[str], None] = lambda problem: None,
    ) -> None:
        """`restarted` is called with the reason of each restart, `silent` with a clause about one that does not answer
        but computes."""
        self._open_channel = open_channel
        self._initialize = initialize
        self._read_inputs = read_inputs
        self._receive = receive
        self._restarted = restarted
        self._silent = silent
        self._monitor: LivenessMonitor | None = None
        self._obstacle = ""  # why none can be started
        self._unanswered = False  # a ping is on its way
        self._shot_for = ""
        self._late: list[ToDispatcher] = []  # since the conversation began, not sent yet
        self._sent = 0
        self._has_suggested = False  # this dispatcher
        self._has_ever_suggested = False  # any of them
        self._awaited: set[int] = set()  # parameter ids that were asked for and not answered
        self._awaited_since = 0.0  # or since the last answer, by this clock, the loop's
        self._monotonic: Callable[[], float] = lambda: 0.0
        self._has_inputs = asyncio.Event()
        self._finishing = asyncio.Event()
        self._limit: asyncio.Timeout | None = None  # of the conversation

    def send(self, messages: Sequence[ToDispatcher]) -> None:
        """Committed inputs in the order of their positions. Returns at once; never raises."""
        self._late.extend(messages)
        self._has_inputs.set()

    @property
    def problem(self) -> str:
        """Why no suggestions come, as a clause, or '': the dispatcher is silent, cannot be started now, or computes.
        May be asked in any thread."""
        return (self._obstacle if self._monitor is None else self._monitor.problem) or self._describe_wait()

    def _describe_wait(self) -> str:
        """It answers pings, but its tuner gives no suggestion."""
        seconds = self._monotonic() - self._awaited_since if self._awaited else 0.0
        if seconds < SLOW_TUNER_SECONDS:
            return ""
        what = "made its next suggestion" if self._has_ever_suggested else "suggested anything yet"
        return f"the tuner has been computing for {seconds:.0f} s and has not {what}"

    def finish(self) -> None:
        """No more inputs will come: the dispatcher handles what it was sent and leaves, in FINISH_SECONDS at most;
        then `run` returns. Returns at once; idempotent."""
        if not self._finishing.is_set():
            self._finishing.set()
            self._has_inputs.set()
            self._set_limit()

    def _set_limit(self) -> None:
        if self._limit is not None and self._finishing.is_set():
            self._limit.reschedule(asyncio.get_running_loop().time() + FINISH_SECONDS)

    async def run(self) -> None:
        """Serve until `finish`; may be called again then. Raises DispatcherGone when the dispatcher cannot be kept
        alive, ProtocolError when it sends what is not a message."""
        try:
            await self._serve()
        finally:
            self._obstacle = ""
            self._finishing.clear()

    async def _serve(self) -> None:
        failures = obstacles = 0
        while True:
            self._has_suggested = False
            try:
                exit_message = await self._converse()
            except OSError as error:
                if error.errno not in PASSING:
                    raise
                obstacles += 1
                if await self._is_finished_after(self._explain(error, obstacles)):
                    return
                continue
            obstacles = 0
            if self._finishing.is_set():
                return
            failures = 0 if self._has_suggested else failures + 1
            if failures >= len(RESTART_DELAYS_SECONDS):
                raise DispatcherGone(f"the dispatcher ended {failures} times in a row: {exit_message}")
            log.warning("dispatcher ended, starting it again: %s", exit_message, extra={"action": "dispatcher.restart"})
            self._restarted(exit_message)
            if await self._is_finished_after(RESTART_DELAYS_SECONDS[failures]):
                return

    async def _is_finished_after(self, seconds: float) -> bool:
        """Wait, unless no more inputs will come; whether that is so."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._finishing.wait()
        return self._finishing.is_set()

    def _explain(self, error: OSError, attempts: int) -> float:
        """Say why no dispatcher can be started; the pause before the next attempt."""
        pause = growing_pause(attempts, FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS)
        place = f": {error.filename}" if error.filename else ""
        why = f"the dispatcher cannot be started: {error.strerror or error}{place}"
        if attempts == 1:
            log.warning("%s; it is tried again", why, extra={"action": "dispatcher.start"})
        self._obstacle = f"{why}; it is tried again every {pause:g} s"
        return pause

    async def _converse(self) -> str:
        """One dispatcher's life; returns why it ended."""
        self._sent, self._unanswered, self._shot_for = 0, False, ""
        self._monotonic = asyncio.get_running_loop().time
        self._late.clear()
        nonsense: protocol.ProtocolError | None = None
        async with self._open_channel() as channel:
            self._obstacle = ""
            try:
                async with asyncio.TaskGroup() as group:
                    # The speaker begins first, so that Initialize is the first message.
                    tasks = [group.create_task(self._speak(channel), name="dispatcher speaker")]
                    tasks.append(group.create_task(channel.limit_log(), name="dispatcher log"))
                    if channel.patience is not None:
                        watching = self._watch(channel, channel.patience)
                        tasks.append(group.create_task(watching, name="dispatcher watch"))
                    nonsense = await self._listen(channel)
                    for task in tasks:
                        task.cancel()
            finally:
                self._monitor = self._limit = None
                self._awaited.clear()  # its successor owes that from when it is asked again
        if nonsense is not None:
            raise nonsense
        return f"{self._shot_for}; {channel.exit_message()}" if self._shot_for else channel.exit_message()

    async def _listen(self, channel: LineChannel) -> protocol.ProtocolError | None:
        """Receive until the dispatcher closes its end, sends what is not a message, or takes too long to leave."""
        with suppress(TimeoutError):
            async with asyncio.timeout(None) as self._limit:
                self._set_limit()
                async for line in channel.lines():
                    failpoint("manager.dispatcher.receive.before")
                    try:
                        message = protocol.decode(line)
                    except protocol.ProtocolError as error:
                        return error
                    self._handle(message)  # type: ignore[arg-type]
        return None

    def _handle(self, message: FromDispatcher) -> None:
        if self._monitor is not None:
            self._monitor.beat()
        if isinstance(message, protocol.Pong):
            self._unanswered = False
            return
        if isinstance(message, protocol.NewTrial):
            self._has_suggested = self._has_ever_suggested = True
            self._record_answer([message.parameter_id])
        elif isinstance(message, protocol.NoMoreTrials):
            self._record_answer(message.parameter_ids)
        self._receive(message)

    def _record_answer(self, parameter_ids: Sequence[int]) -> None:
        self._awaited.difference_update(parameter_ids)
        self._awaited_since = self._monotonic()

    def _record_requests(self, messages: Sequence[ToDispatcher]) -> None:
        """What the dispatcher must answer now."""
        for message in messages:
            if isinstance(message, protocol.RequestTrialJobs):
                if not self._awaited:
                    self._awaited_since = self._monotonic()
                self._awaited.update(message.parameter_ids)
                self._awaited.difference_update(answer.parameter_id for answer in message.answers)
                self._has_ever_suggested |= bool(message.answers)

    async def _watch(self, channel: LineChannel, patience: Patience) -> None:
        """Ping the dispatcher, and kill one that will not answer any more."""
        loop = asyncio.get_running_loop()
        self._monitor = monitor = LivenessMonitor(patience, loop.time(), channel.process_stats())
        nonce = 0
        while True:
            due = loop.time() + patience.poll_seconds
            if not self._unanswered:
                self._unanswered, nonce = True, nonce + 1
                await self._ping(channel, nonce, due)
            await asyncio.sleep(due - loop.time())
            liveness = monitor.check(loop.time(), channel.process_stats())
            if self._finishing.is_set():
                return  # it answers no pings while it leaves, and has a limit for that
            if liveness is Liveness.LOST:
                break
            if liveness is Liveness.BUSY:
                self._silent(monitor.problem)
        self._shot_for = f"{monitor.problem}, so it was killed"
        log.warning("%s", self._shot_for, extra={"action": "dispatcher.kill"})
        await channel.kill()

    @staticmethod
    async def _ping(channel: LineChannel, nonce: int, due: float) -> None:
        """Send a ping. Of a dispatcher that reads nothing it lies in the buffer, and that is not waited for."""
        with suppress(ConnectionError, TimeoutError):
            async with asyncio.timeout_at(due):
                await channel.send(protocol.encode(protocol.Ping(nonce)))

    async def _speak(self, channel: LineChannel) -> None:
        with suppress(ConnectionError):
            await channel.send(protocol.encode(self._initialize()))
            while page := await self._read_inputs(self._sent, PAGE):
                await self._send(channel, page)
            while True:
                late, self._late = self._late, []
                await self._send(channel, late)
                if self._late:
                    continue
                if self._finishing.is_set():
                    await channel.send(protocol.encode(protocol.Terminate()))
                    return
                self._has_inputs.clear()
                await self._has_inputs.wait()

    async def _send(self, channel: LineChannel, messages: Sequence[ToDispatcher]) -> None:
        news = [message for message in messages if getattr(message, "position", 0) > self._sent]
        if not news:
            return
        self._record_requests(news)
        failpoint("manager.dispatcher.send.before")
        await channel.send(b"".join(protocol.encode(message) for message in news))
        self._sent = news[-1].position  # type: ignore[union-attr]
        failpoint("manager.dispatcher.send.after")

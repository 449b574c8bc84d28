"""The manager's end of a dispatcher process: starts it, sends it the input log, restarts it when it dies.

The store's input log is the truth. `send` is called after an input was committed; a dispatcher that has just been
started is brought up to date from the log, from the state that the one before has saved or else from the beginning, so
an input is never sent twice and never skipped.
"""

import asyncio
import errno
import logging
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import dataclass, replace

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


class InputSource(ABC):
    """An experiment's input log, from which a dispatcher that was started is brought up to date."""

    @abstractmethod
    async def read(self, after: int, limit: int) -> Sequence[ToDispatcher]:
        """The next inputs behind a position, requests with the answers that are already stored."""

    async def read_state(self) -> tuple[int, str | None]:
        """The position of the last input that is part of the newest state that a dispatcher has saved, and the state; 0
        and None where there is none."""
        return 0, None


@dataclass(frozen=True)
class DispatcherRestarted:
    """The dispatcher had died and is being started again."""

    exit_message: str


@dataclass(frozen=True)
class DispatcherSilent:
    """The dispatcher has not answered for long, but computes."""

    problem: str


Receiver = Callable[[News | DispatcherRestarted | DispatcherSilent], None]
"""Gets what a dispatcher sends, and what happens to it."""


class DispatcherGone(Exception):
    """The dispatcher ended again and again."""


class DispatcherClient:
    """Keeps one experiment's dispatcher alive and informed: one conversation after another."""

    def __init__(
        self,
        initialize: protocol.Initialize,
        *,
        open_channel: Opener,
        inputs: InputSource,
    ) -> None:
        self._initialize = initialize
        self._open_channel = open_channel
        self._inputs = inputs
        self._conversation: Conversation | None = None
        self._owed = OwedSuggestions()
        self._obstacle = ""  # why none can be started
        self._finishing = asyncio.Event()

    def send(self, messages: Sequence[ToDispatcher]) -> None:
        """Committed inputs in the order of their positions. Returns at once; never raises."""
        if self._conversation is not None:  # the next one reads them from the log
            self._conversation.send(messages)

    @property
    def problem(self) -> str:
        """Why no suggestions come, as a clause, or '': the dispatcher is silent, cannot be started now, or computes.
        May be asked in any thread."""
        conversation = self._conversation
        return self._obstacle if conversation is None else conversation.problem

    def finish(self) -> None:
        """No more inputs will come: the dispatcher handles what it was sent and leaves, in FINISH_SECONDS at most;
        then `run` returns. Returns at once; idempotent."""
        self._finishing.set()
        self.send([])  # a speaker that waits for inputs looks again

    async def run(self, receive: Receiver) -> None:
        """Serve until `finish`; may be called again then. Raises DispatcherGone when the dispatcher cannot be kept
        alive, ProtocolError when it sends what is not a message."""
        failures = obstacles = 0
        try:
            while True:
                try:
                    conversation = await self._converse(receive)
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
                failures = 0 if conversation.has_suggested else failures + 1
                why = conversation.exit_message()
                if failures >= len(RESTART_DELAYS_SECONDS):
                    raise DispatcherGone(f"the dispatcher ended {failures} times in a row: {why}")
                log.warning("dispatcher ended, starting it again: %s", why, extra={"action": "dispatcher.restart"})
                receive(DispatcherRestarted(why))
                if await self._is_finished_after(RESTART_DELAYS_SECONDS[failures]):
                    return
        finally:
            self._obstacle = ""
            self._finishing.clear()

    async def _converse(self, receive: Receiver) -> "Conversation":
        """One dispatcher's life, from its start to its end."""
        async with self._open_channel() as channel:
            self._obstacle = ""
            conversation = Conversation(channel, self._owed, self._finishing, receive)
            self._conversation = conversation
            try:
                position, saved = await self._inputs.read_state()
                initialize = replace(self._initialize, saved=saved, saved_position=position)
                await conversation.run(initialize, self._inputs)
            finally:
                self._conversation = None
                self._owed.clear()  # its successor owes that from when it is asked again
        return conversation

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
            log.warning("%s; trying again", why, extra={"action": "dispatcher.start"})
        self._obstacle = f"{why}; tried again every {pause:g} s"
        return pause


class OwedSuggestions:
    """Which suggestions were requested and not given yet, and since when. Times are arguments."""

    def __init__(self) -> None:
        self._parameter_ids: set[int] = set()
        self._since = 0.0  # the first of them was requested, or the last answer came
        self._has_suggested = False  # any dispatcher of the experiment

    def record_requests(self, messages: Sequence[ToDispatcher], now: float) -> None:
        """What the dispatcher must answer now."""
        for message in messages:
            if isinstance(message, protocol.RequestTrialJobs):
                if not self._parameter_ids:
                    self._since = now
                self._parameter_ids.update(message.parameter_ids)
                self._parameter_ids.difference_update(answer.parameter_id for answer in message.answers)
                self._has_suggested |= bool(message.answers)

    def record_answer(self, message: protocol.Decision | protocol.NoMoreTrials, now: float) -> None:
        """What it has answered."""
        if isinstance(message, protocol.Decision):
            self._has_suggested = True
            self._parameter_ids.discard(message.parameter_id)
        else:
            self._parameter_ids.difference_update(message.parameter_ids)
        self._since = now

    def clear(self) -> None:
        """The dispatcher is gone."""
        self._parameter_ids.clear()

    def problem(self, now: float) -> str:
        """A clause about a tuner that computes for long, or ''."""
        seconds = now - self._since if self._parameter_ids else 0.0
        if seconds < SLOW_TUNER_SECONDS:
            return ""
        what = "made its next suggestion" if self._has_suggested else "suggested anything yet"
        return f"the tuner has been computing for {seconds:.0f} s and has not {what}"


class Conversation:
    """What is exchanged with one dispatcher, until it closes its end, is killed, or takes too long to leave."""

    def __init__(
        self, channel: LineChannel, owed: OwedSuggestions, finishing: asyncio.Event, receive: Receiver
    ) -> None:
        """`finishing` is set when no more inputs will come."""
        self._channel = channel
        self._owed = owed
        self._finishing = finishing
        self._receive = receive
        self._now = asyncio.get_running_loop().time
        self._monitor: LivenessMonitor | None = None
        self._unanswered = False  # a ping is on its way
        self._killed_for = ""
        self._late: list[ToDispatcher] = []  # not sent yet
        self._sent = 0
        self._has_inputs = asyncio.Event()
        self._is_ready = asyncio.Event()  # it has said which inputs it knows
        self.has_suggested = False

    @property
    def problem(self) -> str:
        """Why no suggestions come, as a clause, or ''. May be asked in any thread."""
        return ("" if self._monitor is None else self._monitor.problem) or self._owed.problem(self._now())

    def exit_message(self) -> str:
        """Why it ended, for people; once its channel is closed."""
        reason = self._channel.exit_message()
        return f"{self._killed_for}; {reason}" if self._killed_for else reason

    def send(self, messages: Sequence[ToDispatcher]) -> None:
        """More inputs. Returns at once."""
        self._late.extend(messages)
        self._has_inputs.set()

    async def run(self, initialize: protocol.Initialize, inputs: InputSource) -> None:
        """Returns when the dispatcher is done. Raises ProtocolError when it sends what is not a message."""
        async with asyncio.TaskGroup() as group:
            # The speaker begins first, so that Initialize is the first message.
            tasks = [group.create_task(self._speak(initialize, inputs), name="dispatcher speaker")]
            tasks.append(group.create_task(self._channel.limit_log(), name="dispatcher log"))
            limit = asyncio.timeout(None)
            tasks.append(group.create_task(self._limit_leaving(limit), name="dispatcher leave"))
            if self._channel.patience is not None:
                tasks.append(group.create_task(self._watch(self._channel.patience), name="dispatcher watch"))
            nonsense = await self._listen(limit)
            for task in tasks:
                task.cancel()
        if nonsense is not None:
            raise nonsense

    async def _speak(self, initialize: protocol.Initialize, inputs: InputSource) -> None:
        """The whole input log first, then what comes, page by page."""
        with suppress(ConnectionError):
            await self._channel.send(protocol.encode(initialize))
            if initialize.saved is not None:
                await self._is_ready.wait()
            while page := await inputs.read(self._sent, PAGE):
                await self._send(page)
            await self._channel.send(protocol.encode(protocol.Replayed()))
            while True:
                late, self._late = self._late, []
                await self._send(late)
                if self._late:
                    continue
                if self._finishing.is_set():
                    await self._channel.send(protocol.encode(protocol.Terminate()))
                    return
                self._has_inputs.clear()
                await self._has_inputs.wait()

    async def _send(self, messages: Sequence[ToDispatcher]) -> None:
        news = [message for message in messages if getattr(message, "position", 0) > self._sent]
        if not news:
            return
        self._owed.record_requests(news, self._now())
        failpoint("manager.dispatcher.send.before")
        await self._channel.send(b"".join(protocol.encode(message) for message in news))
        self._sent = news[-1].position  # type: ignore[union-attr]
        failpoint("manager.dispatcher.send.after")

    async def _listen(self, limit: asyncio.Timeout) -> protocol.ProtocolError | None:
        """Receive until the dispatcher closes its end, sends what is not a message, or the limit is reached."""
        with suppress(TimeoutError):
            async with limit:
                async for line in self._channel.lines():
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
        if isinstance(message, protocol.Initialized):
            self._sent = message.position
            self._is_ready.set()
        if isinstance(message, protocol.Decision | protocol.NoMoreTrials):
            self.has_suggested |= isinstance(message, protocol.Decision)
            self._owed.record_answer(message, self._now())
        self._receive(message)

    async def _limit_leaving(self, limit: asyncio.Timeout) -> None:
        await self._finishing.wait()
        limit.reschedule(self._now() + FINISH_SECONDS)

    async def _watch(self, patience: Patience) -> None:
        """Ping the dispatcher, and kill one that will never answer again."""
        self._monitor = monitor = LivenessMonitor(patience, self._now(), self._channel.process_stats())
        nonce = 0
        while True:
            due = self._now() + patience.poll_seconds
            if not self._unanswered:
                self._unanswered, nonce = True, nonce + 1
                with suppress(ConnectionError, TimeoutError):
                    async with asyncio.timeout_at(due):  # one that reads nothing leaves it in the buffer
                        await self._channel.send(protocol.encode(protocol.Ping(nonce)))
            await asyncio.sleep(due - self._now())
            liveness = monitor.check(self._now(), self._channel.process_stats())
            if self._finishing.is_set():
                return  # it answers no pings while it leaves, and has a limit for that
            if liveness is Liveness.LOST:
                break
            if liveness is Liveness.BUSY:
                self._receive(DispatcherSilent(monitor.problem))
        self._killed_for = f"{monitor.problem}, so it was killed"
        log.warning("%s", self._killed_for, extra={"action": "dispatcher.kill"})
        await self._channel.kill()

"""A dispatcher that schedules trials: it pauses each at some of its reports, and answers requests by those as well as
by new ones. What it decides follows from its inputs alone, and never from the ids of trials, which are random."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from proctor.manager.config.experiment import ExperimentConfig
from proctor.manager.dispatcher import protocol
from proctor.manager.dispatcher.client.client import Opener
from proctor.manager.dispatcher.client.in_process import InProcessChannel
from proctor.manager.dispatcher.host.session import HostSession
from proctor.manager.store.rows import ExperimentRow

PAUSES_AT = (1, 3)
"""Points of a trial's curve."""


class SchedulingSession(HostSession):
    """Hosts the configured tuner, and a scheduler in the place of the assessor."""

    def __init__(self, channel: "SchedulingChannel") -> None:
        super().__init__(channel._answer)
        self._channel = channel
        self._paused: list[str] = []
        self._values: dict[str, float] = {}

    def _take(self, message: protocol.ToDispatcher | protocol.FromDispatcher) -> None:
        if isinstance(message, protocol.RequestTrialJobs):
            answers = {answer.parameter_id: answer for answer in message.answers}
            for parameter_id in message.parameter_ids:
                self._decide(message.position, parameter_id, answers.get(parameter_id))
        elif isinstance(message, protocol.ReportMetrics):
            self._channel.reports += message.rows
            for row in message.rows:
                self._judge(message.position, row)
        else:
            if isinstance(message, protocol.TrialEnd):
                self._values.pop(message.trial_id, None)
                if message.trial_id in self._paused:
                    self._paused.remove(message.trial_id)
            super()._take(message)

    def _judge(self, position: int, row: protocol.ReportedMetric) -> None:
        self._values[row.trial_id] = row.value
        if row.sequence in PAUSES_AT and row.trial_id not in self._paused:
            self._paused.append(row.trial_id)
            self.send(protocol.PauseTrial(position, row.parameter_id, row.trial_id, row.job_number))

    def _decide(self, position: int, parameter_id: int, answer: protocol.Answer | None) -> None:
        if answer is not None and answer.kind != "new":
            assert answer.trial_id is not None
            self._paused.remove(answer.trial_id)
            return
        if answer is not None or not self._paused or parameter_id % 2 == 0:
            answers = [] if answer is None else [answer]
            super()._take(protocol.RequestTrialJobs(position, [parameter_id], answers))
            return
        trial_id = self._paused.pop(0)
        others = {each: value for each, value in self._values.items() if each != trial_id}
        if others and parameter_id % 4 == 1:
            best = max(others, key=lambda each: others[each])
            parameters = {"x": others[best] / 100}
            self.send(protocol.CloneTrial(position, parameter_id, trial_id, best, parameters, {"from": "scheduler"}))
        else:
            self.send(protocol.ResumeTrial(position, parameter_id, trial_id))

    def send(self, message: protocol.FromDispatcher) -> None:
        """Without the fail points, which are those of the real host."""
        self._channel._answer(message)


class SchedulingChannel(InProcessChannel):
    """A conversation with such a dispatcher. `reports` is what it was sent of metrics."""

    def __init__(self, dispatchers: "SchedulingDispatchers") -> None:
        super().__init__()
        self.reports: list[protocol.ReportedMetric] = []
        self._dispatchers = dispatchers
        self._session = SchedulingSession(self)

    async def send(self, data: bytes) -> None:
        for line in data.splitlines(keepends=True):
            self._dispatchers.inputs += 1
            if self._dispatchers.inputs == self._dispatchers.killed_at:
                self._session.stop_asking()
                self.close()
                raise ConnectionError("the dispatcher was killed")
            await super().send(line)


class SchedulingDispatchers:
    """Every dispatcher of a simulation.

    :param killed_at: the one that gets this input, counted from 1 over all of them, dies of it.
    """

    def __init__(self, killed_at: int | None = None) -> None:
        self.killed_at = killed_at
        self.inputs = 0
        self.channels: list[SchedulingChannel] = []

    def __call__(self, row: ExperimentRow, config: ExperimentConfig) -> Opener:
        """How to start one."""

        @asynccontextmanager
        async def open_channel() -> AsyncIterator[SchedulingChannel]:
            channel = SchedulingChannel(self)
            self.channels.append(channel)
            try:
                yield channel
            finally:
                channel.close()

        return open_channel

"""Built-in algorithms behind the calls of a session: one input at a time, exactly repeatable."""

from typing import Any

from proctor.manager.dispatcher import protocol
from proctor.manager.dispatcher.algorithms.base import (
    AssessorAlgorithm,
    SpaceExhausted,
    TunerAlgorithm,
    read_value,
)
from proctor.manager.dispatcher.algorithms.registry import read_search_space
from proctor.manager.dispatcher.host.interface import (
    HostedAssessor,
    HostedTuner,
    Send,
    ShutdownMode,
    succeeded,
)
from proctor.manager.dispatcher.protocol import from_wire


class BuiltinTuner(HostedTuner):
    """A built-in tuner, by its name and the algorithm that was made of it."""

    def __init__(self, name: str, algorithm: TunerAlgorithm, send: Send, rules: int) -> None:
        self._name = name
        self._hears_pauses = rules > 1
        self._algorithm = algorithm
        self._send = send
        self._search_space: Any = None
        self._ended: dict[int, str] = {}  # trials that may be parents, by parameter id

    def initialize(self, search_space: Any) -> None:
        self._search_space = search_space
        space = read_search_space({"name": self._name}, search_space, is_new=False)
        assert space is not None, "a built-in tuner knows every space that it can search"
        self._algorithm.update_search_space(space)

    def update_search_space(self, message: protocol.UpdateSearchSpace) -> None:
        self.initialize(message.search_space)

    def request(self, message: protocol.RequestTrialJobs) -> list[int]:
        answers = {answer.parameter_id: answer for answer in message.answers}
        declined: list[int] = []
        for parameter_id in message.parameter_ids:
            answer = answers.get(parameter_id)
            if answer is not None:
                self._algorithm.restore(answer.parameter_id, answer.parameters, answer.state)
            elif declined or not self._suggest(message.position, parameter_id):
                declined.append(parameter_id)
        return declined

    def trial_end(self, message: protocol.TrialEnd, pruned: tuple[int, float] | None = None) -> None:
        if self._algorithm.has_parents:
            self._ended[message.parameter_id] = message.trial_id
        if message.has_value:
            if pruned is None:
                value = read_value(from_wire(message.value))
                self._algorithm.receive_result(message.parameter_id, message.parameters, value)
            else:
                step, value = pruned
                self._algorithm.receive_pruned(message.parameter_id, message.parameters, value, step)
        self._algorithm.trial_end(message.parameter_id, succeeded(message))

    def pause(self, position: int, parameter_id: int, value: float, step: int) -> None:
        if self._hears_pauses:
            self._algorithm.trial_paused(parameter_id, value, step)

    def accept_clone(self, parameter_id: int, parameters: Any, *, instead_of: int) -> None:
        self._algorithm.trial_end(instead_of, False)
        self._algorithm.accept_customized(parameter_id, parameters)

    def import_data(self, message: protocol.ImportData) -> None:
        for row in message.rows:
            self._algorithm.import_data(row["parameter"], read_value(from_wire(row.get("value"))))

    def add_customized(self, message: protocol.AddCustomizedTrial) -> None:
        self._algorithm.accept_customized(message.parameter_id, message.parameters)

    def state_dict(self) -> protocol.JsonObject | None:
        state = self._algorithm.state_dict()
        return None if state is None else {"search_space": self._search_space, "algorithm": state}

    def load_state_dict(self, state: protocol.JsonObject) -> None:
        self.initialize(state["search_space"])
        self._algorithm.load_state_dict(state["algorithm"])

    def close(self, mode: ShutdownMode) -> None:
        """Nothing: what a built-in keeps is the input log, and the state that its session saves."""

    def _suggest(self, position: int, parameter_id: int) -> bool:
        try:
            suggestion = self._algorithm.suggest(parameter_id)
        except SpaceExhausted:
            return False
        parent = None if suggestion.parent is None else self._ended.get(suggestion.parent)
        self._send(protocol.NewTrial(position, parameter_id, suggestion.parameters, suggestion.state, parent))
        return True


class BuiltinAssessor(HostedAssessor):
    """A built-in assessor."""

    def __init__(self, algorithm: AssessorAlgorithm, send: Send) -> None:
        self._algorithm = algorithm
        self._send = send
        self._stopped: set[str] = set()

    def report(self, message: protocol.ReportMetrics) -> None:
        for row in message.rows:
            if row.trial_id in self._stopped:
                continue
            if not self._algorithm.assess(row.trial_id, row.sequence, read_value(from_wire(row.value))):
                self._stopped.add(row.trial_id)
                self._send(protocol.KillTrial(message.position, row.parameter_id, row.trial_id, row.job_number))

    def restart(self, message: protocol.TrialRestarted) -> None:
        self._stopped.discard(message.trial_id)
        self._algorithm.trial_restarted(message.trial_id, message.from_sequence)

    def trial_end(self, message: protocol.TrialEnd) -> None:
        self._stopped.discard(message.trial_id)
        self._algorithm.trial_end(message.trial_id, succeeded(message))

    def close(self, mode: ShutdownMode) -> None:
        """Nothing: what a built-in keeps is the input log, and the state that its session saves."""

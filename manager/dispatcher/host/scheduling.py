"""A trial scheduler behind the calls of a session: what it learns, and what it decides.

A scheduler knows trials by number, and each point of a trial's curve once, in order. So the points that a trial reports
again after a failure are left out, and those that it has reported after the point at which it was paused are held back:
they are part of its curve only where it continues after them, which its restart says.

A scheduler is called where messages are handled, one call at a time, also one of the user's own.

The manager is sent each trial's next milestone: with the decision that has the trial run, and whenever it changes. Not
during a replay: what was true of a trial in between must not reach it.
"""

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from proctor.manager.dispatcher import protocol
from proctor.manager.dispatcher.algorithms.base import DEFAULT_KEY, read_value
from proctor.manager.dispatcher.host.interface import HostedTuner, Send, succeeded
from proctor.manager.dispatcher.protocol import ReportedMetric, from_wire, to_wire
from proctor.sdk.metrics import from_json_word, to_json_word
from proctor.sdk.scheduler import (
    MOST_COLUMNS,
    MOST_ROWS,
    MOST_TABLES,
    NO_METRICS,
    CloneChoice,
    PauseVerdict,
    ResumeChoice,
    StartChoice,
    StopVerdict,
    TrialReport,
    TrialScheduler,
)

_LONGEST_TEXT = 300
_MAX_STEP = 2**63 - 1
"""What databases and keepers can hold."""


class SchedulerError(Exception):
    """A trial scheduler has decided what cannot be."""


@dataclass(slots=True)
class _Trial:
    """A trial that has not ended."""

    number: int
    parameter_id: int
    trial_id: str | None = None
    """None before its first report."""
    job: int = 1
    told: int = 0
    """How many points of its curve the scheduler knows."""
    last: TrialReport | None = None
    parameters: Any = None
    is_paused: bool = False
    """The scheduler has paused it, and neither resumed nor cloned it since."""
    clone: "_Clone | None" = None
    """What it is to become by its next job."""
    holds_back: bool = False
    """It was to pause or to stop, and no job has begun since."""
    held_back: tuple[ReportedMetric, ...] = ()
    milestone: int | None = None
    """As the manager knows it."""


@dataclass(slots=True)
class _Clone:
    """A decision that a trial continues from another one."""

    parameter_id: int
    donor: int
    parameters: Any
    is_taken_back: bool = False
    """The trial's next job continued as the trial was."""
    before: int = 0
    """The parameter id with which it did."""


class HostedScheduler:
    """Feeds a trial scheduler, and the tuner beside it."""

    def __init__(self, scheduler: TrialScheduler, tuner: HostedTuner, send: Send) -> None:
        self._scheduler = scheduler
        self._tuner = tuner
        self._send = send
        self._trials: dict[int, _Trial] = {}  # by number
        self._unnamed: dict[int, _Trial] = {}  # those that have not reported, by parameter id
        self._named: dict[str, _Trial] = {}  # the others, by trial id
        self._search_space: Any = None
        self._keeps_parameters = type(scheduler).on_trial_clone is not TrialScheduler.on_trial_clone
        self._is_replaying = True
        self._never_started: deque[int] = deque()

    def set_search_space(self, search_space: Any) -> None:
        """Give the scheduler its first search space, or a new one."""
        self._search_space = search_space
        self._scheduler.set_search_space(search_space)

    def tables(self) -> list[protocol.JsonObject]:
        """What people should see of the scheduler. Raises what its `describe` raises, and SchedulerError if it has
        returned something else than tables."""
        return [_read_table(each, type(self._scheduler).__name__) for each in self._scheduler.describe()[:MOST_TABLES]]

    # ---- state ----------------------------------------------------------------------------------------------------

    def state_dict(self) -> protocol.JsonObject | None:
        """Return all that later decisions depend on; None if the scheduler cannot."""
        state = self._scheduler.state_dict()
        if state is None:
            return None
        trials = [_trial_to_json(trial) for trial in self._trials.values()]
        version, space = self._scheduler.version, self._search_space
        return {"version": version, "search_space": space, "scheduler": state, "trials": trials}

    def load_state_dict(self, state: protocol.JsonObject) -> None:
        """Be as the one that returned this. Raises ValueError for a state of another version of the scheduler."""
        if state["version"] != self._scheduler.version:
            raise ValueError(f"{self._name} has version {self._scheduler.version}, the state is of {state['version']}")
        self.set_search_space(state["search_space"])
        self._scheduler.load_state_dict(state["scheduler"])
        for saved in state["trials"]:
            trial = _trial_from_json(saved)
            self._trials[trial.number] = trial
            if trial.trial_id is None:
                self._unnamed[trial.parameter_id] = trial
            else:
                self._named[trial.trial_id] = trial

    # ---- which trial runs next ------------------------------------------------------------------------------------

    def decline(self, message: protocol.NoMoreTrials) -> None:
        """A tuner that proposes later has nothing to propose. Called on its thread: the trials that were to start are
        taken from the scheduler at the next request."""
        self._never_started.extend(message.parameter_ids)

    def _remove_never_started(self) -> None:
        while self._never_started:
            trial = self._trials.pop(self._never_started.popleft(), None)
            if trial is not None:
                self._unnamed.pop(trial.parameter_id, None)
                self._scheduler.on_trial_remove(trial.number)

    def request(self, message: protocol.RequestTrialJobs) -> None:
        """Answer every id that has no answer yet; follow the answers of the others, without asking the scheduler."""
        self._remove_never_started()
        answers = {answer.parameter_id: answer for answer in message.answers}
        declined: list[int] = []
        for parameter_id in message.parameter_ids:
            answer = answers.get(parameter_id)
            if answer is not None:
                self._follow(message.position, answer)
            elif declined or not self._decide(message, parameter_id):
                declined.append(parameter_id)
        self._end_paused(message.position)
        if declined:
            self._send(protocol.NoMoreTrials(message.position, declined, for_now=bool(self._trials)))

    def _follow(self, position: int, answer: protocol.Answer) -> None:
        """Do what was decided before."""
        if answer.kind == "new":
            self._tuner.request(protocol.RequestTrialJobs(position, [answer.parameter_id], [answer]))
            trial = self._add(answer.parameter_id, None if self._tuner.proposes_later else answer.parameters)
        else:
            trial = self._named[answer.trial_id or ""]
            if answer.kind == "resume":
                self._resume(trial)
            else:
                self._clone(trial, self._named[answer.donor_trial or ""], answer.parameter_id, answer.parameters)
        self._announce(trial)

    def _decide(self, message: protocol.RequestTrialJobs, parameter_id: int) -> bool:
        """Have the scheduler decide; False for none."""
        position = message.position
        choice = self._scheduler.choose_trial_to_run(parameter_id, message.can_start)
        if isinstance(choice, StartChoice) and message.can_start:
            if self._start(position, parameter_id):
                return True
            choice = self._scheduler.choose_trial_to_run(parameter_id, False)
        match choice:
            case None:
                return False
            case ResumeChoice(number, reason):
                trial, trial_id = self._reported(number)
                self._resume(trial)
                resumed = protocol.ResumeTrial(
                    position, parameter_id, trial_id, reason=reason, milestone=trial.milestone
                )
                self._send(resumed)
            case CloneChoice(number, donor_number, parameters, reason):
                (trial, trial_id), (donor, donor_id) = self._reported(number), self._reported(donor_number)
                self._clone(trial, donor, parameter_id, parameters)
                cloned = protocol.CloneTrial(
                    position,
                    parameter_id,
                    trial_id,
                    donor_id,
                    parameters,
                    reason=reason,
                    milestone=trial.milestone,
                )
                self._send(cloned)
            case _:
                raise SchedulerError(f"{self._name} has chosen {choice!r}, where no new trial may be started")
        return True

    def _start(self, position: int, parameter_id: int) -> bool:
        if self._tuner.proposes_later:
            self._add(parameter_id, None)
        return not self._tuner.request(protocol.RequestTrialJobs(position, [parameter_id]))

    def complete(self, message: protocol.NewTrial) -> protocol.NewTrial:
        """What the tuner proposes, with the new trial's milestone. A tuner that proposes later calls this on another
        thread, where the scheduler must not be called."""
        trial = self._trials.get(message.parameter_id)
        if trial is None and not self._tuner.proposes_later:
            trial = self._add(message.parameter_id, message.parameters)
        return message if trial is None else replace(message, milestone=trial.milestone)

    def _add(self, parameter_id: int, parameters: Any) -> _Trial:
        trial = _Trial(parameter_id, parameter_id, parameters=parameters if self._keeps_parameters else None)
        self._trials[parameter_id] = self._unnamed[parameter_id] = trial
        self._scheduler.on_trial_add(parameter_id, parameters)
        trial.milestone = self._next_milestone(trial)
        return trial

    def _resume(self, trial: _Trial, *, chosen: bool = True) -> None:
        trial.is_paused = False
        self._scheduler.on_trial_resume(trial.number, chosen)
        trial.milestone = self._milestone_again(trial)

    def _clone(self, trial: _Trial, donor: _Trial, parameter_id: int, parameters: Any) -> None:
        self._tuner.accept_clone(parameter_id, parameters, instead_of=trial.parameter_id)
        trial.is_paused, trial.clone = False, _Clone(parameter_id, donor.number, parameters)
        self._scheduler.on_trial_clone(trial.number, donor.number, parameters)
        trial.milestone = self._next_milestone(trial)

    def _reported(self, number: int) -> tuple[_Trial, str]:
        """A trial that the scheduler names, which it can name only if it has reported, with its id."""
        trial = self._trials.get(number)
        if trial is None or trial.trial_id is None:
            what = "has ended or never was" if trial is None else "has not reported anything"
            raise SchedulerError(f"{self._name} has decided on trial {number}, which {what}")
        return trial, trial.trial_id

    @property
    def _name(self) -> str:
        return type(self._scheduler).__name__

    # ---- what happens to trials -----------------------------------------------------------------------------------

    def add_customized(self, message: protocol.AddCustomizedTrial) -> None:
        """The user has added a trial."""
        self._announce(self._add(message.parameter_id, message.parameters))
        self._end_paused(message.position)

    def report(self, message: protocol.ReportMetrics) -> None:
        """Have every new point of a curve judged."""
        self._take(message.position, message.rows)

    def restart(self, message: protocol.TrialRestarted) -> None:
        """The next job of a trial begins: what was held back of the curve that it continues is judged now."""
        trial = self._find(message.trial_id, message.parameter_id)
        if trial is None:
            return
        trial.job, trial.parameter_id, trial.holds_back = message.job_number, message.parameter_id, False
        held_back, trial.held_back = trial.held_back, ()
        begins_clone = trial.clone is not None and self._begin_clone(trial, trial.clone, message)
        if begins_clone:
            held_back = ()  # those of the curve that it leaves
        if trial.is_paused:  # it had failed, or its user had paused it, before it could be paused
            self._resume(trial, chosen=False)
        else:
            trial.milestone = self._next_milestone(trial) if begins_clone else self._milestone_again(trial)
        self._announce(trial)
        known = [row._replace(job_number=trial.job) for row in held_back if row.sequence < message.from_sequence]
        self._take(message.position, known)
        trial.held_back += tuple(row for row in held_back if row.sequence >= message.from_sequence)
        self._end_paused(message.position)

    def _begin_clone(self, trial: _Trial, clone: _Clone, message: protocol.TrialRestarted) -> bool:
        """Whether this is the job by which the trial continues from another one. If not, it has been tried again first,
        or its donor has no checkpoint that can be read."""
        if message.parameter_id == clone.parameter_id:
            trial.clone, trial.told, trial.parameters = None, message.from_sequence, clone.parameters
            trial.last = None
            if clone.is_taken_back:
                self._tuner.accept_clone(clone.parameter_id, clone.parameters, instead_of=clone.before)
                self._scheduler.on_trial_clone(trial.number, clone.donor, clone.parameters)
            return True
        if not clone.is_taken_back:
            clone.is_taken_back, clone.before = True, message.parameter_id
            self._tuner.accept_clone(message.parameter_id, trial.parameters, instead_of=clone.parameter_id)
            self._scheduler.on_trial_clone(trial.number, trial.number, trial.parameters)
        return False

    def trial_end(self, message: protocol.TrialEnd) -> None:
        """A trial has ended for good: tell the tuner, then the scheduler."""
        trial = self._find(message.trial_id, message.parameter_id)
        last = None if trial is None else trial.last
        is_pruned = last is not None and message.status == "EARLY_STOPPED"
        self._tuner.trial_end(message, (last.step, last.value) if is_pruned and last is not None else None)
        if trial is None:
            return
        del self._trials[trial.number]
        del self._named[message.trial_id]
        if succeeded(message):
            self._scheduler.on_trial_complete(trial.number, _final_result(message, last))
        elif message.status == "FAILED":
            self._scheduler.on_trial_error(trial.number)
        else:
            self._scheduler.on_trial_remove(trial.number)
        self._end_paused(message.position)

    def _take(self, position: int, rows: Iterable[ReportedMetric]) -> None:
        for row in rows:
            trial = self._find(row.trial_id, row.parameter_id)
            if trial is None or row.job_number < trial.job:
                continue  # its trial has ended, or the next job of it continues without this point
            if trial.holds_back:
                trial.held_back += (row,)
                continue
            trial.job = row.job_number
            trial.held_back = ()  # the new job reports them again
            if row.sequence >= trial.told:
                self._judge(position, trial, row)

    def _judge(self, position: int, trial: _Trial, row: ReportedMetric) -> None:
        trial.told = row.sequence + 1
        if not _has_value(row):
            return
        trial.last = last = _result(row)
        verdict = self._scheduler.on_trial_result(trial.number, last)
        whose = (position, row.parameter_id, row.trial_id, row.job_number)
        match verdict:
            case PauseVerdict(reason):
                trial.is_paused = trial.holds_back = True
                self._tuner.pause(position, trial.parameter_id, last.value, last.step)
                self._send(protocol.PauseTrial(*whose, reason=reason))
            case StopVerdict(reason, is_full):
                trial.holds_back = True
                self._send(protocol.KillTrial(*whose, by="scheduler", reason=reason, is_full=is_full))
            case _:
                milestone = self._next_milestone(trial)
                if milestone is not None and milestone <= last.step:
                    milestone = None  # it has this verdict
                if milestone != trial.milestone:
                    trial.milestone = milestone
                    self._announce(trial)
        self._end_paused(position)

    # ---- milestones -----------------------------------------------------------------------------------------------

    def end_replay(self) -> None:
        """The log was replayed: the manager needs the milestones of all trials that may run."""
        self._is_replaying = False
        for trial in self._trials.values():
            if not trial.is_paused:
                self._announce(trial)

    def _announce(self, trial: _Trial) -> None:
        """Send a trial's milestone, unless a replay may change it yet."""
        if not self._is_replaying:
            self._send(protocol.Milestone(trial.parameter_id, trial.trial_id, trial.milestone))

    def _next_milestone(self, trial: _Trial) -> int | None:
        """None also for a step that is too large for any report to have."""
        milestone = self._scheduler.next_milestone(trial.number)
        return None if milestone is None or milestone > _MAX_STEP else max(int(milestone), 0)

    def _milestone_again(self, trial: _Trial) -> int | None:
        """Of a trial that runs again. Where it was to pause at its last point, and has not, the next new point asks for
        the verdict again."""
        milestone = self._next_milestone(trial)
        if milestone is not None and trial.last is not None and milestone <= trial.last.step:
            return trial.last.step + 1
        return milestone

    def _end_paused(self, position: int) -> None:
        """End the paused trials that the scheduler has no further use for."""
        for number, reason in self._scheduler.take_stops():
            trial, trial_id = self._reported(number)
            message = protocol.KillTrial(
                position, trial.parameter_id, trial_id, trial.job, by="scheduler", reason=reason
            )
            self._send(message)

    def _find(self, trial_id: str, parameter_id: int) -> _Trial | None:
        """A trial that has not ended, from now on by its id."""
        trial = self._named.get(trial_id)
        if trial is None and (trial := self._unnamed.pop(parameter_id, None)) is not None:
            trial.trial_id = trial_id
            self._named[trial_id] = trial
        return trial


def _trial_to_json(trial: _Trial) -> list[Any]:
    last, clone = trial.last, trial.clone
    report = None
    if last is not None:
        report = [to_json_word(last.value), last.step, last.seconds, to_wire(last.metrics) if last.metrics else None]
    return [
        trial.number,
        trial.parameter_id,
        trial.trial_id,
        trial.job,
        trial.told,
        report,
        trial.parameters,
        trial.is_paused,
        None
        if clone is None
        else [clone.parameter_id, clone.donor, clone.parameters, clone.is_taken_back, clone.before],
        trial.holds_back,
        trial.held_back,
        trial.milestone,
    ]


def _trial_from_json(saved: list[Any]) -> _Trial:
    number, parameter_id, trial_id, job, told, report, parameters, is_paused, clone, *rest = saved
    holds_back, held_back, milestone = rest
    last = None
    if report is not None:
        value, step, seconds, metrics = report
        last = TrialReport(from_json_word(value), step, seconds, NO_METRICS if metrics is None else from_wire(metrics))
    return _Trial(
        number,
        parameter_id,
        trial_id,
        job,
        told,
        last,
        parameters,
        is_paused,
        None if clone is None else _Clone(*clone),
        holds_back,
        tuple(ReportedMetric(*row) for row in held_back),
        milestone,
    )


def _has_value(row: ReportedMetric) -> bool:
    """Whether there is something to judge: training frameworks report a loss, or a summary, between two validations."""
    return not isinstance(row.value, Mapping) or DEFAULT_KEY in row.value


def _result(row: ReportedMetric) -> TrialReport:
    value = from_wire(row.value)
    metrics = value if isinstance(value, Mapping) else NO_METRICS
    step = row.sequence + 1 if row.step is None else row.step
    return TrialReport(read_value(value), step, row.seconds, metrics)


def _final_result(message: protocol.TrialEnd, last: TrialReport | None) -> TrialReport | None:
    """A final metric, as that of the last step."""
    if not message.has_value:
        return last
    value = from_wire(message.value)
    metrics = value if isinstance(value, Mapping) else NO_METRICS
    if last is None:
        return TrialReport(read_value(value), 0, None, metrics)
    return TrialReport(read_value(value), last.step, last.seconds, {**last.metrics, **metrics})


def _read_table(table: Any, whose: str) -> protocol.JsonObject:
    """A table of a scheduler's as it is sent: every row as wide as the head, every cell a JSON scalar."""
    try:
        columns = [str(name)[:_LONGEST_TEXT] for name in table["columns"]][:MOST_COLUMNS]
        rows = [[_cell(item) for item in row][: len(columns)] for row in table["rows"][:MOST_ROWS]]
        of_trials = sorted({int(number) for number in table.get("trial_columns", ())} & set(range(len(columns))))
        title = str(table["title"])[:_LONGEST_TEXT]
    except (TypeError, KeyError, ValueError, AttributeError) as error:
        raise SchedulerError(f"{whose}.describe has returned what is no table ({error!r}): {table!r:.200}") from error
    width = len(columns)
    wide = [row + [None] * (width - len(row)) for row in rows]
    return {"title": title, "columns": columns, "rows": wide, "trial_columns": of_trials}


def _cell(value: Any) -> Any:
    plain = to_wire(value)
    return plain if plain is None or isinstance(plain, bool | int | float) else str(plain)[:_LONGEST_TEXT]

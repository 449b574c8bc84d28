"""One dispatcher's conversation: which message goes to which algorithm, and what comes back."""

import sys
import threading
import traceback
from collections.abc import Callable
from typing import Any

from proctor.manager.dispatcher import protocol
from proctor.manager.dispatcher.algorithms.base import AssessorAlgorithm, TunerAlgorithm
from proctor.manager.dispatcher.algorithms.catalog import ASSESSOR, CURRENT_RULES, TRIAL_SCHEDULER, TUNER
from proctor.manager.dispatcher.algorithms.registry import BuiltinAlgorithm, create_algorithm
from proctor.manager.dispatcher.host.builtin import BuiltinAssessor, BuiltinTuner
from proctor.manager.dispatcher.host.interface import (
    IN_ORDER,
    Call,
    HostedAssessor,
    HostedTuner,
    Send,
    ShutdownMode,
    WorkerThread,
)
from proctor.manager.dispatcher.host.saving import StateSaver, try_to_load
from proctor.manager.dispatcher.host.scheduling import HostedScheduler
from proctor.manager.dispatcher.protocol import FromDispatcher, ToDispatcher
from proctor.sdk.failpoints import failpoint
from proctor.sdk.scheduler import TrialScheduler

_FAILPOINTS = {
    protocol.NewTrial: "dispatcher.suggest",
    protocol.ResumeTrial: "dispatcher.resume",
    protocol.CloneTrial: "dispatcher.clone",
    protocol.NoMoreTrials: "dispatcher.no_more",
    protocol.PauseTrial: "dispatcher.pause",
    protocol.KillTrial: "dispatcher.kill",
    protocol.StateSaved: "dispatcher.state",
    protocol.Milestone: "dispatcher.milestone",
    protocol.Initialized: "dispatcher.initialize",
    protocol.Error: "dispatcher.error",
    protocol.Pong: "dispatcher.pong",
}


class HostSession:
    """Handles messages in the order of the input log. Built-in algorithms answer before `handle` returns.

    `send` may be called from several threads, never from two at once. After an algorithm has raised, one Error is
    sent and everything but pings is ignored.
    """

    def __init__(self, send: Send) -> None:
        self._send_line = send
        self._sending = threading.Lock()
        self._failed = False
        self._asks = True
        self._tuner: HostedTuner | None = None
        self._assessor: HostedAssessor | None = None
        self._scheduler: HostedScheduler | None = None
        self._saver: StateSaver | None = None
        self._tables: list[protocol.JsonObject] | None = None  # as they were sent last
        self._customs: list[Any] = []
        self._restarted: dict[str, int] = {}  # by trial id: the job number of a running trial that runs again

    def handle(self, message: ToDispatcher | FromDispatcher) -> None:
        """Take one message. Never raises for what an algorithm does."""
        if isinstance(message, protocol.Ping):
            self.send(protocol.Pong(message.nonce))
        elif not self._failed:
            self._catching_errors(lambda: self._take_and_save(message))()

    def send_tables(self) -> None:
        """Send what people should see of the trial scheduler, if there is one and that has changed. Called where
        messages are handled. Never raises for what the scheduler does: its log gets that, once."""
        if self._scheduler is None or self._failed:
            return
        try:
            tables = self._scheduler.tables()
        except Exception:
            tables = []
            if self._tables != tables:
                traceback.print_exc(file=sys.stdout)
        if tables != self._tables:
            self._tables = tables
            with self._sending:  # without a fail point: nothing follows from it
                self._send_line(protocol.SchedulerTables(tables))

    def stop_asking(self) -> None:
        """Skip requests from now on: the session is about to end. May be called from any thread."""
        self._asks = False
        if self._tuner is not None:
            self._tuner.stop_asking()

    def close(self, mode: ShutdownMode = IN_ORDER) -> None:
        """Send the last tables; let the user's own algorithms handle what they were sent, save themselves and leave.
        Nothing of theirs is called afterwards. Called where messages are handled, after the last one."""
        self.stop_asking()
        if mode.saves:
            self.send_tables()
        for hosted in (self._tuner, self._assessor):
            if hosted is not None and not self._failed:
                hosted.close(mode)
        with self._sending:  # the process ends next: not while another thread sends
            pass

    def send(self, message: FromDispatcher) -> None:
        """Send one message, with a fail point on either side."""
        point = _FAILPOINTS[type(message)]
        with self._sending:
            failpoint(f"{point}.before")
            self._send_line(message)
            failpoint(f"{point}.after")

    def _take_and_save(self, message: ToDispatcher | FromDispatcher) -> None:
        self._take(message)
        if self._saver is not None and self._asks:
            saved = self._saver.after(message, self._state_dict)
            if saved is not None:
                self.send(saved)

    def _take(self, message: ToDispatcher | FromDispatcher) -> None:
        if isinstance(message, protocol.Initialize):
            self._initialize(message)
            return
        tuner = self._tuner
        if tuner is None:
            raise RuntimeError(f"expected Initialize first, found {type(message).__name__}")
        if isinstance(message, protocol.RequestTrialJobs):
            if self._asks:
                self._request(tuner, message)
        elif isinstance(message, protocol.ReportMetrics):
            self._report(message)
        elif isinstance(message, protocol.TrialEnd):
            self._trial_end(tuner, message)
        elif isinstance(message, protocol.TrialRestarted):
            self._restarted[message.trial_id] = message.job_number
            if self._assessor is not None:
                self._assessor.restart(message)
            if self._scheduler is not None:
                self._scheduler.restart(message)
        elif isinstance(message, protocol.UpdateSearchSpace):
            tuner.update_search_space(message)
            if self._scheduler is not None:
                self._scheduler.set_search_space(message.search_space)
        elif isinstance(message, protocol.ImportData):
            tuner.import_data(message)
        elif isinstance(message, protocol.AddCustomizedTrial):
            tuner.add_customized(message)
            if self._scheduler is not None:
                self._scheduler.add_customized(message)
        elif isinstance(message, protocol.Replayed):
            if self._scheduler is not None:
                self._scheduler.end_replay()
        else:
            raise RuntimeError(f"{type(message).__name__} is not for a dispatcher")

    # ---- the first message ----------------------------------------------------------------------------------------

    def _initialize(self, message: protocol.Initialize) -> None:
        if message.version != protocol.PROTOCOL_VERSION:
            ours = protocol.PROTOCOL_VERSION
            raise RuntimeError(f"the manager speaks dispatcher protocol {message.version}, this is {ours}")
        if message.rules > CURRENT_RULES:
            raise RuntimeError(
                f"the experiment decides by rules of version {message.rules}, and this Proctor knows them up to "
                f"version {CURRENT_RULES}: update Proctor, then resume the experiment"
            )
        second = WorkerThread("second") if has_own_algorithm(message) else None
        self._make_algorithms(message, second)
        position = 0
        if message.assessor is None and message.tuner.class_name is None:
            self._saver = StateSaver(message)
            saved = self._saver.read(message)
            if saved is not None and try_to_load("the algorithms", lambda: self._load_state_dict(saved)):
                position = message.saved_position
            elif saved is not None:
                self._make_algorithms(message, second)
        if not self._failed:
            wants_intermediate = self._assessor is not None or self._scheduler is not None
            self.send(protocol.Initialized(wants_intermediate, position))

    def _make_algorithms(self, message: protocol.Initialize, second: WorkerThread | None) -> None:
        self._tuner = self._make_tuner(message, second)
        if message.assessor is not None:
            self._assessor = self._make_assessor(message.assessor, message, second)
        self._tuner.initialize(message.search_space)
        if message.scheduler is not None and not self._failed:
            self._scheduler = HostedScheduler(self._make_scheduler(message.scheduler, message), self._tuner, self.send)
            self._scheduler.set_search_space(message.search_space)

    def _state_dict(self) -> protocol.JsonObject | None:
        """All that later decisions depend on; None if an algorithm cannot say it."""
        assert self._tuner is not None, "inputs come after the first message"
        tuner = self._tuner.state_dict()
        scheduler = None if self._scheduler is None else self._scheduler.state_dict()
        if tuner is None or (scheduler is None) != (self._scheduler is None):
            return None
        return {"tuner": tuner, "scheduler": scheduler}

    def _load_state_dict(self, state: protocol.JsonObject) -> None:
        assert self._tuner is not None, "algorithms are made before their state is read"
        self._tuner.load_state_dict(state["tuner"])
        if self._scheduler is not None:
            self._scheduler.load_state_dict(state["scheduler"])

    def _make_tuner(self, message: protocol.Initialize, second: WorkerThread | None) -> HostedTuner:
        if second is None or message.tuner.class_name is None:
            algorithm = self._create_builtin(TUNER, message.tuner, message)
            assert isinstance(algorithm, TunerAlgorithm), "the registry keeps tuners and assessors apart"
            return BuiltinTuner(message.tuner.name or "", algorithm, self._propose, message.rules)
        from proctor.manager.dispatcher.host.custom import CustomTuner

        tuner = self._load(message.tuner, message, ("generate_parameters", "update_search_space"))
        return CustomTuner(
            tuner,
            self._propose,
            threads=(WorkerThread("first"), second),
            catch_errors=self._catching_errors,
            checkpoint_directory=message.checkpoint_directory,
            rules=message.rules,
        )

    def _make_assessor(
        self, spec: protocol.AlgorithmSpec, message: protocol.Initialize, second: WorkerThread | None
    ) -> HostedAssessor:
        if second is None or spec.class_name is None:
            algorithm = self._create_builtin(ASSESSOR, spec, message)
            assert isinstance(algorithm, AssessorAlgorithm), "the registry keeps tuners and assessors apart"
            return BuiltinAssessor(algorithm, self.send)
        from proctor.manager.dispatcher.host.custom import CustomAssessor

        assessor = self._load(spec, message, ("assess_trial", "trial_end"))
        directory = message.checkpoint_directory
        return CustomAssessor(
            assessor, self.send, thread=second, catch_errors=self._catching_errors, checkpoint_directory=directory
        )

    def _make_scheduler(self, spec: protocol.AlgorithmSpec, message: protocol.Initialize) -> TrialScheduler:
        if spec.class_name is None:
            scheduler = self._create_builtin(TRIAL_SCHEDULER, spec, message)
        else:
            scheduler = self._load(spec, message, ("on_trial_result", "choose_trial_to_run", "take_stops"))
            scheduler.seed = message.seed  # which its constructor, as the user wrote it, does not take
        assert isinstance(scheduler, TrialScheduler), "checked when it was made"
        return scheduler

    @staticmethod
    def _create_builtin(kind: str, spec: protocol.AlgorithmSpec, message: protocol.Initialize) -> BuiltinAlgorithm:
        return create_algorithm(
            kind, spec.name or "", spec.class_args, message.seed, direction=message.direction, rules=message.rules
        )

    def _load(self, spec: protocol.AlgorithmSpec, message: protocol.Initialize, methods: tuple[str, ...]) -> Any:
        from proctor.manager.dispatcher.host.custom import load_custom, prepare_environment

        prepare_environment(message.checkpoint_directory)
        algorithm = load_custom(spec, methods)
        self._customs.append(algorithm)
        return algorithm

    # ---- requests, metrics and ends -------------------------------------------------------------------------------

    def _request(self, tuner: HostedTuner, message: protocol.RequestTrialJobs) -> None:
        if self._scheduler is not None:
            self._scheduler.request(message)
        elif declined := tuner.request(message):
            self.send(protocol.NoMoreTrials(message.position, declined))

    def _propose(self, message: FromDispatcher) -> None:
        """Send what the tuner has decided; on any thread."""
        if self._scheduler is not None and isinstance(message, protocol.NewTrial):
            message = self._scheduler.complete(message)
        elif self._scheduler is not None and isinstance(message, protocol.NoMoreTrials):
            self._scheduler.decline(message)
        self.send(message)

    def _report(self, message: protocol.ReportMetrics) -> None:
        if self._scheduler is not None:
            self._scheduler.report(message)
        if self._assessor is not None:
            if self._restarted:
                message = self._without_earlier_jobs(message)
            self._assessor.report(message)

    def _without_earlier_jobs(self, message: protocol.ReportMetrics) -> protocol.ReportMetrics:
        """A metric that an earlier job reported before its end may be stored after the next job was announced: it is
        not part of the curve that the next job continues."""
        newest = self._restarted
        rows = [row for row in message.rows if row.job_number >= newest.get(row.trial_id, 0)]
        return protocol.ReportMetrics(message.position, rows)

    def _trial_end(self, tuner: HostedTuner, message: protocol.TrialEnd) -> None:
        self._restarted.pop(message.trial_id, None)
        if self._scheduler is not None:
            self._scheduler.trial_end(message)
            return
        tuner.trial_end(message)
        if self._assessor is not None:
            self._assessor.trial_end(message)

    # ---- errors ---------------------------------------------------------------------------------------------------

    def _catching_errors(self, call: Call) -> Callable[[], None]:
        def do() -> None:
            if self._failed:
                return
            try:
                call()
            except BaseException as error:  # on a thread nothing but the user's code raises SystemExit and the like
                self._fail(error)

        return do

    def _fail(self, error: BaseException) -> None:
        with self._sending:
            if self._failed:
                return
            self._failed = True
        text = "".join(traceback.format_exception(error))
        print(text, flush=True)
        self.send(protocol.Error(_summary(error), text))
        for algorithm in self._customs:
            hook = getattr(algorithm, "_on_error", None)
            if hook is not None:
                hook()


def has_own_algorithm(message: protocol.Initialize) -> bool:
    """Whether tuner, assessor or trial scheduler is a class of the user's."""
    specs = (message.tuner, message.assessor, message.scheduler)
    return any(spec is not None and spec.class_name is not None for spec in specs)


def _summary(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__

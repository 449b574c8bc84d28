"""A user's own tuner and assessor: two threads, waiting tuners, late suggestions, checkpoints, errors."""

import queue
import sys
import textwrap
from dataclasses import replace

import pytest

from proctor.manager.dispatcher import protocol
from proctor.manager.dispatcher.algorithms.catalog import CURRENT_RULES
from proctor.manager.dispatcher.host.session import HostSession

TIME_LIMIT = 20.0
SPACE = {"x": {"_type": "uniform", "_value": [0, 1]}}


class Conversation:
    """A session with custom classes; what it says is taken from a queue, with a limit."""

    def __init__(self, folder, tuner="", assessor="", class_args=None, scheduler=None, rules=1):
        self.said = queue.SimpleQueue()
        self.session = HostSession(lambda message: self.said.put(protocol.decode(protocol.encode(message))))
        self.folder = folder
        spec = protocol.AlgorithmSpec(name="Random")
        if tuner:
            spec = self._spec("own_tuner", tuner, class_args)
        other = self._spec("own_assessor", assessor) if assessor else None
        first = protocol.Initialize("e", SPACE, spec, other, 7, str(folder / "checkpoint"))
        self.send(replace(first, scheduler=scheduler, rules=rules))

    def _spec(self, module, source, class_args=None):
        (self.folder / f"{module}.py").write_text(textwrap.dedent(source))
        return protocol.AlgorithmSpec(
            class_name=f"{module}.Own", code_directory=str(self.folder), class_args=class_args or {}
        )

    def send(self, *messages):
        for message in messages:
            self.session.handle(protocol.decode(protocol.encode(message)))
        return self

    def receive(self, count=1):
        received = [self.said.get(timeout=TIME_LIMIT) for _ in range(count)]
        return received[0] if count == 1 else received

    def started(self):
        received = self.receive()
        assert isinstance(received, protocol.Initialized), received
        return self

    def close(self):
        self.session.close()


def metric(sequence, value, job=1):
    return protocol.ReportedMetric(0, "t0", job, sequence, value)


def request(position, *parameter_ids, answers=()):
    return protocol.RequestTrialJobs(position, list(parameter_ids), list(answers))


def end(position, parameter_id, value=None, status="SUCCEEDED", customized=False):
    parameters = {"x": parameter_id}
    facts = {"has_value": value is not None, "value": value, "customized": customized}
    return protocol.TrialEnd(position, parameter_id, f"t{parameter_id}", parameters, status, **facts)


DIARY = """
    from proctor.sdk.tuner import Tuner

    class Own(Tuner):
        def __init__(self, step=1):
            self.diary, self.step = [], step

        def update_search_space(self, space):
            self.diary.append(["space", sorted(space)])

        def generate_parameters(self, parameter_id, **kwargs):
            diary, self.diary = self.diary, []
            return {"x": parameter_id * self.step, "diary": diary}

        def receive_trial_result(self, parameter_id, parameters, value, **kwargs):
            self.diary.append(["result", parameter_id, parameters["x"], repr(value), sorted(kwargs.items())])

        def trial_end(self, parameter_id, success, **kwargs):
            self.diary.append(["end", parameter_id, success])

        def import_data(self, data):
            self.diary.extend(["import", row["parameter"]["x"], row["value"]] for row in data)
"""


def diary_of(conversation, position, parameter_id):
    """What the tuner has received; asked until `trial_end`, which comes on another thread, is in it."""
    return conversation.send(request(position, parameter_id)).receive().parameters["diary"]


def test_it_proposes_with_its_class_arguments(tmp_path):
    conversation = Conversation(tmp_path, DIARY, class_args={"step": 3}).started()
    received = conversation.send(request(1, 1, 2)).receive(2)
    assert [message.parameters["x"] for message in received] == [3, 6]
    assert received[0].parameters["diary"] == [["space", ["x"]]]


def test_it_is_told_results_as_reported_and_the_end_after_them(tmp_path):
    conversation = Conversation(tmp_path, DIARY).started()
    conversation.send(request(1, 1)).receive()
    conversation.send(end(2, 1, {"default": "NaN"}))
    sent, position, parameter_id = [], 3, 2
    while ["end", 1, True] not in sent:
        sent += diary_of(conversation, position, parameter_id)
        position, parameter_id = position + 1, parameter_id + 1
    facts = [["customized", False], ["trial_job_id", "t1"]]
    assert sent == [["result", 1, 1, "{'default': nan}", facts], ["end", 1, True]]


PAUSED = """
        def receive_pruned(self, parameter_id, parameters, value, step):
            self.diary.append(["paused", parameter_id, parameters["x"], value, step])
"""


@pytest.mark.parametrize(
    ("method", "rules", "told"),
    [(PAUSED, CURRENT_RULES, [["paused", 0, 0, 0.5, 1]]), (PAUSED, 1, []), ("", CURRENT_RULES, [])],
    ids=["overrides it", "by the first rules", "does not override it"],
)
def test_pauses_are_told_to_a_tuner_that_overrides_receive_pruned(tmp_path, method, rules, told):
    scheduler = protocol.AlgorithmSpec(name="ASHA", class_args={"type": "promotion", "max_t": 9})
    conversation = Conversation(tmp_path, DIARY + method, scheduler=scheduler, rules=rules).started()
    conversation.send(request(1, 0)).receive()
    paused = conversation.send(protocol.ReportMetrics(2, [metric(0, 0.5)])).receive()
    assert isinstance(paused, protocol.PauseTrial)
    assert diary_of(conversation, 3, 1) == told


@pytest.mark.parametrize(("asks", "told"), [("", []), ("self._accept_customized_trials()", [["result", 5, 5]])])
def test_customized_trials_are_told_to_a_tuner_that_asked_for_them_only(tmp_path, asks, told):
    source = DIARY.replace("self.diary, self.step = [], step", f"self.diary, self.step = [], step; {asks}")
    conversation = Conversation(tmp_path, source).started()
    conversation.send(end(1, 5, 0.5, customized=True))
    first, *others = diary_of(conversation, 2, 6)
    assert (first, [each[:3] for each in others][: len(told)]) == (["space", ["x"]], told)
    assert others or not told


def test_results_of_an_earlier_process_come_as_imported_data(tmp_path):
    conversation = Conversation(tmp_path, DIARY).started()
    answers = [protocol.Answer(0, {"x": 0}), protocol.Answer(1, {"x": 1})]
    conversation.send(request(1, 0, 1, answers=answers), end(2, 0, 0.5), end(3, 1, 0.75))
    assert diary_of(conversation, 4, 2) == [["space", ["x"]], ["import", 0, 0.5], ["import", 1, 0.75]]


@pytest.mark.parametrize(
    ("hook", "ended"),
    [
        ("receive_trial_result(self, parameter_id, parameters, value, **kwargs)", end(2, 0, 0.5)),
        ("trial_end(self, parameter_id, success, **kwargs)", end(2, 0, status="FAILED")),
    ],
    ids=["result", "end"],
)
def test_a_tuner_that_waits_for_an_earlier_trial_hears_of_it(tmp_path, hook, ended):
    waiting = f"""
        import threading
        from proctor.sdk.tuner import Tuner

        class Own(Tuner):
            def __init__(self):
                self.received = threading.Event()
            def update_search_space(self, space):
                pass
            def generate_parameters(self, parameter_id, **kwargs):
                if parameter_id == 1:
                    self.received.wait()
                return {{"x": parameter_id}}
            def {hook}:
                assert locals().get("success", False) is False
                self.received.set()
    """
    conversation = Conversation(tmp_path, waiting).started()
    assert conversation.send(request(1, 0, 1)).receive().parameter_id == 0
    assert conversation.send(ended).receive().parameter_id == 1


def test_a_tuner_without_keyword_arguments_and_with_no_more_trials(tmp_path):
    short = """
        from proctor.sdk.errors import NoMoreTrialError

        class Own:
            def update_search_space(self, space):
                pass
            def generate_parameters(self, parameter_id):
                if parameter_id >= 2:
                    raise NoMoreTrialError("two are enough")
                return {"x": parameter_id}
            def receive_trial_result(self, parameter_id, parameters, value):
                pass
            def trial_end(self, parameter_id, success):
                pass
            def _on_exit(self):
                pass
    """
    conversation = Conversation(tmp_path, short).started()
    received = conversation.send(request(1, 0, 1, 2, 3)).receive(3)
    assert received[2] == protocol.NoMoreTrials(1, [2, 3])
    conversation.send(end(2, 0, 1.0), request(3, 4))
    assert conversation.receive() == protocol.NoMoreTrials(3, [4])


def test_several_proposals_at_once_and_one_that_comes_later(tmp_path):
    late = """
        from proctor.sdk.tuner import Tuner

        class Own(Tuner):
            def update_search_space(self, space):
                pass
            def generate_multiple_parameters(self, ids, **kwargs):
                self.late = kwargs["st_callback"]
                return [{"x": len(ids)}]
            def receive_trial_result(self, parameter_id, parameters, value, **kwargs):
                self.late(1, {"x": "late"})
    """
    conversation = Conversation(tmp_path, late).started()
    received = conversation.send(request(4, 0, 1)).receive(2)
    assert received == [protocol.NewTrial(4, 0, {"x": 2}), protocol.NoMoreTrials(4, [1])]
    assert conversation.send(end(5, 0, 1.0)).receive() == protocol.NewTrial(4, 1, {"x": "late"})


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("raise ValueError('at import')", "ValueError: at import"),
        ("import nothing_of_this_name", "ModuleNotFoundError"),
        ("other = 1", "has no class Own"),
        ("class Own: pass", "lacks generate_parameters, update_search_space"),
        (DIARY.replace("def __init__(self, step=1):", "def __init__(self, step):"), "TypeError"),
        (DIARY.replace('self.diary.append(["space", sorted(space)])', "raise KeyError('space')"), "KeyError"),
    ],
)
def test_a_class_that_cannot_begin_is_reported(tmp_path, source, words):
    received = Conversation(tmp_path, source).receive()
    assert isinstance(received, protocol.Error)
    assert words in received.summary
    assert words.split(":")[0] in received.traceback or "CustomClassError" in received.traceback


@pytest.mark.parametrize(
    ("replaced", "by", "words"),
    [
        ("return {", "raise ZeroDivisionError('in generate') or {", "in generate"),
        ("return {", "import sys; sys.exit(3); return {", "SystemExit"),
        ("return {", "raise KeyboardInterrupt; return {", "KeyboardInterrupt"),
        ("return {", "return {'bad': object()} or {", "MetricError"),
    ],
)
def test_an_exception_is_reported_at_once(tmp_path, replaced, by, words):
    conversation = Conversation(tmp_path, DIARY.replace(replaced, by)).started()
    received = conversation.send(request(1, 0)).receive()
    assert isinstance(received, protocol.Error)
    assert words in received.summary
    assert conversation.send(protocol.Ping(1)).receive() == protocol.Pong(1)


def test_an_exception_in_trial_end_is_reported_too(tmp_path):
    source = DIARY.replace('self.diary.append(["end", parameter_id, success])', "raise KeyError('end')")
    conversation = Conversation(tmp_path, source).started()
    conversation.send(request(1, 0)).receive()
    assert "KeyError" in conversation.send(end(2, 0, 0.5)).receive().summary


def test_pings_are_answered_while_a_tuner_is_busy(tmp_path):
    busy = """
        import threading
        from proctor.sdk.tuner import Tuner

        class Own(Tuner):
            def update_search_space(self, space):
                pass
            def generate_parameters(self, parameter_id, **kwargs):
                threading.Event().wait()
    """
    conversation = Conversation(tmp_path, busy).started()
    assert conversation.send(request(1, 0), protocol.Ping(3)).receive() == protocol.Pong(3)


SAVING = """
    import json
    import os
    from proctor.sdk.tuner import Tuner

    class Own(Tuner):
        def __init__(self):
            self.known, self.loaded = [], False
        def update_search_space(self, space):
            pass
        def generate_parameters(self, parameter_id, **kwargs):
            return {"x": parameter_id, "known": list(self.known), "loaded": self.loaded}
        def receive_trial_result(self, parameter_id, parameters, value, **kwargs):
            self.known.append(["result", parameter_id])
        def import_data(self, data):
            self.known.extend(["import", row["parameter"]["x"]] for row in data)
        def save_checkpoint(self):
            with open(os.path.join(self.get_checkpoint_path(), "known.json"), "w") as file:
                json.dump(self.known, file)
        def load_checkpoint(self):
            self.loaded = True
            with open(os.path.join(self.get_checkpoint_path(), "known.json")) as file:
                self.known = json.load(file)
"""


def test_a_tuner_that_saves_itself_is_told_only_what_came_after(tmp_path):
    first = Conversation(tmp_path, SAVING).started()
    assert first.send(request(1, 0, 1)).receive(2)[1].parameters["loaded"] is False
    first.send(end(2, 0, 0.5))
    first.close()
    answers = [protocol.Answer(0, {"x": 0}), protocol.Answer(1, {"x": 1})]
    second = Conversation(tmp_path, SAVING).started()
    second.send(request(1, 0, 1, answers=answers), end(2, 0, 0.5), end(3, 1, 0.75))
    proposed = second.send(request(4, 2)).receive().parameters
    assert proposed == {"x": 2, "known": [["result", 0], ["result", 1]], "loaded": True}


def test_own_assessor_judges_the_whole_history(tmp_path):
    source = """
        from proctor.sdk.assessor import Assessor, AssessResult

        class Own(Assessor):
            def assess_trial(self, trial_job_id, trial_history):
                if trial_history == [1, {"default": 2}]:
                    return AssessResult.Bad
                return len(trial_history) < 3
    """
    conversation = Conversation(tmp_path, assessor=source).started()
    conversation.send(protocol.ReportMetrics(1, [metric(0, 1), metric(1, {"default": 2}), metric(2, 3)]))
    assert conversation.receive() == protocol.KillTrial(1, 0, "t0", job_number=1)
    conversation.send(protocol.TrialRestarted(2, 0, "t0", 2, from_sequence=1))
    conversation.send(protocol.ReportMetrics(3, [metric(1, 5, job=2), metric(2, 6, job=2)]))
    assert conversation.receive() == protocol.KillTrial(3, 0, "t0", job_number=2)


def test_an_assessor_that_saves_itself_repeats_what_it_decided_and_assesses_nothing_twice(tmp_path):
    source = """
        import os, pathlib
        from proctor.sdk.assessor import Assessor

        class Own(Assessor):
            received = []
            def assess_trial(self, trial_job_id, trial_history):
                self.received.append([trial_job_id, len(trial_history)])
                return trial_history[-1] > 0
            def trial_end(self, trial_job_id, success): pass
            def save_checkpoint(self): pathlib.Path(os.environ["NNI_CHECKPOINT_DIRECTORY"], "own").write_text("")
            def load_checkpoint(self): self.received = []
    """
    reports = [protocol.ReportMetrics(1, [metric(0, 1)]), protocol.ReportMetrics(2, [metric(0, -1), metric(1, -2)])]
    first = Conversation(tmp_path, assessor=source).started()
    decision = protocol.KillTrial(2, 0, "t0", job_number=1)
    assert first.send(*reports).receive() == decision
    first.close()  # the manager was killed before it had committed the decision
    second = Conversation(tmp_path, assessor=source).started()
    assert second.send(*reports).receive() == decision
    assert second.session._customs[0].received == []
    second.send(protocol.TrialRestarted(3, 0, "t0", 2), protocol.ReportMetrics(4, [metric(0, -3, job=2)]))
    assert second.receive() == protocol.KillTrial(4, 0, "t0", job_number=2)


def test_an_assessor_that_returns_something_else_is_reported(tmp_path):
    source = """
        from proctor.sdk.assessor import Assessor

        class Own(Assessor):
            def assess_trial(self, trial_job_id, trial_history):
                return "good"
    """
    conversation = Conversation(tmp_path, assessor=source).started()
    received = conversation.send(protocol.ReportMetrics(1, [metric(0, 1)])).receive()
    assert "must return AssessResult.Good or Bad (or a bool), found 'good'" in received.summary


LEAVING = """
    import threading
    import time
    from proctor.sdk.tuner import Tuner

    CALLS, WAITING = [], threading.Event()

    class Own(Tuner):
        def update_search_space(self, space):
            pass
        def generate_parameters(self, parameter_id, **kwargs):
            if parameter_id == 7:
                WAITING.set()
                threading.Event().wait()
            CALLS.append(("generate", parameter_id))
            time.sleep(0.1)
            return {"x": parameter_id}
        def receive_trial_result(self, parameter_id, parameters, value, **kwargs):
            time.sleep(0.1)
            CALLS.append(("result", parameter_id))
        def trial_end(self, parameter_id, success, **kwargs):
            time.sleep(0.3)
            CALLS.append(("end", parameter_id))
        def save_checkpoint(self):
            CALLS.append(("save",))
        def _on_exit(self):
            CALLS.append(("exit",))
"""


def calls():
    return sys.modules["own_tuner"].CALLS


def test_the_exit_hook_comes_after_all_that_was_told_and_nothing_comes_after_it(tmp_path):
    conversation = Conversation(tmp_path, LEAVING).started()
    conversation.send(request(1, 0, 1)).receive(2)
    conversation.send(end(2, 0, 0.5), end(3, 1, 0.25))
    conversation.close()
    sent = list(calls())
    assert [call for call in sent if call[0] in ("result", "end")] == [
        ("result", 0),
        ("result", 1),
        ("end", 0),
        ("end", 1),
    ]
    assert sent[-2:] == [("save",), ("exit",)]


def test_requests_that_wait_when_a_session_ends_are_skipped_and_asked_again_in_the_next(tmp_path):
    conversation = Conversation(tmp_path, LEAVING).started()
    conversation.send(request(1, 0)).receive()
    conversation.send(request(2, *range(10, 500)), end(3, 0, 0.5))
    conversation.close()
    assert ("generate", 499) not in calls()
    assert ("result", 0) in calls()
    calls().clear()
    received = Conversation(tmp_path, LEAVING).started().send(request(2, 499)).receive()
    assert received.parameter_id == 499


def test_a_tuner_that_waits_when_its_session_ends_gets_results_and_no_exit_hook(tmp_path):
    conversation = Conversation(tmp_path, LEAVING).started()
    conversation.send(request(1, 0)).receive()
    conversation.send(request(2, 7))
    assert sys.modules["own_tuner"].WAITING.wait(TIME_LIMIT)
    conversation.send(end(3, 0, 0.5))
    conversation.close()
    assert ("result", 0) in calls()
    assert ("exit",) not in calls()


def test_a_tuner_that_raises_while_its_session_ends_is_reported_and_called_no_more(tmp_path):
    failing = LEAVING.replace('CALLS.append(("result", parameter_id))', "raise KeyError('last')")
    conversation = Conversation(tmp_path, failing).started()
    conversation.send(request(1, 0)).receive()
    conversation.send(end(2, 0, 0.5), end(3, 1, 0.25))
    conversation.close()
    assert "KeyError: 'last'" in conversation.receive().summary
    assert calls() == [("generate", 0)]


def test_the_exit_hook_of_an_assessor_comes_after_all_that_was_told(tmp_path):
    leaving = """
        import time
        from proctor.sdk.assessor import Assessor

        CALLS = []

        class Own(Assessor):
            def assess_trial(self, trial_job_id, trial_history):
                time.sleep(0.1)
                CALLS.append("assess")
                return True
            def trial_end(self, trial_job_id, success):
                time.sleep(0.1)
                CALLS.append("end")
            def _on_exit(self):
                CALLS.append("exit")
    """
    conversation = Conversation(tmp_path, assessor=leaving).started()
    conversation.send(protocol.ReportMetrics(1, [metric(0, 1), metric(1, 2)]), end(2, 0, 0.5))
    conversation.close()
    assert sys.modules["own_assessor"].CALLS == ["assess", "assess", "end", "exit"]

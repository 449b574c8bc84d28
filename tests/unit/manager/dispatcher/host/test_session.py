"""A session with built-in algorithms: messages in, messages out, all in the caller's thread."""

import json
import threading

import pytest

from proctor.manager.dispatcher import protocol
from proctor.manager.dispatcher.host.session import HostSession

SPACE = {"x": {"_type": "uniform", "_value": [0, 1]}}
FINITE = {"x": {"_type": "choice", "_value": [1, 2]}}


class Conversation:
    """A session, and everything it said after a trip through the wire's form."""

    def __init__(self, tuner="Random", assessor=None, space=SPACE, class_args=None, direction=None, scheduler=None):
        self.said = []
        self.session = HostSession(lambda message: self.said.append(protocol.decode(protocol.encode(message))))
        spec = protocol.AlgorithmSpec(name=tuner, class_args=class_args or {})
        other = protocol.AlgorithmSpec(name=assessor) if assessor else None
        self.send(protocol.Initialize("e", space, spec, other, 7, "", direction, scheduler=scheduler))

    def send(self, *messages):
        """Returns what is said in answer."""
        before = len(self.said)
        for message in messages:
            self.session.handle(protocol.decode(protocol.encode(message)))
        return self.said[before:]

    def ask(self, position, *parameter_ids, answers=()):
        return self.send(protocol.RequestTrialJobs(position, list(parameter_ids), list(answers)))


def metric(parameter_id, sequence, value, job=1):
    return protocol.ReportedMetric(parameter_id, f"t{parameter_id}", job, sequence, value)


def end(position, parameter_id, parameters, status="SUCCEEDED", **value):
    return protocol.TrialEnd(position, parameter_id, f"t{parameter_id}", parameters, status, **value)


def test_it_says_whether_it_wants_intermediate_metrics():
    assert Conversation().said == [protocol.Initialized(wants_intermediate=False)]
    assert Conversation(assessor="Medianstop").said == [protocol.Initialized(wants_intermediate=True)]


def test_every_id_is_answered_in_order():
    said = Conversation().ask(1, 4, 5, 6)
    assert [(message.position, message.parameter_id) for message in said] == [(1, 4), (1, 5), (1, 6)]


def test_a_finite_space_ends_in_no_more_and_goes_on_when_it_grows():
    conversation = Conversation(space=FINITE)
    assert conversation.ask(1, 0, 1, 2, 3)[2:] == [protocol.NoMoreTrials(1, [2, 3])]
    larger = {"x": {"_type": "choice", "_value": [1, 2, 3]}}
    conversation.send(protocol.UpdateSearchSpace(2, larger))
    assert [message.parameters for message in conversation.ask(3, 4)] == [{"x": 3}]


def test_an_experiment_of_an_earlier_version_goes_on_with_a_choice_that_would_be_refused_now():
    mixed = {"x": {"_type": "choice", "_value": [{"_name": "a"}, 1]}}
    proposed = [message.parameters["x"] for message in Conversation(space=mixed).ask(1, 4, 5)]
    assert {"_name": "a"} in proposed
    assert 1 in proposed


def test_a_restarted_session_goes_on_with_the_same_suggestions():
    first = Conversation(tuner="TPE", class_args={"tpe_args": {"n_startup_jobs": 2}})
    inputs = []
    for position in range(1, 9, 2):
        (suggestion,) = first.ask(position, position)
        answer = protocol.Answer(position, suggestion.parameters, suggestion.state)
        inputs.append(protocol.RequestTrialJobs(position, [position], [answer]))
        inputs.append(end(position + 1, position, suggestion.parameters, has_value=True, value=1.0 / position))
        first.send(inputs[-1])
    second = Conversation(tuner="TPE", class_args={"tpe_args": {"n_startup_jobs": 2}})
    assert second.send(*inputs) == []
    assert second.ask(9, 9, 10) == first.ask(9, 9, 10)


def test_ids_that_had_no_answer_yet_are_answered_in_the_replay():
    first = Conversation().ask(1, 0, 1)
    answer = protocol.Answer(0, first[0].parameters, first[0].state)
    assert Conversation().ask(1, 0, 1, answers=[answer]) == first[1:]


@pytest.mark.parametrize("value", ["NaN", "Infinity", "-Infinity", {"default": "NaN"}, {"other": 1}, None, "text", [1]])
@pytest.mark.parametrize("tuner", ["TPE", "Evolution", "Random"])
def test_no_value_upsets_a_tuner(tuner, value):
    conversation = Conversation(tuner=tuner, assessor="Medianstop")
    (suggestion,) = conversation.ask(1, 0)
    rows = [metric(0, 0, value)]
    conversation.send(
        protocol.ReportMetrics(2, rows),
        end(3, 0, suggestion.parameters, has_value=True, value=value),
        protocol.ImportData(4, [{"parameter": {"x": 0.5}, "value": value}]),
        protocol.AddCustomizedTrial(5, 1, {"x": 0.25}),
        end(6, 1, {"x": 0.25}, status="FAILED"),
    )
    assert [type(message) for message in conversation.ask(7, 2)] == [protocol.NewTrial]


def test_the_assessor_condemns_a_job_once_and_judges_the_next_one_by_its_own_metrics():
    conversation = Conversation(assessor="Medianstop")
    conversation.ask(1, 0, 1)
    conversation.send(protocol.ReportMetrics(2, [metric(0, 0, 5), metric(0, 1, 5)]), end(3, 0, {}))
    kill = protocol.KillTrial(4, 1, "t1", job_number=1)
    assert conversation.send(protocol.ReportMetrics(4, [metric(1, 0, 1), metric(1, 1, 1)])) == [kill]
    conversation.send(protocol.TrialRestarted(5, 1, "t1", 2))
    assert conversation.send(protocol.ReportMetrics(6, [metric(1, 0, 1, job=1)])) == []  # it is late
    assert conversation.send(protocol.ReportMetrics(7, [metric(1, 0, 6, job=2), metric(1, 1, 1, job=2)])) == []
    conversation.send(protocol.TrialRestarted(8, 1, "t1", 3))
    kill = protocol.KillTrial(9, 1, "t1", job_number=3)
    assert conversation.send(protocol.ReportMetrics(9, [metric(1, 0, 1, job=3)])) == [kill]


def test_a_scheduler_is_not_given_metrics_without_a_default():
    asha = protocol.AlgorithmSpec(name="ASHA", class_args={"max_t": 4, "reduction_factor": 2})
    conversation = Conversation(scheduler=asha)
    conversation.ask(1, 0)
    conversation.ask(2, 1)
    assert conversation.send(protocol.ReportMetrics(3, [metric(0, 0, 5)._replace(step=1)])) == []
    loss, accuracy, worse = (metric(1, place, value)._replace(step=1 + place // 2) for place, value in LOGGED)
    assert conversation.send(protocol.ReportMetrics(4, [loss, accuracy])) == []
    assert conversation.send(protocol.ReportMetrics(5, [metric(0, 1, 5)._replace(step=2)])) == []
    (kill,) = conversation.send(protocol.ReportMetrics(6, [worse]))
    assert (kill.trial_id, kill.by) == ("t1", "scheduler")


LOGGED = [(0, {"loss": 0.5}), (1, {"default": 6, "loss": 0.5}), (2, {"default": 4})]
"""What a framework reports at the first step, at the validation after it, and at the second step."""


@pytest.mark.parametrize(("direction", "killed"), [("maximize", "t2"), ("minimize", "t1"), (None, "t2")])
def test_an_assessor_has_the_direction_of_the_experiment(direction, killed):
    conversation = Conversation(assessor="Medianstop", direction=direction)
    conversation.ask(1, 0, 1, 2)
    conversation.send(protocol.ReportMetrics(2, [metric(0, 0, 0.5)]), end(3, 0, {}))
    (kill,) = conversation.send(protocol.ReportMetrics(4, [metric(1, 0, 0.75), metric(2, 0, 0.25)]))
    assert kill.trial_id == killed


@pytest.mark.parametrize(
    ("tuner", "class_args", "direction", "losses"),
    [
        ("Evolution", {}, "minimize", [0.75]),
        ("Evolution", {}, "maximize", [-0.75]),
        ("Evolution", {"optimize_mode": "maximize"}, "minimize", [-0.75]),
        ("Evolution", {}, None, [-0.75]),
        ("TPE", {}, "maximize", [-0.75]),
        ("TPE", {}, "minimize", [0.75]),
        ("TPE", {}, None, [0.75]),
    ],
)
def test_a_tuner_has_the_direction_of_the_experiment_unless_its_own_arguments_name_one(
    tuner, class_args, direction, losses
):
    conversation = Conversation(tuner=tuner, class_args=class_args, direction=direction)
    (suggestion,) = conversation.ask(1, 0)
    conversation.send(end(2, 0, suggestion.parameters, has_value=True, value=0.75))
    algorithm = conversation.session._tuner._algorithm
    known = algorithm._population if tuner == "Evolution" else [(k.loss,) for k in algorithm._known]
    assert [entry[0] for entry in known] == losses


@pytest.mark.parametrize(("result", "losses"), [({}, []), ({"has_value": True, "value": 0.75}, [-0.75])])
def test_the_manager_says_whether_a_trial_that_was_stopped_early_has_a_result(result, losses):
    conversation = Conversation(tuner="Evolution", assessor="Medianstop")
    (suggestion,) = conversation.ask(1, 0)
    conversation.send(protocol.ReportMetrics(2, [metric(0, 0, 0.5), metric(0, 1, {"default": 0.75})]))
    conversation.send(end(3, 0, suggestion.parameters, status="EARLY_STOPPED", **result))
    assert [loss for loss, _, _ in conversation.session._tuner._algorithm._population] == losses


def test_an_algorithm_that_raises_is_reported_at_once_and_nothing_follows():
    conversation = Conversation(tuner="TPE", class_args={"optimise_mode": 1})
    (error,) = conversation.said
    assert "optimise_mode" in error.summary
    assert "Traceback" in error.traceback
    assert conversation.ask(1, 0) == []
    assert conversation.send(protocol.Ping(5)) == [protocol.Pong(5)]


def test_another_protocol_version_is_refused():
    said = []
    spec = protocol.AlgorithmSpec(name="Random")
    HostSession(said.append).handle(protocol.Initialize("e", SPACE, spec, None, 7, "", version=99))
    assert "protocol 99" in said[0].summary


def test_suggestions_survive_json():
    (suggestion,) = Conversation(tuner="CmaEs").ask(1, 0)
    assert json.loads(json.dumps(suggestion.state)) == suggestion.state


def test_a_session_is_closed_once_what_another_thread_sends_is_sent():
    sending, may_end, sent = threading.Event(), threading.Event(), []

    def send(message):
        sending.set()
        assert may_end.wait(30)
        sent.append(message)

    session = HostSession(send)
    sender = threading.Thread(target=session.send, args=(protocol.Pong(1),))
    closer = threading.Thread(target=session.close)
    sender.start()
    assert sending.wait(30)
    closer.start()
    closer.join(0.2)  # as long as it is sending
    assert closer.is_alive()
    may_end.set()
    closer.join(30)
    sender.join(30)
    assert sent == [protocol.Pong(1)]
    assert not closer.is_alive()

"""The dispatcher as a real process: what it says, when it ends, and that what a tuner prints does no harm."""

import os
import signal
import socket
import subprocess
import sys
import textwrap

import pytest

from proctor.manager.dispatcher import protocol

SPACE = {"x": {"_type": "uniform", "_value": [0, 1]}}
TIME_LIMIT = 30.0


class Dispatcher:
    """A dispatcher process and our end of its channel."""

    def __init__(self, log, environment=None):
        self.ours, theirs = socket.socketpair()
        self.ours.settimeout(TIME_LIMIT)
        with theirs, log.open("wb") as file:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "proctor.manager.dispatcher", "--fd", str(theirs.fileno())],
                pass_fds=(theirs.fileno(),),
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                env={**os.environ, **(environment or {})},
            )
        self.reader = self.ours.makefile("rb")

    def tell(self, *messages):
        self.ours.sendall(b"".join(protocol.encode(message) for message in messages))

    def hear(self):
        line = self.reader.readline()
        return protocol.decode(line) if line else None

    def initialize(self, spec, folder):
        self.tell(protocol.Initialize("e", SPACE, spec, None, 7, str(folder)))
        return self.hear()

    def wait(self):
        return self.process.wait(timeout=TIME_LIMIT)

    def close(self):
        self.reader.close()
        self.ours.close()


@pytest.fixture
def start(tmp_path):
    started = []

    def start(**environment):
        started.append(Dispatcher(tmp_path / f"log{len(started)}", environment))
        return started[-1]

    yield start
    for dispatcher in started:
        dispatcher.close()
        if dispatcher.process.poll() is None:
            dispatcher.process.kill()
        dispatcher.wait()


RANDOM = protocol.AlgorithmSpec(name="Random")


def own(folder, source):
    (folder / "own_process_tuner.py").write_text(textwrap.dedent(source))
    return protocol.AlgorithmSpec(class_name="own_process_tuner.Own", code_directory=str(folder))


def test_it_answers_and_leaves_when_told(start, tmp_path):
    dispatcher = start()
    assert dispatcher.initialize(RANDOM, tmp_path) == protocol.Initialized(wants_intermediate=False)
    dispatcher.tell(protocol.RequestTrialJobs(1, [0]), protocol.Ping(3))
    heard = {type(message) for message in (dispatcher.hear(), dispatcher.hear())}
    assert heard == {protocol.NewTrial, protocol.Pong}
    dispatcher.tell(protocol.Terminate())
    assert dispatcher.hear() is None
    assert dispatcher.wait() == 0


def test_it_leaves_when_its_channel_closes(start, tmp_path):
    dispatcher = start()
    dispatcher.initialize(RANDOM, tmp_path)
    dispatcher.close()
    assert dispatcher.wait() == 0


def test_a_killed_one_is_followed_by_one_that_goes_on_alike(start, tmp_path):
    first, second = start(), start()
    first.initialize(RANDOM, tmp_path)
    second.initialize(RANDOM, tmp_path)
    first.tell(protocol.RequestTrialJobs(1, [0, 1]))
    told, lost = first.hear(), first.hear()
    first.process.send_signal(signal.SIGKILL)
    answer = protocol.Answer(0, told.parameters, told.state)
    second.tell(protocol.RequestTrialJobs(1, [0, 1], [answer]))
    assert second.hear() == lost


def test_a_fail_point_kills_it_before_a_suggestion_leaves(start, tmp_path):
    dispatcher = start(PROCTOR_FAILPOINT="dispatcher.suggest.before@2")
    dispatcher.initialize(RANDOM, tmp_path)
    dispatcher.tell(protocol.RequestTrialJobs(1, [0, 1]))
    assert dispatcher.hear().parameter_id == 0
    assert dispatcher.hear() is None
    assert dispatcher.wait() == -signal.SIGKILL


def test_what_a_tuner_prints_goes_to_the_log_and_threads_of_its_own_do_not_keep_it(start, tmp_path):
    source = """
        import threading
        from proctor.sdk.tuner import Tuner

        class Own(Tuner):
            def update_search_space(self, space):
                print('{"type":"NoMoreTrials"}')
                threading.Thread(target=threading.Event().wait).start()
            def generate_parameters(self, parameter_id, **kwargs):
                print("proposing", parameter_id)
                return {"x": 1}
            def _on_exit(self):
                print("leaving")
    """
    dispatcher = start()
    assert isinstance(dispatcher.initialize(own(tmp_path, source), tmp_path), protocol.Initialized)
    dispatcher.tell(protocol.RequestTrialJobs(1, [0]))
    assert dispatcher.hear() == protocol.NewTrial(1, 0, {"x": 1})
    dispatcher.tell(protocol.Terminate())
    assert dispatcher.wait() == 0
    log = (tmp_path / "log0").read_text()
    assert "proposing 0" in log
    assert "leaving" in log


def test_a_tuner_that_raises_is_heard_of_with_its_traceback(start, tmp_path):
    source = """
        from proctor.sdk.tuner import Tuner

        class Own(Tuner):
            def update_search_space(self, space):
                raise RuntimeError("the space is wrong")
    """
    heard = start().initialize(own(tmp_path, source), tmp_path)
    assert heard.summary == "RuntimeError: the space is wrong"
    assert "own_process_tuner.py" in heard.traceback


def test_a_descriptor_is_needed():
    done = subprocess.run([sys.executable, "-m", "proctor.manager.dispatcher"], capture_output=True, text=True)
    assert done.returncode == 1
    assert "usage" in done.stderr

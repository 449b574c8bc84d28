"""A trial's calls in real processes, on this interpreter and the oldest supported one."""

import json
import signal
import subprocess
from collections.abc import Callable
from typing import Any

import pytest

MakeJob = Callable[..., Any]


def test_parameters_and_ids_come_from_the_job_directory(job: Any) -> None:
    done = job.run("""
import json, proctor
print(json.dumps([proctor.get_next_parameter(), proctor.get_current_parameter("lr"), proctor.get_experiment_id(),
                  proctor.get_trial_id(), proctor.get_sequence_id()]))
assert proctor.get_next_parameter() is proctor.get_current_parameter()
""")
    assert json.loads(done.stdout) == [{"lr": 0.1, "näme": "x"}, 0.1, "Ab3dE5f7", "tRiAl", 7]
    assert done.stderr == ""


def test_each_report_is_one_record(job: Any) -> None:
    job.run("""
import proctor
proctor.report_intermediate_result(1)
proctor.report_intermediate_result({"default": float("nan"), "loss": 0.5})
proctor.report({"default": 0.25}, step=40)
proctor.report_final_result(float("inf"))
""")
    records = job.records()
    assert all(record.pop("time") > 1.7e9 for record in records)
    assert records == [
        {"kind": "intermediate", "value": 1},
        {"kind": "intermediate", "value": {"default": "NaN", "loss": 0.5}},
        {"kind": "intermediate", "value": {"default": 0.25}, "step": 40},
        {"kind": "final", "value": "Infinity"},
    ]


@pytest.mark.parametrize(
    ("end", "code"), [("os._exit(3)", 3), ("os.kill(os.getpid(), 9)", -signal.SIGKILL), ("os.abort()", -signal.SIGABRT)]
)
def test_a_report_survives_the_sudden_end_of_its_process(job: Any, end: str, code: int) -> None:
    job.run(f"import os, proctor; proctor.report_final_result(0.5); {end}", expect=code)
    assert job.values("final") == [0.5]


def test_a_value_that_is_no_metric_ends_the_trial_with_a_sentence_and_keeps_the_rest(job: Any) -> None:
    done = job.run(
        """
import proctor
proctor.report_intermediate_result(1)
proctor.report_intermediate_result({"default": 2, "model": object()})
""",
        expect=1,
    )
    assert "the metric['model'] must be something JSON can hold" in done.stderr
    assert job.values() == [1]


def test_a_metric_too_long_for_a_record_is_refused(job: Any) -> None:
    done = job.run("import proctor; proctor.report_final_result({'default': 1, 'text': 'x' * 300000})", expect=1)
    assert "a metric may take" in done.stderr
    assert not job.journal.exists()


def test_a_second_final_metric_is_recorded_with_a_notice(job: Any) -> None:
    done = job.run("import proctor\nfor value in (1, 2, 3): proctor.report_final_result(value)")
    assert job.values("final") == [1, 2, 3]
    assert done.stderr.count("the first final metric of a trial counts") == 1


def test_a_final_metric_that_was_refused_does_not_count_as_the_first(job: Any) -> None:
    refused = "try: proctor.report_final_result({'default': 1, 'text': 'x' * 300000})\nexcept TypeError: pass"
    done = job.run(f"import proctor\n{refused}\nproctor.report_final_result(2)")
    assert (job.values("final"), done.stderr) == ([2], "")


def test_an_integer_that_no_float_holds_is_recorded_with_a_notice(job: Any) -> None:
    done = job.run("import proctor\nfor power in (400, 4000): proctor.report_intermediate_result(10**power)")
    assert job.values() == ["Infinity", "Infinity"]
    assert done.stderr.count("it is stored as Infinity or -Infinity") == 1


def test_a_dictionary_without_default_is_recorded_with_a_notice(job: Any) -> None:
    done = job.run("import proctor\nfor value in (1, 2): proctor.report_intermediate_result({'loss': value})")
    assert job.values() == [{"loss": 1}, {"loss": 2}]
    assert done.stderr.count("without the key 'default'") == 1


@pytest.mark.parametrize("content", [None, "", '{"parameters"', "[]"])
def test_missing_or_damaged_parameters_are_an_error_that_names_the_file(job: Any, content: str | None) -> None:
    path = job.folder / "parameter.json"
    path.unlink()
    if content is not None:
        path.write_text(content)
    done = job.run("import proctor; proctor.get_next_parameter()", expect=1)
    assert f"trial tRiAl cannot read its parameters from {path}" in done.stderr


def test_outside_an_experiment_it_says_so_once_and_works(job: Any) -> None:
    job.environment = {name: value for name, value in job.environment.items() if not name.startswith("PROCTOR_")}
    done = job.run("""
import json, proctor
proctor.report_intermediate_result(1)
proctor.report(1, checkpoint="/nowhere")
proctor.report_final_result(1)
print(json.dumps([proctor.get_next_parameter(), proctor.get_current_parameter(), proctor.get_experiment_id(),
                  proctor.get_trial_id(), proctor.get_sequence_id(), proctor.get_checkpoint(), proctor.should_stop()]))
""")
    assert json.loads(done.stdout) == [{}, {}, "STANDALONE", "STANDALONE", 0, None, False]
    assert done.stderr.count("\n") == 1
    assert "not running in an experiment" in done.stderr


def test_forked_spawned_and_other_processes_of_one_trial_may_report(job: Any) -> None:
    job.run("""
import multiprocessing, os, subprocess, sys, threading
import proctor

def report(first):
    assert proctor.get_next_parameter()["lr"] == 0.1
    for value in range(first, first + 100):
        proctor.report_intermediate_result(value)

if __name__ == "__main__":
    proctor.report_intermediate_result(-1)
    workers = [multiprocessing.get_context(kind).Process(target=report, args=(first,))
               for first, kind in enumerate(["fork", "fork", "spawn", "forkserver"])]
    for number, worker in enumerate(workers):
        worker._args = (number * 100,)
        worker.start()
    child = os.fork()
    if child == 0:
        report(400)
        os._exit(0)
    code = "import trial; trial.report(500)"
    other = subprocess.Popen([sys.executable, "-c", code], cwd=os.path.dirname(__file__))
    report(600)
    assert os.waitpid(child, 0)[1] == 0 and other.wait() == 0
    for worker in workers:
        worker.join()
        assert worker.exitcode == 0
""")
    assert sorted(job.values()) == list(range(-1, 700))


def test_a_fork_while_a_thread_reports_does_not_block_the_child(job: Any) -> None:
    job.run("""
import os, threading, proctor
ended = threading.Event()

def report():
    while not ended.is_set():
        proctor.report_intermediate_result(0)

thread = threading.Thread(target=report)
thread.start()
for _ in range(50):
    child = os.fork()
    if child == 0:
        proctor.report_final_result(1)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
ended.set()
thread.join()
""")
    assert job.values("final") == [1] * 50


def test_a_report_from_a_signal_handler_in_the_middle_of_a_report_does_not_block(job: Any) -> None:
    job.run("""
import proctor, signal
handled = 0

def handle(*_):
    global handled
    handled += 1
    proctor.report_intermediate_result({"default": 1})

signal.signal(signal.SIGALRM, handle)
signal.setitimer(signal.ITIMER_REAL, 0.0005, 0.0005)
while handled < 100:
    proctor.report_intermediate_result(0)
signal.setitimer(signal.ITIMER_REAL, 0)
""")
    assert len([value for value in job.values() if value != 0]) >= 100


def test_a_second_member_of_a_distributed_job_has_its_own_journal(make_job: MakeJob) -> None:
    job = make_job(PROCTOR_MEMBER="2")
    job.run("import proctor; proctor.report_intermediate_result(1)")
    assert not job.journal.exists()
    assert json.loads((job.folder / "journal.2").read_text())["value"] == 1


def test_a_file_size_limit_loses_reports_visibly_and_tears_nothing(job: Any) -> None:
    """The limit cuts writes short as a disk does that fills up in the middle of one."""
    done = job.run("""
import resource, proctor
proctor.report_intermediate_result(0)
for limit in range(70, 1500, 37):
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
    proctor.report_intermediate_result(limit)
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
proctor.report_final_result(1)
""")
    records = []
    for line in job.lines():
        try:
            records.append(json.loads(line))
        except ValueError:
            continue
    reported = len([record for record in records if record["kind"] == "intermediate"])
    lost = sum(record["count"] for record in records if record["kind"] == "lost")
    assert reported + lost == 1 + len(range(70, 1500, 37))
    assert len({record.get("value") for record in records if record["kind"] == "intermediate"}) == reported
    assert lost > 0
    assert records[-1]["kind"] == "final"
    assert "could not be written" in done.stderr


def test_losses_are_told_at_the_end_if_nothing_follows_them(job: Any) -> None:
    job.run("""
import resource, proctor
resource.setrlimit(resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
proctor.report_intermediate_result(0)
proctor.report_intermediate_result(1)
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
""")
    assert [(record["kind"], record["count"]) for record in job.records()] == [("lost", 2)]


def test_should_stop_follows_the_control_file(job: Any) -> None:
    job.run("""
import os, proctor
control = os.environ["PROCTOR_JOB_DIR"] + "/control.json"

def put(text):
    with open(control + ".new", "w") as file:
        file.write(text)
    os.replace(control + ".new", control)

assert not proctor.should_stop()
put('{"stop": false, "reason": ""}')
assert not proctor.should_stop()
put('{"stop": true, "reason": "early stopped"}')
assert proctor.should_stop() and proctor.should_stop()
put('{"stop": fal')
assert proctor.should_stop()
put('{"stop": false}')
assert not proctor.should_stop()
""")


def test_a_stop_request_says_what_for_and_until_when(job: Any) -> None:
    job.run("""
import os, time, proctor
marker = os.environ["PROCTOR_JOB_DIR"] + "/can-save"

def put(text):
    with open(os.environ["PROCTOR_JOB_DIR"] + "/control.json", "w") as file:
        file.write(text)

assert not os.path.exists(marker)
assert proctor.stop_request() is None
assert os.path.getsize(marker) == 0
put('{"stop": true, "reason": "an earlier version"}')
asked = proctor.stop_request()
assert (asked.request, asked.reason, asked.deadline, asked.seconds_left) == ("stop", "an earlier version", None, 0.0)
put('{"stop": true, "reason": "room is needed", "request": "preempt", "deadline": %r}' % (time.time() + 60))
asked = proctor.stop_request()
assert isinstance(asked, proctor.StopRequest) and proctor.should_stop()
assert (asked.request, asked.reason) == ("preempt", "room is needed") and 0 < asked.seconds_left <= 60
put('{"stop": true, "reason": "", "deadline": 1.5}')
assert proctor.stop_request().seconds_left == 0.0
""")


def test_a_marker_that_cannot_be_made_costs_a_trial_nothing(job: Any) -> None:
    job.run("""
import os, proctor
tries = []

def count(event, arguments):
    if event == "open" and str(arguments[0]).endswith("/can-save"):
        tries.append(arguments)
        raise OSError(28, "No space left on device")

import sys
sys.addaudithook(count)
for _ in range(1000):
    assert not proctor.should_stop()
assert len(tries) == 1
""")


def test_a_trial_opens_no_socket_and_imports_nothing_slow(job: Any) -> None:
    done = job.run("""
import sys
before = set(sys.modules)

def refuse(event, arguments):
    if event.startswith("socket."):
        raise RuntimeError(event)

sys.addaudithook(refuse)
import nni, proctor
proctor.get_next_parameter()
proctor.report_intermediate_result({"default": 0.5, "name": "x"})
proctor.should_stop()
proctor.report_final_result(0.5)
print(*sorted(name for name in set(sys.modules) - before if name.partition(".")[0] not in ("proctor", "nni")))
""")
    assert set(done.stdout.split()) <= {"_json", "errno"}


def test_reports_go_on_when_the_keeper_has_removed_the_job(job: Any) -> None:
    done = job.run("""
import os, shutil, proctor
proctor.get_next_parameter()
shutil.rmtree(os.environ["PROCTOR_JOB_DIR"])
proctor.report_final_result(1)
print("alive")
""")
    assert done.stdout == "alive\n"


def test_a_closed_standard_error_harms_no_report(job: Any) -> None:
    done = subprocess.run(
        ["sh", "-c", 'exec "$@" 2>&-', "sh", *job.command("import proctor; proctor.report_final_result({'a': 1})")],
        env=job.environment,
        timeout=60,
    )
    assert done.returncode == 0
    assert job.values("final") == [{"a": 1}]

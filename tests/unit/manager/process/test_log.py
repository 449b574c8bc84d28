"""How log lines read."""

import io
import json
import logging
import sys
from pathlib import Path

from proctor.manager.control_characters import is_clean
from proctor.manager.process.log import JsonFormatter, TextFormatter, start_logging, stop_logging


def record(**extra: object) -> logging.LogRecord:
    made = logging.LogRecord("proctor.x", logging.WARNING, "f.py", 1, "trial %s is slow", ("t1",), None)
    made.__dict__.update(extra)
    return made


def test_a_json_line_has_the_sentence_the_action_and_the_ids() -> None:
    line = json.loads(JsonFormatter().format(record(action="trial.slow", trial_id="t1", experiment_id="e1")))
    assert line["message"] == "trial t1 is slow"
    assert (line["action"], line["trial_id"], line["experiment_id"]) == ("trial.slow", "t1", "e1")
    assert line["level"] == "warning"
    assert line["time"].endswith("Z")
    assert "node_id" not in line


def test_a_traceback_stays_on_the_one_json_line() -> None:
    try:
        raise ValueError("first\nsecond")
    except ValueError:
        text = JsonFormatter().format(record(exc_info=sys.exc_info()))
    assert "\n" not in text
    assert "ValueError" in json.loads(text)["traceback"]


def test_people_see_the_ids_after_the_sentence() -> None:
    assert TextFormatter().format(record(trial_id="t1")).endswith("warning trial t1 is slow  [trial t1]")


def test_the_file_is_json_whatever_the_screen_shows(tmp_path: Path) -> None:
    screen = io.StringIO()
    before = list(logging.getLogger().handlers)
    start_logging(tmp_path / "manager.log", stream=screen)
    try:
        logging.getLogger("proctor.test").warning("hello", extra={"action": "test.hello"})
    finally:
        stop_logging()
        logging.getLogger().handlers = before
    assert json.loads((tmp_path / "manager.log").read_text())["action"] == "test.hello"
    assert "hello" in screen.getvalue()
    assert "{" not in screen.getvalue()


def test_no_line_of_the_log_has_what_a_terminal_would_obey() -> None:
    made = record()
    made.msg, made.args = "a note in a lock: %s", ("\x1b]0;title\x07\x9b31m",)
    assert is_clean(TextFormatter().format(made))
    line = JsonFormatter().format(made)
    assert is_clean(line)
    assert json.loads(line)["message"] == "a note in a lock: \x1b]0;title\x07\x9b31m"

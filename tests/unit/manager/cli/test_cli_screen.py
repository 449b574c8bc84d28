"""Tables on a terminal: what gives way where there is little room, and what never does."""

import io
import os
import re
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from fakes.served_manager import ServedManager
from fakes.terminal import on_terminal
from rich.console import Console

from proctor.manager.cli import columns
from proctor.manager.cli.live import experiment_screen, overview
from proctor.manager.cli.output import Column, TableRow
from proctor.manager.cli.screen import Listing, wrap
from proctor.manager.cli.watching import WatchedExperiment
from proctor.manager.lifecycle.states import ExperimentStatus
from proctor.manager.settings import Home
from proctor.manager.store.tables import events

EXPERIMENT: TableRow = {
    "id": "Ab3dE5f7",
    "name": "a name that is long and longer and longest",
    "status": "TUNER_NO_MORE_TRIAL",
    "trial_counts": {"SUCCEEDED": 118},
    "max_trial_number": 200,
    "objective": {"metric": "default", "direction": "minimize"},
    "best": {"value": 0.000123456, "sequence_id": 3, "parameters": {}},
    "created_at": "2026-11-21T05:23:37.000Z",
    "active_seconds": 60.0,
    "max_experiment_duration_seconds": None,
    "reason": "the search space is used up: " + "all values " * 20,
}
TRIAL: TableRow = {
    "id": "tRiAl123",
    "experiment_id": "Ab3dE5f7",
    "sequence_id": 17,
    "latest_value": 0.123456,
    "intermediate_count": 1234,
    "started_at": "2026-11-21T05:23:37.000Z",
    "ended_at": "2026-11-21T05:24:42.000Z",
    "node_id": "local",
    "parameters": {f"parameter_{n}": n for n in range(20)},
}


def lines(shown: object, width: int) -> list[str]:
    file = io.StringIO()
    Console(file=file, width=width).print(shown, crop=False)
    return file.getvalue().splitlines()


@pytest.mark.parametrize("width", [80, 100, 150])
def test_ids_statuses_and_numbers_are_whole_on_every_terminal(width: int) -> None:
    shown = lines(overview([EXPERIMENT], [TRIAL], 0, ""), width)
    assert max(map(len, shown)) <= width
    assert "Ab3dE5f7" in shown[1]
    assert "TUNER_NO_MORE_TRIAL" in shown[1]
    assert "118/200" in shown[1]
    assert "best 0.0001235 min, trial 3" in "".join(shown)
    assert next(line for line in shown if "tRiAl123" in line).split()[:3] == ["17", "tRiAl123", "0.1235"]


def test_the_foreground_shows_the_time_that_it_runs_pauses_left_out() -> None:
    experiment = {**EXPERIMENT, "active_seconds": 65.0, "started_at": "2020-01-01T00:00:00Z", "ended_at": None}
    seen_at = time.monotonic() - 3600.0  # nothing has changed for an hour
    for status, shown in {"PAUSED": ["1m", "05s"], "NO_MORE_TRIAL": ["1h", "01m"]}.items():
        watched = WatchedExperiment({**experiment, "status": status, "best": None}, [], seen_at)
        assert lines(experiment_screen(watched), 100)[0].split()[-2:] == shown


WORDS = " ".join(f"word{n}" for n in range(40))
COMMAND = "`ssh-keygen -R gpu-3.lab.example.org -f /home/ada/.ssh/known_hosts`"
ID = Column("ID", lambda row: row["id"])
CUT = Column("TEXT", lambda row: row["text"], gives_way=True)
WRAPPED = Column("TEXT", lambda row: row["text"], wraps=True)


def test_what_gives_way_is_cut_to_one_line_and_what_wraps_is_shown_in_full() -> None:
    rows = [{"id": "a", "text": WORDS}]
    assert len(lines(Listing(rows, [CUT]), 60)) == 2
    beside = lines(Listing(rows, [ID, WRAPPED]), 60)
    assert beside[:2] == ["ID  TEXT", f"a   {' '.join(WORDS.split()[:9])}"]
    assert " ".join(line.strip() for line in beside[1:]) == f"a   {WORDS}"
    below = lines(Listing([{**rows[0], "id": "a" * 30}], [ID, WRAPPED]), 60)
    assert below[:3] == ["ID", "a" * 30, f"    {' '.join(WORDS.split()[:9])}"]
    assert " ".join(line.strip() for line in below[2:]) == WORDS


def test_words_and_commands_are_never_broken_and_what_fits_stays_in_its_row() -> None:
    text = f"no agent answers: run {COMMAND}, then try again"
    assert list(wrap(text, 30)) == ["no agent answers: run", COMMAND.strip("`"), "then try again"]
    assert list(wrap(text, 200)) == [text]
    assert list(wrap(COMMAND, 200)) == [COMMAND.strip("`")]
    assert list(wrap("/a/very/long/path and 日本語 日本語", 10)) == ["/a/very/long/path", "and 日本語", "日本語"]
    assert list(wrap("Traceback:\n  a line of some code\nlast words", 9)) == [
        "Traceback:",
        "  a line of some code",
        "last",
        "words",
    ]
    assert lines(Listing([{"id": "a", "text": "b c"}], [ID, WRAPPED]), 60) == ["ID  TEXT", "a   b c"]


def test_a_table_of_reasons_alone_has_them_all() -> None:
    shown = lines(Listing([{"text": WORDS}, {"text": ""}, {"text": "b"}], [WRAPPED]), 60)
    assert (shown[0], shown[-2:]) == ("TEXT", ["", "b"])
    assert " ".join(shown[1:-2]) == WORDS
    assert lines(Listing([{"text": ""}], [WRAPPED]), 60) == ["TEXT", ""]


def test_a_narrow_terminal_gets_fewer_columns_and_is_told() -> None:
    columns = [ID, *(Column(f"C{n}", lambda row: "x" * 20, left_out=n) for n in (1, 2)), CUT]
    listing = Listing([{"id": "a", "text": WORDS}], columns)
    assert lines(listing, 80)[0].split() == ["ID", "C1", "C2", "TEXT"]
    assert lines(listing, 60)[0].split() == ["ID", "C1", "TEXT"]
    assert listing.left_out == ["C2"]
    assert lines(listing, 20)[0].split() == ["ID", "TEXT"]


def test_wide_characters_are_as_wide_as_a_terminal_shows_them() -> None:
    rows = [{"id": "数字", "text": "x"}, {"id": "digits", "text": "数字" * 40}]
    assert lines(Listing(rows, [ID, CUT]), 40)[1:] == ["数字    x", f"digits  {'数字' * 7}数 …"]


def test_a_field_of_an_experiment_is_shown_once() -> None:
    titles = [column.title for column in columns.EXPERIMENT]
    assert len(set(titles)) == len(titles)


def run_on_a_terminal(home: Path, *arguments: str, environment: Mapping[str, str], command: Sequence[str] = ()) -> str:
    """What a command that ends by itself writes to a terminal of 80 columns."""
    command = command or [sys.executable, "-m", "proctor.manager.cli.main", "--home", str(home), *arguments]
    kept = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "FORCE_COLOR", "COLUMNS")}
    with on_terminal(["sh", "-c", 'exec "$@" >/dev/tty', "sh", *command], {**kept, **environment}) as terminal:
        assert terminal.until_ended()[0] == 0, terminal.shown
    return terminal.shown


def test_q_leaves_top_and_the_terminal_as_it_was(served: ServedManager, home: Path) -> None:
    served.add_experiment()
    script = '"$@" >/dev/tty; code=$?; stty -a; exit $code'
    top = [sys.executable, "-m", "proctor.manager.cli.main", "--home", str(home), "top", "-t", "60"]
    with on_terminal(["sh", "-c", script, "sh", *top], {**os.environ, "TERM": "xterm-256color"}) as terminal:
        terminal.until_asked("q quits")
        terminal.type("q")
        code, settings = terminal.until_ended()
    assert code == 0
    assert {"icanon", "echo"} <= set(settings.split())


def test_a_terminal_that_only_prints_lines_gets_one_plain_screen_of_top(served: ServedManager, home: Path) -> None:
    served.add_experiment(status="RUNNING", name="name of e", trials=[{"status": "RUNNING"}])
    shown = run_on_a_terminal(home, "top", environment={"TERM": "dumb"})
    assert "\x1b" not in shown
    assert "name of e" in shown
    assert "t0" in shown


EVIL = "x\x1b]0;title\x07y\x1b[2J\x9b31m\u202ez"
COMMANDS = [
    "experiment list",
    "experiment show e",
    "experiment show e -o json",
    "experiment show e -o yaml",
    "experiment list -o csv",
    "experiment status e",
    "experiment export e",
    "experiment export e -t csv",
    "config show e",
    "trial ls e",
    "trial show t0",
    "trial show t0 --metrics",
    "trial log t0",
    "log dispatcher e",
    "top e --once",
    "nodes",
    "nodes drain gpu",
    "stop x",
    "resume e -f",
]


@pytest.mark.slow
def test_no_command_hands_control_characters_of_others_to_the_terminal(served: ServedManager, home: Path) -> None:
    """One process runs them all: each of its own would take half a second."""
    points = [("intermediate", {"default": 0.5, EVIL: EVIL})]
    trial = {"id": "t0", "status": "RUNNING", "reason": EVIL, "parameters": {EVIL: EVIL}, "points": points}
    served.add_experiment(name=EVIL, reason=EVIL, error=EVIL, trials=[trial])
    served.change_experiment(config={**served.experiment().config, EVIL: EVIL})
    for identifier in ("x1", "x2"):
        served.add_experiment(identifier, name=EVIL)
    served.add_node("gpu", address=EVIL, reason=EVIL, hostname=EVIL)
    log = f"\x1b[31mred {EVIL}\n".encode()
    served.write_file("t0", "stdout", log)
    Home(home).dispatcher_log("e").write_bytes(log)
    served.write(lambda c: events.append(c, time=1.0, kind=events.NOTICE, data={"text": EVIL}, experiment_id="e"))
    failed = {"status": ExperimentStatus.ERROR, "reason": EVIL}
    served.on_ask["POST", "/experiments/e/resume"] = lambda: served.change_experiment(**failed)
    script = f"""
import sys
from proctor.manager.cli.main import cli
for line in {COMMANDS!r}:
    print("$", line, flush=True)
    try:
        cli.main(["--home", {str(home)!r}, *line.split()])
    except SystemExit:
        pass
"""
    shown = run_on_a_terminal(home, environment={"TERM": "xterm-256color"}, command=[sys.executable, "-c", script])
    assert [line[2:].rstrip() for line in shown.splitlines() if line.startswith("$ ")] == COMMANDS
    ours = re.compile(r"\x1b\[(?:[0-9;]*m|\?25[lh]|[0-9]*[AK]|H)|\r")  # colors, and what a live screen needs
    for piece in re.split(r"^\$ ", shown, flags=re.MULTILINE)[1:]:
        bad = set(re.findall("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e]", ours.sub("", piece)))
        assert not bad, f"{bad} in the output of {piece!r}"
    assert "\x1b[31mred" in shown
    assert shown.rstrip().endswith("\x1b[0m")

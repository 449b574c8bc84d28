"""What people see: each screen on a terminal of 60, 80 and 120 columns, colored and not, as text in `screens/`.

PROCTOR_RENEW_SCREENS=1 writes the files anew instead of comparing them; look at what `git diff` shows then. Colors are
written as `[green]SUCCEEDED[/]`.
"""

import codecs
import os
import pty
import re
import select
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyte
import pytest
from fakes.rest import FakeRest

IS_RENEWED = bool(os.environ.get("PROCTOR_RENEW_SCREENS"))
WIDTHS = (60, 80, 120)
PLAIN_WIDTH = 80  # at which each screen is shown without colors, too
ROWS = 80
PATIENCE_SECONDS = 60.0
HOME = "/home/ada/.local/state/proctor"
Screens = Mapping[tuple[int, bool, str], str]
COMMANDS = {
    "experiment_list": "experiment list",
    "experiment_show": "experiment show digits01",
    "experiment_show_failed": "experiment show digits02",
    "experiment_status": "experiment status digits02",
    "trial_ls": "trial ls digits01",
    "trial_ls_best": "trial ls digits01 --best 3",
    "trial_ls_wide": "trial ls digits01 --wide",
    "trial_ls_columns": "trial ls digits01 --columns no,value,value.loss,parameter.model,parameter.model.dropout,jobs",
    "trial_show": "trial show t0000002",
    "trial_show_metrics": "trial show t0000002 --metrics",
    "trial_show_failed": "trial show t0000003",
    "experiment_scheduler": "experiment scheduler digits01",
    "nodes": "nodes",
    "doctor": "doctor -c experiment.yml",
    "algo_list": "algo list",
    "algo_show": "algo show TPE",
    "algo_show_scheduler": "algo show ASHA",
    "no_such_status": "experiment list --status finished",
    "top": "top",
    "top_of_one": "top digits01",
    "foreground": "resume digits01 --foreground",
    "outcome": "resume digits03 --foreground",
}
KEYS = {
    "top": ("q quits; everything keeps running.", "q"),
    "top_of_one": ("q quits; everything keeps running.", "q"),
    "foreground": ("Ctrl-C stops watching; the experiment keeps running.", "\x03"),
}
"""Of screens that stay until a key is pressed: the last thing they show, and the key."""
CHILD = """
import fcntl
import os
import signal
import struct
import sys
import termios
from datetime import UTC, datetime
import rich
from proctor.manager.cli import checks, columns
from proctor.manager.cli.checks import Check, CheckResult
from proctor.manager.cli.commands import doctor
from proctor.manager.cli.main import cli

signal.signal(signal.SIGINT, signal.default_int_handler)  # where the tests run in the background it is ignored
columns.now = lambda: datetime(2026, 1, 2, 4, 4, 4, tzinfo=UTC)
doctor.CHECKS = [
    lambda home: Check("python", CheckResult.OK, "3.13.1 at /usr/bin/python3.13"),
    lambda home: Check("home", CheckResult.NOTE, f"{HOME} may be entered by others (mode 755)", f"`chmod go= {HOME}`"),
    lambda home: Check("disk", CheckResult.FAIL, "0.0 GiB of 879.6 GiB free", "make room: a full disk runs no trial"),
    checks.check_nni,
]
checks.proctor.sdk.compat.__path__ = ["/home/ada/.venv/lib/python3.13/site-packages/proctor/sdk/compat"]
checks.find_spec = lambda name: None

for width in WIDTHS:
    fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, width, 0, 0))
    for is_plain in (False, True) if width == PLAIN_WIDTH else (False,):
        os.environ.pop("NO_COLOR", None)
        os.environ.update({"NO_COLOR": "1"} if is_plain else {})
        rich.reconfigure()  # its console reads the environment once
        for name, line in COMMANDS.items():
            print(f"\\x1e{width} {is_plain} {name}", flush=True)
            try:
                cli.main(["--home", sys.argv[1], *line.split()], prog_name="proctor")
            except SystemExit:
                sys.stdout.flush()
"""


def fill(rest: FakeRest) -> None:
    """Three experiments with all that is difficult to show."""
    node = {"hostname": "gpu-3", "devices": []}
    device = {"name": "NVIDIA H100 80GB HBM3", "memory_total_mb": 81559, "memory_used_mb": 4, "utilization": 0}
    held = ["trial 5 of experiment digits01", "another user of this machine (bob)"]
    node["devices"] = [
        {**device, "index": 0, "memory_used_mb": 61204, "utilization": 97, "held_by": held},
        {**device, "index": 1, "held_by": []},
    ]
    rest.add_node("gpu-3", address="bob@gpu-3.lab.example.org:2222", facts=node, experiments=["digits01"])
    rest.add_node(
        "gpu-4",
        address="bob@gpu-4.lab.example.org",
        status="FAILED",
        hold="drained: its disk is being replaced",
        reason="login as bob was refused; tried the agent (2 keys), /home/ada/.ssh/id_ed25519; tried again in 8 s",
    )
    rest.add_node("local", kind="local", facts={"hostname": "数据中心"})
    _fill_digits(rest)
    failure = (
        "none of 12 trials has succeeded; 9 of 12 ended with: exit code 1: ModuleNotFoundError: No module named 'x'"
    )
    error = (
        'Traceback (most recent call last):\n  File "/home/ada/digits/tuner.py", line 3, in update\n    return 1 / 0\n'
    )
    rest.add_experiment(
        "digits02",
        name="a name that is much longer than any column for names should be",
        status="ERROR",
        reason="8 trials in a row failed for the same reason: exit code 1",
        failure=failure,
        error=f"{error}ZeroDivisionError: division by zero",
        trial_counts={"FAILED": 12},
        max_trial_number=12,
        directory=f"{HOME}/experiments/digits02",
        url="http://127.0.0.1:8080/experiments/digits02",
        notices=["tuner.classArgs.seed: ignored; give `seed` at the top of the file"],
    )
    rest.add_experiment(
        "digits03",
        name="手写数字识别",
        status="DONE",
        reason="maxTrialNumber 24 is reached",
        trial_counts={"SUCCEEDED": 21, "EARLY_STOPPED": 3},
        max_trial_number=24,
        objective={"metric": "default", "direction": "minimize"},
        best={"trial_id": "t0000003", "sequence_id": 3, "value": 0.000123456789, "parameters": _parameters(3)},
        active_seconds=86_400.0,
        directory=f"{HOME}/experiments/digits03",
        url="http://127.0.0.1:8080/experiments/digits03",
    )


def _parameters(number: int) -> dict[str, Any]:
    branch = {"_name": "mlp", "units": 64 * number, "dropout": 0.1 / number} if number % 2 else {"_name": "linear"}
    return {"lr": 0.012648573920184 / (number + 1), "batch_size": 2 ** (number + 4), "model": branch, "augment": True}


def _fill_digits(rest: FakeRest) -> None:
    """An experiment with a trial of every kind."""
    rest.add_experiment(
        "digits01",
        name="digits",
        reason="gpu-4 cannot be used: login as bob was refused",
        best={"trial_id": "t0000002", "sequence_id": 2, "value": 0.98234567, "parameters": _parameters(2)},
        active_seconds=10_830.0,
        max_trial_number=12,
        directory=f"{HOME}/experiments/digits01",
        url="http://127.0.0.1:8080/experiments/digits01",
    )
    out_of_memory = "RuntimeError: CUDA out of memory. Tried to allocate 20.00 MiB"
    failed = f"exit code 1: {out_of_memory}. GPU 0 has a total capacity of 79.11 GiB of which 4.19 MiB is free"
    lost = "its machine gpu-4.lab.example.org has been silent for 5 minutes; it runs again on another machine"
    stopped = "stopped early by the assessor"
    loss = {"loss": 1.7, "accuracy": {"top5": 0.99}}
    _add_trial(rest, 0, "SUCCEEDED", final=loss)
    _add_trial(rest, 1, "EARLY_STOPPED", reason=stopped, final={})
    _add_trial(rest, 2, "SUCCEEDED", final={**loss, "loss": 1.7 - 2 / 3})
    _add_trial(rest, 3, "FAILED", reason=failed)
    _add_trial(rest, 4, "RUNNING", node_id="local", latest_value=None, intermediate_count=0)
    _add_trial(rest, 5, "RUNNING", reason=lost, jobs=2)
    _fill_attempts(rest, f"{out_of_memory}; the whole traceback is in its stderr")


def _add_trial(
    rest: FakeRest, number: int, status: str, *, final: Mapping[str, Any] | None = None, **changes: Any
) -> None:
    """:param final: the other keys of its final metric; None: it has none."""
    identifier = f"t000000{number}"
    value = None if final is None else 0.9 + number / 23
    fields = {
        "parameters": _parameters(number),
        "final_value": value,
        "final_data": {"default": value, **final} if final else value,
        "latest_value": 0.912345,
        "intermediate_count": 1234,
        "jobs": 1,
        "node_id": "gpu-3",
        "started_at": "2026-01-02T03:04:05Z",
        "ended_at": None if status == "RUNNING" else "2026-01-02T03:42:17Z",
        "directory": f"{HOME}/experiments/digits01/trials/{number}-{identifier}",
    }
    rest.add_trial("digits01", identifier, status=status, **{**fields, **changes})


def _fill_attempts(rest: FakeRest, detail: str) -> None:
    """Jobs, metrics, and what a login to the machine finds."""
    job = {"started_at": "2026-01-02T03:04:05Z", "ended_at": "2026-01-02T03:42:17Z", "signal": None, "exit_code": 1}
    job |= {"status": "ENDED", "end_reason": "EXITED", "start_reason": "", "node_id": "gpu-3"}
    again = "from checkpoint 3 of job 1, which was copied to this node"
    silent = {"node_id": "gpu-4", "end_reason": "NODE_LOST", "exit_code": None, "detail": "silent"}
    rest.jobs["t0000002"] = [{**job, "id": "t0000002.1", "exit_code": 0, "detail": ""}]
    rest.jobs["t0000003"] = [
        {**job, **silent, "id": "t0000003.1"},
        {**job, "id": "t0000003.2", "detail": detail, "start_reason": again},
    ]
    _fill_scheduler(rest)
    rest.metrics["t0000003"] = [{"job": 2, "kind": "lost", "value": 7.0, "data": 7.0}]
    for step in (100, 200):
        value = 0.9 + step / 10_000
        rest.add_metric("t0000002", "intermediate", value, step=step, data={"default": value})
    data = {"default": 0.98234567, "loss": 0.031, "accuracy": {"top5": 1.0}}
    rest.add_metric("t0000002", "final", 0.98234567, data=data)
    rest.found["gpu-3.lab.example.org"] = [
        {"name": "name", "found": "10.0.0.3"},
        {
            "name": "host key",
            "verdict": "fail",
            "found": "its host key is not known: gpu-3.lab.example.org:2222 shows the ssh-ed25519 key SHA256:5T9sKf2a",
            "advice": "compare it with the machine's own and add this line to ~/.ssh/known_hosts, or set "
            f"trustOnFirstUse: `[gpu-3.lab.example.org]:2222 ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAI{'J9kdX0' * 8}`",
        },
        {"name": "login", "verdict": "skipped", "found": "no connection"},
        {"name": "home", "verdict": "skipped", "found": "no connection"},
    ]


def _fill_scheduler(rest: FakeRest) -> None:
    """What a trial scheduler shows, and what it has decided of a trial."""
    population = ("trial", "value", "trained to", "generation", "clone of", "state")
    rows = [[1, 0.98234567, 40, 2, 0, "running"], [0, 0.95, 40, 0, None, "paused"], [3, None, 0, 1, 1, "waiting"]]
    because = "has a best of 0.7 by 20, worse than 0.81234, the median of 11 other trials at this point of the training"
    rest.schedulers["digits01"] = {
        "name": "PBT",
        "tables": [
            {"title": "Population (3 of 8 added)", "columns": population, "rows": rows, "trial_columns": [0, 4]},
            {
                "title": "Paused trials",
                "columns": ["trial", "because it"],
                "rows": [[0, because]],
                "trial_columns": [0],
            },
            {"title": "Nothing yet", "columns": ["trial"], "rows": [], "trial_columns": [0]},
        ],
        "updated_at": "2026-01-02T03:42:17Z",
    }
    decision = {"decided_at": "2026-01-02T03:30:00Z", "kind": "clone", "donor_trial_id": "t0000001"}
    decision |= {"donor_sequence_id": 1, "has_donor_checkpoint": True}
    rest.decisions["t0000003"] = [
        {**decision, "kind": "resume", "reason": "promoted to rung 9: 2nd of 7 in rung 3", "job": 2},
        {**decision, "reason": "the donor is at 0.91", "job": 0},
        {**decision, "reason": "the donor is at 0.98", "has_donor_checkpoint": False, "job": None},
    ]


CONFIG = """\
searchSpace: {lr: {_type: uniform, _value: [0, 1]}}
trialCommand: python3 trial.py --epochs 3
trialConcurrency: 1
tuner: {name: Random}
trainingService: {platform: remote, machineList: [{host: gpu-3.lab.example.org, port: 2222, user: bob}]}
"""


def draw(width: int, data: str, *, has_colors: bool = False) -> str:
    """What a terminal of this width shows after it got this."""
    screen = pyte.Screen(width, ROWS)
    pyte.Stream(screen).feed(data)
    lines = []
    for number in range(ROWS):
        line = spaces = marks = ""
        for column in range(width):
            cell = screen.buffer[number][column]
            if cell.data == " ":
                spaces += " "
                continue
            now = " ".join(["bold"] * cell.bold + [cell.fg] * (cell.fg != "default")) if has_colors else ""
            end, begin = ("[/]" if marks else "", f"[{now}]" if now else "") if now != marks else ("", "")
            line += end + spaces + begin + cell.data
            spaces, marks = "", now
        lines.append(line + ("[/]" if marks else ""))
    return "\n".join(lines).rstrip() + "\n"


@pytest.fixture(scope="module")
def screens() -> Screens:
    """Run all commands once, one after the other. The manager's home is in a folder of its own, with a configuration;
    its path, which is shown, is as long as anywhere else."""
    with tempfile.TemporaryDirectory(prefix="proctor-", dir="/tmp") as name, FakeRest(Path(name) / "home") as rest:
        (Path(name) / "experiment.yml").write_text(CONFIG)
        (Path(name) / "trial.py").write_text("")
        fill(rest)
        return read_screens(rest)


def read_screens(rest: FakeRest) -> Screens:
    """By width, whether without colors, and name: what each command writes to a terminal."""
    resumed = "POST", "/experiments/digits03/resume"

    def end() -> None:
        rest.on_ask[resumed] = end  # what is called is forgotten
        rest.set_status("digits03", "DONE")

    rest.on_ask[resumed] = end
    given = {"COMMANDS": COMMANDS, "HOME": HOME, "ROWS": ROWS, "PLAIN_WIDTH": PLAIN_WIDTH, "WIDTHS": WIDTHS}
    script = "".join(f"{name} = {value!r}\n" for name, value in given.items()) + CHILD
    ours, its = pty.openpty()
    removed = ("NO_COLOR", "FORCE_COLOR", "COLUMNS", "LINES", "PROCTOR_URL", "PROCTOR_TOKEN")
    kept = {name: value for name, value in os.environ.items() if name not in removed}
    process = subprocess.Popen(
        ["setsid", "--ctty", sys.executable, "-c", script, str(rest.home)],
        env={**kept, "TERM": "xterm-256color", "TZ": "UTC"},
        cwd=rest.home.parent,
        stdin=its,
        stdout=its,
        stderr=its,
    )
    os.close(its)
    try:
        found = _read_and_type(ours)
        assert process.wait(PATIENCE_SECONDS) == 0
    finally:
        process.kill()
        process.wait()
        os.close(ours)
    return found


def _read_and_type(fd: int) -> Screens:
    """Of a screen that stays, what was written when it was complete."""
    found: dict[str, str] = {}
    text, decoder = "", codecs.getincrementaldecoder("utf-8")()
    while select.select([fd], [], [], PATIENCE_SECONDS)[0]:
        try:
            text += decoder.decode(os.read(fd, 65536))
        except OSError:  # EIO: the other side is closed
            break
        *ended, text = text.split("\x1e")
        for title, _, shown in (piece.partition("\r\n") for piece in ended):
            found.setdefault(title, shown)
        title, _, shown = text.partition("\r\n")
        last, key = KEYS.get(title.rpartition(" ")[2], ("", ""))
        if key and title not in found and last in shown:
            found[title] = shown.partition(last)[0] + last  # what follows may be half of the next picture
            os.write(fd, key.encode())
    else:
        raise AssertionError(f"the last screen has not ended; shown was {text[-2000:]!r}")
    title, _, shown = text.partition("\r\n")
    found.setdefault(title, shown)
    return {
        (int(width), is_plain == "True", name): shown
        for (width, is_plain, name), shown in ((title.split(), shown) for title, shown in found.items() if title)
    }


@pytest.mark.parametrize("width", WIDTHS)
def test_the_screens_are_as_they_were_seen(screens: Screens, width: int) -> None:
    shown = "\n".join(
        f"──── proctor {line}\n{draw(width, screens[width, False, name], has_colors=True)}"
        for name, line in COMMANDS.items()
    )
    shown = re.sub(r"127\.0\.0\.1:\d{5}", "127.0.0.1:-PORT", shown)
    shown = re.sub(r"/tmp/proctor-\w{8}", "/tmp/proctor-changing", shown)
    file = Path(__file__).parent / "screens" / f"{width}-columns.txt"
    if IS_RENEWED:
        file.write_text(shown, encoding="utf-8")
    assert shown == file.read_text(encoding="utf-8")


def test_without_colors_the_screens_are_the_same(screens: Screens) -> None:
    bars = str.maketrans("━╸╺", "   ")  # what remains of a bar differs in color only
    for name in COMMANDS:
        colored, plain = screens[PLAIN_WIDTH, False, name], screens[PLAIN_WIDTH, True, name]
        texts = [draw(PLAIN_WIDTH, sent).translate(bars) for sent in (colored, plain)]
        assert texts[0] == texts[1]
        assert not re.search(r"\x1b\[[0-9;]*3\d", plain)

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
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyte
import pytest
from fakes.served_manager import NOW, ServedManager

from proctor.manager.lifecycle.trial import DecisionKind
from proctor.manager.store.rows import DecisionRow
from proctor.manager.store.tables import dispatcher_inputs
from proctor.training_services.base import EndReason, NodePlacement
from proctor.training_services.nodes.pool import NodeStatus
from proctor.training_services.providers import CheckStep, CheckVerdict
from proctor.trial_keeper.protocol import Device, DeviceProcess, GpuSlot

IS_RENEWED = bool(os.environ.get("PROCTOR_RENEW_SCREENS"))
WIDTHS = (60, 80, 120)
PLAIN_WIDTH = 80  # at which each screen is shown without colors, too
ROWS = 80
PATIENCE_SECONDS = 60.0
HOME = "/home/ada/.local/state/proctor"
HOST = "gpu-3.lab.example.org"
Screens = Mapping[tuple[int, bool, str], str]
COMMANDS = {
    "experiment_list": "experiment list",
    "experiment_show": "experiment show digits01",
    "experiment_show_failed": "experiment show digits02",
    "experiment_status": "experiment status digits02",
    "trial_ls": "trial ls digits01",
    "trial_ls_best": "trial ls digits01 --best 3",
    "trial_ls_wide": "trial ls digits01 --wide",
    "trial_ls_columns": "trial ls digits01 --columns NO,value,value.loss,parameter.model,parameter.model.dropout,jobs",
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
SHOWN_AT = datetime(2026, 1, 2, 4, 4, 4, tzinfo=UTC)
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
columns.now = lambda: datetime.fromtimestamp(SHOWN_AT, UTC)
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


STEPS = (
    CheckStep(HOST, "name", CheckVerdict.OK, "10.0.0.3"),
    CheckStep(
        HOST,
        "host key",
        CheckVerdict.FAIL,
        f"its host key is not known: {HOST}:2222 shows the ssh-ed25519 key SHA256:5T9sKf2a",
        "compare it with the machine's own and add this line to ~/.ssh/known_hosts, or set trustOnFirstUse: "
        f"`[{HOST}]:2222 ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAI{'J9kdX0' * 8}`",
    ),
    CheckStep(HOST, "login", CheckVerdict.SKIPPED, "no connection"),
    CheckStep(HOST, "home", CheckVerdict.SKIPPED, "no connection"),
)
BECAUSE = "has a best of 0.7 by 20, worse than 0.81234, the median of 11 other trials at this point of the training"
TABLES = (
    {
        "title": "Population (3 of 8 added)",
        "columns": ["trial", "value", "trained to", "generation", "clone of", "state"],
        "rows": [[1, 0.98234567, 40, 2, 0, "running"], [0, 0.95, 40, 0, None, "paused"], [3, None, 0, 1, 1, "waiting"]],
        "trial_columns": [0, 4],
    },
    {"title": "Paused trials", "columns": ["trial", "because it"], "rows": [[0, BECAUSE]], "trial_columns": [0]},
    {"title": "Nothing yet", "columns": ["trial"], "rows": [], "trial_columns": [0]},
)
ERROR = """\
Traceback (most recent call last):
  File "/home/ada/digits/tuner.py", line 3, in update
    return 1 / 0
ZeroDivisionError: division by zero"""


def fill(served: ServedManager) -> None:
    """Three experiments with all that is difficult to show. They are written down as if the engine ran them."""

    async def resume(experiment_id: str, **_: Any) -> None:
        """Leave an experiment as it is: the trials of one that runs have other ids and times each time."""

    served.manager.resume_experiment = resume  # type: ignore[method-assign]
    served.manager.silence_of = lambda trial, node_id: ""  # type: ignore[method-assign]
    _fill_nodes(served)
    _fill_digits(served)
    missing = {"status": "FAILED", "reason": "exit code 1: ModuleNotFoundError: No module named 'x'"}
    served.add_experiment(
        "digits02",
        trials=[{**missing, "id": f"f{number}"} for number in range(9)]
        + [{**missing, "id": f"g{number}", "reason": "exit code 2"} for number in range(3)],
        name="a name that is much longer than any column for names should be",
        status="ERROR",
        reason="8 trials in a row failed for the same reason: exit code 1",
        error=ERROR,
        max_trial_number=12,
        active_seconds=5.0,
    )
    served.add_experiment(
        "digits03",
        config={"objective": {"direction": "minimize"}},
        trials=[{"id": f"m{number}", "parameters": _parameters(number)} for number in range(20)]
        + [{"id": "m20", "parameters": _parameters(3), "final_value": 0.000123456789}]
        + [{"id": f"m{number}", "status": "EARLY_STOPPED"} for number in range(21, 24)],
        name="手写数字识别",
        status="DONE",
        reason="maxTrialNumber 24 is reached",
        max_trial_number=24,
        active_seconds=86_400.0,
    )


def _fill_nodes(served: ServedManager) -> None:
    """Machines, and what a login to one of them finds."""
    busy = Device(0, "GPU-a", "NVIDIA H100 80GB HBM3", 81559, 61204, 97, [DeviceProcess(4711, 8012)])
    idle = replace(busy, index=1, uuid="GPU-b", memory_used_mb=4, utilization=0, processes=[])
    served.add_node("gpu-3", address=f"bob@{HOST}:2222", hostname="gpu-3", devices=(busy, idle))
    served.pool.restore("t0000005.2", NodePlacement("gpu-3", (GpuSlot("GPU-a", 0),)), "trial 5 of experiment digits01")
    served.add_node(
        "gpu-4",
        address="bob@gpu-4.lab.example.org",
        status=NodeStatus.FAILED,
        hold="drained: its disk is being replaced",
        reason="login as bob was refused; tried the agent (2 keys), /home/ada/.ssh/id_ed25519; tried again in 8 s",
    )
    served.add_node("local", "local", hostname="数据中心")
    served.remote.steps[HOST] = STEPS


def _parameters(number: int) -> dict[str, Any]:
    branch = {"_name": "mlp", "units": 64 * number, "dropout": 0.1 / number} if number % 2 else {"_name": "linear"}
    return {"lr": 0.012648573920184 / (number + 1), "batch_size": 2 ** (number + 4), "model": branch, "augment": True}


def _fill_digits(served: ServedManager) -> None:
    """An experiment with a trial of every kind."""
    served.add_experiment(
        "digits01",
        config={"trialScheduler": {"name": "PBT"}},
        trials=_digits_trials(),
        tables=TABLES,
        name="digits",
        status="RUNNING",
        reason="gpu-4 cannot be used: login as bob was refused",
        trial_concurrency=2,
        max_trial_number=12,
        active_seconds=10_830.0,
        ended_at=None,
    )
    for decision in _digits_decisions():
        served.write(lambda c, row=decision: dispatcher_inputs.record(c, row))


def _digits_trials() -> list[dict[str, Any]]:
    killed = {"node_id": "gpu-3", "end_reason": EndReason.SIGNALED, "signal": 9, "detail": "killed from outside"}
    out_of_memory = "RuntimeError: CUDA out of memory. Tried to allocate 20.00 MiB"
    loss = {"loss": 1.7, "accuracy": {"top5": 0.99}}
    return [
        _trial(0, final=loss),
        _trial(1, status="EARLY_STOPPED", reason="stopped early by the assessor", final={}),
        _trial(
            2,
            final={**loss, "loss": 1.7 - 2 / 3},
            points=[
                ("intermediate", {"default": 0.91}, {"step": 100, "time": NOW}),
                ("intermediate", {"default": 0.92}, {"step": 200, "time": NOW}),
                ("final", {"default": 0.98234567, "loss": 0.031, "accuracy": {"top5": 1.0}}, {"time": NOW}),
            ],
        ),
        _trial(
            3,
            status="FAILED",
            reason=f"exit code 1: {out_of_memory}. GPU 0 has a total capacity of 79.11 GiB of which 4.19 MiB is free",
            jobs=3,
            earlier_jobs=[{"node_id": "gpu-4", "end_reason": EndReason.NODE_LOST, "detail": "silent"}, killed],
            job={
                "node_id": "gpu-3",
                "end_reason": EndReason.EXITED_ERROR,
                "exit_code": 1,
                "counted_gpus": 1.0,
                "cpu_seconds": 1900.0,
                "detail": f"{out_of_memory}; the whole traceback is in its stderr",
                "start_reason": "from checkpoint 3 of job 1, which was copied to this node",
            },
            points=[("lost", 7.0), ("lost", "the trial cut its journal back")],
        ),
        _trial(4, status="RUNNING", job={"node_id": "local"}, latest_value=None, intermediate_count=0),
        _trial(
            5,
            status="RUNNING",
            reason="its machine gpu-4.lab.example.org has been silent for 5 minutes; it runs again on another machine",
            jobs=2,
            earlier_jobs=[{"node_id": "gpu-4", "end_reason": EndReason.NODE_LOST}],
            job={"node_id": "gpu-3"},
        ),
    ]


def _digits_decisions() -> tuple[DecisionRow, ...]:
    because = "promoted to rung 9: 2nd of 7 in rung 3"
    resumed = DecisionRow("digits01", 11, 11, DecisionKind.RESUME, "t0000003", NOW + 1555, reason=because, job=2)
    clone = replace(resumed, kind=DecisionKind.CLONE, donor_trial="t0000001", donor_sequence=1)
    late = replace(clone, parameter_id=12, position=12, donor_job="t0000001.1", job=0, reason="the donor is at 0.91")
    bare = replace(clone, parameter_id=13, position=13, job=None, reason="the donor is at 0.98")
    return resumed, late, bare


def _trial(number: int, *, final: Mapping[str, Any] | None = None, **columns: Any) -> dict[str, Any]:
    """:param final: the other keys of its final metric; None: it has none."""
    value = None if final is None else 0.9 + number / 23
    return {
        "id": f"t000000{number}",
        "parameters": _parameters(number),
        "final_value": value,
        "final_data": {"default": value, **final} if final else None,
        "latest_value": 0.912345,
        "intermediate_count": 1234,
        "ended_at": None if columns.get("status") == "RUNNING" else NOW + 2292,
        "job": {"node_id": "gpu-3", "exit_code": 0, "counted_gpus": 1.0, "cpu_seconds": 2200.0},
        **columns,
    }


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
    with (
        tempfile.TemporaryDirectory(prefix="proctor-", dir="/tmp") as name,
        ServedManager(Path(name, "home")) as served,
        pytest.MonkeyPatch.context() as patched,
    ):
        patched.setattr(served.manager.clock, "steady", SHOWN_AT.timestamp)
        Path(name, "experiment.yml").write_text(CONFIG)
        Path(name, "trial.py").write_text("")
        fill(served)
        return read_screens(served)


def read_screens(served: ServedManager) -> Screens:
    """By width, whether without colors, and name: what each command writes to a terminal."""
    given = {
        "SHOWN_AT": SHOWN_AT.timestamp(),
        "COMMANDS": COMMANDS,
        "HOME": HOME,
        "ROWS": ROWS,
        "PLAIN_WIDTH": PLAIN_WIDTH,
        "WIDTHS": WIDTHS,
    }
    script = "".join(f"{name} = {value!r}\n" for name, value in given.items()) + CHILD
    ours, its = pty.openpty()
    removed = ("NO_COLOR", "FORCE_COLOR", "COLUMNS", "LINES", "PROCTOR_URL", "PROCTOR_TOKEN")
    kept = {name: value for name, value in os.environ.items() if name not in removed}
    process = subprocess.Popen(
        ["setsid", "--ctty", sys.executable, "-c", script, str(served.home)],
        env={**kept, "TERM": "xterm-256color", "TZ": "UTC"},
        cwd=served.home.parent,
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


@pytest.mark.slow
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

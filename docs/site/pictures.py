"""Draw the pictures of the README and the site: `make pictures`.

A picture is what the command line prints on a terminal, drawn by rich. The manager behind it is the one of the tests,
with made-up experiments, so the same code always gives the same picture; a test compares.
"""

import os
import pty
import re
import subprocess
import sys
import tempfile
from io import StringIO
from pathlib import Path

from fakes.served_manager import NOW, ServedManager
from rich.console import CONSOLE_SVG_FORMAT, Console
from rich.text import Text

FOLDER = Path(__file__).parents[1] / "pictures"
WIDTH = 110
COMMANDS = ("proctor experiment list", "proctor trial ls digits --sort best --head 7")
TRIALS = (
    (4, "SUCCEEDED", 0.98611, 12, 41, {"lr": 0.00312, "hidden": 128}, ""),
    (11, "SUCCEEDED", 0.98333, 12, 44, {"lr": 0.00274, "hidden": 128}, ""),
    (9, "SUCCEEDED", 0.97777, 12, 38, {"lr": 0.00508, "hidden": 64}, ""),
    (6, "SUCCEEDED", 0.97222, 12, 37, {"lr": 0.00141, "hidden": 64}, ""),
    (2, "EARLY_STOPPED", 0.91389, 5, 16, {"lr": 0.0644, "hidden": 32}, "stopped early by the assessor"),
    (7, "EARLY_STOPPED", 0.90833, 4, 14, {"lr": 0.00018, "hidden": 32}, "stopped early by the assessor"),
    (12, "WAITING", None, 0, 0, {"lr": 0.0029, "hidden": 128}, "waiting: GPU 1 held by user ada"),
)


def fill(served: ServedManager) -> None:
    """Two experiments, with the trials that the table shows of one."""
    served.add_experiment(
        "k3Vn8QxZ",
        config={"objective": {"direction": "minimize"}},
        trials=[{"id": f"resnet{number}", "final_value": 0.2147 + number / 100} for number in range(30)],
        name="resnet sweep",
        status="DONE",
        reason="maxTrialNumber 30 is reached",
        max_trial_number=30,
    )
    trials = [
        {
            "id": f"{number:02d}kQ7xZ",
            "sequence_id": number,
            "status": status,
            "final_value": value,
            "intermediate_count": reports,
            "parameters": parameters,
            "reason": reason,
            "jobs": 1 if seconds else 0,
            "started_at": NOW if seconds else None,
            "ended_at": NOW + seconds if seconds else None,
        }
        for number, status, value, reports, seconds, parameters, reason in TRIALS
    ]
    running = {"status": "RUNNING", "created_at": NOW + 1, "ended_at": None}
    served.add_experiment("Ab3dE5f7", trials=trials, name="digits", max_trial_number=24, **running)


def run_on_terminal(command: str, home: Path) -> str:
    """What a command shows on a terminal, with its colors."""
    ours, its = pty.openpty()
    environment = {
        **{name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "FORCE_COLOR")},
        "PROCTOR_HOME": str(home),
        "TERM": "xterm-256color",
        "COLUMNS": str(WIDTH),
        "LINES": "40",
        "TZ": "UTC",
    }
    words = [sys.executable, "-P", "-m", "proctor.manager.cli.main", *command.split()[1:]]
    process = subprocess.Popen(words, env=environment, stdin=its, stdout=its, stderr=its)
    os.close(its)
    shown = b""
    while piece := read(ours):
        shown += piece
    os.close(ours)
    if process.wait():
        raise RuntimeError(f"`{command}` failed: {shown.decode()}")
    return shown.decode().replace("\r\n", "\n")


def read(terminal: int) -> bytes:
    """The next piece; nothing once the command has ended."""
    try:
        return os.read(terminal, 65536)
    except OSError:  # EIO: nothing has the other side open anymore
        return b""


def draw_terminal() -> str:
    """The commands and what they print, as SVG."""
    console = Console(record=True, width=WIDTH, file=StringIO(), force_terminal=True, highlight=False)
    with tempfile.TemporaryDirectory() as folder, ServedManager(Path(folder)) as served:
        fill(served)
        for command in COMMANDS:
            console.print(Text.assemble(("$ ", "dim"), (command, "bold")))
            console.print(Text.from_ansi(run_on_terminal(command, Path(folder)).rstrip()))
            console.print()
    # Without the fonts that the template would load from the network.
    template = re.sub(r"\s*@font-face \{\{.*?\n    \}\}", "", CONSOLE_SVG_FORMAT, flags=re.DOTALL)
    drawn = console.export_svg(title="proctor", unique_id="proctor", code_format=template)
    return "".join(f"{line.rstrip()}\n" for line in drawn.splitlines())


if __name__ == "__main__":
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER
    folder.mkdir(exist_ok=True)
    (folder / "terminal.svg").write_text(draw_terminal(), encoding="utf-8")

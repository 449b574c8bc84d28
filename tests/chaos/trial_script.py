"""The trial of the chaos tests: reports values, and keeps a ledger of its own of what it has reported.

`trial_script.py LEDGERS STEPS LEAST_SECONDS MOST_SECONDS [--losers] [--lingers] [--saves [--scored]] [--gate PATH
AFTER]`: every job appends to `LEDGERS/<job id>` by single writes, one JSON list a line: `["begin", pid, start time]`,
`["try", kind, value]` before each report, `["done", kind, value]` after it, and at its end `["end", pid, start time]`.
How long it takes follows from its parameter `x`. With --losers a trial with `x` below `LOSER` reports zeros, so that an
assessor has reason to stop it, and then waits to be stopped. With --lingers it does not end by itself after its final
metric. With --saves it registers a checkpoint with each value, continues from there, and leaves when it is asked to
stop. With --scored too, these values have a step, and are better in a trial with a larger `x`. With --gate a trial that
has reported AFTER values waits until PATH is there.
"""

import json
import os
import sys
import tempfile
import time
from pathlib import Path

import proctor

LOSER = 0.25
PATIENCE_SECONDS = 60


def start_time() -> int:
    """Of this process, in clock ticks since boot."""
    return int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])


class Ledger:
    """One job's own record."""

    def __init__(self, folder: str) -> None:
        path = os.path.join(folder, os.environ["PROCTOR_JOB_ID"])
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def write(self, *entry: object) -> None:
        """Append one line."""
        os.write(self._descriptor, (json.dumps(entry) + "\n").encode())

    def report(self, kind: str, value: float) -> None:
        """Report a value, with an entry on either side."""
        self.write("try", kind, value)
        if kind == "final":
            proctor.report_final_result(value)
        elif "--saves" in sys.argv:
            with tempfile.TemporaryDirectory() as folder:
                Path(folder, "value").write_text(str(value))
                proctor.report(value, checkpoint=folder, step=int(value) if "--scored" in sys.argv else None)
        else:
            proctor.report_intermediate_result(value)
        self.write("done", kind, value)


def wait_at_gate(reported: int) -> None:
    """Wait for the gate, if there is one after so many values."""
    if "--gate" not in sys.argv:
        return
    path, after = sys.argv[sys.argv.index("--gate") + 1 :][:2]
    gives_up = time.monotonic() + PATIENCE_SECONDS
    while reported == int(after) and not os.path.exists(path) and time.monotonic() < gives_up:
        time.sleep(0.02)


def main() -> None:
    """Run one trial."""
    folder, steps, least, most = sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), float(sys.argv[4])
    ledger = Ledger(folder)
    ledger.write("begin", os.getpid(), start_time())
    x = proctor.get_next_parameter()["x"]
    loses = "--losers" in sys.argv and x < LOSER
    score = 0.9 * x if "--scored" in sys.argv else 0.0
    pause = (least + (most - least) * x) / (steps + 1)
    saved = proctor.get_checkpoint() if "--saves" in sys.argv else None
    for step in range(0 if saved is None else int(float(Path(saved, "value").read_text())), steps):
        time.sleep(pause)
        ledger.report("intermediate", 0.0 if loses else 1.0 + step + score)
        if "--saves" in sys.argv and proctor.should_stop():
            ledger.write("end", os.getpid(), start_time())
            return
        wait_at_gate(step + 1)
    if loses:
        gives_up = time.monotonic() + PATIENCE_SECONDS
        while not proctor.should_stop() and time.monotonic() < gives_up:
            time.sleep(0.01)
        time.sleep(PATIENCE_SECONDS)  # ended by the keeper's signal, so that every run ends alike
    time.sleep(pause)
    ledger.report("final", x)
    if "--lingers" in sys.argv:
        time.sleep(PATIENCE_SECONDS)
    ledger.write("end", os.getpid(), start_time())


if __name__ == "__main__":
    main()

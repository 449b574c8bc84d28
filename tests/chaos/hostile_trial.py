"""A trial that damages the folder of its job: `hostile_trial.py`; its sequence id says how. It reports 1, then 2 as its
final metric."""

import os
import shutil
import time
from pathlib import Path

import proctor

MANNERS = ("journals of no rank", "pipes", "a renamed journal", "no folder", "never ends")


def main() -> None:
    """Run one attempt."""
    manner = MANNERS[proctor.get_sequence_id()]
    folder = Path(os.environ["PROCTOR_JOB_DIR"])
    proctor.report_intermediate_result(1)
    if manner in ("journals of no rank", "never ends"):
        for rank in ("99999999999999999999", "01", "٣"):
            (folder / f"journal.{rank}").write_text("not a record\n")
    elif manner == "pipes":
        (folder / "exit.json.new").unlink()
        for name in ("exit.json.new", "journal.1", "journal-anchor.1", "control.json.new"):
            os.mkfifo(folder / name)
    elif manner == "a renamed journal":
        (folder / "journal").rename(folder / "mine")
    proctor.report_final_result(2)
    while manner == "never ends":
        time.sleep(1)
    if manner == "no folder":
        os.chdir("/")
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()

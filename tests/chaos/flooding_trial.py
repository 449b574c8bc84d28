"""A trial that reports far more than can be stored at once, or one that reports a single value beside such trials.

`flooding_trial.py FOLDER FLOODS`: with the parameter `role` "flood" it writes REPORTS values into its journal at once,
then waits for the file `FOLDER/go`; otherwise it waits until FLOODS trials have done so, and ends.
"""

import json
import os
import sys
import time
from pathlib import Path

import proctor

REPORTS = 200_000


def main() -> None:
    """Run one trial."""
    folder, floods = Path(sys.argv[1]), int(sys.argv[2])
    if proctor.get_next_parameter()["role"] == "flood":
        line = json.dumps({"kind": "intermediate", "value": 0.5, "time": 1.0}).encode() + b"\n"
        with open(os.path.join(os.environ["PROCTOR_JOB_DIR"], "journal"), "ab") as journal:
            journal.write(line * REPORTS)
        (folder / f"flooded-{os.getpid()}").touch()
        while not (folder / "go").exists():
            time.sleep(0.05)
    else:
        while len(list(folder.glob("flooded-*"))) < floods:
            time.sleep(0.01)
    proctor.report_final_result(1.0)


if __name__ == "__main__":
    main()

"""A trial that saves only when it is asked to stop: `saving_trial.py LEDGER FINISH`.

Each attempt appends `begin <step>` to LEDGER. It reports a step every 20 ms until it is asked to stop; then it takes
half a second to save, registers its checkpoint, appends `saved <step>`, and leaves. When there is a file FINISH, it
reports its step as its final metric and ends.
"""

import sys
import time
from pathlib import Path

import proctor

SAVE_SECONDS = 0.5


def main() -> None:
    """Run one attempt."""
    ledger, finish = Path(sys.argv[1]), Path(sys.argv[2])
    folder = proctor.get_checkpoint()
    step = int(Path(folder, "step").read_text()) if folder else 0
    with ledger.open("a") as file:
        file.write(f"begin {step}\n")
    while not finish.exists():
        step += 1
        proctor.report_intermediate_result(step)
        if proctor.should_stop():
            time.sleep(SAVE_SECONDS)
            work = ledger.with_name("checkpoint")
            work.mkdir(exist_ok=True)
            (work / "step").write_text(str(step))
            proctor.report(step, checkpoint=work, step=step)
            with ledger.open("a") as file:
                file.write(f"saved {step}\n")
            return
        time.sleep(0.02)
    proctor.report_final_result(step)


if __name__ == "__main__":
    main()

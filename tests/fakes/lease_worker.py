"""A process that takes and gives back GPU leases as fast as it can; it may be killed any time.

`python lease_worker.py '{"log": …, "user": …, "seed": …, "gpus": […]}'` in the folder that holds the
directory of leases; it runs until there is a file `stop`. What it held, and from when to when, it appends to its
log: an interval that lies within the time in which it really held the lease.
"""

import json
import os
import random
import sys
import time
from typing import Any

from proctor.trial_keeper.reaper.leases import LeaseRefused, acquire, release, remove_unused

FOLDER = "./locks"
STOP = "./stop"
MOST_TRIALS = 3


def main() -> None:
    """Work as told, until told to stop."""
    reported = json.loads(sys.argv[1])
    log = os.open(reported["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    if reported["user"] is not None:
        os.setgroups([])
        os.setgid(reported["user"])
        os.setuid(reported["user"])
    os.umask(0o077)
    chance = random.Random(reported["seed"])
    number = 0
    while not os.path.exists(STOP):
        number += 1
        _take_and_give_back(log, reported["gpus"], number=number, chance=chance)
    _say(log, {"stopped": True})


def _take_and_give_back(log: int, gpus: list[str], *, number: int, chance: random.Random) -> None:
    uuids = chance.sample(gpus, chance.randint(1, len(gpus)))
    limit = chance.randint(1, MOST_TRIALS)
    slots = [(uuid, chance.randrange(limit)) for uuid in uuids]
    name = f"{os.getpid()}.{number}"
    try:
        held = acquire(FOLDER, slots, {"job_id": name, "pid": os.getpid()}, max_trials=limit)
    except LeaseRefused as refusal:
        _say(log, {"refused": str(refusal)})
        return
    _say(log, {"took": name, "slots": slots, "limit": limit, "time": time.monotonic()})
    time.sleep(chance.random() * 0.005)
    _say(log, {"gave": name, "time": time.monotonic()})
    release(held)
    if chance.random() < 0.5:
        remove_unused(FOLDER, uuids if chance.random() < 0.5 else None)


def _say(log: int, event: dict[str, Any]) -> None:
    os.write(log, json.dumps(event).encode() + b"\n")


if __name__ == "__main__":
    main()

"""Where processes are killed by name: by which test, or why not. `test_places.py` compares this with the source."""

from collections.abc import Iterable


def _both(*places: str) -> frozenset[str]:
    """Before and after each of them."""
    return frozenset(f"{place}.{side}" for place in places for side in ("before", "after"))


OF_AN_EXPERIMENT = _both(
    *("control.migrate", "metrics.migrate", "control.commit", "metrics.commit", "file.replace"),
    *("manager.create", "manager.metrics", "manager.submit", "manager.cancel"),
    *("manager.dispatcher.start", "manager.dispatcher.send"),
    *("dispatcher.initialize", "dispatcher.suggest", "dispatcher.kill", "dispatcher.pong"),
    *("keeper.register", "keeper.commands", "keeper.intent", "keeper.launch", "keeper.report", "keeper.exit.ack"),
    *("keeper.exit.sync", "keeper.stop.signal", "spawner.fork"),
    *("reaper.claim", "reaper.start", "reaper.stop", "reaper.exit"),
) | {"manager.ready.after", "manager.dispatcher.receive.before", "hub.commands.handed_over", "hub.report.taken"}
"""Passed by every experiment with an assessor, and killed at in `test_fail_points.py`."""

OF_STOPPING = frozenset({"manager.cancel.before", "manager.cancel.after", "keeper.stop.signal.before"})
OF_A_CLEAN_UP = _both("manager.clean_up")
OF_A_SOFT_STOP = frozenset({"keeper.stop.save.after"})
OF_DELETED_CHECKPOINTS = _both("manager.checkpoint.delete", "manager.checkpoint.remove", "keeper.checkpoint.delete")
OF_A_CONTINUED_JOB = _both("manager.launch")
OF_A_JOB_KEEPER = _both(
    *("manager.job_keeper.start", "manager.job_keeper.stop"),
    *("manager.job_keeper.send", "manager.job_keeper.copy", "manager.job_keeper.collect"),
)
"""Passed on a platform that starts a keeper for each job, and killed at in `test_job_keepers.py`."""
OF_LIMITS = _both("manager.update")
OF_DELETING = _both("manager.delete")
OF_LOADING = _both("manager.load")
OF_EXHAUSTION = _both("dispatcher.no_more")
OF_A_TUNER_THAT_RAISES = _both("dispatcher.error")
OF_A_SUSPENDED_DISPATCHER = _both("manager.dispatcher.kill")
OF_A_DEAD_REAPER = _both("keeper.stop")
"""These and the above are passed for a reason, and killed at in `test_failpoints_of_user_commands.py`."""

KILLED_AT = frozenset().union(
    *(
        OF_AN_EXPERIMENT,
        OF_STOPPING,
        OF_A_CLEAN_UP,
        OF_A_SOFT_STOP,
        OF_A_CONTINUED_JOB,
        OF_A_JOB_KEEPER,
        OF_DELETED_CHECKPOINTS,
        OF_LIMITS,
    ),
    *(OF_DELETING, OF_LOADING, OF_EXHAUSTION, OF_A_TUNER_THAT_RAISES, OF_A_SUSPENDED_DISPATCHER, OF_A_DEAD_REAPER),
)

ELSEWHERE = {
    "keeper.archive.": "a keeper is killed there in tests/integration/keeper/test_keeper_files.py",
    "pod.": "its keeper is killed there in tests/integration/test_pod_keeper.py",
    "trial.checkpoint.": "a trial is killed there in tests/unit/sdk/test_checkpoint_storage.py",
    **dict.fromkeys(
        ("dispatcher.pause.", "dispatcher.resume.", "dispatcher.clone.", "dispatcher.milestone.", "dispatcher.state."),
        "there is no trial scheduler: with one, dispatchers are killed at every input in test_every_interruption.py, "
        "and real ones at random in test_kills_of_scheduled_trials.py",
    ),
    "trainer.": "the trainer's own tests kill there: test_trainer_kills.py, tests/integration/sdk/pytorch",
    "manager.anchor.": "it takes a cluster: tests/e2e/kubernetes/test_experiments.py",
    "manager.collect.": "it takes machines: tests/e2e/remote/test_collecting.py",
}
"""Prefixes of places that these tests leave out, and why."""


def is_elsewhere(place: str) -> bool:
    """Whether these tests leave a place out."""
    return place.startswith(tuple(ELSEWHERE))


def listed(places: Iterable[str]) -> list[str]:
    """In the same order for every worker."""
    return sorted(places)

"""The machine loses its power at any moment: what was acknowledged is there, and every experiment runs to its end.

Home and experiments lie on a small ext4 disk. At each cut all processes are suspended, what was acknowledged until then
is known, and the block device is copied. Later each copy is mounted where the disk was, and a manager is started on it,
in another boot of the machine as far as it can tell.
"""

import os
import random
import signal
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from chaos.harness import EXPERIMENT_ID, House
from chaos.processes import tagged
from chaos.seeds import in_chaos
from fakes.disks import Disk, ext4_disk

from proctor.sdk.client import Client

TRIALS = 3
_BOOT_ID = "/proc/sys/kernel/random/boot_id"

Values = list[tuple[str, float]]


@dataclass
class Cut:
    """One copy of the disk, and what had been acknowledged before it was made."""

    seconds: float
    image: Path
    token: str = ""
    is_created: bool = False
    reports: dict[str, Values] = field(default_factory=dict)
    statuses: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Plan:
    """When the power fails, in seconds since the start of the manager, and since the answer to `create`."""

    after_start: tuple[float, ...]
    after_create: tuple[float, ...]
    trial_seconds: float
    mount_options: str = ""


def config(built: House, trial_seconds: float) -> Mapping[str, Any]:
    return {
        "searchSpace": {"x": {"_type": "uniform", "_value": [0, 1]}},
        "trialCommand": built.trial_command(steps=4, seconds=(trial_seconds, trial_seconds)),
        "trialConcurrency": 2,
        "maxTrialNumber": TRIALS,
        "seed": 1,
        "tuner": {"name": "Random"},
        "trainingService": {"platform": "local"},
    }


@contextmanager
def suspended(tag: str) -> Iterator[None]:
    """All processes of a house stand still."""
    pids: set[int] = set()
    while fresh := set(tagged(tag)) - pids:  # again: some may have been started meanwhile
        for pid in fresh:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP)
        pids |= fresh
    try:
        yield
    finally:
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)


def take_cut(built: House, disk: Disk, cut: Cut) -> None:
    """Note what is acknowledged, then copy the disk."""
    token = built.home / "token"
    if token.exists() and (built.home / "manager.json").exists():
        cut.token = token.read_text()

        def read_state(client: Client) -> bool:
            rows = list(client.trials(EXPERIMENT_ID)) if cut.is_created else []
            cut.statuses = {row["id"]: row["status"] for row in rows}
            cut.reports = {row["id"]: reports_of(client, row["id"]) for row in rows}
            return True

        built.ask(read_state)
    with suspended(built.tag):
        disk.cut_off(cut.image)


def reports_of(client: Client, trial_id: str) -> Values:
    return [(row["kind"], row["value"]) for row in client.metrics(trial_id)]


def check_after(folder: Path, disk: Disk, cut: Cut) -> None:
    """Start a manager on what is left: it comes up, what was acknowledged is there, and every experiment ends."""
    disk.image = cut.image
    disk.mount()
    folder.mkdir()
    built = House(folder, home=disk.folder / "home")
    built.prefix = another_boot(folder)
    try:
        built.start()
        built.ask(lambda client: client.health())
        if cut.token:
            assert (built.home / "token").read_text() == cut.token, "open pages keep working"
        found = [row["id"] for row in built.ask(lambda client: list(client.experiments()))]
        if not cut.is_created:
            if not found:
                built.create(config(built, 0.2))
        else:
            assert found == [EXPERIMENT_ID]
        built.wait_until_done()
        rows = {row["id"]: row for row in built.ask(lambda client: list(client.trials(EXPERIMENT_ID)))}
        assert [row["status"] for row in rows.values()] == ["SUCCEEDED"] * TRIALS
        for trial_id, acknowledged in cut.reports.items():
            stored = built.ask(lambda client, key=trial_id: reports_of(client, key))  # type: ignore[misc]
            assert stored[: len(acknowledged)] == acknowledged, f"{trial_id}: of {acknowledged} there is {stored}"
        for trial_id, status in cut.statuses.items():
            assert status != "SUCCEEDED" or rows[trial_id]["jobs"] == 1, "what had ended is not run again"
        notices = built.ask(lambda client: client.experiment(EXPERIMENT_ID)["notices"])
        assert not [notice for notice in notices if "journal" in str(notice)], "no trial has touched its journal"
        built.shut_down()
    except BaseException as error:
        error.add_note(f"the power had failed {cut.seconds:.1f} s after the start; {built.said()}")
        raise
    finally:
        built.kill_everything()
        disk.unmount()


def another_boot(folder: Path) -> tuple[str | Path, ...]:
    """What starts a process that sees another boot id."""
    (folder / "boot_id").write_text(f"{uuid.uuid4()}\n")
    script = f'mount --bind "$0" {_BOOT_ID} && exec "$@"'
    return ("unshare", "--mount", "sh", "-c", script, folder / "boot_id")


def run_and_cut(folder: Path, plan: Plan) -> None:
    """Run an experiment, cut the power as planned, and check every copy of the disk."""
    cuts: list[Cut] = []
    with ext4_disk(folder, options=plan.mount_options) as disk:
        built = House(folder, home=disk.folder / "home")
        try:
            built.start()
            began = time.monotonic()

            def cut_at(moment: float, is_created: bool) -> None:
                time.sleep(max(0.0, moment - time.monotonic()))
                image = folder / f"cut{len(cuts)}.image"
                cuts.append(Cut(time.monotonic() - began, image, is_created=is_created))
                take_cut(built, disk, cuts[-1])

            for seconds in plan.after_start:
                cut_at(began + seconds, False)
            built.create(config(built, plan.trial_seconds))
            created = time.monotonic()
            for seconds in plan.after_create:
                cut_at(created + seconds, True)
        finally:
            built.kill_everything()
        disk.unmount()
        for number, cut in enumerate(cuts):
            check_after(folder / f"after{number}", disk, cut)
        disk.mount()


def few() -> Plan:
    moments = random.Random(1)
    return Plan(
        after_start=(moments.uniform(0.5, 4.0),),
        after_create=(0.0, moments.uniform(1.5, 4.0)),
        trial_seconds=1.0,
        mount_options="commit=1",
    )


def many(seed: int) -> Plan:
    moments = random.Random(seed)
    return Plan(
        after_start=tuple(sorted(moments.uniform(0.0, 8.0) for _ in range(4))),
        after_create=(0.0, *sorted(moments.uniform(0.0, 18.0) for _ in range(8))),
        trial_seconds=8.0,
        mount_options=moments.choice(["", "commit=1", "data=writeback", "noauto_da_alloc"]),
    )


@pytest.mark.slow
@pytest.mark.thorough
@pytest.mark.parametrize("plan", [few(), *in_chaos(map(many, range(200, 205)))])
def test_no_power_cut_leaves_an_unusable_home(plan: Plan, tmp_path: Path) -> None:
    run_and_cut(tmp_path, plan)

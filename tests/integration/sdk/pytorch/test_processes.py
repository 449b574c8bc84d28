"""Runs of several processes: how they start, talk, fail and die, and that they end with the same bits.

Most ranks here are forks of a process that has torch imported (see `fakes.incarnations`); two tests start them as the
trainer and torchrun do.
"""

import json
import os
import random
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch
from fakes.incarnations import Incarnations
from fakes.trained_models import Recipe

TESTS = Path(__file__).parents[3]
TORCHRUN = (sys.executable, "-m", "torch.distributed.run")
RANKS = "fakes.trained_ranks"
PATIENCE_SECONDS = 200.0
RECIPE = Recipe()
RESULTS = ("weights", "optimizer", "streams", "draw")  # of a rank, equal to the last bit


@pytest.fixture(scope="module")
def incarnations() -> "Iterator[Incarnations]":
    """Where ranks are forked."""
    server = Incarnations()
    yield server
    server.close()


@pytest.fixture(scope="module")
def alone(incarnations: Incarnations, tmp_path_factory: pytest.TempPathFactory) -> "dict[str, Any]":
    """What two ranks come to when nothing disturbs them."""
    return train(incarnations, tmp_path_factory.mktemp("alone"))


def train(
    server: Incarnations,
    root: Path,
    recipe: Recipe = RECIPE,
    processes: int = 2,
    **arguments: Any,
) -> "dict[str, Any]":
    found: dict[str, Any] = server.call(
        RANKS, "train", root=str(root), recipe=asdict(recipe), processes=processes, **arguments
    )
    return found


def results(found: "dict[str, Any]") -> "list[tuple[Any, ...]]":
    assert found["error"] is None
    return [tuple(rank[name] for name in RESULTS) for rank in found["ranks"]]


def test_X2_the_trainer_starts_its_ranks_itself(
    incarnations: Incarnations, alone: "dict[str, Any]", tmp_path: Path
) -> None:
    spawned = train(incarnations, tmp_path, start="spawn")
    assert results(spawned) == results(alone)
    assert spawned["history"] == alone["history"]


def test_X2_many_runs_at_a_time_do_not_meet(incarnations: Incarnations) -> None:
    assert incarnations.call("fakes.rank_scenarios", "talk_at_a_time", groups=4) == ["from rank 0 of 2"] * 4


def test_X3_torchrun_is_joined_on_the_cpu_too(alone: "dict[str, Any]", tmp_path: Path) -> None:
    ended = subprocess.run(
        [*TORCHRUN, "--standalone", "--nproc-per-node=2", "-m", "fakes.torchrun_script", str(tmp_path)],
        env={**os.environ, "PYTHONPATH": f"{TESTS}:{TESTS.parent / 'src'}", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    ranks = [json.loads((tmp_path / f"rank-{rank}.json").read_text()) for rank in range(2)]
    assert results({"error": None, "ranks": ranks}) == results(alone)
    assert [rank["world"] for rank in ranks] == [2, 2]
    assert [rank["tested from"] for rank in ranks] == ["run_epoch_3_iter_18.pth"] * 2
    assert (tmp_path / "prepared").read_text() == "xx"  # once for fit, once for test


def test_X5_three_ranks_hear_each_other(incarnations: Incarnations) -> None:
    found = incarnations.call("fakes.rank_scenarios", "talk")
    assert found["result"] == "from rank 0"
    assert [seen.pop("rank") for seen in found["seen"]] == [0, 1, 2]
    assert [seen.pop("gathered objects") for seen in found["seen"]] == [[{"rank": n} for n in range(3)], None, None]
    assert [seen.pop("printed") for seen in found["seen"]] == ["for all\nfor a machine\n", "", ""]
    for seen in found["seen"]:
        assert seen == {
            "gathered tensor": [0, 0, 1, 10, 2, 20],
            "gathered scalar": [0, 1, 2],
            "gathered shape": [3, 2],
            "stacked": [[0, 0], [1, 10], [2, 20]],
            "sum": [3, 30],
            "sum in place": [3, 30],
            "sum of several": [3, 3],
            "sum of a transposed one": [[3, 3]] * 3,
            "device": "cpu",
            "told": "rank 0 speaks",
            "any": [True, False, True],
            "threads": 1,
        }
    assert found["left"] == []


def test_X6_what_ranks_put_into_the_queue_is_there_after_fit(alone: "dict[str, Any]") -> None:
    assert [rank["rank"] for rank in alone["ranks"]] == [0, 1]
    first, second = alone["ranks"]
    assert first["weights"] == second["weights"]
    assert first["draw"] != second["draw"]  # each rank has streams of its own


def test_X6_large_values_do_not_hold_up_their_rank(incarnations: Incarnations) -> None:
    assert incarnations.call("fakes.rank_scenarios", "hand_over", megabytes=3) == [3 * 2**20] * 2


@pytest.fixture(scope="module")
def failures(incarnations: Incarnations, tmp_path_factory: pytest.TempPathFactory) -> "dict[str, Any]":
    """What the caller of `fit` sees when the second of two ranks fails in some way."""
    kinds = ["oddly", "plainly", "locally", "by leaving", "by a signal", "by an exit code"]
    path = str(tmp_path_factory.mktemp("failures") / "torn-down")
    found: dict[str, Any] = incarnations.call("fakes.rank_scenarios", "fail", kinds=kinds, path=path)
    return found


def test_X7_a_listed_exception_of_a_rank_passes_through_as_itself(failures: "dict[str, Any]") -> None:
    seen = failures["oddly"]
    assert (seen["type"], seen["text"], seen["number"]) == ("OddError", "a place number 7", 7)
    assert "_fail_oddly" in seen["cause text"]


def test_X7_any_other_exception_of_a_rank_is_the_cause_of_a_runtime_error(failures: "dict[str, Any]") -> None:
    seen = failures["plainly"]
    assert (seen["type"], seen["cause"], seen["cause text"]) == ("RuntimeError", "LookupError", "nothing there")
    assert "_fail_plainly" in seen["cause of the cause"]


def test_X7_an_exception_that_cannot_be_sent_is_told(failures: "dict[str, Any]") -> None:
    seen = failures["locally"]
    assert seen["type"] == "RankFailedError"
    assert seen["text"].startswith("rank 1 failed: LocalError: of a class that has no name elsewhere.")
    assert "_fail_locally" in seen["cause text"]


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("by a signal", "rank 1 was ended by SIGKILL"),
        ("by an exit code", "rank 1 ended with exit code 3"),
        ("by leaving", "rank 1 raised SystemExit: 0"),
    ],
)
def test_X7_a_rank_that_dies_is_an_error_that_names_it(failures: "dict[str, Any]", kind: str, text: str) -> None:
    assert failures[kind]["type"] == "RankFailedError"
    assert text in failures[kind]["text"]


def test_X7_after_a_failure_values_have_arrived_data_is_torn_down_and_no_process_is_left(
    failures: "dict[str, Any]",
) -> None:
    for kind, seen in failures.items():
        assert seen["handed over"] == ["about to fail"], kind
        assert "0" in seen["torn down"], kind
        assert seen["left"] == [], kind


AT_ONCE = {"background_writes": False}  # a checkpoint is there when the next batch is
CELLS = [
    (2, Recipe()),
    (2, Recipe(workers=1, unit="iteration", accumulation=4)),
    (2, Recipe(model="transformer", amp=True)),
    (3, Recipe(model="transformer")),
    (3, Recipe(unit="iteration", accumulation=2)),
    (4, Recipe()),
]


@pytest.mark.parametrize(("processes", "recipe"), CELLS, ids=[f"{n} ranks {r.model} {r.unit}" for n, r in CELLS])
def test_R7_ranks_that_are_killed_and_started_again_end_with_the_same_bits(
    incarnations: Incarnations, processes: int, recipe: Recipe, tmp_path: Path
) -> None:
    expected = train(incarnations, tmp_path / "alone", recipe, processes)
    chance = random.Random(f"{processes} {recipe}")
    batches = expected["state"]["global_iteration"]
    steps = batches // recipe.accumulation
    first = {"place": "batch", "passage": chance.randint(batches // 2 + 1, 2 * batches // 3)}
    second = {"place": "step", "passage": chance.randint(1, max(1, steps // 6))}
    for kill in (first, second):
        rank = chance.randrange(processes)
        found = train(
            incarnations, tmp_path / "killed", recipe, processes, kill={"rank": rank, **kill}, options=AT_ONCE
        )
        assert f"rank {rank} was ended by SIGKILL" in found["error"]
    found = train(incarnations, tmp_path / "killed", recipe, processes)
    assert found["resumed"]
    assert results(found) == results(expected)
    assert found["state"] == expected["state"]
    assert found["history"] == expected["history"]
    assert train(incarnations, tmp_path / "killed", recipe, processes)["ranks"] == []  # finished: nothing is done


def test_R7_a_launcher_that_is_killed_leaves_nothing_and_the_run_goes_on_exactly(
    incarnations: Incarnations, tmp_path: Path
) -> None:
    recipe = Recipe(workers=1)
    expected = train(incarnations, tmp_path / "alone", recipe)
    root = tmp_path / "killed"
    left = incarnations.call(
        RANKS,
        "train_under_a_killed_launcher",
        root=str(root),
        recipe=asdict(recipe),
        processes=2,
        start="spawn",
        kill={"rank": 1, "place": "batch", "passage": 9, "launcher": True},
    )
    assert left == []
    found = train(incarnations, root, recipe)
    assert results(found) == results(expected)
    assert found["history"] == expected["history"]


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_R7_ranks_on_gpus_that_are_killed_end_with_the_same_bits(incarnations: Incarnations, tmp_path: Path) -> None:
    options = {**AT_ONCE, "use_cpu": False, "gpus": [0, 1], "enable_deterministic": True}
    how = {"processes": 1, "start": "spawn", "options": options}  # a process for each GPU
    expected = train(incarnations, tmp_path / "alone", **how)
    kill = {"rank": 1, "place": "batch", "passage": 10}
    assert "rank 1 was ended" in train(incarnations, tmp_path / "killed", kill=kill, **how)["error"]
    assert results(train(incarnations, tmp_path / "killed", **how)) == results(expected)


def test_R7_another_number_of_ranks_goes_on_and_is_told_to_be_inexact(
    incarnations: Incarnations, tmp_path: Path
) -> None:
    kill = {"rank": 0, "place": "batch", "passage": 8}
    assert "SIGKILL" in train(incarnations, tmp_path, kill=kill, options=AT_ONCE)["error"]
    refused = train(incarnations, tmp_path, processes=3, options={"strict_resume": True})
    assert "NotExactError" in refused["error"]
    assert "world size was 2, is 3" in refused["error"]
    for processes in (3, 1):
        found = train(incarnations, tmp_path, processes=processes, options={"total_steps": 4 - (processes == 3)})
        assert len(results(found)) == processes
        assert found["resumed"]

"""Runs of several processes: how they start, talk, fail and die, and that they end with the same bits.

Most ranks here are forks of a process that has torch imported (see `fakes.incarnations`); two tests start them as the
trainer and torchrun do.
"""

import json
import os
import random
import re
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from fakes.incarnations import Incarnations
from fakes.trained_models import Recipe
from fakes.trained_runs import EQUAL_OF_RANK, check_equal, check_samples

TESTS = Path(__file__).parents[3]
TORCHRUN = (sys.executable, "-m", "torch.distributed.run")
SCENARIOS = "fakes.rank_scenarios"
PATIENCE_SECONDS = 200.0
RECIPE = Recipe(processes=2)


@pytest.fixture(scope="module")
def alone(incarnations: Incarnations, tmp_path_factory: pytest.TempPathFactory) -> "dict[str, Any]":
    """What two ranks come to when nothing disturbs them."""
    return incarnations.run(RECIPE, tmp_path_factory.mktemp("alone"))


def test_X2_the_trainer_starts_its_ranks_itself(
    incarnations: Incarnations, alone: "dict[str, Any]", tmp_path: Path
) -> None:
    check_equal(incarnations.run(RECIPE, tmp_path, start="spawn"), alone)


def test_ranks_have_the_items_of_sets_in_the_same_order_and_the_next_start_too(
    incarnations: Incarnations,
) -> None:
    code = "print(list({f'class {number}' for number in range(20)}))"
    expected = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, "PYTHONHASHSEED": "0"}, capture_output=True, check=True
    )
    assert [str(found) for found in incarnations.call(SCENARIOS, "order_sets")] == [
        *[expected.stdout.decode().strip()] * 2,
        "None",
    ]


def test_X2_many_runs_at_a_time_do_not_meet(incarnations: Incarnations) -> None:
    assert incarnations.call(SCENARIOS, "talk_at_a_time", groups=4) == ["from rank 0 of 2"] * 4


@pytest.mark.thorough
def test_X3_torchrun_is_joined_on_the_cpu_too_and_its_ranks_report_into_journals_of_their_own(
    alone: "dict[str, Any]", tmp_path: Path
) -> None:
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
    for rank, trained in zip(ranks, alone["ranks"], strict=True):
        assert {part: rank[part] for part in EQUAL_OF_RANK} == {part: trained[part] for part in EQUAL_OF_RANK}
    assert [rank["world"] for rank in ranks] == [2, 2]
    assert [rank["tested from"] for rank in ranks] == ["run_epoch_3_iter_9.pth"] * 2
    assert (tmp_path / "prepared").read_text() == "xx"  # once for fit, once for test
    assert [json.loads((tmp_path / name).read_text())["value"] for name in ("journal", "journal.1")] == [0, 1]


def test_all_ranks_test_the_best_checkpoint_or_none(incarnations: Incarnations, tmp_path: Path) -> None:
    found = incarnations.call(SCENARIOS, "examine", root=str(tmp_path))
    assert found["epoch"] == 1
    assert [values["weights"] for values in found["tested"]] == [found["saved"]] * 2
    assert [(values["folder"], values["epoch"]) for values in found["tested"]] == [(str(tmp_path / "run"), 1)] * 2
    assert "holds none that was saved with a value of 'score'" in found["error"]


@pytest.mark.thorough
def test_ranks_share_weighted_draws_and_batches_and_go_on_with_them(incarnations: Incarnations, tmp_path: Path) -> None:
    whole = incarnations.call(SCENARIOS, "share", root=str(tmp_path / "whole"), stops=[])
    assert incarnations.call(SCENARIOS, "share", root=str(tmp_path / "stopped"), stops=[2, 5, 8, 9]) == whole
    first, second = whole
    assert len(first) == len(second)
    assert [len(batch) for batch in first[:6]] == [2] * 6
    assert first[:6] != second[:6]
    assert {index for batch in [*first, *second][6:] for index in batch} <= set(range(10))


@pytest.mark.parametrize("is_distributed", [None, False])
def test_ranks_that_share_a_dataset_and_have_another_one_are_refused(
    incarnations: Incarnations, is_distributed: "bool | None", tmp_path: Path
) -> None:
    found = incarnations.call(SCENARIOS, "differ", root=str(tmp_path), is_distributed=is_distributed)
    told = (
        "the dataset of training 0 must be the same on all ranks, which share it; found other first samples on rank 1"
    )
    assert found.startswith(told) if is_distributed is None else found == ""


def test_ranks_judge_by_one_average_and_go_on_with_it(incarnations: Incarnations, tmp_path: Path) -> None:
    whole = incarnations.call(SCENARIOS, "average", root=str(tmp_path / "whole"), epochs=[3])
    assert incarnations.call(SCENARIOS, "average", root=str(tmp_path / "stopped"), epochs=[1, 2, 3]) == whole
    assert whole["average"] != whole["weights"]
    assert whole["names"][0] == whole["names"][1]
    assert len(whole["judged"]) == 6


def test_X5_three_ranks_hear_each_other(incarnations: Incarnations) -> None:
    found = incarnations.call(SCENARIOS, "talk")
    assert found["result"] == "from rank 0"
    assert [seen.pop("rank") for seen in found["seen"]] == [0, 1, 2]
    assert [seen.pop("reports as rank") for seen in found["seen"]] == [0, 1, 2]
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
    assert first["streams"] != second["streams"]  # each rank has its own


def test_X5_wrapping_a_network_draws_nothing_and_gives_all_ranks_the_same_weights(incarnations: Incarnations) -> None:
    first, second = incarnations.call(SCENARIOS, "wrap")
    assert first == second
    assert (first["streams stay"], first["buffers stay"]) == (True, True)


def test_X6_the_callers_own_model_is_not_trained_and_the_checkpoint_has_the_weights(
    incarnations: Incarnations, tmp_path: Path
) -> None:
    found = incarnations.call(SCENARIOS, "take_back", root=str(tmp_path))
    assert not found["own"]
    assert found["trained"] == [found["saved"]] * 2


def test_X6_large_values_do_not_hold_up_their_rank(incarnations: Incarnations) -> None:
    assert incarnations.call(SCENARIOS, "hand_over", megabytes=3) == [3 * 2**20] * 2


@pytest.fixture(scope="module")
def failures(incarnations: Incarnations, tmp_path_factory: pytest.TempPathFactory) -> "dict[str, Any]":
    """What the caller of `fit` sees when the second of two ranks fails in some way."""
    kinds = ["oddly", "plainly", "locally", "by leaving", "by a signal", "by an exit code"]
    path = str(tmp_path_factory.mktemp("failures") / "torn-down")
    found: dict[str, Any] = incarnations.call(SCENARIOS, "fail", kinds=kinds, path=path)
    return found


ODDLY = {"text": "^a place number 7$", "number": "^7$", "cause text": "_fail_oddly"}
PLAINLY = {"cause": "^LookupError$", "cause text": "^nothing there$", "cause of the cause": "_fail_plainly"}
LOCALLY = {
    "text": "^rank 1 failed: LocalError: of a class that has no name elsewhere",
    "cause text": "_fail_locally",
}


@pytest.mark.parametrize(
    ("kind", "error", "told"),
    [
        pytest.param("oddly", "OddError", ODDLY, marks=pytest.mark.thorough, id="a listed exception is itself"),
        pytest.param("plainly", "RuntimeError", PLAINLY, id="any other one is the cause"),
        pytest.param("locally", "RankFailedError", LOCALLY, id="one that cannot be sent is described"),
        ("by a signal", "RankFailedError", {"text": "rank 1 was ended by SIGKILL"}),
        ("by an exit code", "RankFailedError", {"text": "rank 1 ended with exit code 3"}),
        ("by leaving", "RankFailedError", {"text": "rank 1 raised SystemExit: 0"}),
    ],
)
def test_X7_a_rank_that_fails_or_dies_is_an_error_that_says_which_and_why(
    failures: "dict[str, Any]", kind: str, error: str, told: "dict[str, str]"
) -> None:
    seen = failures[kind]
    assert seen["type"] == error
    for part, text in told.items():
        assert re.search(text, str(seen[part])), part


def test_X7_after_a_failure_values_have_arrived_data_is_torn_down_and_no_process_is_left(
    failures: "dict[str, Any]",
) -> None:
    for kind, seen in failures.items():
        assert seen["handed over"] == ["about to fail"], kind
        assert "0" in seen["torn down"], kind
        assert seen["left"] == [], kind


AT_ONCE = {"background_writes": False}  # a checkpoint is there when the next batch is
MANY = [
    Recipe(processes=3, samples=44, model="transformer"),
    Recipe(processes=3, samples=44, unit="iteration", accumulation=2),
    Recipe(processes=4, samples=44),
]


@pytest.mark.thorough
@pytest.mark.parametrize("recipe", MANY, ids=[f"{r.processes} ranks {r.model} {r.unit}" for r in MANY])
def test_R7_three_and_four_ranks_that_are_killed_and_started_again_end_with_the_same_bits(
    incarnations: Incarnations, recipe: Recipe, tmp_path: Path
) -> None:
    expected = incarnations.run(recipe, tmp_path / "alone")
    chance = random.Random(str(recipe))
    batches = expected["state"]["global_iteration"]
    steps = batches // recipe.accumulation
    ways = (
        ("batch", chance.randint(batches // 2 + 1, 2 * batches // 3)),
        ("step", chance.randint(1, max(1, steps // 6))),
    )
    for place, passage in ways:
        rank = chance.randrange(1, recipe.processes)
        kill = (f"{place} of rank {rank}", passage)
        found = incarnations.run(recipe, tmp_path / "killed", kill_passage=kill, **AT_ONCE)
        assert f"rank {rank} was ended by SIGKILL" in found["error"]
    found = incarnations.run(recipe, tmp_path / "killed")
    assert found["resumed"]
    check_equal(found, expected)
    check_samples(tmp_path / "alone", tmp_path / "killed")
    again = incarnations.run(recipe, tmp_path / "killed")
    check_equal(again, expected)
    assert [rank["batches"] for rank in again["ranks"]] == [0] * recipe.processes  # finished: nothing is done


@pytest.mark.thorough
def test_R7_a_launcher_that_is_killed_leaves_nothing_and_the_run_goes_on_exactly(
    incarnations: Incarnations, tmp_path: Path
) -> None:
    recipe = Recipe(processes=2, samples=44, workers=1)
    expected = incarnations.run(recipe, tmp_path / "alone")
    left = incarnations.call(
        SCENARIOS, "train_under_a_killed_launcher", recipe=asdict(recipe), root=str(tmp_path / "killed")
    )
    assert left == []
    check_equal(incarnations.run(recipe, tmp_path / "killed"), expected)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_R7_ranks_on_gpus_that_are_killed_end_with_the_same_bits(incarnations: Incarnations, tmp_path: Path) -> None:
    options = {**AT_ONCE, "use_cpu": False, "gpus": [0, 1], "enable_deterministic": True, "start": "spawn"}
    recipe = Recipe(samples=44)  # a process for each GPU
    expected = incarnations.run(recipe, tmp_path / "alone", **options)
    died = incarnations.run(recipe, tmp_path / "killed", kill_passage=("batch of rank 1", 10), **options)
    assert "rank 1 was ended" in died["error"]
    check_equal(incarnations.run(recipe, tmp_path / "killed", **options), expected)


@pytest.mark.thorough
def test_R7_another_number_of_ranks_goes_on_and_is_told_to_be_inexact(
    incarnations: Incarnations, tmp_path: Path
) -> None:
    recipe = Recipe(processes=2, samples=44)
    died = incarnations.run(recipe, tmp_path, kill_passage=("batch", 8), **AT_ONCE)
    assert "SIGKILL" in died["error"]
    refused = incarnations.run(replace(recipe, processes=3), tmp_path, strict_resume=True)
    assert not refused["killed"]
    assert "world size was 2, is 3" in refused["error"]
    for processes, total_steps in ((3, 3), (1, 4)):
        changed = replace(recipe, processes=processes)
        found = incarnations.run(changed, tmp_path, told=True, total_steps=total_steps)
        assert len(found["ranks"]) == processes
        assert found["resumed"]
    assert "not exact: world size was 3, is 1" in " ".join(found["told"])

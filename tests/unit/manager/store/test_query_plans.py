"""No statement reads a table that grows from one end to the other."""

import re
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import pytest

from proctor.manager.store.connections import open_writer
from proctor.manager.store.statements import load_queries, query_with

_METRICS = ("journals.", "metrics.", "checkpoints.", "curves.")
_TABLES = "trials|trial_jobs|trial_counts|dispatcher_inputs|events|metrics|journals|checkpoints"
# These indexes hold live jobs only, and checkpoints that are just being deleted.
_GROWING = re.compile(rf"SCAN ({_TABLES})\b(?! USING INDEX (trial_jobs_live|checkpoints_to_remove))")
_ALLOWED = {
    # This walks the table in the order of its own key and stops at the first row.
    "metrics.last_id",
}

_OF_ALL = {
    # Charts of all trials are made of them; they run in the process of heavy reads.
    "curves.all": "journals",
    "curves.count_points": "journals",
    "curves.unpacked": "journals",
    # They run once in a home that was moved.
    "home.move_checkpoint_offers": "trial_jobs",
    "home.move_jobs": "trial_jobs",
    "home.move_trials": "trials",
}


@pytest.fixture(scope="module")
def plan_of(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], list[str]]]:
    """The plan of a statement by its name, in two databases that all tests of this module share."""
    folder = tmp_path_factory.mktemp("databases")
    with (
        closing(open_writer(str(folder / "control.db"), "control")) as control,
        closing(open_writer(str(folder / "metrics.db"), "metrics")) as metrics,
    ):

        def explain(name: str) -> list[str]:
            statement = query_with(name, ["id", "status"]) if "{" in load_queries()[name] else load_queries()[name]
            parameters = dict.fromkeys(re.findall(r":(\w+)", statement), "[]")
            values: Any = [None] * statement.count("?") if "?" in statement else parameters
            connection = metrics if name.startswith(_METRICS) else control
            return [row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {statement}", values)]

        yield explain


@pytest.mark.parametrize("name", sorted(load_queries()))
def test_a_statement_finds_its_rows_by_an_index(name: str, plan_of: Callable[[str], list[str]]) -> None:
    scans = [step for step in plan_of(name) if _GROWING.search(step)]
    if name in _ALLOWED:
        assert load_queries()[name].endswith("LIMIT 1;")
    elif name in _OF_ALL:
        assert {step.split()[1] for step in scans} <= {_OF_ALL[name]}
    else:
        assert scans == []


@pytest.mark.parametrize(
    "name",
    [
        "trials.page_by_sequence",
        "trials.page_by_sequence_backwards",
        "trials.page_by_value",
        "trials.page_by_value_backwards",
        "trials.page_without_value",
        "trials.lowest",
        "trials.newest_reasons",
        "events.after",
        "events.after_of_experiment",
        "events.notices",
        "inputs.after",
        "trials.paused_by_scheduler",
        "metrics.page_of_kind",
        "metrics.latest_intermediate",
        "metrics.value_before",
        "metrics.latest_value",
        "checkpoints.kept",
        "checkpoints.expendable",
        "checkpoints.to_remove",
        "checkpoints.highest",
        "checkpoints.lowest",
    ],
)
def test_a_page_is_read_in_the_order_of_its_index_without_sorting(
    name: str, plan_of: Callable[[str], list[str]]
) -> None:
    assert not any("TEMP B-TREE" in step for step in plan_of(name))


@pytest.mark.parametrize("name", ["trials.paused_of", "trials.numbers", "jobs.parameter_ids", "decisions.pending"])
def test_what_is_named_by_its_id_is_found_by_it(name: str, plan_of: Callable[[str], list[str]]) -> None:
    """Not among all of a status, of which there may be many thousands."""
    (search,) = [step for step in plan_of(name) if step.startswith("SEARCH")]
    assert re.search(r"\((trial_)?id=\?", search)


@pytest.mark.parametrize("name", ["inputs.requested", "inputs.answered"])
def test_a_restart_reads_only_what_is_behind_the_saved_state(name: str, plan_of: Callable[[str], list[str]]) -> None:
    searches = [step for step in plan_of(name) if step.startswith("SEARCH") and "(trial_id=?" not in step]
    assert searches
    assert all("position>?" in step for step in searches)

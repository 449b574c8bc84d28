"""What may be typed instead of a whole id."""

from collections.abc import Callable

import pytest
from fakes.served_manager import ServedManager


@pytest.fixture
def statuses(served: ServedManager) -> Callable[[], dict[str, str]]:
    """Experiments by id, once none is being stopped."""

    def settled() -> dict[str, str] | None:
        rows = dict(served.read(lambda c: c.execute("SELECT id, status FROM experiments ORDER BY id").fetchall()))
        return None if {"STOPPING", "INITIALIZED"} & set(rows.values()) else rows

    return lambda: served.until(settled)


def test_without_an_id_the_only_running_experiment_is_meant(served: ServedManager, invoke, statuses) -> None:
    served.add_experiment("old", status="DONE")
    served.create("now")
    assert invoke("stop").exit_code == 0
    assert statuses() == {"old": "DONE", "now": "STOPPED"}


def test_without_an_id_several_running_experiments_are_listed(served: ServedManager, invoke) -> None:
    served.add_experiment("one", status="RUNNING")
    served.add_experiment("two", status="RUNNING")
    result = invoke("stop", code=5)
    assert "one  RUNNING" in result.stderr
    assert "two  RUNNING" in result.stderr
    assert not served.requests("POST")


def test_only_a_command_that_reads_takes_an_ended_experiment_by_itself_and_then_the_newest(
    served: ServedManager, invoke
) -> None:
    served.add_experiment("old", status="DONE", created_at=1.0)
    assert "old  DONE" in invoke("stop", code=3).stderr
    served.add_experiment("new", status="DONE", created_at=2.0, trials=[{"id": "abc"}])
    assert "abc" in invoke("trial", "ls").stdout


def test_a_unique_beginning_or_name_is_enough_and_a_whole_id_means_itself(served: ServedManager, invoke) -> None:
    for identifier, name in {"abc": "first", "abc1": "digits", "abd2": "second"}.items():
        served.add_experiment(identifier, name=name)
    for text, meant in {"abc": "abc", "abc1": "abc1", "abd": "abd2", "abd*": "abd2", "digits": "abc1"}.items():
        assert invoke("experiment", "show", text).stdout.splitlines()[0].split() == ["id", meant]
    for text in ("ab", "abc*"):
        assert f"'{text}' matches several experiments" in invoke("experiment", "show", text, code=5).stderr


def test_a_trial_is_found_by_id_beginning_and_number(served: ServedManager, invoke) -> None:
    served.add_experiment(trials=[{"id": name} for name in ("tA", "tAB", "12345678", "123456789", "uE")])
    for text, meant in {"uE": "uE", "u": "uE", "4": "uE", "tA": "tA", "12345678": "12345678"}.items():
        assert invoke("trial", "show", text).stdout.splitlines()[0].split() == ["id", meant]
    for text, code in {"t": 5, "9": 3, "²": 3, "": 2}.items():
        assert invoke("trial", "show", text).exit_code == code


def test_a_number_belongs_to_the_named_experiment(served: ServedManager, invoke) -> None:
    served.add_experiment("e", trials=[{"id": "ofE"}])
    served.add_experiment("f", trials=[{"id": "ofF"}])
    assert "ofF" in invoke("trial", "show", "0", "--experiment", "f").stdout
    assert "ofE" in invoke("trial", "show", "e", "-T", "0").stdout  # as nnictl has it


def test_stop_with_a_star_stops_all_that_begin_so_and_all_stops_all(served: ServedManager, invoke, statuses) -> None:
    for name in ("ab1", "ab2", "c"):
        served.create(name)
    refused = invoke("stop", "*")
    assert (refused.exit_code, "proctor stop --all" in refused.stderr) == (2, True)
    assert not served.requests("POST")
    assert invoke("stop", "ab*").exit_code == 0
    assert statuses() == {"ab1": "STOPPED", "ab2": "STOPPED", "c": "RUNNING"}
    assert invoke("stop", "--all").exit_code == 0
    assert served.requests("POST")[2:] == [("/stop-all", None)]
    assert statuses()["c"] == "STOPPED"


@pytest.mark.parametrize(
    ("names", "left"),
    [({"k3J9": "digits", "digits-2": "other"}, "digits-2"), ({"digits": "other", "k3J9": "digits"}, "k3J9")],
    ids=["a name over the beginning of an id", "an id over a name"],
)
def test_what_is_exact_wins(served: ServedManager, invoke, statuses, names: dict[str, str], left: str) -> None:
    for identifier, name in names.items():
        served.add_experiment(identifier, name=name)
    assert invoke("experiment", "show", "digits*").stdout.split()[:2] == [
        "id",
        "digits-2" if "digits-2" in names else "digits",
    ]
    invoke("experiment", "delete", "digits", "-y", code=0)
    assert list(statuses()) == [left]


def test_a_name_that_several_experiments_have_is_ambiguous_whatever_ids_begin_so(served: ServedManager, invoke) -> None:
    served.add_experiment("digits-2")
    for identifier in ("k3J9", "m4Q1"):
        served.add_experiment(identifier, name="digits")
    result = invoke("experiment", "delete", "digits", "-y", code=5)
    assert "k3J9" in result.stderr
    assert "m4Q1" in result.stderr
    assert "digits-2" not in result.stderr
    assert not served.requests("POST") + served.requests("DELETE")


def test_what_names_nothing_never_means_the_only_experiment(served: ServedManager, invoke, statuses) -> None:
    served.add_experiment("k3J9")
    for text in ("", "*", ".", ".."):
        result = invoke("experiment", "delete", text, "-y")
        assert result.exit_code in (2, 3), result.output
    assert list(statuses()) == ["k3J9"]


def test_a_beginning_is_looked_up_among_all_trials_of_the_named_experiment(served: ServedManager, invoke) -> None:
    """The manager finds at most 20 trials of all experiments; more of the named one may begin so."""
    served.add_experiment("many", trials=[{"id": f"t{number:02}"} for number in range(19)])
    served.add_experiment("e", trials=[{"id": "tx1"}, {"id": "tx2"}])
    result = invoke("trial", "kill", "t", "-e", "e", code=5)
    assert "trial 0 of e" in result.stderr
    assert "trial 1 of e" in result.stderr
    assert not served.requests("POST")

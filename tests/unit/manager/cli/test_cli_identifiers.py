"""What may be typed instead of a whole id."""

import pytest
from fakes.rest import FakeRest


def test_without_an_id_the_only_running_experiment_is_meant(rest: FakeRest, invoke) -> None:
    rest.add_experiment("old", status="DONE")
    rest.add_experiment("now")
    assert invoke("stop").exit_code == 0
    assert rest.experiments["now"]["status"] == "STOPPED"


def test_without_an_id_several_running_experiments_are_listed(rest: FakeRest, invoke) -> None:
    rest.add_experiment("one")
    rest.add_experiment("two")
    result = invoke("stop")
    assert result.exit_code == 5
    assert "one  RUNNING" in result.stderr
    assert "two  RUNNING" in result.stderr
    assert not rest.requests("POST")


def test_a_command_that_changes_does_not_take_an_ended_experiment_by_itself(rest: FakeRest, invoke) -> None:
    rest.add_experiment("old", status="DONE")
    result = invoke("stop")
    assert result.exit_code == 3
    assert "old  DONE" in result.stderr


def test_a_command_that_reads_takes_the_newest_when_none_runs(rest: FakeRest, invoke) -> None:
    rest.add_experiment("old", status="DONE", created_at="2025-01-01T00:00:00Z")
    rest.add_experiment("new", status="DONE", created_at="2026-01-01T00:00:00Z")
    rest.add_trial("new", "abc")
    assert "abc" in invoke("trial", "ls").stdout


def test_a_unique_beginning_of_an_id_is_enough(rest: FakeRest, invoke) -> None:
    rest.add_experiment("abc1")
    rest.add_experiment("abd2")
    assert "abc1" in invoke("experiment", "show", "abc").stdout
    assert invoke("experiment", "show", "abd*").exit_code == 0
    result = invoke("experiment", "show", "ab")
    assert result.exit_code == 5
    assert "'ab' matches several experiments" in result.stderr


def test_an_id_that_is_also_a_beginning_means_itself(rest: FakeRest, invoke) -> None:
    rest.add_experiment("ab")
    rest.add_experiment("abc")
    assert invoke("experiment", "show", "ab").stdout.splitlines()[0].split() == ["id", "ab"]


def test_a_unique_name_is_enough(rest: FakeRest, invoke) -> None:
    rest.add_experiment("x1", name="digits")
    assert "x1" in invoke("experiment", "show", "digits").stdout


def test_a_trial_is_found_by_id_beginning_and_number(rest: FakeRest, invoke) -> None:
    rest.add_experiment("e")
    for name in ("tA", "tB", "tC", "tD", "uE"):
        rest.add_trial("e", name)
    for text in ("uE", "u", "4"):
        assert invoke("trial", "show", text).stdout.splitlines()[0].split() == ["id", "uE"]
    assert invoke("trial", "show", "t").exit_code == 5
    assert invoke("trial", "show", "9").exit_code == 3


def test_a_number_belongs_to_the_named_experiment(rest: FakeRest, invoke) -> None:
    rest.add_experiment("e")
    rest.add_experiment("f")
    rest.add_trial("e", "ofE")
    rest.add_trial("f", "ofF")
    assert "ofF" in invoke("trial", "show", "0", "--experiment", "f").stdout
    assert "ofE" in invoke("trial", "show", "e", "-T", "0").stdout  # as nnictl has it


def test_stop_with_a_star_stops_all_that_begin_so(rest: FakeRest, invoke) -> None:
    for name in ("ab1", "ab2", "c"):
        rest.add_experiment(name)
    assert invoke("stop", "ab*").exit_code == 0
    assert [row["status"] for row in rest.experiments.values()] == ["STOPPED", "STOPPED", "RUNNING"]


def test_a_star_alone_does_not_stop_everything(rest: FakeRest, invoke) -> None:
    rest.add_experiment("a")
    result = invoke("stop", "*")
    assert result.exit_code == 2
    assert "proctor stop --all" in result.stderr
    assert not rest.requests("POST")


def test_stop_all_stops_all(rest: FakeRest, invoke) -> None:
    rest.add_experiment("a")
    rest.add_experiment("b")
    assert invoke("stop", "--all").exit_code == 0
    assert rest.requests("POST") == [("/stop-all", None)]


def test_an_exact_name_wins_over_the_beginning_of_another_id(rest: FakeRest, invoke) -> None:
    rest.add_experiment("k3J9", name="digits")
    rest.add_experiment("digits-2")
    assert invoke("stop", "digits").exit_code == 0
    assert {name: row["status"] for name, row in rest.experiments.items()} == {"k3J9": "STOPPED", "digits-2": "RUNNING"}
    assert invoke("experiment", "delete", "digits", "-y").exit_code == 0
    assert list(rest.experiments) == ["digits-2"]


def test_an_exact_id_wins_over_the_name_of_another_experiment(rest: FakeRest, invoke) -> None:
    rest.add_experiment("digits")
    rest.add_experiment("k3J9", name="digits")
    assert invoke("stop", "digits").exit_code == 0
    assert [row["status"] for row in rest.experiments.values()] == ["STOPPED", "RUNNING"]


def test_a_name_that_several_experiments_have_is_ambiguous_whatever_ids_begin_so(rest: FakeRest, invoke) -> None:
    rest.add_experiment("digits-2")
    for identifier in ("k3J9", "m4Q1"):
        rest.add_experiment(identifier, name="digits")
    result = invoke("experiment", "delete", "digits", "-y")
    assert result.exit_code == 5
    assert "k3J9" in result.stderr
    assert "m4Q1" in result.stderr
    assert "digits-2" not in result.stderr
    assert not rest.requests("POST")
    assert not rest.requests("DELETE")


def test_a_star_means_beginnings_only(rest: FakeRest, invoke) -> None:
    rest.add_experiment("k3J9", name="digits")
    rest.add_experiment("digits-2")
    assert "digits-2" in invoke("experiment", "show", "digits*").stdout
    rest.add_experiment("digits")
    assert invoke("experiment", "show", "digits*").exit_code == 5


@pytest.mark.parametrize("text", ["", "*", ".", ".."])
def test_what_names_nothing_never_means_the_only_experiment(rest: FakeRest, invoke, text: str) -> None:
    rest.add_experiment("k3J9", status="STOPPED")
    result = invoke("experiment", "delete", text, "-y")
    assert result.exit_code in (2, 3), result.output
    assert list(rest.experiments) == ["k3J9"]


def test_an_exact_trial_id_wins_over_a_number_and_other_ids_that_begin_so(rest: FakeRest, invoke) -> None:
    rest.add_experiment("e")
    for identifier in ("tA", "tAB", "12345678", "123456789"):
        rest.add_trial("e", identifier)
    for text in ("tA", "12345678"):
        assert invoke("trial", "show", text).stdout.splitlines()[0].split() == ["id", text]
    assert invoke("trial", "kill", "").exit_code == 2
    assert invoke("trial", "show", "²").exit_code == 3


def test_a_beginning_is_looked_up_among_all_trials_of_the_named_experiment(rest: FakeRest, invoke) -> None:
    """The manager finds at most 20 trials of all experiments; more of the named one may begin so."""
    rest.add_experiment("many")
    rest.add_experiment("e")
    for number in range(19):
        rest.add_trial("many", f"t{number:02}")
    rest.add_trial("e", "tx1")
    rest.add_trial("e", "tx2")
    result = invoke("trial", "kill", "t", "-e", "e")
    assert result.exit_code == 5
    assert "trial 0 of e" in result.stderr
    assert "trial 1 of e" in result.stderr
    assert not rest.requests("POST")

"""What may be typed instead of a whole id."""

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
    assert "'ab' fits several experiments" in result.stderr


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


def test_stop_all_stops_all(rest: FakeRest, invoke) -> None:
    rest.add_experiment("a")
    rest.add_experiment("b")
    assert invoke("stop", "--all").exit_code == 0
    assert rest.requests("POST") == [("/stop-all", None)]

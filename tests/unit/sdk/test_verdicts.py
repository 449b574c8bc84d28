"""A report at its trial's milestone waits for the verdict, for a time, and no other report waits for anything."""

import errno
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fakes.full_disk import refuse

from proctor.sdk import trial as sdk
from proctor.sdk.channel import VERDICT_SECONDS, Channel, longest_wait
from proctor.sdk.protocol import ENV_CURVE_POINTS, ENV_JOB_DIRECTORY, ENV_JUDGED_RANK, ENV_VERDICT_SECONDS

SECOND_RANK = {"RANK": "1", "WORLD_SIZE": "2"}


class Trial:
    """A job's directory whose keeper does something at a time, and a channel that pauses by this clock."""

    def __init__(self, folder: Path, **environment: str) -> None:
        self.folder = folder
        self.now = 0.0
        self.due: list[tuple[float, Callable[[], None]]] = []
        self.passed: int | None = None
        known = {ENV_JOB_DIRECTORY: str(folder), ENV_JUDGED_RANK: "0", **environment}
        self.channel = Channel(known, clock=lambda: self.now, pause=self._pause)

    def control(self, **body: Any) -> None:
        new = self.folder / "control.json.new"
        new.write_text(json.dumps(body))
        new.rename(self.folder / "control.json")

    def at(self, time: float, **body: Any) -> None:
        self.due.append((time, lambda: self.control(**body)))

    def _pause(self, seconds: float) -> None:
        assert 0 < seconds <= 0.05
        self.now += seconds
        for time, act in [each for each in self.due if each[0] <= self.now]:
            self.due.remove((time, act))
            act()

    def report(self, step: int | None = None, *, is_stored: bool = True) -> float:
        """How long a report waits."""
        before = self.now
        self.channel.journal.append('{"kind":"intermediate"}\n')
        assert self.channel.is_judged
        self.passed = self.channel.await_verdict(step, is_stored=is_stored, has_value=True)
        return self.now - before


@pytest.mark.parametrize(
    "verdict",
    [{"milestone": 9}, {}, {"stop": True, "reason": "waits in rung 1", "request": "pause", "deadline": 5e9}],
    ids=str,
)
def test_a_report_at_the_milestone_waits_for_a_later_one_for_none_or_for_a_stop(
    tmp_path: Path, verdict: dict[str, Any]
) -> None:
    trial = Trial(tmp_path)
    trial.control(milestone=3)
    assert [trial.report(1), trial.report(2)] == [0, 0]
    trial.at(1.0, **verdict)
    assert trial.report(3) == pytest.approx(1.0, abs=0.06)
    assert trial.passed is None
    assert trial.report(4) == 0
    assert (trial.channel.read_stop_request() is not None) == ("stop" in verdict)


def test_a_wait_begins_with_short_pauses(tmp_path: Path) -> None:
    trial = Trial(tmp_path)
    trial.control(milestone=1)
    trial.at(0.005, milestone=2)
    assert trial.report(1) < 0.01


def test_a_report_that_is_past_the_next_milestone_too_waits_for_one_after_it(tmp_path: Path) -> None:
    trial = Trial(tmp_path)
    trial.control(milestone=3)
    trial.at(1.0, milestone=9)
    trial.at(2.0, milestone=27)
    assert trial.report(12) == pytest.approx(2.0, abs=0.06)


def test_without_a_verdict_a_trial_continues_and_does_not_wait_at_that_milestone_again(tmp_path: Path) -> None:
    trial = Trial(tmp_path)
    trial.control(milestone=3)
    assert trial.report(3) == pytest.approx(VERDICT_SECONDS)
    assert [trial.report(step) for step in (4, 5, 6)] == [0, 0, 0]
    trial.control(milestone=3)  # once more, by another manager
    assert trial.report(7) == 0
    trial.control(milestone=9)
    assert trial.report(8) == 0
    trial.at(trial.now + 1.0, milestone=27)
    assert trial.report(9) == pytest.approx(1.0, abs=0.06)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("0", 0), ("0.5", 0.5), ("86400", 86400), ("nan", 10), ("inf", 10), ("-1", 10), ("soon", 10), ("604801", 10)],
)
def test_the_environment_says_how_long_at_most(tmp_path: Path, text: str, seconds: float) -> None:
    trial = Trial(tmp_path, **{ENV_VERDICT_SECONDS: text})
    trial.control(milestone=1)
    assert trial.report(1) == pytest.approx(seconds)


def test_reports_without_a_step_are_counted_along_the_curve(tmp_path: Path) -> None:
    trial = Trial(tmp_path, **{ENV_CURVE_POINTS: "5", ENV_VERDICT_SECONDS: "1"})
    trial.control(milestone=8)
    assert [trial.report(), trial.report()] == [0, 0]
    assert trial.report(is_stored=False) == 0  # lost on a full disk: no point of the curve
    assert trial.report() == pytest.approx(1)


@pytest.mark.parametrize("content", ["", '{"milestone": "3"}', '{"milestone": 1.5}', '{"milestone": true}', "[]", "{"])
def test_what_names_no_milestone_is_none(tmp_path: Path, content: str) -> None:
    (tmp_path / "control.json").write_text(content)
    assert Trial(tmp_path).report(100) == 0


def test_a_trial_without_a_control_file_waits_for_nothing(tmp_path: Path) -> None:
    assert Trial(tmp_path).report(100) == 0


@pytest.mark.parametrize("environment", [{ENV_JUDGED_RANK: "1"}, SECOND_RANK], ids=str)
def test_only_the_rank_whose_reports_count_waits(tmp_path: Path, environment: dict[str, str]) -> None:
    assert not Trial(tmp_path, **environment).channel.is_judged


def test_the_rank_whose_reports_count_need_not_be_the_first(tmp_path: Path) -> None:
    assert Trial(tmp_path, **SECOND_RANK, **{ENV_JUDGED_RANK: "1"}).channel.is_judged


@pytest.fixture
def use_channel(monkeypatch: pytest.MonkeyPatch) -> "Callable[[Channel], None]":
    """Makes this process report over a channel."""

    def use(channel: Channel) -> None:
        for name, value in {"channel": channel, "opened": True, "final_reported": False}.items():
            monkeypatch.setattr(sdk._State, name, value)

    return use


def test_without_a_trial_scheduler_a_report_looks_at_no_control_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, use_channel: "Callable[[Channel], None]"
) -> None:
    looked: list[object] = []
    use_channel(Channel({ENV_JOB_DIRECTORY: str(tmp_path)}))
    (tmp_path / "control.json").write_text('{"milestone": 1}')
    stat = os.stat
    monkeypatch.setattr(os, "stat", lambda path, **options: (looked.append(path), stat(path, **options))[1])
    sdk.report({"default": 1.0}, step=1)
    sdk.report_intermediate_result(0.5)
    assert looked == []


def test_a_final_metric_waits_for_no_verdict(tmp_path: Path, use_channel: "Callable[[Channel], None]") -> None:
    trial = Trial(tmp_path)
    trial.control(milestone=1)
    use_channel(trial.channel)
    sdk.report_final_result(1.0)
    assert trial.now == 0
    sdk.report_intermediate_result(1.0)
    assert trial.now == pytest.approx(VERDICT_SECONDS)


def test_a_trial_that_has_passed_its_milestone_without_a_verdict_records_that_once(
    tmp_path: Path, use_channel: "Callable[[Channel], None]"
) -> None:
    trial = Trial(tmp_path, **{ENV_VERDICT_SECONDS: "600"})
    trial.control(milestone=3)
    use_channel(trial.channel)
    for step in (2, 4, 5):
        sdk.report(1.0, step=step)
    assert trial.now == pytest.approx(600)
    records = [json.loads(line) for line in (tmp_path / "journal").read_text().splitlines()]
    assert [record["kind"] for record in records] == ["intermediate", "intermediate", "unjudged", "intermediate"]
    assert (records[2]["step"], records[2]["waited"]) == (3, 600)


def test_a_disk_that_fills_up_during_the_wait_makes_no_report_lost(
    tmp_path: Path, use_channel: "Callable[[Channel], None]", monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PROCTOR_REPORT_WAIT_SECONDS", "0")
    trial = Trial(tmp_path)
    trial.control(milestone=3)
    use_channel(trial.channel)
    with monkeypatch.context() as full:
        trial.due.append((1.0, lambda: full.setattr(os, "write", refuse(errno.ENOSPC))))
        sdk.report(1.0, step=3)
    sdk.report(1.0, step=4)
    records = [json.loads(line) for line in (tmp_path / "journal").read_text().splitlines()]
    assert [record["kind"] for record in records] == ["intermediate", "intermediate"]


def test_only_a_report_that_is_judged_waits_for_a_verdict(
    tmp_path: Path, use_channel: "Callable[[Channel], None]", monkeypatch: pytest.MonkeyPatch
) -> None:
    trial = Trial(tmp_path)
    trial.control(milestone=2)
    use_channel(trial.channel)
    sdk.report({"loss": 1.0})
    sdk.report({"loss": 1.0})  # as training frameworks do between two validations
    append = trial.channel.journal.append
    monkeypatch.setattr(trial.channel.journal, "append", lambda *_, **__: False)
    sdk.report(1.0, step=3)  # lost: the disk is full
    assert trial.now == 0
    monkeypatch.setattr(trial.channel.journal, "append", append)
    trial.at(1.0, milestone=9)
    sdk.report({"default": 1.0, "loss": 1.0})
    assert trial.now == pytest.approx(1.0, abs=0.06)


def test_a_trial_that_is_not_to_wait_trains_past_its_milestone_without_a_word(
    tmp_path: Path, use_channel: "Callable[[Channel], None]"
) -> None:
    trial = Trial(tmp_path, **{ENV_VERDICT_SECONDS: "0"})
    trial.control(milestone=1)
    use_channel(trial.channel)
    sdk.report(1.0, step=1)
    assert "unjudged" not in (tmp_path / "journal").read_text()


@pytest.mark.parametrize(("environment", "seconds"), [({}, 0), ({ENV_JUDGED_RANK: "3"}, 10)], ids=str)
def test_ranks_stand_still_for_a_verdict_only_where_there_is_a_trial_scheduler(
    environment: dict[str, str], seconds: float
) -> None:
    assert longest_wait(environment) == seconds

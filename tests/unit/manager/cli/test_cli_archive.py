"""Experiments as zip files."""

import json
import zipfile
from pathlib import Path

import pytest
from fakes.rest import FakeRest


@pytest.fixture
def saved(rest: FakeRest, invoke, tmp_path: Path) -> Path:
    """The zip of an experiment of two trials, saved with its code."""
    code = tmp_path / "project"
    folder = Path(rest.add_experiment("e", config={"trial_code_directory": str(code)})["directory"])
    rest.add_trial("e", "a")
    rest.add_trial("e", "b")
    rest.add_metric("b", "final", 0.5)
    for path, text in {
        folder / "metrics.db": "not to be copied while it is written",
        folder / "secrets.json": "hush",
        folder / "environment.json": "hush",
        folder / "trials/0-a/jobs/1/stdout": "printed\n",
        code / "trial.py": "print()\n",
        code / ".git/config": "not code",
    }.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (folder / "trials/0-a/gone").symlink_to("/nowhere")
    result = invoke("experiment", "save", "e", "-p", str(tmp_path), "--code")
    assert result.stdout == f"{tmp_path / 'e.zip'}\n", result.stderr
    return tmp_path / "e.zip"


def test_it_holds_records_outputs_and_code_and_no_secrets(rest: FakeRest, saved: Path) -> None:
    with zipfile.ZipFile(saved) as archive:
        assert set(archive.namelist()) == {
            "proctor.json",
            "trials.jsonl",
            "jobs.jsonl",
            "metrics.jsonl",
            "experiment/trials/0-a/jobs/1/stdout",
            "code/trial.py",
        }
        assert json.loads(archive.read("proctor.json")) == {"format": 1, "experiment": rest.experiments["e"]}
        assert [json.loads(line) for line in archive.read("trials.jsonl").splitlines()] == list(rest.trials.values())
        assert json.loads(archive.read("metrics.jsonl"))["value"] == 0.5


def test_nothing_half_written_is_left_beside_it(saved: Path) -> None:
    assert [path.name for path in saved.parent.iterdir() if "zip" in path.name] == ["e.zip"]


def test_it_is_handed_to_the_manager_that_loads_it(rest: FakeRest, invoke, saved: Path, tmp_path: Path) -> None:
    result = invoke("experiment", "load", "-p", str(saved), "--id", "again", "--codeDir", str(tmp_path / "unpacked"))
    assert result.stdout == "again\n", result.stderr
    [(path, body)] = rest.requests("POST")
    assert path == "/experiments/load"
    assert body["code_directory"] == str(tmp_path / "unpacked")
    assert rest.loaded_archive == saved.read_bytes()
    assert (tmp_path / "unpacked" / "trial.py").read_text() == "print()\n"
    assert not (tmp_path / "unpacked" / ".git").exists()
    assert not list((rest.home / "incoming").iterdir())


def test_an_archive_cannot_write_outside_of_its_folder(rest: FakeRest, invoke, saved: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(saved, "a") as archive:
        archive.writestr("code/../../escaped.py", "")
    result = invoke("experiment", "load", "-p", str(saved), "--codeDir", str(tmp_path / "unpacked"))
    assert result.exit_code == 2
    assert "outside" in result.stderr
    assert not (tmp_path / "escaped.py").exists()
    assert not rest.requests("POST")


def test_a_file_that_is_no_archive_is_refused(rest: FakeRest, invoke, tmp_path: Path) -> None:
    (tmp_path / "x.zip").write_text("hello")
    result = invoke("experiment", "load", "-p", str(tmp_path / "x.zip"))
    assert result.exit_code == 2
    assert "is not an experiment saved by" in result.stderr


def test_an_archive_of_a_newer_kind_is_refused(rest: FakeRest, invoke, tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "x.zip", "w") as archive:
        archive.writestr("proctor.json", json.dumps({"format": 2, "experiment": {}}))
    assert "has format 2" in invoke("experiment", "load", "-p", str(tmp_path / "x.zip")).stderr


def test_an_experiment_of_another_machine_cannot_be_saved_here(rest: FakeRest, invoke, tmp_path: Path) -> None:
    rest.add_experiment("e")
    result = invoke("experiment", "save", "e", "-p", str(tmp_path / "e.zip"))
    assert result.exit_code == 1
    assert "is not on this machine" in result.stderr
    assert not (tmp_path / "e.zip").exists()

"""Experiments as zip files."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import pytest
from fakes.served_manager import NOW, ServedManager

from proctor.manager.cli import archive as of_the_cli
from proctor.manager.cli.archive import LARGE_BYTES, MANY_CODE_FILES, MAX_HEAD_BYTES, SPARE_BYTES
from proctor.manager.cli.columns import size_text
from proctor.manager.engine.archive import format as of_the_manager
from proctor.manager.engine.archive.format import ExperimentArchive
from proctor.manager.store.rows import SavedViewRow
from proctor.sdk.client import Client
from proctor.sdk.client.errors import NotFound

TABLE = {"title": "Rungs", "columns": ["milestone", "trial"], "rows": [[1, 0], [3, None]], "trial_columns": [1]}
VIEW = SavedViewRow("e", "best", "trials", "sort=-value", NOW, "owner")


@pytest.mark.parametrize("name", ["DAMAGES", "COMPRESSIONS", "MAX_HEAD_BYTES", "SPARE_BYTES", "NEVER_SAVED"])
def test_the_command_and_the_manager_agree_about_archives(name: str) -> None:
    """The command does not import the manager's engine."""
    assert getattr(of_the_cli, name) == getattr(of_the_manager, name)


@pytest.fixture
def saved(served: ServedManager, invoke, tmp_path: Path) -> Path:
    """The zip of an experiment of two trials, saved with its code."""
    code = tmp_path / "project"
    code.mkdir()
    config = {"trialCodeDirectory": str(code), "trialScheduler": {"name": "ASHA"}}
    trials = [{"id": "a"}, {"id": "b", "points": [("final", 0.5)]}]
    served.add_experiment(config=config, trials=trials, views=[VIEW], tables=[TABLE])
    folder = Path(served.experiment().directory)
    for path, text in {
        folder / "secrets.json": "hush",
        folder / "environment.json": "hush",
        folder / ".proctor-owner.json": "{}",
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


def test_it_holds_records_outputs_and_code_and_no_secrets(served: ServedManager, saved: Path) -> None:
    with zipfile.ZipFile(saved) as archive, Client(home=served.home) as client:
        assert set(archive.namelist()) == {
            "proctor.json",
            "trials.jsonl",
            "jobs.jsonl",
            "metrics.jsonl",
            "checkpoints.jsonl",
            "imported.jsonl",
            "experiment/config.json",
            "experiment/trials/0-a/jobs/1/stdout",
            "code/trial.py",
        }
        assert json.loads(archive.read("proctor.json")) == {
            "format": 2,
            "experiment": client.experiment("e") | {"views": client.views("e"), "scheduler_tables": [TABLE]},
        }
        assert [json.loads(line) for line in archive.read("trials.jsonl").splitlines()] == list(client.trials("e"))
        assert json.loads(archive.read("metrics.jsonl"))["value"] == 0.5


def test_an_experiment_is_saved_from_a_manager_that_has_no_views(
    saved: Path, invoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise NotFound("no such address", status_code=404)

    monkeypatch.setattr(Client, "views", refuse)
    saved.unlink()
    invoke("experiment", "save", "e", "-p", str(saved), code=0)
    assert json.loads(members(saved)["proctor.json"])["experiment"]["views"] == []


def test_nothing_half_written_is_left_beside_it(saved: Path) -> None:
    assert [path.name for path in saved.parent.iterdir() if "zip" in path.name] == ["e.zip"]


def test_it_is_handed_to_the_manager_that_loads_it(served: ServedManager, invoke, saved: Path, tmp_path: Path) -> None:
    received: list[bytes] = []
    served.before["POST", "/experiments/load"] = lambda body: received.append(
        (served.home / "incoming" / body["archive"]).read_bytes()
    )
    before = saved.read_bytes()
    assert invoke("experiment", "delete", "e", "-y").exit_code == 0  # its trials have their ids
    result = invoke("experiment", "load", "-p", str(saved), "--id", "again", "--codeDir", str(tmp_path / "unpacked"))
    assert result.stdout == "again\n", result.stderr
    [(path, body)] = served.requests("POST")
    assert path == "/experiments/load"
    assert body["code_directory"] == str(tmp_path / "unpacked")
    assert received == [before]
    assert (tmp_path / "unpacked" / "trial.py").read_text() == "print()\n"
    assert not (tmp_path / "unpacked" / ".git").exists()
    assert not list((served.home / "incoming").iterdir())


def test_code_of_the_user_is_not_replaced_by_saved_code(
    served: ServedManager, invoke, saved: Path, tmp_path: Path
) -> None:
    write(tmp_path / "unpacked", "trial.py", "other.py")
    said = f"{tmp_path}/unpacked/trial.py is there already, and is not what was saved; give another --code-directory"
    assert said in refused(invoke, saved, tmp_path / "unpacked")
    assert (tmp_path / "unpacked" / "trial.py").read_text() == "trial.py\n"
    (tmp_path / "unpacked" / "trial.py").write_text("print()\n")  # as it was saved
    assert invoke("experiment", "delete", "e", "-y").exit_code == 0
    assert invoke("experiment", "load", "-p", str(saved), "--codeDir", str(tmp_path / "unpacked")).exit_code == 0


def test_a_zip_of_the_user_is_not_replaced_by_one_that_is_named_after_the_experiment(
    served: ServedManager, invoke, saved: Path, tmp_path: Path
) -> None:
    assert invoke("experiment", "save", "e", "-p", str(tmp_path)).exit_code == 0, "an earlier one of it is replaced"
    saved.write_bytes(b"letters and photographs")
    result = invoke("experiment", "save", "e", "-p", str(tmp_path), code=2)
    assert f"{saved} is there already, and is not this experiment; give a file name with --path" in result.stderr
    assert saved.read_bytes() == b"letters and photographs"
    assert invoke("experiment", "save", "e", "-p", str(saved)).exit_code == 0, "as it was named"


def test_an_archive_cannot_write_outside_of_its_folder(
    served: ServedManager, invoke, saved: Path, tmp_path: Path
) -> None:
    with zipfile.ZipFile(saved, "a") as archive:
        archive.writestr("code/../../escaped.py", "")
    result = invoke("experiment", "load", "-p", str(saved), "--codeDir", str(tmp_path / "unpacked"), code=2)
    assert "outside" in result.stderr
    assert not (tmp_path / "escaped.py").exists()
    assert not served.requests("POST")


HEADS = {
    "a list": ("[]", "is not an experiment saved by"),
    "no experiment": ('{"format": 1}', "is not an experiment saved by"),
    "an experiment that is none": ('{"format": 1, "experiment": []}', "is not an experiment saved by"),
    "too deep": ("[" * 300_000, "is not an experiment saved by"),
    "a newer kind": ('{"format": 3, "experiment": {}}', "has format 3; this version reads formats up to 2"),
    "unreasonable size": (" " * (MAX_HEAD_BYTES + 1), f"its proctor.json is larger than {MAX_HEAD_BYTES} bytes"),
    "no archive": (None, "is not an experiment saved by"),
}


@pytest.mark.parametrize(("head", "why"), HEADS.values(), ids=HEADS)
def test_what_is_no_saved_experiment_is_refused_before_it_is_read(
    served: ServedManager, invoke, tmp_path: Path, head: str | None, why: str
) -> None:
    (tmp_path / "x.zip").write_text("hello")
    if head is not None:
        with zipfile.ZipFile(tmp_path / "x.zip", "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("proctor.json", head)
    assert why in invoke("experiment", "load", "-p", str(tmp_path / "x.zip"), code=2).stderr


def damaged(saved: Path, at: int) -> None:
    data = bytearray(saved.read_bytes())
    data[at] ^= 0xFF
    saved.write_bytes(data)


def refused(invoke, saved: Path, target: Path) -> str:
    """Why the code of an archive cannot be unpacked; nothing of it stays."""
    before = sorted(target.rglob("*"))
    result = invoke("experiment", "load", "-p", str(saved), "--codeDir", str(target))
    assert result.exit_code in {1, 2}, result.exception
    assert sorted(target.rglob("*")) == before
    return str(result.stderr)


@pytest.mark.slow
@pytest.mark.parametrize("is_there", [False, True])
@pytest.mark.parametrize("damage", ["data", "name", "place", "compression"])
def test_damaged_code_is_refused_and_nothing_of_it_stays(
    served: ServedManager, invoke, saved: Path, tmp_path: Path, damage: str, is_there: bool
) -> None:
    if damage == "compression":
        with zipfile.ZipFile(saved, "a") as archive:
            archive.writestr("code/a.py", "print()", compress_type=zipfile.ZIP_LZMA)
    else:
        with zipfile.ZipFile(saved, "a") as archive:
            archive.writestr("code/é", os.urandom(1000) + bytes(1000), compress_type=zipfile.ZIP_DEFLATED)
            start = archive.getinfo("code/é").header_offset
        data = saved.read_bytes()
        if damage == "data":
            damaged(saved, start + 30 + len("code/é".encode()) + 20)
        elif damage == "name":
            damaged(saved, data.rindex("code/é".encode()) + 6)
        else:  # of the directory, so that the zip begins before its first byte
            damaged(saved, data.rindex(b"PK\x05\x06") + 18)
    target = tmp_path / "unpacked" / "here"
    if is_there:
        target.mkdir(parents=True)
        (target / "mine").write_text("x")
    assert "is damaged" in refused(invoke, saved, tmp_path / "unpacked" / "here")
    assert (tmp_path / "unpacked").exists() == is_there
    assert not served.requests("POST")


def test_code_with_a_file_and_a_folder_of_one_name_is_refused(
    served: ServedManager, invoke, saved: Path, tmp_path: Path
) -> None:
    with zipfile.ZipFile(saved, "a") as archive:
        archive.writestr("code/new/a", "a file")
        archive.writestr("code/new/a/b", "a file in it")
    assert "cannot be unpacked" in refused(invoke, saved, tmp_path / "unpacked")
    assert not (tmp_path / "unpacked").exists()


def test_a_folder_in_the_saved_code_becomes_a_folder(
    served: ServedManager, invoke, saved: Path, tmp_path: Path
) -> None:
    with zipfile.ZipFile(saved, "a") as archive:
        archive.writestr("code/empty/", "")
        archive.writestr("code/full/", "")
        archive.writestr("code/full/a", "x")
    assert invoke("experiment", "delete", "e", "-y").exit_code == 0
    assert invoke("experiment", "load", "-p", str(saved), "--codeDir", str(tmp_path / "unpacked")).exit_code == 0
    assert (tmp_path / "unpacked" / "empty").is_dir()
    assert (tmp_path / "unpacked" / "full" / "a").read_text() == "x"


@pytest.mark.parametrize("size", ["far too much", "all but what is kept free"])
def test_code_that_the_disk_has_no_room_for_is_refused_before_it_is_unpacked(
    served: ServedManager, invoke, saved: Path, tmp_path: Path, size: str
) -> None:
    with zipfile.ZipFile(saved, "a") as archive:
        archive.writestr("code/large", "x")
        free = shutil.disk_usage(tmp_path).free
        archive.getinfo("code/large").file_size = 2**60 if size == "far too much" else free - SPARE_BYTES // 2
    answered = refused(invoke, saved, tmp_path / "unpacked")
    assert " ".join(answered.split()).count(" MiB") == 3
    assert "are kept free; free some space" in " ".join(answered.split())


def test_an_experiment_of_another_machine_cannot_be_saved_here(served: ServedManager, invoke, tmp_path: Path) -> None:
    served.add_experiment()
    shutil.rmtree(served.experiment().directory)
    assert "is not on this machine" in invoke("experiment", "save", "e", "-p", str(tmp_path / "e.zip"), code=1).stderr
    assert not (tmp_path / "e.zip").exists()


@pytest.fixture
def project(served: ServedManager, tmp_path: Path) -> Path:
    """The code directory of experiment `e`, whose own folder is there as well."""
    code = tmp_path / "project"
    code.mkdir()
    served.add_experiment(config={"trialCodeDirectory": str(code)})
    write(Path(served.experiment().directory), "log/dispatcher.log")
    write(code, "trial.py")
    return code


def write(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(f"{name}\n")


def members(archive: Path) -> dict[str, bytes]:
    """The files in an archive."""
    with zipfile.ZipFile(archive) as file:
        return {name: file.read(name) for name in file.namelist()}


def code_in(archive: Path) -> set[str]:
    """The names of the code in an archive."""
    return {name.removeprefix("code/") for name in members(archive) if name.startswith("code/")}


def test_an_archive_in_the_code_directory_never_holds_itself_nor_an_earlier_one(
    served: ServedManager, invoke, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(project)
    write(project, ".e.zip.1234abcd.proctor-draft")  # of a save that was killed
    for arguments in ([], ["-p", "other.zip"], ["-p", str(project)]):
        invoke("experiment", "save", "e", "-s", *arguments, code=0)
    assert code_in(project / "e.zip") == code_in(project / "other.zip") == {"trial.py"}


def test_an_archive_in_the_experiments_own_folder_never_holds_itself(
    served: ServedManager, invoke, project: Path
) -> None:
    folder = Path(served.experiment().directory)
    for _ in range(2):
        assert invoke("experiment", "save", "e", "-p", str(folder / "log")).exit_code == 0
    saved = list(members(folder / "log" / "e.zip"))
    assert saved[6:] == ["experiment/config.json", "experiment/log/dispatcher.log"]


def test_ignore_files_say_what_of_the_code_is_saved(
    served: ServedManager, invoke, project: Path, tmp_path: Path
) -> None:
    write(
        project, "data/big", "out/1", "a/keep.log", "b.log", "venv/pyvenv.cfg", ".venv/settings", "x/__pycache__/x.pyc"
    )
    (project / ".nniignore").write_text("/data\n")
    (project / ".proctorignore").write_text("out/\n*.log\n")
    (project / "a" / ".proctorignore").write_text("!keep.log\n")
    assert invoke("experiment", "save", "e", "-s", "-p", str(tmp_path)).exit_code == 0
    assert code_in(tmp_path / "e.zip") == {
        "trial.py", ".nniignore", ".proctorignore", "a/.proctorignore", "a/keep.log"
    }  # fmt: skip


def test_version_control_and_homes_are_never_saved(
    served: ServedManager, invoke, project: Path, tmp_path: Path
) -> None:
    write(project, ".git/config", "sub/.git/config", ".hg/store", ".svn/entries", "sub/model.py")
    write(project, "state/control.db", "state/token", "state/experiments/x/trials/0-a/output/model")
    write(project, "runs/x/config.json", "runs/x/metrics.db", "runs/x/secrets.json", "runs/x/environment.json")
    (project / ".proctorignore").write_text("!.git\n!.hg\n!.svn\n!state/**\n!runs/**\n")
    for name, target in {"a": "state/token", "b": ".git/config", "c": "runs/x/secrets.json"}.items():
        (project / name).symlink_to(target)
    result = invoke("experiment", "save", "e", "-s", "-p", str(tmp_path))
    assert code_in(tmp_path / "e.zip") == {"trial.py", ".proctorignore", "sub/model.py"}, result.output


def test_a_code_directory_that_is_a_home_is_not_saved(
    served: ServedManager, invoke, project: Path, tmp_path: Path
) -> None:
    write(project, "control.db", "token")
    result = invoke("experiment", "save", "e", "-s", "-p", str(tmp_path), code=1)
    assert "is the home of a Proctor manager" in result.stderr
    assert not (tmp_path / "e.zip").exists()


def test_a_link_is_saved_as_what_it_leads_to_or_named_as_left_out(
    served: ServedManager, invoke, project: Path, tmp_path: Path
) -> None:
    folder = Path(served.experiment().directory)
    write(tmp_path, "shared/data.csv")
    write(folder, "secrets.json", "trials/0-a/output/step-9")
    (folder / "trials/0-a/output/latest").symlink_to("step-9")
    (folder / "trials/0-a/output/hush").symlink_to(folder / "secrets.json")
    (folder / "trials/0-a/output/token").symlink_to(served.home / "token")
    (served.home / "control.db").touch()
    (project / "data.csv").symlink_to(tmp_path / "shared" / "data.csv")
    (project / "folder").symlink_to(tmp_path / "shared")
    result = invoke("experiment", "save", "e", "-s", "-p", str(tmp_path))
    saved = members(tmp_path / "e.zip")
    assert saved["experiment/trials/0-a/output/latest"] == b"trials/0-a/output/step-9\n"
    assert saved["code/data.csv"] == b"shared/data.csv\n"
    assert not {f"experiment/trials/0-a/output/{name}" for name in ("hush", "token")} & set(saved)
    assert "Left out: links" in result.stderr
    for name in ("output/hush", "output/token", "project/folder"):
        assert name in result.stderr


def test_names_that_the_manager_would_refuse_in_an_archive_are_left_out(
    served: ServedManager, invoke, project: Path, tmp_path: Path
) -> None:
    output = Path(served.experiment().directory) / "trials" / "0-a" / "output"
    write(output, "results.db", "environment.json", "back\\slash", "model")
    (output / os.fsdecode(b"odd\xff")).touch()
    result = invoke("experiment", "save", "e", "-p", str(tmp_path / "e.zip"))
    assert ExperimentArchive(tmp_path / "e.zip").experiment().id == "e"  # the manager takes it
    saved = members(tmp_path / "e.zip")
    assert [name for name in saved if "output" in name] == ["experiment/trials/0-a/output/model"]
    for name in ("results.db", "environment.json", "slash", "odd"):
        assert name in result.stderr


def test_the_size_is_said_before_and_after(served: ServedManager, invoke, project: Path, tmp_path: Path) -> None:
    (project / "weights").write_bytes(bytes(2_500_000))
    result = invoke("experiment", "save", "e", "-s", "-p", str(tmp_path))
    sizes = r"2 files \(1\.\d kB\) of the experiment and 2 files \(2\.5 MB\) of its code"
    assert re.search(sizes, result.stderr), result.stderr  # the configuration names the folder of the test
    assert f"Saved experiment e ({size_text((tmp_path / 'e.zip').stat().st_size)})." in result.stderr
    assert result.stdout == f"{tmp_path / 'e.zip'}\n"


@pytest.mark.slow
@pytest.mark.parametrize("what", ["bytes", "files"])
def test_a_large_one_needs_a_confirmation(
    served: ServedManager, invoke, project: Path, tmp_path: Path, what: str
) -> None:
    if what == "bytes":
        with (project / "data").open("wb") as file:
            file.truncate(LARGE_BYTES + 1)
    else:
        write(project, *(f"many/{number}" for number in range(MANY_CODE_FILES)))
    save = ("experiment", "save", "e", "-s", "-p", str(tmp_path))
    assert invoke(*save, code=2).stderr.endswith("Error: not confirmed: there is no terminal to ask on; use -y\n")
    assert invoke(*save, input="n\n").exit_code == 1
    assert not list(tmp_path.glob("*.zip*"))
    if what == "bytes":
        (project / "data").unlink()
        write(project, "data")
    else:
        assert invoke(*save, input="y\n").exit_code == 0
        assert len(code_in(tmp_path / "e.zip")) == MANY_CODE_FILES + 1
    assert invoke(*save, "--yes").exit_code == 0


def test_only_its_owner_may_read_an_archive_even_one_that_replaces_an_open_one(
    served: ServedManager, invoke, project: Path, tmp_path: Path
) -> None:
    (tmp_path / "e.zip").touch(mode=0o644)
    before = os.umask(0)
    try:
        invoke("experiment", "save", "e", "-s", "-p", str(tmp_path / "e.zip"), code=0)
    finally:
        os.umask(before)
    assert (tmp_path / "e.zip").stat().st_mode & 0o777 == 0o600


def test_what_is_left_of_a_checkpoint_that_is_being_deleted_is_not_saved(
    served: ServedManager, invoke, project: Path, tmp_path: Path
) -> None:
    place = "trials/0-t0/jobs/1/output/checkpoints"
    names = (f"{place}/2/weights", f"{place}/.unfinished-deleted-1/weights", f"{place}/.unfinished-host-7/weights")
    write(Path(served.experiment().directory), *names)
    assert invoke("experiment", "save", "e", "-p", str(tmp_path)).exit_code == 0
    assert [name for name in members(tmp_path / "e.zip") if place in name] == [f"experiment/{place}/2/weights"]


def test_a_file_that_grows_or_vanishes_while_it_is_saved_does_no_harm(
    served: ServedManager, invoke, project: Path, tmp_path: Path
) -> None:
    folder = Path(served.experiment().directory)
    write(folder, "gone")

    def change() -> None:
        (folder / "gone").unlink()
        with (folder / "log" / "dispatcher.log").open("a") as file:
            file.write("a line more\n")

    served.on_ask["GET", "/experiments/e/trials"] = change
    assert invoke("experiment", "save", "e", "-p", str(tmp_path)).exit_code == 0
    saved = members(tmp_path / "e.zip")
    assert saved["experiment/log/dispatcher.log"] == b"log/dispatcher.log\n"
    assert "experiment/gone" not in saved


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_nothing_half_written_stays_when_it_is_interrupted(
    served: ServedManager, home: Path, project: Path, tmp_path: Path, number: signal.Signals
) -> None:
    """It has gigabytes before it when it is ended."""
    with (project / "data").open("wb") as file:
        file.truncate(20 * LARGE_BYTES)
    # Where the tests run in the background of a shell, they ignore SIGINT, and so would what they start.
    command = ["env", "--default-signal", sys.executable, "-m", "proctor.manager.cli.main", "--home", str(home)]
    with subprocess.Popen([*command, "experiment", "save", "e", "-sy", "-p", str(tmp_path)]) as process:
        while not (drafts := list(tmp_path.glob(".e.zip.*"))) or drafts[0].stat().st_size < 1000:
            assert process.poll() is None
            time.sleep(0.01)
        process.send_signal(number)
        assert process.wait(30.0) == 130
    assert not list(tmp_path.glob("*e.zip*"))


def test_a_disk_that_is_too_small_is_named_by_the_archive_and_nothing_stays(
    served: ServedManager, home: Path, project: Path, tmp_path: Path
) -> None:
    (project / "data").write_bytes(os.urandom(100_000))
    save = f"{sys.executable} -m proctor.manager.cli.main --home {home} experiment save e -s -p {tmp_path}"
    command = ["bash", "-c", f"ulimit -f 8; exec {save}"]  # no file may be larger than 8 KiB
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 1
    assert f"{tmp_path / 'e.zip'} cannot be written: File too large" in ended.stderr
    assert not list(tmp_path.glob("*e.zip*"))


def test_a_folder_that_is_not_there_is_named(served: ServedManager, invoke, project: Path, tmp_path: Path) -> None:
    result = invoke("experiment", "save", "e", "-p", str(tmp_path / "nowhere" / "e.zip"), code=2)
    assert f"{tmp_path / 'nowhere'}: there is no such folder" in result.stderr


def test_programs_of_the_code_can_be_run_after_it_was_unpacked(
    served: ServedManager, invoke, project: Path, tmp_path: Path
) -> None:
    write(project, "run.sh")
    (project / "run.sh").chmod(0o755)
    assert invoke("experiment", "save", "e", "-s", "-p", str(tmp_path)).exit_code == 0
    assert invoke("experiment", "delete", "e", "-y").exit_code == 0
    assert invoke("experiment", "load", "-p", str(tmp_path / "e.zip"), "-c", str(tmp_path / "new")).exit_code == 0
    assert os.access(tmp_path / "new" / "run.sh", os.X_OK)
    assert not os.access(tmp_path / "new" / "trial.py", os.X_OK)

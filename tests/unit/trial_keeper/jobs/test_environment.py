"""The environment of a trial."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from proctor.sdk.protocol import ENV_INHERITED_LAUNCHES, find_rank
from proctor.trial_keeper.jobs.launching import CapturedEnvironments, build_environment, keep_bundle, visible_devices
from proctor.trial_keeper.protocol import GpuSlot, Launch

LAUNCH = Launch("T.1", "token", "E", "T", 3, "/job", "true", "/code", "{}", None)


@pytest.mark.parametrize(
    ("gpus", "visible"),
    [
        (None, None),
        ([], ""),
        ([GpuSlot("GPU-b", 1), GpuSlot("GPU-a", 0)], "GPU-b,GPU-a"),
        ([GpuSlot("GPU-a", 0), GpuSlot("GPU-a", 1)], "GPU-a"),
    ],
)
def test_gpus_are_shown_by_uuid(gpus: list[GpuSlot] | None, visible: str | None) -> None:
    launch = replace(LAUNCH, gpus=gpus)
    assert visible_devices(launch) == visible
    captured = {"CUDA_VISIBLE_DEVICES": "7"}
    expected = "7" if visible is None else visible
    assert build_environment(launch, captured, "/bundle")["CUDA_VISIBLE_DEVICES"] == expected


@pytest.mark.parametrize(
    ("captured", "expected"),
    [({"PATH": "/usr/bin"}, "/opt/py/bin:/usr/bin"), ({}, f"/opt/py/bin:{os.defpath}")],
)
def test_the_search_path_of_a_launch_comes_first(captured: dict[str, str], expected: str) -> None:
    environment = build_environment(replace(LAUNCH, search_path="/opt/py/bin"), captured, "/bundle")
    assert environment["PATH"] == expected
    assert build_environment(LAUNCH, captured, "/bundle").get("PATH") == captured.get("PATH")


def test_the_launch_lies_over_the_captured_and_ours_over_both() -> None:
    launch = replace(LAUNCH, environment={"A": "2", "PROCTOR_JOB_ID": "a lie"})
    environment = build_environment(launch, {"A": "1", "B": "1", "PROCTOR_FAILPOINT": "x"}, "/bundle")
    assert (environment["A"], environment["B"]) == ("2", "1")
    assert environment["PROCTOR_JOB_ID"] == "T.1"
    assert environment["NNI_CODE_DIR"] == "/code"
    assert environment["PYTHONPATH"] == "/bundle"
    assert "PROCTOR_FAILPOINT" not in environment


def test_all_jobs_of_a_trial_have_sets_in_one_order_unless_the_user_has_said_which() -> None:
    again = replace(LAUNCH, job_id="T.2")
    assert {build_environment(launch, {}, "/b")["PYTHONHASHSEED"] for launch in (LAUNCH, again)} == {"0"}
    assert build_environment(LAUNCH, {"PYTHONHASHSEED": "random"}, "/b")["PYTHONHASHSEED"] == "random"
    assert build_environment(replace(LAUNCH, environment={"PYTHONHASHSEED": "5"}), {}, "/b")["PYTHONHASHSEED"] == "5"


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("python3 t.py", "python3 t.py"),
        ("PYTHONPATH=. python3 t.py", "PYTHONPATH=/b/1:. python3 t.py"),
        ("PYTHONPATH= python3 t.py", "PYTHONPATH=/b/1 python3 t.py"),
        ("PYTHONPATH=", "PYTHONPATH=/b/1"),
        ("PYTHONPATH='' a; PYTHONPATH=\"\"", "PYTHONPATH=/b/1'' a; PYTHONPATH=/b/1\"\""),
        ("env \"PYTHONPATH=\" a; env 'PYTHONPATH=' b", "env \"PYTHONPATH=/b/1\" a; env 'PYTHONPATH=/b/1' b"),
        ("sh -c \"PYTHONPATH='' a\"", "sh -c \"PYTHONPATH=/b/1'' a\""),
        ("PYTHONPATH=''src a", "PYTHONPATH=/b/1:''src a"),
        ('env "PYTHONPATH="src a', 'env "PYTHONPATH=/b/1:"src a'),
        ("export A=1 PYTHONPATH='my src' && x", "export A=1 PYTHONPATH=/b/1:'my src' && x"),
        ('PYTHONPATH="$PYTHONPATH:." x', 'PYTHONPATH=/b/1:"$PYTHONPATH:." x'),
        ("a;PYTHONPATH=.;b", "a;PYTHONPATH=/b/1:.;b"),
        (
            "(PYTHONPATH=. a)|PYTHONPATH=. b&PYTHONPATH=. c",
            "(PYTHONPATH=/b/1:. a)|PYTHONPATH=/b/1:. b&PYTHONPATH=/b/1:. c",
        ),
        ("sh -c 'PYTHONPATH=. a' \"PYTHONPATH=. b\"", "sh -c 'PYTHONPATH=/b/1:. a' \"PYTHONPATH=/b/1:. b\""),
        ("a\nPYTHONPATH=.\nb", "a\nPYTHONPATH=/b/1:.\nb"),
        ("PYTHONPATH+=:src a", "PYTHONPATH+=:src a"),
        ("MYPYTHONPATH=. a --PYTHONPATH=. b", "MYPYTHONPATH=. a --PYTHONPATH=. b"),
        ("echo $PYTHONPATH", "echo $PYTHONPATH"),
    ],
)
def test_what_a_command_assigns_to_python_path_keeps_the_bundle(command: str, expected: str) -> None:
    assert keep_bundle(command, "/b/1") == expected


@pytest.mark.parametrize(
    "command",
    [
        "PYTHONPATH=/mine printenv PYTHONPATH",
        'PYTHONPATH="/mine" printenv PYTHONPATH',
        "export PYTHONPATH=/mine; printenv PYTHONPATH",
        "sh -c 'PYTHONPATH=/mine printenv PYTHONPATH'",
    ],
)
def test_a_bundle_below_a_folder_with_an_odd_name_needs_no_quotes(tmp_path: Path, command: str) -> None:
    bundle = tmp_path / 'it\'s a "home" $HOME'
    environment = {**os.environ, **build_environment(LAUNCH, {}, str(bundle))}
    kept = keep_bundle(command, str(bundle))
    done = subprocess.run(["bash", "-c", kept], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == f"{bundle}:/mine\n"


@pytest.mark.parametrize(
    "assignment", ["PYTHONPATH=", "PYTHONPATH=''", 'PYTHONPATH=""', 'env "PYTHONPATH="', "export PYTHONPATH='';"]
)
def test_an_empty_value_does_not_put_the_working_directory_on_the_path(tmp_path: Path, assignment: str) -> None:
    (tmp_path / "below").mkdir()
    (tmp_path / "below" / "t.py").write_text("import sys; print(*sys.path, sep='\\n')")
    environment = {**os.environ, **build_environment(LAUNCH, {}, "/bundle")}
    kept = keep_bundle(f"{assignment} {sys.executable} below/t.py", "/bundle")
    done = subprocess.run(
        ["bash", "-c", kept], cwd=tmp_path, env=environment, capture_output=True, text=True, check=True
    )
    assert "/bundle" in done.stdout.splitlines()
    assert not {str(tmp_path), os.path.realpath(tmp_path)} & set(done.stdout.splitlines())


def test_the_launch_that_a_trial_inherits_is_recorded_and_left_as_it_is() -> None:
    captured = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_PORT": "29500"}
    environment = build_environment(LAUNCH, captured, "/bundle")
    assert environment.items() >= captured.items()
    assert find_rank(environment) == 0
    assert find_rank({**environment, "MASTER_PORT": "41234"}) == 1
    below_another_trial = {"PATH": "/bin", ENV_INHERITED_LAUNCHES: environment[ENV_INHERITED_LAUNCHES]}
    assert ENV_INHERITED_LAUNCHES not in build_environment(LAUNCH, below_another_trial, "/bundle")


def test_a_captured_environment_is_read_again_when_it_changes(tmp_path: Path) -> None:
    file = tmp_path / "environment.json"
    environments = CapturedEnvironments()
    for value in ("1", "2"):
        swap = tmp_path / f"swap{value}"
        swap.write_text(json.dumps({"environment": {"A": value}}))
        os.replace(swap, file)
        assert environments.read(str(file)) == {"A": value}
        assert environments.read(str(file)) is environments.read(str(file))
    with pytest.raises(OSError):
        environments.read(str(tmp_path / "missing"))

"""Built-in and registered algorithms."""

import json
from pathlib import Path

import pytest

from proctor.manager.dispatcher.algorithms.registered import RegistrationError, read_meta, registered_algorithms

META = "algoType: tuner\nbuiltinName: demotuner\nclassName: demo.tuner.DemoTuner\n"


@pytest.fixture
def meta(tmp_path: Path) -> Path:
    (tmp_path / "demo").mkdir()
    (tmp_path / "demo" / "tuner.py").write_text("from nni.tuner import Tuner\n\nclass DemoTuner(Tuner): ...\n")
    path = tmp_path / "meta.yml"
    path.write_text(META)
    return path


def test_built_ins_are_listed_and_shown_with_their_arguments(invoke) -> None:
    names = {row["name"] for row in json.loads(invoke("algo", "list", "-o", "json").stdout)}
    assert {"TPE", "Random", "GridSearch", "Batch", "Evolution", "Medianstop", "Curvefitting"} <= names
    assert "optimize_mode" in invoke("algo", "show", "tpe").stdout


def test_a_tuner_and_a_trial_scheduler_of_one_name_are_both_shown(invoke) -> None:
    both = invoke("algo", "show", "pbt").stdout
    assert [line.split()[1] for line in both.splitlines() if line.startswith("kind ")] == ["tuner", "trialScheduler"]
    result = invoke("algo", "show", "pbt", "-o", "json")
    assert (result.exit_code, "give --kind" in result.stderr) == (2, True)
    one = json.loads(invoke("algo", "show", "pbt", "--kind", "trialScheduler", "-o", "json").stdout)
    assert (one["name"], one["kind"]) == ("PBT", "trialScheduler")
    assert invoke("algo", "show", "tpe", "--kind", "assessor").exit_code == 3
    assert "CLASSARG" in invoke("algo", "show", "ASHA").stdout


def test_a_registered_class_is_listed_until_it_is_unregistered(invoke, meta: Path, home: Path) -> None:
    assert invoke("algo", "register", "--meta", str(meta)).exit_code == 0
    assert registered_algorithms(home)["demotuner"].class_name == "demo.tuner.DemoTuner"
    assert "your demo.tuner.DemoTuner" in invoke("algo", "show", "DemoTuner").stdout
    assert invoke("algo", "unregister", "DemoTuner").exit_code == 0
    assert registered_algorithms(home) == {}
    assert invoke("algo", "unregister", "demotuner").exit_code == 3


def test_nnictls_spellings_work(invoke, meta: Path) -> None:
    assert invoke("algo", "reg", "--meta_path", str(meta)).exit_code == 0
    assert invoke("algo", "unreg", "demotuner").exit_code == 0


def test_code_beside_the_meta_file_is_found(tmp_path: Path) -> None:
    mapping = {"algo_type": "tuner", "BuiltinName": "x", "className": "beside_meta.tuner.DemoTuner"}
    with pytest.raises(RegistrationError, match="neither next to the meta file"):
        read_meta(mapping, tmp_path)
    (tmp_path / "beside_meta").mkdir()
    (tmp_path / "beside_meta" / "tuner.py").write_text("")
    assert read_meta(mapping, tmp_path).code_directory == str(tmp_path)


def test_an_installed_class_is_found_where_it_is_installed(tmp_path: Path) -> None:
    mapping = {"algoType": "tuner", "builtinName": "x", "className": "click.core.Command"}
    assert (Path(read_meta(mapping, tmp_path).code_directory) / "click" / "core.py").is_file()


def test_the_name_of_a_built_in_is_taken(invoke, meta: Path) -> None:
    meta.write_text(META.replace("demotuner", "TPE"))
    assert "is a built-in tuner" in invoke("algo", "register", "--meta", str(meta), code=5).stderr


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"algoType": "thing"}, "expected tuner, assessor or trialScheduler"),
        ({"className": "NoModule"}, "expected module.Class"),
        ({"builtinName": ""}, "builtinName: expected text"),
        ({"color": "red"}, "unknown key 'color'"),
        ({"codeDirectory": "nowhere"}, "there is no folder"),
    ],
)
def test_a_meta_file_that_is_wrong_says_why(tmp_path: Path, changes: dict[str, str], words: str) -> None:
    sound = {"algoType": "tuner", "builtinName": "x", "className": "m.C"}
    with pytest.raises(RegistrationError, match=words):
        read_meta({**sound, **changes}, tmp_path)


def test_a_damaged_registry_is_not_overwritten(invoke, meta: Path, home: Path) -> None:
    home.mkdir()
    (home / "algorithms.json").write_text("{")
    result = invoke("algo", "register", "--meta", str(meta), code=1)
    assert "algorithms.json is damaged" in result.stderr
    assert "internal error" not in result.stderr
    assert (home / "algorithms.json").read_text() == "{"

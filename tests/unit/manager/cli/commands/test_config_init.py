"""`proctor config init`: what it finds in a script, and that what it writes is a valid configuration."""

from pathlib import Path

import pytest

from proctor.manager.cli.draft import read_script, render_draft
from proctor.manager.config.loading import load_experiment

ASKING = "import proctor\nparameters = proctor.get_next_parameter()\n"
ENDING = "proctor.report_final_result(accuracy)\n"
WITH_ARGPARSE = """\
import argparse, nni
parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float, default=0.01)
parser.add_argument("--batch-size", type=int, default=64)
parser.add_argument("--optimizer", choices=["sgd", "adam"], default="sgd")
parser.add_argument("--epochs", type=int, default=10)
parser.add_argument("--no-cuda", action="store_true")
parser.add_argument("--data-dir", default="./data")
parser.add_argument("data")
args = nni.utils.merge_parameter(parser.parse_args(), nni.get_next_parameter())
nni.report_final_result(test_loss)
"""


def spaces(tmp_path: Path, text: str) -> dict[str, str]:
    (tmp_path / "train.py").write_text(text)
    return {found.name: found.space for found in read_script(tmp_path / "train.py").parameters}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (f"{ASKING}use(parameters['dropout'])", {"dropout": "{_type: uniform, _value: [0.0, 0.6]}"}),
        (f"{ASKING}use(parameters['x'])", {"x": "{_type: uniform, _value: [0.0, 1.0]}"}),
        (f"{ASKING}use(parameters.get('lr', 0.02))", {"lr": "{_type: loguniform, _value: [0.002, 0.2]}"}),
        (f"{ASKING}use(parameters.get('seed', 7))", {"seed": ""}),
        (
            f"{ASKING}def train(lr, *, depth=4): ...\ntrain(0.1, **parameters)",
            {"depth": "{_type: choice, _value: [2, 4, 8]}"},
        ),
        (
            f"{ASKING}defaults = {{'gamma': 0.8}}\ndefaults.update(parameters)",
            {"gamma": "{_type: uniform, _value: [0.4, 1]}"},
        ),
        (f"{ASKING}all = {{'bias': True, **parameters}}", {"bias": "{_type: choice, _value: [false, true]}"}),
        (
            "import nni\nD = {'units': 8}\np = D | nni.get_next_parameter()",
            {"units": "{_type: choice, _value: [4, 8, 16]}"},
        ),
    ],
)
def test_it_finds_the_parameters_that_a_script_asks_for(tmp_path: Path, text: str, expected: dict[str, str]) -> None:
    assert spaces(tmp_path, text) == expected


def test_options_of_argparse_are_searched_where_they_are_no_settings(tmp_path: Path) -> None:
    assert spaces(tmp_path, WITH_ARGPARSE) == {
        "lr": "{_type: loguniform, _value: [0.001, 0.1]}",
        "batch_size": "{_type: choice, _value: [32, 64, 128]}",
        "optimizer": '{_type: choice, _value: ["sgd", "adam"]}',
        "epochs": "",
        "no_cuda": "",
        "data_dir": "",
    }
    assert read_script(tmp_path / "train.py").minimizes


@pytest.mark.parametrize(
    "text",
    [
        WITH_ARGPARSE,
        ASKING + ENDING,
        "",
        "print 'Python 2'",
        "\0",
        "(" * 10_000,
        f"{ASKING}parameters['a: b\\n#']; parameters['null']; parameters['\"x']; parameters.get('r', 1e308)",
        f"{ASKING}parameters.get('s', 'a\\nsearchSpace: b'); parameters.get('i', {'9' * 400})",
        f"{ASKING}parameters.get('t', 5e-324); parameters.get('u', 0.0); parameters.get('v', float('nan'))",
    ],
    ids=range(9),
)
@pytest.mark.parametrize("name", ["train.py", "my train: #1.py"])
def test_what_it_writes_is_a_valid_configuration(tmp_path: Path, invoke, text: str, name: str) -> None:
    script, file = tmp_path / name, tmp_path / "e.yml"
    script.write_text(text)
    invoke("config", "init", str(script), str(file), code=0)
    loaded = load_experiment(file)
    assert loaded.config.trial_code_directory == tmp_path
    assert not loaded.notices
    invoke("config", "check", str(file), code=0)


SCRIPTS = [
    path
    for path in sorted(Path(__file__).parents[5].glob("examples/*/t*.py"))
    if path.parent.name != "pbt-toy"  # its one parameter is a pair of numbers: there is no range to guess
]


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.parent.name)
def test_it_understands_the_examples(tmp_path: Path, script: Path) -> None:
    facts = read_script(script)
    assert facts.searched
    assert facts.asks
    assert facts.reports
    file = tmp_path / "experiment.yml"
    file.write_text(render_draft(script, file, facts))
    config = load_experiment(file).config
    assert str(config.trial_code_directory.resolve()) == str(script.parent.resolve())
    assert config.trial_command == f"python3 {script.name}"


def test_a_file_is_only_replaced_where_that_is_asked_for(
    tmp_path: Path, invoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text(ASKING + ENDING)
    Path("experiment.yml").write_text("mine")
    refused = invoke("config", "init", "train.py", code=5)
    assert refused.stderr == "Error: experiment.yml already exists; --overwrite replaces it\n"
    assert Path("experiment.yml").read_text() == "mine"
    assert invoke("config", "init", "train.py", "--overwrite").exit_code == 0
    assert "trialCommand: python3 train.py\n" in Path("experiment.yml").read_text()


def test_it_says_what_the_script_lacks(tmp_path: Path, invoke) -> None:
    (tmp_path / "train.py").write_text("parameters['x']\n")
    said = invoke("config", "init", str(tmp_path / "train.py"), str(tmp_path / "e.yml")).stderr
    assert "its search space is an example" in said
    assert "does not call proctor.get_next_parameter()" in said
    assert "does not call proctor.report_final_result(value)" in said
    (tmp_path / "train.py").write_text(f"{ASKING}parameters['x']\n{ENDING}")
    said = invoke("config", "init", str(tmp_path / "train.py"), str(tmp_path / "e.yml"), "--overwrite").stderr
    assert "it searches x." in said
    assert f"The script shows no range for x: replace the one in {tmp_path / 'e.yml'}." in said
    assert "does not call" not in said


@pytest.mark.parametrize(("name", "mode", "command"), [("run.sh", 0o644, "bash run.sh"), ("run", 0o755, "./run")])
def test_other_programs_get_an_example_of_a_search_space(
    tmp_path: Path, invoke, name: str, mode: int, command: str
) -> None:
    (tmp_path / name).write_text("#!/bin/sh\n")
    (tmp_path / name).chmod(mode)
    assert invoke("config", "init", str(tmp_path / name), str(tmp_path / "e.yml")).exit_code == 0
    assert load_experiment(tmp_path / "e.yml").config.trial_command == command


@pytest.mark.parametrize("name", ["missing.py", "a-folder", "notes.txt"])
def test_what_is_no_script_is_refused(tmp_path: Path, invoke, name: str) -> None:
    (tmp_path / "a-folder").mkdir()
    (tmp_path / "notes.txt").write_text("")
    assert invoke("config", "init", str(tmp_path / name), str(tmp_path / "e.yml")).exit_code == 2
    assert not (tmp_path / "e.yml").exists()


@pytest.mark.parametrize("name", ["10", "1e5", "-3", "null"])
def test_a_name_that_looks_like_a_value_stays_a_name(tmp_path: Path, name: str) -> None:
    script, file = tmp_path / "train.py", tmp_path / "experiment.yml"
    script.write_text(f"{ASKING}use(parameters['{name}'])\n{ENDING}")
    file.write_text(render_draft(script, file, read_script(script)))
    assert list(load_experiment(file).config.search_space) == [name]

"""What users of nnictl type: every argument list of NNI 3.0 is carried out, or answered with what to do instead."""

import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from fakes.served_manager import ServedManager
from unit.manager.cli.conftest import Invoke, runner

from proctor.manager.cli.commands import nnictl
from proctor.manager.dispatcher.algorithms.registered import registered_algorithms
from proctor.manager.settings import Home

CONFIG = """\
searchSpace: {x: {_type: uniform, _value: [0, 1]}}
trialCommand: "true"
trialConcurrency: 1
tuner: {name: TPE, classArgs: {optimize_mode: maximize}}
trainingService: {platform: PLATFORM}
"""
META = "algoType: tuner\nbuiltinName: demo\nclassName: demo.Demo\n"
REMOTE = "remote, machineList: [{host: gpu-1, user: ada}]"
LOG = (
    '{"message": "another", "experiment_id": "other"}\nno JSON\n'
    '{"message": "one", "experiment_id": "aB3dE5f7"}\n{"message": "two", "experiment_id": "aB3dE5f7"}\n'
)

CARRIED_OUT = """\
--version
-v
create --config CONFIG
create -c CONFIG -p 8080
create -c CONFIG --port 8080 --debug
create -c CONFIG -d
create -c CONFIG --url_prefix nni
create -c CONFIG -u nni
create -c CONFIG --foreground
create -c CONFIG -f
resume sT0pPed1
resume sT0pPed1 -p 8080 -d
resume sT0pPed1 --port 8080 --debug
resume sT0pPed1 -f
resume sT0pPed1 --foreground
resume sT0pPed1 -e STOPPED
resume sT0pPed1 --experiment_dir STOPPED
view sT0pPed1
view sT0pPed1 -p 8080 -e STOPPED
view sT0pPed1 --port 8080 --experiment_dir STOPPED
stop
stop aB3dE5f7
stop aB3d*
stop -p PORT
stop --port PORT
stop -a
stop --all
update searchspace aB3dE5f7 -f SPACE
update searchspace --filename SPACE
update concurrency aB3dE5f7 -v 4
update concurrency --value 4
update duration aB3dE5f7 -v 10m
update duration --value 10m
update trialnum aB3dE5f7 -v 9
update trialnum --value 9
trial ls
trial ls aB3dE5f7 --head 1
trial ls --tail 1
trial kill -T tRiAl
trial kill aB3dE5f7 --trial_id tRiAl
experiment show
experiment show aB3dE5f7
experiment status
experiment status aB3dE5f7
experiment list
experiment list --all
experiment delete sT0pPed1
experiment delete --all
experiment import -f ROWS
experiment import aB3dE5f7 --filename ROWS
experiment export -t json -f OUT
experiment export aB3dE5f7 --type csv --filename OUT --intermediate
experiment export -t csv -f OUT -i
experiment save
experiment save aB3dE5f7 -p DIR
experiment save --path DIR --saveCodeDir
experiment save -s -p DIR
experiment load -p ZIP -c CODE
experiment load --path ZIP --codeDir CODE --logDir DIR --searchSpacePath SPACE
experiment load -p ZIP -c CODE -l DIR -s SPACE
platform clean -c REMOTE
platform clean --config REMOTE
webui url
webui url aB3dE5f7
config show
config show aB3dE5f7
log stdout
log stdout aB3dE5f7 -T 1
log stdout --tail 1
log stdout aB3dE5f7 --head 1
log stdout -H 1
log stdout --path
log stderr
log stderr aB3dE5f7 -T 1
log stderr --tail 1
log stderr --head 1
log stderr -H 1
log stderr aB3dE5f7 --path
log trial -T tRiAl
log trial aB3dE5f7 --trial_id tRiAl
algo register -m META
algo register --meta_path META
algo reg --meta_path META
algo unregister mine
algo unreg mine
algo show TPE
algo list
top -t 3
top --time 3
"""

GROUPS = ("update", "trial", "experiment", "platform", "webui", "config", "log", "algo", "trainingservice")

ANSWERED = {
    "hello": "examples/nni-unchanged",
    "ss_gen -t python3_mnist.py -d . -f space.json": "write searchSpace in the YAML file",
    "ss_gen --trial_command x --trial_dir . --file space.json": "write searchSpace in the YAML file",
    "package": "proctor algo",
    "package install --source .": "proctor algo",
    "trainingservice register --package theirs": "install it with pip",
    "trainingservice unregister --package theirs": "install it with pip",
    "trainingservice list": "install it with pip",
    "jupyter-extension install": "proctor.Experiment works in a notebook",
    "jupyter-extension uninstall": "proctor.Experiment works in a notebook",
    "resume sT0pPed1 -e DIR": "create it again, and import what",
    "resume n0wHere1 -e DIR": "create it again, and import what",
    "view sT0pPed1 --experiment_dir DIR": "create it again, and import what",
    "stop all": "`proctor stop --all` stops all experiments",
    "stop -p 1": "stop one by its id",
    "stop aB3dE5f7 --port 1": "stop one by its id",
    "experiment load -p NNI_ZIP -c CODE": "import what `nnictl experiment export` wrote",
    "algo register -m ADVISOR": "Hyperband and BOHB are built in, as tuners",
    "tensorboard stop": "Ctrl-C ends it there",
}


CHANGING = ("create", "resume", "view", "stop", "update", "trial kill", "algo reg", "algo unreg")
CHANGING += ("experiment delete", "experiment import", "experiment load")
"""How the lines begin that leave something behind: each of them is typed to a manager of its own."""
RUNNING_TRIAL = "SELECT id FROM trials WHERE status = 'RUNNING'"


def lay_out(served: ServedManager, folder: Path) -> dict[str, str]:
    """Experiments and files; what the upper-case words of the argument lists stand for."""
    code = folder / "code"
    code.mkdir(parents=True)
    (code / "trial.py").write_text("")
    config = {"trialCodeDirectory": str(code), "searchSpace": {"x": {"_type": "uniform", "_value": [0, 1]}}}
    for name in ("sT0pPed1", "saved"):
        served.add_experiment(name, config=config)
    served.create("aB3dE5f7", **config)
    trial = served.until(lambda: served.read(lambda c: c.execute(RUNNING_TRIAL).fetchone()))[0]
    Home(served.home).dispatcher_log("aB3dE5f7").write_bytes(b"first\nsecond\n")
    (served.home / "log").mkdir(exist_ok=True)
    (served.home / "log" / "manager.log").write_text(LOG)
    files = {
        "CONFIG": ("config.yml", CONFIG.replace("PLATFORM", "local")),
        "REMOTE": ("remote.yml", CONFIG.replace("PLATFORM", REMOTE)),
        "SPACE": ("space.json", '{"x": {"_type": "uniform", "_value": [0, 2]}}'),
        "ROWS": ("rows.json", '[{"parameter": {"x": 1}, "value": 0.5}]'),
        "META": ("meta.yml", META),
        "ADVISOR": ("advisor.yml", META.replace("tuner", "advisor").replace("demo\n", "BOHB\n")),
    }
    found = {word: str(folder / name) for word, (name, _) in files.items()}
    for name, text in files.values():
        (folder / name).write_text(text)
    (folder / "demo.py").write_text("from nni.tuner import Tuner\nclass Demo(Tuner): ...\n")
    (folder / "mine.yml").write_text(META.replace("builtinName: demo", "builtinName: mine"))
    with pytest.MonkeyPatch.context() as patch:
        runner(served.home, patch)("experiment", "save", "saved", "-s", "-p", str(folder / "saved.zip"), code=0)
    served.call(served.manager.delete_experiment("saved"))
    with zipfile.ZipFile(folder / "nni.zip", "w") as archive:
        archive.writestr("experiment/nni.sqlite", "")
    places = {"NNI_ZIP": "nni.zip", "ZIP": "saved.zip", "OUT": "out", "DIR": ".", "CODE": "elsewhere"}
    found |= {word: str(folder / name) for word, name in places.items()}
    stopped = served.experiment("sT0pPed1").directory
    return {**found, "STOPPED": stopped, "PORT": served.url.rpartition(":")[2], "tRiAl": trial}


def typist(run: Invoke, words: dict[str, str]) -> Invoke:
    """Runs a line as it is typed, after `proctor`."""
    return lambda line, **ends: run(*(words.get(word, word) for word in line.split()), input="y\ny\n", **ends)


@pytest.fixture
def words(served: ServedManager, tmp_path: Path) -> dict[str, str]:
    return lay_out(served, tmp_path)


@pytest.fixture
def typed(invoke: Invoke, words: dict[str, str]) -> Invoke:
    """Types a line to a manager of this test's own."""
    return typist(invoke, words)


@pytest.fixture(scope="module")
def common_words(read_only: ServedManager, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return lay_out(read_only, tmp_path_factory.mktemp("common"))


@pytest.fixture
def asked(read: Invoke, common_words: dict[str, str]) -> Invoke:
    """Types a line that changes nothing to the manager that is `read_only`."""
    return typist(read, common_words)


@pytest.mark.slow
@pytest.mark.parametrize("line", CARRIED_OUT.splitlines())
def test_what_nnictl_takes_is_carried_out(
    request: pytest.FixtureRequest, line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    typed = request.getfixturevalue("typed" if line.startswith(CHANGING) else "asked")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("proctor.manager.cli.watching.watch_to_the_end", lambda session, experiment: 0)
    if "mine" in line:
        typed("algo register -m mine.yml", code=0)
    assert "Usage:" not in typed(line, code=0).stderr


@pytest.mark.parametrize("line", ANSWERED)
def test_what_has_no_meaning_here_is_answered_with_what_to_do(
    read_only: ServedManager, asked: Invoke, line: str
) -> None:
    before = read_only.requests("POST")
    result = asked(line)
    assert result.exit_code in (2, 3), result.stdout
    assert ANSWERED[line] in result.stderr
    assert "No such option" not in result.stderr
    assert len(result.stderr.splitlines()) == 1
    assert read_only.requests("POST") == before


@pytest.mark.parametrize("verb", ["hello", "ss_gen", "package", "trainingservice", "jupyter-extension"])
def test_a_verb_that_is_answered_is_not_listed_but_has_help(invoke, verb: str) -> None:
    assert f"\n  {verb} " not in invoke("--help").stdout
    assert invoke(verb, "--help").exit_code == 0


def test_debug_reaches_the_configuration(served: ServedManager, typed, words: dict[str, str]) -> None:
    Path(words["CONFIG"]).write_text(CONFIG.replace("PLATFORM", "local") + "debug: false\n")
    typed("create -c CONFIG -d")
    [(_, body)] = served.requests("POST")
    assert [(key, value) for key, value in body["config"].items() if key.lower() == "debug"] == [("debug", True)]


@pytest.mark.slow
@pytest.mark.parametrize("line", ["create -c CONFIG", "resume sT0pPed1", "view sT0pPed1"])
def test_a_port_or_prefix_that_comes_too_late_is_named_once(
    served: ServedManager, typed, words: dict[str, str], line: str
) -> None:
    where = f"has no effect: the manager, which serves all experiments, runs at {served.url}"
    assert typed(f"{line} -p 8081").stderr.count(f"--port 8081 {where}\n") == 1
    served.call(served.manager.stop_experiment("sT0pPed1"))
    served.until(lambda: served.experiment("sT0pPed1").status == "STOPPED")
    assert "has no effect" not in typed(f"{line} -p PORT").stderr
    assert f"--url-prefix {where}\n" in typed("create -c CONFIG -u x").stderr


def test_options_without_effect_say_so_once(typed) -> None:
    assert typed("resume sT0pPed1 -d").stderr.startswith("--debug has no effect: an experiment keeps the logLevel")
    lines = typed("experiment load -p ZIP -c CODE -l DIR -s SPACE").stderr.splitlines()
    assert lines[0] == "--logDir has no effect: a loaded experiment gets its folder in this home"
    assert lines[1] == "--searchSpacePath has no effect: the search space is part of what was saved"


@pytest.mark.parametrize(
    ("line", "printed"),
    [
        ("log stdout", LOG),
        ("log stdout aB3dE5f7", "".join(LOG.splitlines(keepends=True)[2:])),
        ("log stdout aB3dE5f7 -T 1", '{"message": "two", "experiment_id": "aB3dE5f7"}\n'),
        ("log stdout aB3dE5f7 -H 1", '{"message": "one", "experiment_id": "aB3dE5f7"}\n'),
        ("log stderr -H 2", "".join(LOG.splitlines(keepends=True)[:2])),
        ("log stderr aB3dE5f7 -T 1", "second\n"),
        ("log stderr aB3dE5f7 -H 1", "first\n"),
    ],
)
def test_the_logs_are_those_of_the_manager_and_of_the_tuner(asked: Invoke, line: str, printed: str) -> None:
    assert asked(line).stdout == printed


def test_path_prints_where_a_log_is(read_only: ServedManager, asked: Invoke) -> None:
    for line in ("log stdout --path", "log stderr --path"):
        assert asked(line).stdout == f"{read_only.home / 'log' / 'manager.log'}\n"
    folder = read_only.experiment("aB3dE5f7").directory
    assert asked("log stderr aB3dE5f7 --path").stdout == f"{folder}/log/dispatcher.log\n"


@pytest.mark.parametrize(("verb", "status"), [("resume", "RUNNING"), ("view", "VIEWED")])
@pytest.mark.parametrize("named", [True, False])
def test_an_experiment_that_is_being_stopped_is_waited_for(
    served: ServedManager, invoke, verb: str, status: str, named: bool
) -> None:
    served.create()
    served.until(lambda: served.read(lambda c: c.execute(RUNNING_TRIAL).fetchone()))
    end, look = served.hold_stops(), ("GET", "/experiments/e")
    served.call(served.manager.stop_experiment("e"))
    served.on_ask[look] = lambda: served.on_ask.update({look: end})  # not at the first look
    result = invoke(verb, *(["e"] if named else []), code=0)
    served.until(lambda: served.experiment().status == status)
    assert "Experiment e is still being stopped (waits for 1 trial on node memory); waiting" in result.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("source", "sentence"),
    [
        ("import nothing_here", "demo cannot be imported: ModuleNotFoundError: No module named 'nothing_here'"),
        ("Demo = 3", "demo.py has no class Demo"),
        ("class Demo: ...", "demo.Demo must be derived from nni.tuner.Tuner or proctor.sdk.tuner.Tuner"),
        (
            "from nni.assessor import Assessor\nclass Demo(Assessor): ...",
            "demo.Demo is derived from Assessor: set algoType to assessor",
        ),
        ("from nni.runtime.msg_dispatcher_base import MsgDispatcherBase", "not offered either: write a Tuner"),
        ("import sys; sys.exit(3)", "SystemExit: 3"),
    ],
)
def test_a_class_is_checked_before_it_is_registered(
    typed, home: Path, tmp_path: Path, source: str, sentence: str
) -> None:
    (tmp_path / "demo.py").write_text(source)
    assert sentence in typed("algo register -m META", code=2).stderr
    assert registered_algorithms(home) == {}


def test_tensorboard_is_started_on_the_folder_of_the_trials(
    served: ServedManager, typed, words: dict[str, str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    program = tmp_path / "bin" / "tensorboard"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\necho "$@" > {tmp_path}/given\nexit 7\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(program.parent), prepend=":")
    given, folder = tmp_path / "given", served.experiment("aB3dE5f7").directory
    assert typed("tensorboard aB3dE5f7").exit_code == 7
    assert given.read_text() == f"--logdir {folder}\n"
    assert typed("tensorboard start --port 7007").exit_code == 7  # nnictl's, before 3.0
    assert given.read_text() == f"--logdir {folder} --port 7007\n"
    trial = Path(folder) / "trials" / f"0-{words['tRiAl']}"
    assert f"{trial} is not on this machine" in typed("tensorboard start aB3dE5f7 --trial_id tRiAl").stderr
    trial.mkdir(parents=True)
    assert typed("tensorboard start aB3dE5f7 --trial_id tRiAl").exit_code == 7
    assert given.read_text() == f"--logdir {trial}\n"


def test_tensorboard_that_is_not_installed_says_how_to_install_it(
    served: ServedManager, typed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nnictl.shutil, "which", lambda program: None)
    result = typed("tensorboard", code=1)
    assert "`pip install tensorboard`" in result.stderr
    assert f"--logdir {served.experiment('aB3dE5f7').directory}" in result.stderr


def test_the_documentation_has_every_verb_and_option(request: pytest.FixtureRequest) -> None:
    text = (request.config.rootpath / "docs" / "coming-from-nni.md").read_text()
    in_line = re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)
    quoted = set(re.findall(r"[\w-]+", " ".join(re.findall(r"`([^`]+)`", in_line))))
    for line in [*CARRIED_OUT.splitlines(), *ANSWERED]:
        options = [word for word in line.split() if word.startswith("-") and not line.startswith("package")]
        verb = line.split()[: 2 if line.split()[0] in GROUPS else 1]
        assert {*options, *verb} <= quoted, line
        assert " ".join(verb) in text


def test_how_a_script_finds_nni_is_among_the_first_lines(request: pytest.FixtureRequest) -> None:
    command = "export PYTHONPATH=$(python3 -c 'import proctor.sdk.compat as c; print(c.__path__[0])'):$PYTHONPATH"
    assert command in (request.config.rootpath / "docs" / "coming-from-nni.md").read_text().splitlines()[:20]
    assert command in (request.config.rootpath / "README.md").read_text()
    program = "import proctor.sdk.compat as c; print(c.__path__[0])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert (Path(done.stdout.strip()) / "nni" / "experiment" / "__init__.py").is_file()

"""Scripts that `import nni` find ours, wherever they run, and say so when they want more than we have."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import proctor.sdk.compat


def test_a_trial_written_for_nni_runs_unchanged(job: Any) -> None:
    done = job.run("""
import argparse, json
import nni
from nni.utils import merge_parameter

parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float, default=1.0)
parser.add_argument("--näme", default="y")
arguments = merge_parameter(parser.parse_args(), nni.get_next_parameter())
for step in range(3):
    nni.report_intermediate_result(arguments.lr * step)
nni.report_final_result({"default": arguments.lr, "steps": 3})
print(json.dumps([vars(arguments), nni.get_experiment_id(), nni.get_trial_id(), nni.get_sequence_id(),
                  nni.get_current_parameter("lr"), nni.get_next_parameters(), nni.__version__]))
""")
    parameters = {"lr": 0.1, "näme": "x"}
    assert json.loads(done.stdout) == [parameters, "Ab3dE5f7", "tRiAl", 7, 0.1, parameters, "3.0"]
    assert job.values() == [0.0, 0.1, 0.2]
    assert job.values("final") == [{"default": 0.1, "steps": 3}]
    assert done.stderr == ""


def test_a_real_nni_installed_in_the_trials_environment_does_no_harm(job: Any, tmp_path: Path) -> None:
    """A virtual environment whose `nni` and `proctor` would stop every trial."""
    environment = tmp_path / "venv"
    subprocess.run([job.interpreter, "-m", "venv", "--without-pip", str(environment)], check=True)
    (site,) = environment.glob("lib/python3*/site-packages")
    for name in ("nni", "proctor"):
        (site / name).mkdir()
        (site / name / "__init__.py").write_text(f"raise RuntimeError('the installed {name} was imported')")
    job.interpreter = str(environment / "bin" / "python")
    job.run("import nni, nni.utils, proctor; nni.report_final_result(1)")
    assert job.values("final") == [1]


@pytest.mark.parametrize(
    ("code", "kind", "sentence"),
    [
        ("import nni.nas.nn.pytorch", "ImportError", "nni.nas is not offered"),
        ("from nni import nas", "ImportError", "nni.nas is not offered"),
        ("from nni.compression.pruning import L1NormPruner", "ImportError", "nni.compression is not offered"),
        ("import nni.retiarii", "ImportError", "nni.retiarii is not offered"),
        ("nni.choice('a', 'b')", "RuntimeError", "write the search space into searchSpaceFile"),
        ("nni.uniform(0, 1)", "RuntimeError", 'nni.get_next_parameter()["key"]'),
        ("nni.nonsense", "AttributeError", "module 'nni' has no attribute 'nonsense'"),
        ("from nni.experiment import AmlConfig", "ImportError", "Azure ML is not offered"),
        ("from nni.experiment.config import DlcConfig", "ImportError", "Alibaba DLC is not offered"),
        ("nni.Experiment", "ImportError", "needs the whole proctor package"),
        (
            "import nni.runtime.msg_dispatcher_base",
            "ImportError",
            "not offered either: write a Tuner",
        ),
        ("from nni.experiment import Experiment", "ImportError", "needs the whole proctor package"),
        ("import proctor; proctor.Experiment", "ImportError", "needs the whole package"),
        ('nni.load(\'{"__nni_type__": "bytes:gASVBQA="}\')', "UnsafeDocumentError", "could run code"),
        ("nni.dump(object())", "TypeError", "nni.dump writes JSON only"),
    ],
)
def test_what_is_not_offered_is_refused_with_a_sentence(job: Any, code: str, kind: str, sentence: str) -> None:
    done = job.run(f"import nni\n{code}", expect=1)
    last = done.stderr.strip().splitlines()[-1]
    assert kind in last
    assert sentence in last


def test_absent_modules_of_others_are_still_simply_absent(job: Any) -> None:
    job.run("""
import importlib.util, nni
assert importlib.util.find_spec("nnictl_nowhere") is None
try:
    import nothing_of_that_name
except ModuleNotFoundError as error:
    assert error.name == "nothing_of_that_name"
assert not hasattr(nni, "nonsense")
""")


def test_documents_are_json_both_ways(job: Any) -> None:
    job.run(r"""
import io, nni
file = io.StringIO()
text = nni.dump({"a": [1, float("inf")]}, file, indent=1)
assert file.getvalue() == text
assert nni.load(text) == nni.load(fp=io.StringIO(text)) == {"a": [1, float("inf")]}
assert nni.load('# the space\n{\n  // a comment\n "url": "http://x"}') == {"url": "http://x"}
""")


def test_trace_changes_nothing_and_says_so_once(job: Any) -> None:
    done = job.run("""
import nni

@nni.trace
class First:
    pass

@nni.trace(kw_only=False)
def second(x):
    return x

assert isinstance(First(), First) and second(3) == 3
""")
    assert done.stderr.count("nni.trace") == 1


def test_a_custom_tuner_finds_its_base_classes_and_errors(job: Any) -> None:
    job.run("""
import nni
from nni.tuner import Tuner
from nni.assessor import Assessor, AssessResult
from nni.utils import OptimizeMode, extract_scalar_history, extract_scalar_reward
from nni import ClassArgsValidator, NoMoreTrialError

class Mine(Tuner):
    def update_search_space(self, search_space):
        pass
    def generate_parameters(self, parameter_id, **kwargs):
        raise NoMoreTrialError("done")
    def receive_trial_result(self, parameter_id, parameters, value, **kwargs):
        pass

class Theirs(Assessor):
    def assess_trial(self, trial_job_id, trial_history):
        return AssessResult.Good

Mine(), Theirs()
assert OptimizeMode("maximize") is OptimizeMode.Maximize
assert extract_scalar_history([1, {"default": 2}]) == [1, 2]
assert extract_scalar_reward({"loss": 3}, "loss") == 3
ClassArgsValidator().validate_class_args(anything=1)
""")


def test_merge_parameter_fills_namespaces_and_dictionaries_and_checks_types(job: Any) -> None:
    done = job.run("""
import argparse, nni, nni.utils
merge = nni.utils.merge_parameter
space = argparse.Namespace(lr=0.5, layers=2, name="a", extra=None)
assert merge(space, {"lr": 1, "layers": 3, "extra": [1]}) is space
assert vars(space) == {"lr": 1.0, "layers": 3, "name": "a", "extra": [1]} and type(space.lr) is float
defaults = {"lr": 0.5}
assert merge(defaults, {"lr": 0.25}) is defaults == {"lr": 0.25}
assert merge(defaults, None) is defaults
for proposed in ({"unknown": 1}, {"layers": 2.5}, {"name": 3}):
    for base in (space, vars(space)):
        try:
            merge(base, proposed)
        except Exception as error:
            print(type(error).__name__, error)
class Slots:
    __slots__ = ("lr",)
slots = Slots()
slots.lr = 0.5
assert merge(slots, {"lr": 2}).lr == 2.0
assert merge({"flag": 1}, {"flag": True}) == {"flag": True}  # as in NNI: a subclass of the default's type
""")
    lines = done.stdout.splitlines()
    assert lines[::2] == lines[1::2]  # namespaces and dictionaries alike
    unknown, fraction, number = lines[::2]
    assert unknown.startswith("ValueError the tuner proposes 'unknown', not one of the trial's parameters")
    assert fraction.startswith(
        "ValueError the parameter 'layers' is of type int by default (3); the tuner proposes 2.5"
    )
    assert number.startswith(
        "ValueError the parameter 'name' is of type str by default ('a'); the tuner proposes 3, of type int"
    )


def test_a_script_with_the_whole_package_gets_the_control_side_from_nni_experiment(tmp_path: Path) -> None:
    code = """
import nni.experiment, nni.experiment.config, proctor
from nni.experiment import Experiment, ExperimentConfig, RunMode
from nni.experiment import TrialHyperParameters, TrialJob, TrialMetricData, TrialResult
from nni.experiment.config import AlgorithmConfig, LocalConfig, RemoteConfig, RemoteMachineConfig
assert Experiment is proctor.Experiment is nni.Experiment
assert nni.experiment.config.ExperimentConfig is ExperimentConfig
"""
    source, shim = Path(proctor.__path__[0]).parent, proctor.sdk.compat.__path__[0]
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": f"{shim}{os.pathsep}{source}", "HOME": str(tmp_path)}
    subprocess.run([sys.executable, "-c", code], env=environment, check=True, timeout=60)

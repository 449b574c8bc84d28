"""Files with NNI's advisors and its PBT tuner, with the keys that NNI's examples have, pass `config check`."""

from pathlib import Path

import pytest

from proctor.manager.config.loading import load_experiment

SPACE = """{
    "batch_size": {"_type": "choice", "_value": [16, 32, 64]},
    "hidden": {"_type": "randint", "_value": [8, 100]},
    "learning_rate": {"_type": "loguniform", "_value": [0.0001, 0.1]}
}"""
VERSION1 = """\
authorName: default
experimentName: mnist
trialConcurrency: 2
maxExecDuration: 100h
maxTrialNum: 10000
trainingServicePlatform: local
searchSpacePath: space.json
useAnnotation: false
{algorithm}
trial:
  command: python3 mnist.py
  codeDir: .
  gpuNum: 0
"""
VERSION2 = """\
experimentName: mnist
searchSpaceFile: space.json
trialCommand: python3 mnist.py
trialCodeDirectory: .
trialConcurrency: 1
trialGpuNumber: 0
maxTrialNumber: 1000
debug: false
useAnnotation: false
{algorithm}
trainingService: {{platform: local, maxTrialNumberPerGpu: 1}}
"""
HYPERBAND = "{R: 100, eta: 3, optimize_mode: maximize}"
BOHB = "{eta: 3, max_budget: 27, min_budget: 1, optimize_mode: minimize}"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "space.json").write_text(SPACE)
    return tmp_path / "config.yml"


@pytest.mark.parametrize(
    ("text", "algorithm", "name", "direction"),
    [
        (VERSION1, f"advisor:\n  builtinAdvisorName: Hyperband\n  classArgs: {HYPERBAND}", "Hyperband", "maximize"),
        (VERSION1, f"advisor:\n  builtinAdvisorName: BOHB\n  classArgs: {BOHB}", "BOHB", "minimize"),
        (
            VERSION1,
            "tuner:\n  builtinTunerName: PBTTuner\n  classArgs: {optimize_mode: maximize}",
            "PBTTuner",
            "maximize",
        ),
        (VERSION2, f"advisor:\n  name: Hyperband\n  classArgs: {HYPERBAND}", "Hyperband", "maximize"),
        (VERSION2, f"advisor:\n  name: BOHB\n  classArgs: {BOHB}", "BOHB", "minimize"),
        (VERSION2, "advisor:\n  name: bohb", "bohb", "maximize"),
        (VERSION2, f"tuner:\n  name: Hyperband\n  classArgs: {HYPERBAND}", "Hyperband", "maximize"),
        (VERSION2, "tuner:\n  name: PBT\n  classArgs: {population_size: 5, factors: 0.1}", "PBT", "maximize"),
    ],
)
def test_a_file_with_the_keys_of_nnis_examples_is_valid(invoke, file, text, algorithm, name, direction) -> None:
    file.write_text(text.format(algorithm=algorithm))
    result = invoke("config", "check", str(file), code=0)
    config = load_experiment(file).config
    assert config.tuner is not None
    assert (config.tuner.name, config.objective.direction) == (name, direction)
    assert ("is an old name of tuner; read as tuner" in result.stderr) == ("advisor:" in algorithm)

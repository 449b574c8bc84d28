"""`config check` says which brackets the arguments of HyperBand make."""

from pathlib import Path

import pytest

CONFIG = """
searchSpace: {{x: {{_type: uniform, _value: [0, 1]}}}}
trialCommand: "true"
trialConcurrency: 2
objective: {{direction: maximize}}
tuner: {{name: TPE}}
trialScheduler: {{name: {name}, classArgs: {arguments}}}
trainingService: {{platform: local}}
"""


@pytest.mark.parametrize(
    ("name", "arguments", "line"),
    [
        (
            "HyperBand",
            "{max_t: 20}",
            "brackets of HyperBand (trials to step): 3 to 20; 5 to 7, 2 to 20; 9 to 3, 3 to 7, 1 to 20",
        ),
        (
            "BOHB",
            "{max_t: 9, time_attr: time_total_s}",
            "brackets of BOHB (trials to second): 9 to 1, 3 to 3, 1 to 9; 5 to 3, 2 to 9; 3 to 9",
        ),
        (
            "HyperBand",
            "{max_t: 20, ray_brackets: true}",
            "brackets of HyperBand (trials to step): 4 to 20; 6 to 6, 2 to 18; 12 to 2, 4 to 6, 2 to 18",
        ),
        ("ASHA", "{max_t: 20}", None),
    ],
)
def test_config_check_says_what_the_brackets_are(invoke, tmp_path: Path, name: str, arguments: str, line: str) -> None:
    file = tmp_path / "experiment.yml"
    file.write_text(CONFIG.format(name=name, arguments=arguments))
    result = invoke("config", "check", str(file))
    told = [each for each in (result.stdout + result.stderr).splitlines() if each.startswith("brackets")]
    assert told == ([] if line is None else [line])
    assert f"TPE, {name}, maximize" in result.stdout + result.stderr

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from proctor.manager.config.document import parse
from proctor.manager.config.errors import ConfigReport
from proctor.manager.config.keys import KEYS, Treatment
from proctor.manager.config.reference import render_json_schema
from proctor.manager.config.tree import plain

ROOT = Path(__file__).parents[4]
DOCUMENTATION = (ROOT / "docs" / "configuration.md").read_text()
PUBLISHED = ROOT / "docs" / "experiment.schema.json"
VALIDATOR = jsonschema.Draft202012Validator(json.loads(render_json_schema()))


def read(text: str) -> Any:
    root = parse(text, None, ConfigReport())
    assert root is not None
    return plain(root)


def accepts(value: Any) -> bool:
    return not list(VALIDATOR.iter_errors(value))


def experiments() -> list[Path]:
    files = (ROOT / "examples").rglob("*.y*ml")
    return [file for file in sorted(files) if "trialConcurrency" in file.read_text()]


def test_the_published_schema_is_the_rendered_one() -> None:
    assert PUBLISHED.read_text() == render_json_schema()


def test_the_schema_is_a_schema() -> None:
    jsonschema.Draft202012Validator.check_schema(json.loads(render_json_schema()))


def test_the_example_of_the_documentation_follows_the_schema() -> None:
    assert accepts(read(DOCUMENTATION.partition("```yaml\n")[2].partition("```")[0]))


def test_every_example_follows_the_schema() -> None:
    assert [str(file) for file in experiments() if not accepts(read(file.read_text()))] == []


@pytest.mark.parametrize("space", [{}, [1], {"f": {"_type": "factor", "_value": 3}}, "x"])
def test_only_a_tuner_of_the_users_has_a_search_space_of_its_own_kind(small: str, space: object) -> None:
    document = read(small) | {"searchSpace": space}
    assert not accepts(document)
    assert accepts(document | {"tuner": {"className": "tuners.Mine"}})


def test_every_top_key_that_is_not_refused_is_in_the_schema(small: str) -> None:
    properties = json.loads(render_json_schema())["properties"]
    accepted = {row.path for row in KEYS if row.effective is not Treatment.REFUSED and "." not in row.path}
    assert accepted - set(properties) == set()


@pytest.mark.parametrize(
    "line",
    [
        *("trialComand: x", "maxTrialNumber: 0", "maxTrialDuration: ten", "seed: abc", "assessor: Medianstop"),
        *("keepCheckpoints: 0", "keepCheckpoints: some", "keepCheckpoints: {newest: 0}", "checkpointQuotaMb: 0"),
        *("checkpointStorage: 3", "checkpointStorage: {environment: [A]}"),
    ],
)
def test_the_schema_refuses_what_the_reader_refuses(small: str, line: str) -> None:
    assert accepts(read(small))
    assert not accepts(read(f"{small}{line}\n"))


@pytest.mark.parametrize(
    "line",
    [
        *("maxTrialNumber: 5", "maxTrialDuration: 1.5h", "tunerGpuIndices: '0,1'", "nniManagerIp: 10.0.0.1"),
        *("seed: null", "keepCheckpoints: 3", "keepCheckpoints: all", "keepCheckpoints: {newest: all, best: 0}"),
        *("checkpointStorage: /mnt/shared", "checkpointStorage: {location: 's3://b/c', environment: KEY}"),
    ],
)
def test_the_schema_accepts_what_the_reader_accepts(small: str, line: str) -> None:
    assert accepts(read(f"{small}{line}\n"))


@pytest.mark.parametrize("platform", ["local", "remote", "kubernetes"])
def test_the_section_of_any_platform_may_have_keys_of_the_experiment(small: str, platform: str) -> None:
    document = read(small)
    service = {"platform": platform, "trialCommand": "python other.py", "trialGpuNumber": 2, "nniManagerIp": "10.0.0.1"}
    required = {"remote": {"machineList": [{"host": "gpu-1"}]}, "kubernetes": {"image": "digits"}}.get(platform, {})
    assert accepts({**document, "trainingService": {**service, **required}})

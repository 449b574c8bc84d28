"""Random requests against every operation of the REST API: none may fail inside, and every answer fits its schema.

The requests come from the committed OpenAPI document, valid ones and deliberately invalid ones, with a fixed seed.
Half of them name an experiment and a trial that exist.
"""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import schemathesis
from fakes.real_manager import RealManager, real_manager
from hypothesis import HealthCheck, Phase, assume, given, seed, settings
from hypothesis import strategies as st
from hypothesis.errors import Unsatisfiable
from schemathesis import GenerationMode
from schemathesis.checks import content_type_conformance, not_a_server_error
from schemathesis.specs.openapi.checks import response_schema_conformance, status_code_conformance

pytestmark = pytest.mark.slow

DOCUMENT = json.loads((Path(__file__).parents[2] / "docs/openapi.json").read_text())
SCHEMA = schemathesis.openapi.from_dict(DOCUMENT)
OPERATIONS = {
    operation.label: operation
    for operation in (result.ok() for result in SCHEMA.get_all_operations())
    # One ends the manager, the other never ends.
    if operation.path not in {"/api/v1/shutdown", "/api/v1/events"}
}
CHECKS = (not_a_server_error, content_type_conformance, response_schema_conformance, status_code_conformance)
REQUESTS = 15
"""Per operation and kind of request."""
ONE = {"x": {"_type": "choice", "_value": [0.5]}}
"""A space of one point: however the requests raise its limits, the experiment starts no thousands of trials."""
TRIAL = "import proctor; proctor.report_intermediate_result(1); proctor.report_final_result(2)"


@pytest.fixture(scope="module")
def manager(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[RealManager, dict[str, str]]]:
    """A real manager with an experiment that is DONE, and the ids to ask for."""
    with real_manager(tmp_path_factory.mktemp("fuzzed")) as made:
        experiment = made.create(TRIAL, maxTrialNumber=1, searchSpace=ONE, tuner={"name": "GridSearch"})
        made.until_status(experiment, "DONE")
        yield made, {"experiment_id": experiment, "trial_id": made.trials(experiment)[0]["id"], "node_id": "local"}


MODES = [
    pytest.param(GenerationMode.POSITIVE, id="valid"),
    pytest.param(GenerationMode.NEGATIVE, id="invalid", marks=pytest.mark.thorough),
]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("label", OPERATIONS)
def test_no_request_fails_inside(manager: tuple[RealManager, dict[str, str]], label: str, mode: GenerationMode) -> None:
    running, ids = manager
    operation = OPERATIONS[label]
    deletes = operation.method == "delete"

    @seed(1)
    @settings(
        max_examples=REQUESTS,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.generate],
    )
    @given(case=operation.as_strategy(generation_mode=mode), is_real=st.booleans())
    def ask(case: schemathesis.Case, is_real: bool) -> None:
        if is_real and not deletes:
            case.path_parameters.update({name: ids[name] for name in case.path_parameters if name in ids})
        assume("\x00" not in str(case.path_parameters))  # the HTTP client refuses to send it
        case.call_and_validate(
            base_url=running.client.url,
            headers={"Authorization": f"Bearer {running.client.token}"},
            checks=CHECKS,
            timeout=60,
        )

    try:
        ask()
    except Unsatisfiable:
        assert mode is GenerationMode.NEGATIVE, "there must be valid requests to every operation"

"""The committed documents are what the code says. `python -m proctor.manager.api.export_openapi` writes them anew."""

import json
from pathlib import Path

import pytest

from proctor.manager.api.export_openapi import DOCUMENTS, openapi_document

DOCS = Path(__file__).parents[4] / "docs"


@pytest.mark.parametrize("name", DOCUMENTS)
def test_the_committed_document_is_the_present_one(name: str) -> None:
    assert (DOCS / name).read_text(encoding="utf-8") == DOCUMENTS[name]()


def test_every_operation_says_what_it_is_and_has_a_name_of_its_own() -> None:
    document = json.loads(openapi_document())
    assert document["openapi"].startswith("3.1")
    operations = [operation for path in document["paths"].values() for operation in path.values()]
    assert all(operation["summary"] for operation in operations)
    names = [operation["operationId"] for operation in operations]
    assert len(set(names)) == len(names)


def test_every_resource_and_request_carries_an_example() -> None:
    schemas = json.loads(openapi_document())["components"]["schemas"]
    plain = [name for name in schemas if "properties" in schemas[name] and not name.startswith("Page_")]
    bare = [n for n in plain if not any("examples" in field for field in schemas[n]["properties"].values())]
    assert bare == []

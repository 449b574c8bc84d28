"""The committed documents are what the code says. `python -m proctor.manager.api.export_openapi` writes them anew."""

import json
from functools import cache

from fakes.documentation import ROOT

from proctor.manager.api.export_openapi import DOCUMENTS


@cache
def present(name: str) -> str:
    """A document as the code makes it now."""
    return DOCUMENTS[name]()


def test_every_committed_document_is_the_present_one() -> None:
    committed = {name: (ROOT / "docs" / name).read_text(encoding="utf-8") for name in DOCUMENTS}
    assert [name for name, text in committed.items() if text != present(name)] == []


def test_every_operation_says_what_it_is_and_has_a_name_of_its_own() -> None:
    document = json.loads(present("openapi.json"))
    assert document["openapi"].startswith("3.1")
    operations = [operation for path in document["paths"].values() for operation in path.values()]
    assert all(operation["summary"] for operation in operations)
    names = [operation["operationId"] for operation in operations]
    assert len(set(names)) == len(names)


def test_every_resource_and_request_carries_an_example() -> None:
    schemas = json.loads(present("openapi.json"))["components"]["schemas"]
    plain = [name for name in schemas if "properties" in schemas[name] and not name.startswith("Page_")]
    bare = [n for n in plain if not any("examples" in field for field in schemas[n]["properties"].values())]
    assert bare == []


def test_the_openapi_document_says_how_requests_are_authorized() -> None:
    document = json.loads(present("openapi.json"))
    assert document["components"]["securitySchemes"]["token"]["scheme"] == "bearer"
    assert document["security"] == [{"token": []}]
    assert document["paths"]["/api/v1/health"]["get"]["security"] == []
    assert "200" in document["paths"]["/api/v1/experiments"]["post"]["responses"]

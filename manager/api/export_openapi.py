"""`python -m proctor.manager.api.export_openapi [FOLDER]`: write the documents of the API and the keeper protocol."""

import json
import sys
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from proctor.manager.api import description
from proctor.trial_keeper import protocol

KEEPER_MESSAGES: tuple[type[Any], ...] = (
    protocol.Registration,
    protocol.RegistrationAnswer,
    protocol.CommandPoll,
    protocol.CommandBatch,
    *protocol.COMMAND_TYPES.values(),
    protocol.FileAnswer,
    protocol.ReportHeader,
    protocol.ReportAnswer,
)
"""What travels between keepers and the manager, as whole messages."""


def openapi_document() -> str:
    """The OpenAPI document of the REST API."""
    return _text(description.openapi_document())


def keeper_protocol_document() -> str:
    """The JSON Schemas of the keeper protocol."""
    inputs: list[Any] = [(kind, "validation", TypeAdapter(kind)) for kind in KEEPER_MESSAGES]
    schemas, definitions = TypeAdapter.json_schemas(inputs, title="Keeper protocol")
    messages = {kind.__name__: schemas[(kind, "validation")] for kind in KEEPER_MESSAGES}
    return _text({"version": protocol.PROTOCOL_VERSION, "messages": messages, **definitions})


DOCUMENTS = {"openapi.json": openapi_document, "keeper-protocol.json": keeper_protocol_document}


def _text(document: dict[str, Any]) -> str:
    return json.dumps(document, indent=1, ensure_ascii=False) + "\n"


def main(arguments: list[str]) -> None:
    """Write every document."""
    folder = Path(arguments[0] if arguments else "docs")
    for name, write in DOCUMENTS.items():
        (folder / name).write_text(write(), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])

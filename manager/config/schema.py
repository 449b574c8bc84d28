"""The JSON Schema of configuration files, for editors; published as docs/experiment.schema.json."""

import json
from typing import Any

from proctor.manager.config.experiment import ExperimentConfig
from proctor.manager.config.keys import ANY, KEYS, Treatment
from proctor.manager.config.service_section import INHERITED

DIALECT = "https://json-schema.org/draft/2020-12/schema"
_JSON_TYPES = {str: "string", bool: "boolean", int: "integer", dict: "object"}
_PARAMETER = {
    "type": "object",
    "required": ["_type", "_value"],
    "properties": {
        "_type": {
            "enum": [
                *("choice", "randint", "uniform", "quniform", "loguniform", "qloguniform"),
                *("normal", "qnormal", "lognormal", "qlognormal"),
            ]
        },
        "_value": {"type": "array", "minItems": 1},
    },
    "additionalProperties": False,
}


def render_json_schema() -> str:
    """The schema as text: keys in camelCase, everything NNI accepts and this project accepts with it."""
    schema = ExperimentConfig.model_json_schema(by_alias=True, mode="validation")
    root = schema["properties"]
    schema["$defs"]["Parameter"] = _PARAMETER
    # The reader takes the configuration's own directory where this is not given, reads the space from a file, and
    # decides a direction that is not given, so these are required of the model and not of the file.
    schema["required"] = [name for name in schema["required"] if name not in _NOT_IN_THE_FILE]
    del schema["$defs"]["ObjectiveConfig"]["required"]
    schema["allOf"] = [
        {"oneOf": [{"required": ["searchSpace"]}, {"required": ["searchSpaceFile"]}]},
        {"oneOf": [{"required": ["tuner"]}, {"required": ["advisor"]}]},
        {"anyOf": [{"required": ["trialCommand"]}, {"properties": {"trainingService": _HAS_COMMAND}}]},
        {"if": _HAS_OWN_TUNER, "else": {"properties": {"searchSpace": _SPACE_OF_BUILTINS}}},
    ]
    root["advisor"] = {"$ref": "#/$defs/TunerConfig", "deprecated": True, "description": "Old name of tuner."}
    _add_keys_without_effect(schema)
    _add_inherited(schema)
    return json.dumps(_ordered(schema), indent=2, ensure_ascii=False) + "\n"


_NOT_IN_THE_FILE = ("searchSpace", "trialCodeDirectory", "objective", "tuner", "trialCommand")
_HAS_COMMAND = {"required": ["trialCommand"]}
_HAS_OWN_TUNER = {"required": ["tuner"], "properties": {"tuner": {"required": ["className"]}}}
_SPACE_OF_BUILTINS = {"type": "object", "minProperties": 1, "additionalProperties": {"$ref": "#/$defs/Parameter"}}


def _add_keys_without_effect(schema: dict[str, Any]) -> None:
    for row in KEYS:
        if row.treatment is not Treatment.NOTICE or row.path == "advisor":
            continue
        entry: dict[str, Any] = {"deprecated": True, "description": _sentence(row.sentence)}
        entry |= {"type": _JSON_TYPES[type(row.example)]} if row.value is ANY else {"const": row.value}
        section, _, name = row.path.rpartition(".")
        for properties in _properties(schema, section):
            properties[name] = entry


def _add_inherited(schema: dict[str, Any]) -> None:
    for name in INHERITED:
        own = schema["properties"][name]
        for properties in _properties(schema, "trainingService"):
            properties[name] = {**own, "description": f"Wins over {name} of the experiment."}


def _properties(schema: dict[str, Any], section: str) -> list[dict[str, Any]]:
    if not section:
        return [schema["properties"]]
    return [schema["$defs"][name]["properties"] for name in ("LocalConfig", "RemoteConfig")]


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:] + "."


def _ordered(schema: dict[str, Any]) -> dict[str, Any]:
    head = {
        "$schema": DIALECT,
        "title": "Proctor experiment",
        "description": "The keys are shown in camelCase; case and underscores make no difference when read.",
    }
    return head | {key: _without_titles(value) for key, value in schema.items() if key not in head}


def _without_titles(value: Any) -> Any:
    """pydantic's titles say the key again, in another spelling; `properties` may hold a key of that name."""
    if isinstance(value, list):
        return [_without_titles(item) for item in value]
    if not isinstance(value, dict):
        return value
    return {key: _without_titles(child) for key, child in value.items() if key != "title" or not isinstance(child, str)}

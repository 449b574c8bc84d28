"""The reference of configuration files: the tables in docs/configuration.md, and the JSON Schema for editors.

The schema is published as docs/experiment.schema.json.
"""

import json
from collections.abc import Iterable
from itertools import groupby
from typing import Any

from proctor.manager.config.experiment import ExperimentConfig
from proctor.manager.config.keys import ADDITIONS, ANY, EXPERIMENT, KEYS, OTHER_PLATFORMS, Key, Treatment
from proctor.manager.config.matching import section_models
from proctor.manager.config.operators import COUNTS, ROLE_KEYS, ROLE_NAMES, SECTION_KEYS, TASK_ROLES
from proctor.manager.config.platforms import PLATFORMS
from proctor.manager.config.sections import INHERITED
from proctor.manager.config.services import KubernetesConfig, LocalConfig, RemoteConfig, Section
from proctor.manager.config.version1 import MULTI_PHASE, OLD_CLASS_FILE, OLD_KEYS, OLD_MACHINE_KEYS
from proctor.manager.field_docs import field_description

_SERVICES: dict[str | None, type[Section]] = {
    "local": LocalConfig,
    "remote": RemoteConfig,
    "kubernetes": KubernetesConfig,
}
_TREATMENT_NAMES = {
    Treatment.HONORED: "honored",
    Treatment.NOTICE: "accepted with a notice",
    Treatment.REFUSED: "refused",
}

REQUIRED = "**required**"
_DEFAULTS = {
    # The reader fills these in, or accepts one of two.
    "searchSpace": f"{REQUIRED}, or `searchSpaceFile`",
    "searchSpaceFile": f"{REQUIRED}, or `searchSpace`",
    "trialCodeDirectory": "the file's folder",
    "objective": "see [Objective](#objective)",
    "objective.direction": "see [Objective](#objective)",
    "keepCheckpoints": "`{newest: 2, best: 1}`",
    "tuner.name": f"{REQUIRED}, or `className`",
    "tuner.className": f"{REQUIRED}, or `name`",
    "assessor.name": f"{REQUIRED}, or `className`",
    "assessor.className": f"{REQUIRED}, or `name`",
    "tuner.codeDirectory": "the file's folder",
    "assessor.codeDirectory": "the file's folder",
    "trialScheduler.name": f"{REQUIRED}, or `className`",
    "trialScheduler.className": f"{REQUIRED}, or `name`",
    "trialScheduler.codeDirectory": "the file's folder",
}
"""What the documentation says of keys whose default is not their field's."""

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
_NOT_IN_THE_FILE = ("searchSpace", "trialCodeDirectory", "objective", "tuner", "trialCommand")
_HAS_COMMAND = {"required": ["trialCommand"]}
_HAS_OWN_TUNER = {"required": ["tuner"], "properties": {"tuner": {"required": ["className"]}}}
_SPACE_OF_BUILTINS = {"type": "object", "minProperties": 1, "additionalProperties": {"$ref": "#/$defs/Parameter"}}


def render_key_tables() -> str:
    """Every v2 key in Markdown tables: those that do something by section, the others of NNI's files after them; then
    the platforms and the v1 keys."""
    honored = [row for row in KEYS if row.effective is Treatment.HONORED]
    others = [row for row in KEYS if row.effective is not Treatment.HONORED and row.section != OTHER_PLATFORMS]
    parts = []
    for section in dict.fromkeys(row.section if row.section != ADDITIONS else EXPERIMENT for row in honored):
        rows = [row for row in honored if row.section == section or (section, row.section) == (EXPERIMENT, ADDITIONS)]
        rows.sort(key=lambda row: not default_words(row).startswith(REQUIRED))
        parts += [f"### {section}", "", *_key_table(rows), ""]
    parts += ["### Other keys of NNI's files", "", *_other_table(others), ""]
    parts += ["### trainingService, platforms kubeflow and frameworkcontroller", "", *_operator_table(), ""]
    parts += [f"### {OTHER_PLATFORMS}", "", *_key_list([row for row in KEYS if row.section == OTHER_PLATFORMS]), ""]
    parts += ["### Platforms", "", *_platform_table(), ""]
    parts += ["### Keys of NNI's first format (v1)", "", *_old_table()]
    return "\n".join(parts) + "\n"


def _key_table(rows: list[Key]) -> Iterable[str]:
    yield "| key | default | example | meaning |"
    yield "|---|---|---|---|"
    for row in rows:
        yield f"| `{row.path}` | {default_words(row)} | `{_example(row)}` | {_cell(key_description(row))} |"


def _other_table(rows: list[Key]) -> Iterable[str]:
    """The keys that have no effect, or are refused."""
    yield "| key | example | treatment | what happens |"
    yield "|---|---|---|---|"
    for row in rows:
        sentence = row.effective_sentence or key_description(row)
        if row.effective is Treatment.REFUSED and row.treatment is Treatment.HONORED:
            sentence = f"{key_description(row)} ({row.effective_sentence})"
        yield f"| `{row.path}` | `{_example(row)}` | {_TREATMENT_NAMES[row.effective]} | {_cell(sentence)} |"


def _example(row: Key) -> str:
    return row.example if isinstance(row.example, str) else json.dumps(row.example)


def default_words(row: Key) -> str:
    """What holds where a key is not given, or that it is required."""
    if row.path in _DEFAULTS:
        return _DEFAULTS[row.path]
    found = _field_of(row)
    if found is None:
        return "that of the experiment"
    model, name = found
    field = model.model_fields[name]
    if field.is_required():
        return REQUIRED
    value = field.get_default(call_default_factory=True)
    if value in (None, {}):
        return "not set"
    return (
        f"`{value:g}` s" if isinstance(value, float) else f"`{value if isinstance(value, str) else json.dumps(value)}`"
    )


def _key_list(rows: list[Key]) -> Iterable[str]:
    """Keys that share their platform's fate, one row a platform."""
    yield "| platform | treatment | keys |"
    yield "|---|---|---|"
    for platform, keys in groupby(rows, key=lambda row: row.platform):
        names = ", ".join(f"`{row.path.removeprefix('trainingService.')}`" for row in keys)
        yield f"| `{platform}` | refused | {names} |"


def _operator_table() -> Iterable[str]:
    """What the keys of a role mean, and of its section."""
    yield "| key | becomes |"
    yield "|---|---|"
    roles = f"`{'`, `'.join(ROLE_NAMES)}`, `{TASK_ROLES}[]`"
    yield f"| {roles} | the trial: exactly one of them, with one pod |"
    yield f"| `{COUNTS[0]}`, `{COUNTS[1]}` of a role | 1; more are refused |"
    for key in ROLE_KEYS:
        old = f" (v1: `{key.old_name}`)" if key.old_name else ""
        yield f"| `{key.name}`{old} of a role | {_cell(key.outcome)} |"
    for key in SECTION_KEYS:
        yield f"| `{key.name}` | {_cell(key.outcome)} |"
    yield "| any key of platform kubernetes | the same |"


def _platform_table() -> Iterable[str]:
    yield "| platform | availability | what to do |"
    yield "|---|---|---|"
    for platform in PLATFORMS.values():
        names = ", ".join(f"`{name}`" for name in (platform.name, *platform.aliases))
        yield f"| {names} | {platform.availability} | {_cell(platform.advice)} |"


def _old_table() -> Iterable[str]:
    yield "| old key | new key |"
    yield "|---|---|"
    for old in OLD_KEYS:
        meaning = f"`{old.new}`" if old.new else "dropped"
        yield f"| `{old.path}` | {meaning if old.path != MULTI_PHASE else 'dropped; true is refused'} |"
    for kind in ("tuner", "assessor", "advisor"):
        yield f"| `{kind}.{OLD_CLASS_FILE}` | part of `{kind}.className` (`module.ClassName`) |"
    for name, new in OLD_MACHINE_KEYS.items():
        yield f"| `machineList[].{name}` | `trainingService.machineList[].{new}` |"


def key_description(row: Key) -> str:
    """What the model says of an honored key; empty for keys without a field."""
    found = _field_of(row)
    if found is not None:
        return field_description(*found)
    name = row.path.rpartition(".")[2]
    known = any(field.alias == name for field in ExperimentConfig.model_fields.values())
    return f"As `{name}` of the experiment; takes precedence over it." if known else ""


def _field_of(row: Key) -> tuple[type[Section], str] | None:
    """The model and the name of the field that a key fills; None for keys without one."""
    models: list[type[Section]] = [ExperimentConfig]
    found: tuple[type[Section], str] | None = None
    for part in row.path.replace("[]", "").split("."):
        named = ((model, name) for model in models for name, field in model.model_fields.items() if field.alias == part)
        found = next(named, None)
        if found is None:
            return None
        model, name = found
        models = section_models(model.model_fields[name].annotation)
        if part == "trainingService":
            models = [_SERVICES[row.platform]] if row.platform in _SERVICES else models
    return found


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


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
    root["keepCheckpoints"]["anyOf"] = [
        {"$ref": root["keepCheckpoints"].pop("$ref")},
        {"type": "integer", "minimum": 1},
        {"const": "all"},
    ]
    root["checkpointStorage"]["anyOf"].append({"type": "string", "minLength": 1})
    root["advisor"] = {"$ref": "#/$defs/TunerConfig", "deprecated": True, "description": "Old name of tuner."}
    _add_keys_without_effect(schema)
    _add_inherited(schema)
    return json.dumps(_ordered(schema), indent=2, ensure_ascii=False) + "\n"


def _add_keys_without_effect(schema: dict[str, Any]) -> None:
    for row in KEYS:
        if row.treatment is not Treatment.NOTICE or row.path == "advisor":
            continue
        entry: dict[str, Any] = {"deprecated": True, "description": f"{row.sentence[:1].upper()}{row.sentence[1:]}."}
        entry |= {"type": _JSON_TYPES[type(row.example)]} if row.value is ANY else {"const": row.value}
        section, _, name = row.path.rpartition(".")
        for properties in _properties(schema, section):
            properties[name] = entry


def _add_inherited(schema: dict[str, Any]) -> None:
    for name in INHERITED:
        own = schema["properties"][name]
        for properties in _properties(schema, "trainingService"):
            properties[name] = {**own, "description": f"Takes precedence over {name} of the experiment."}


def _properties(schema: dict[str, Any], section: str) -> list[dict[str, Any]]:
    if not section:
        return [schema["properties"]]
    return [schema["$defs"][name]["properties"] for name in ("LocalConfig", "RemoteConfig", "KubernetesConfig")]


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

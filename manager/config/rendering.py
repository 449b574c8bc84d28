"""Renders the table of keys for docs/configuration.md."""

import json
from collections.abc import Iterable
from itertools import groupby

from proctor.manager.config.experiment import ExperimentConfig
from proctor.manager.config.keys import KEYS, OTHER_PLATFORMS, Key, Treatment
from proctor.manager.config.matching import section_models
from proctor.manager.config.platforms import PLATFORMS
from proctor.manager.config.services import LocalConfig, RemoteConfig, Section
from proctor.manager.config.version1 import MULTI_PHASE, OLD_CLASS_FILE, OLD_KEYS, OLD_MACHINE_KEYS

_SERVICES: dict[str | None, type[Section]] = {"local": LocalConfig, "remote": RemoteConfig}
_WORDS = {
    Treatment.HONOURED: "honoured",
    Treatment.NOTICE: "accepted with a notice",
    Treatment.REFUSED: "refused",
}


def render_key_tables() -> str:
    """Every v2 key in one Markdown table a section, then the platforms and the v1 keys."""
    parts = []
    for section, rows in groupby(KEYS, key=lambda row: row.section):
        table = _key_list if section == OTHER_PLATFORMS else _key_table
        parts += [f"### {section}", "", *table(list(rows)), ""]
    parts += ["### Platforms", "", *_platform_table(), ""]
    parts += ["### Keys of NNI's first format (v1)", "", *_old_table()]
    return "\n".join(parts) + "\n"


def _key_table(rows: list[Key]) -> Iterable[str]:
    yield "| key | example | treatment | meaning |"
    yield "|---|---|---|---|"
    for row in rows:
        sentence = row.effective_sentence or field_description(row)
        if row.effective is Treatment.REFUSED and row.treatment is Treatment.HONOURED:
            sentence = f"{field_description(row)} ({row.effective_sentence})"
        yield f"| `{row.path}` | `{_shown(row.example)}` | {_WORDS[row.effective]} | {_cell(sentence)} |"


def _key_list(rows: list[Key]) -> Iterable[str]:
    """Keys that share their platform's fate, one row a platform."""
    yield "| platform | treatment | keys |"
    yield "|---|---|---|"
    for platform, keys in groupby(rows, key=lambda row: row.platform):
        names = ", ".join(f"`{row.path.removeprefix('trainingService.')}`" for row in keys)
        yield f"| `{platform}` | refused | {names} |"


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


def field_description(row: Key) -> str:
    """What the model says of an honoured key; empty for keys without a field."""
    models: list[type[Section]] = [ExperimentConfig]
    description = ""
    for part in row.path.replace("[]", "").split("."):
        found = [(f.annotation, f.description) for m in models for f in m.model_fields.values() if f.alias == part]
        if not found:
            return _inherited(row)
        description = found[0][1] or ""
        models = section_models(found[0][0])
        if part == "trainingService":
            models = [_SERVICES[row.platform]] if row.platform in _SERVICES else models
    return description


def _inherited(row: Key) -> str:
    name = row.path.rpartition(".")[2]
    known = any(field.alias == name for field in ExperimentConfig.model_fields.values())
    return f"As `{name}` of the experiment, and wins over it." if known else ""


def _shown(example: object) -> str:
    return json.dumps(example) if not isinstance(example, str) else example


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")

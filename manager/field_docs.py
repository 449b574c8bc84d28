"""Describe the fields of pydantic models by the docstrings below them, once a schema is asked for.

pydantic's own `use_attribute_docstrings` reads them while a class is made: it looks through the stack and all modules
that are loaded for the class's source. That was two fifths of the processor time of importing the API's routes, at
every start of a manager, for texts that only the OpenAPI document and the reference of the configuration show.
"""

import ast
import inspect
import sys
from functools import cache
from typing import Any, cast

from pydantic import BaseModel, GetJsonSchemaHandler
from pydantic.fields import FieldInfo
from pydantic_core import CoreSchema

_AFTER_DESCRIPTION = ("examples", "deprecated")
"""Keywords that pydantic puts behind a description."""


class DescribedFields:
    """A base of models whose JSON schema has the docstring of each field as its description."""

    @classmethod
    def __get_pydantic_json_schema__(cls, core_schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        schema = handler(core_schema)
        properties = handler.resolve_ref_schema(schema).get("properties", {})
        model = cast(type[BaseModel], cls)
        for name, field in model.model_fields.items():
            text = field_description(model, name)
            for key in {name, field.alias} & properties.keys():
                if text:
                    properties[key] = _with_description(properties[key], text)
        return schema


def field_description(model: type[BaseModel], name: str) -> str:
    """Return what the model says of a field; empty for a field without a text."""
    field: FieldInfo = model.model_fields[name]
    if field.description is not None:
        return field.description
    for base in model.__mro__:
        if name in vars(base).get("__annotations__", {}):
            return _docstrings(base.__module__).get(base.__qualname__, {}).get(name, "")
    return ""


def _with_description(schema: dict[str, Any], text: str) -> dict[str, Any]:
    if "description" in schema:  # the type's own
        return {**schema, "description": text}
    described = {key: value for key, value in schema.items() if key not in _AFTER_DESCRIPTION}
    described["description"] = text
    return described | {key: value for key, value in schema.items() if key in _AFTER_DESCRIPTION}


@cache
def _docstrings(module: str) -> dict[str, dict[str, str]]:
    """Return the docstrings of the annotated names of each class at the top of a module, by class and name."""
    tree = ast.parse(inspect.getsource(sys.modules[module]))
    return {node.name: _of_class(node) for node in tree.body if isinstance(node, ast.ClassDef)}


def _of_class(node: ast.ClassDef) -> dict[str, str]:
    found = {}
    for field, below in zip(node.body, node.body[1:], strict=False):
        if not (isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)):
            continue
        if isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant) and isinstance(below.value.value, str):
            found[field.target.id] = inspect.cleandoc(below.value.value)
    return found

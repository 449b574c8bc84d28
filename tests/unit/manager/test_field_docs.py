"""The docstring below a field is its description in the schema."""

from typing import Annotated, Any, Generic, TypeVar

from pydantic import BaseModel, ConfigDict, Field, WithJsonSchema

from proctor.manager.field_docs import DescribedFields, field_description

T = TypeVar("T")
Number = Annotated[float, WithJsonSchema({"type": "number", "description": "A number."})]


class Base(DescribedFields, BaseModel):
    inherited: int = 1
    """Of the base,
    on two lines."""
    replaced: int = 2
    """Of the base."""


class Model(Base, Generic[T]):
    replaced: int = 3
    """Of the model."""
    silent: int = 4
    explicit: int = Field(default=5, description="Given to the field.")
    renamed: int = Field(default=6, alias="otherName", examples=[7])
    """Under its alias."""
    typed: Number = 8.0
    """More than its type says."""
    item: T | None = None
    """Of any type."""


class OfPydantic(BaseModel):
    model_config = ConfigDict(use_attribute_docstrings=True)

    renamed: int = Field(default=6, alias="otherName", examples=[7])
    """Under its alias."""


def properties(model: type[BaseModel]) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = model.model_json_schema()["properties"]
    return found


def test_each_field_has_the_text_below_it_where_it_was_declared_last() -> None:
    described = {name: schema.get("description") for name, schema in properties(Model[int]).items()}
    assert described == {
        "inherited": "Of the base,\non two lines.",
        "replaced": "Of the model.",
        "silent": None,
        "explicit": "Given to the field.",
        "otherName": "Under its alias.",
        "typed": "More than its type says.",
        "item": "Of any type.",
    }


def test_a_description_stands_where_pydantic_puts_it() -> None:
    assert list(properties(Model[int])["otherName"]) == list(properties(OfPydantic)["otherName"])


def test_a_field_can_be_asked_for_its_text() -> None:
    assert field_description(Model, "renamed") == "Under its alias."
    assert field_description(Model, "silent") == ""

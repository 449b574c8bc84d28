"""How the REST API fails: RFC 9457 problem documents, always `application/problem+json`."""

from pydantic import BaseModel, ConfigDict, Field

MEDIA_TYPE = "application/problem+json"


class ProblemItem(BaseModel):
    """One of several things that are wrong with what was sent."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    key: str = Field(examples=["tuner.classArgs.optimize_mode"])
    """The key path as it was written; empty for the whole document."""
    message: str = Field(examples=["expected maximize or minimize, found 'max'"])
    """A sentence: what was expected, what was found, what to do."""
    file: str | None = None
    line: int | None = None
    """Counted from 1."""
    column: int | None = None
    """Counted from 1."""
    expected: str | None = None
    found: str | None = None
    nearest: str | None = None
    """The known key or name that looks most like the one found."""


class Problem(BaseModel):
    """An RFC 9457 problem document."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    type: str = Field(default="about:blank", examples=["about:blank"])
    title: str = Field(examples=["Not found"])
    """The kind of problem; the same for every problem of this kind."""
    status: int = Field(examples=[404])
    detail: str = Field(examples=["There is no experiment Ab3dE5f7; `proctor experiment list` shows all"])
    """What happened this time, and what to do."""
    instance: str | None = Field(default=None, examples=["/api/v1/experiments/Ab3dE5f7"])
    problems: list[ProblemItem] | None = None
    """Every single thing that is wrong with what was sent."""

"""The named tokens: made, listed and revoked, by a token with full access; `Guard` refuses others.

Those of the home, `owner` and `read-only`, are files of the home, and are not among them.
"""

from typing import Annotated, Literal

from fastapi import Path, Response
from pydantic import Field

from proctor.manager.actors import LONGEST_NAME
from proctor.manager.api import models
from proctor.manager.api.dependencies import Context, RequestSender
from proctor.manager.api.groups import Routes
from proctor.manager.api.json_types import Time, utc, utc_or_none
from proctor.manager.api.requests import RequestBody
from proctor.manager.named_tokens import NamedToken
from proctor.manager.security import Access

routes = Routes(prefix="/tokens", tags=["tokens"])

AccessLevel = Literal["full", "read-only"]
_ACCESS: dict[AccessLevel, Access] = {"full": Access.FULL, "read-only": Access.READ}


class Token(models.Resource):
    """A named token, without the token itself."""

    name: str = Field(examples=["alice"])
    access: AccessLevel
    created_at: Time
    created_by: str = Field(examples=["owner"])
    """The name of the token that has made it."""
    last_used_at: Time | None
    """To the hour; null: never."""


class NewToken(Token):
    """A named token that was just made."""

    token: str = Field(examples=["proctor-2f0Jx…"])
    """It is not stored and cannot be shown again."""


class AddToken(RequestBody):
    """A new token."""

    name: str = Field(min_length=1, max_length=LONGEST_NAME, examples=["alice"])
    """Letters, digits, dots, underscores and hyphens; unique, in upper or lower case. Events name who used it."""
    access: AccessLevel = "full"


TokenName = Annotated[str, Path(max_length=200, description="The token's name.")]


@routes.get("", summary="List the named tokens")
async def list_tokens(context: Context) -> models.Page[Token]:
    """By name. Needs full access, as all of this."""
    return models.Page(items=[token_resource(token) for token in context.named_tokens.all()])


@routes.post("", status_code=201, summary="Make a named token")
async def add_token(context: Context, sender: RequestSender, body: AddToken, response: Response) -> NewToken:
    """The answer holds the token: it cannot be read again."""
    token, made = await context.named_tokens.add(body.name, _ACCESS[body.access], created_by=sender.actor.name)
    response.headers["Cache-Control"] = "no-store"
    return NewToken(**token_resource(made).model_dump(), token=token)


@routes.delete("/{name}", status_code=204, summary="Revoke a named token")
async def revoke_token(context: Context, name: TokenName) -> None:
    """At once: its requests and the sign-ins of its browsers are refused, and its streams of changes end."""
    await context.named_tokens.revoke(name)


def token_resource(token: NamedToken) -> Token:
    """As the API shows it."""
    return Token(
        name=token.name,
        access="full" if token.access is Access.FULL else "read-only",
        created_at=utc(token.created_at),
        created_by=token.created_by,
        last_used_at=utc_or_none(token.last_used_at),
    )

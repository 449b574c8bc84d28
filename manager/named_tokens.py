"""Tokens that have a name, beside the two of the home: made, listed and revoked while the manager runs.

They are in a file of the home (0600), not in the database: a database that is restored from a backup, or replaced, must
not bring back a token that was revoked. The file holds hashes alone, one for the token and one for the value of its
cookie; neither can be computed from it. Tokens are random and long, so that a fast hash is enough.
"""

import asyncio
import hmac
import json
import logging
import secrets
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

from proctor.manager.actors import LONGEST_NAME, RESERVED_NAMES, is_token_name
from proctor.manager.errors import BadRequest, Conflict, NotFound, Unavailable
from proctor.manager.security import Access, cookie_of
from proctor.sdk.files import replace_file

log = logging.getLogger(__name__)

MOST_TOKENS = 100
PREFIX = "proctor-"
"""Each token begins with it: scanners of repositories find one that was published."""
COARSE_SECONDS = 3600.0
"""The last use of a token is known to the hour: the file is written once an hour at most."""
_VERSION = 1


@dataclass(frozen=True)
class NamedToken:
    """A token, without the token. Times are Unix times."""

    name: str
    access: Access
    token_hash: str
    cookie_hash: str
    created_at: float
    created_by: str
    last_used_at: float | None = None
    """To the hour."""
    revoked: asyncio.Event = field(default_factory=asyncio.Event, compare=False)
    """Set when it was revoked: what it holds open ends."""


class NamedTokens:
    """The named tokens of a home. One manager at a time has the file."""

    def __init__(self, path: Path, now: Callable[[], float]) -> None:
        """:param now: Unix time."""
        self._path = path
        self._now = now
        self._change = asyncio.Lock()
        """Held while a token is made or revoked, until that is on the disk."""
        self._tokens: dict[str, NamedToken] = {}  # by name in lower case

    @classmethod
    def read(cls, path: Path, now: Callable[[], float]) -> "NamedTokens":
        """Those in a file; none where there is no file. Raises OSError for one that cannot be read."""
        found = cls(path, now)
        try:
            text = path.read_bytes()
        except FileNotFoundError:
            return found
        try:
            content = json.loads(text)
            if content["version"] != _VERSION:
                raise ValueError(f"it is of version {content['version']}, expected {_VERSION}")
            for entry in content["tokens"]:
                token = _from_json(entry)
                found._tokens[token.name.lower()] = token
        except (ValueError, TypeError, KeyError) as error:
            raise OSError(
                f"{path} should hold the named tokens and cannot be read: {error!r}; delete it: all named tokens are "
                "revoked then"
            ) from error
        return found

    def all(self) -> list[NamedToken]:
        """All of them, by name."""
        return [self._tokens[key] for key in sorted(self._tokens)]

    async def add(self, name: str, access: Access, *, created_by: str) -> tuple[str, NamedToken]:
        """Make a token and return it: nothing can show it again. Raises BadRequest for a name that cannot be used,
        Conflict for one that is taken or where there are too many, Unavailable where the file cannot be written."""
        if not is_token_name(name):
            raise BadRequest(
                f"a token's name has 1 to {LONGEST_NAME} letters, digits, dots, underscores and hyphens, and begins "
                f"with a letter or a digit; found {name[:80]!r}"
            )
        if name.lower() in RESERVED_NAMES:
            raise BadRequest(f"the name {name!r} is used by Proctor itself; choose another one")
        async with self._change:
            if name.lower() in self._tokens:
                raise Conflict(
                    f"there is a token {self._tokens[name.lower()].name!r} already; revoke it, or choose another name"
                )
            if len(self._tokens) >= MOST_TOKENS:
                raise Conflict(f"there are {MOST_TOKENS} tokens, as many as there may be; revoke one first")
            token = PREFIX + secrets.token_urlsafe(32)
            made = NamedToken(name, access, _hash(token), _hash(cookie_of(token)), self._now(), created_by)
            await asyncio.to_thread(self._write, [*self._tokens.values(), made])
            self._tokens[name.lower()] = made
        return token, made

    async def revoke(self, name: str) -> None:
        """From now on nothing can be done with it, and what it holds open ends. Raises NotFound, Unavailable."""
        async with self._change:
            token = self._tokens.get(name.lower())
            if token is None:
                known = ", ".join(each.name for each in self.all()) or "none"
                raise NotFound(f"there is no token {name[:80]!r}; named tokens: {known}")
            others = [each for key, each in self._tokens.items() if key != name.lower()]
            await asyncio.to_thread(self._write, others)
            del self._tokens[name.lower()]
        token.revoked.set()

    def find(self, token: str) -> NamedToken | None:
        """Which one a token is, found out in constant time."""
        return self._find(_hash(token), lambda known: known.token_hash)

    def find_cookie(self, value: str) -> NamedToken | None:
        """Whose cookie has this value, found out in constant time."""
        return self._find(_hash(value), lambda known: known.cookie_hash)

    def _find(self, wanted: str, hash_of: Callable[[NamedToken], str]) -> NamedToken | None:
        found = [each for each in self._tokens.values() if hmac.compare_digest(wanted, hash_of(each))]
        return self._record_use(found[0]) if found else None

    def _record_use(self, token: NamedToken) -> NamedToken:
        hour = self._now() // COARSE_SECONDS * COARSE_SECONDS
        if token.last_used_at == hour:
            return token
        used = replace(token, last_used_at=hour)
        self._tokens[token.name.lower()] = used
        if self._change.locked():  # the file is being written without it; the next write has it
            return used
        try:
            self._write(self._tokens.values(), durable=False)
        except Unavailable as error:  # it is known until the manager ends
            log.warning("the use of token %s is not recorded: %s", token.name, error, extra={"action": "token.use"})
        return used

    def _write(self, tokens: Iterable[NamedToken], *, durable: bool = True) -> None:
        """Blocks on the disk where it is durable."""
        content = json.dumps({"version": _VERSION, "tokens": [_to_json(token) for token in tokens]}, indent=1).encode()
        try:
            replace_file(str(self._path), content, durable=durable)
        except OSError as error:
            raise Unavailable(f"cannot write {self._path}: {error.strerror or error}") from error


def _hash(text: str) -> str:
    return sha256(text.encode(errors="replace")).hexdigest()


def _to_json(token: NamedToken) -> dict[str, Any]:
    return {
        "name": token.name,
        "access": token.access.in_words,
        "token_sha256": token.token_hash,
        "cookie_sha256": token.cookie_hash,
        "created_at": token.created_at,
        "created_by": token.created_by,
        "last_used_at": token.last_used_at,
    }


def _from_json(entry: dict[str, Any]) -> NamedToken:
    access = {each.in_words: each for each in (Access.READ, Access.FULL)}[entry["access"]]
    texts = [entry[key] for key in ("name", "token_sha256", "cookie_sha256", "created_by")]
    if not all(isinstance(text, str) and text.isascii() for text in texts) or not is_token_name(entry["name"]):
        raise ValueError(f"{str(entry)[:200]} is no token")
    name, token_hash, cookie_hash, created_by = texts
    last_used = entry["last_used_at"]
    return NamedToken(
        name,
        access,
        token_hash,
        cookie_hash,
        float(entry["created_at"]),
        created_by,
        None if last_used is None else float(last_used),
    )

"""Who does what: stored with every event, and named in reasons. The store, the engine and the API share it."""

import re
from dataclasses import dataclass
from enum import StrEnum


class Way(StrEnum):
    """How a request came, as far as its sender says so."""

    PAGE = "page"  # a browser with the cookie of the page
    CLI = "cli"  # the command line
    SDK = "sdk"  # Python
    REST = "rest"  # anything else


@dataclass(frozen=True)
class Actor:
    """Who caused a change: the name of a token, or a part of the manager.

    `via`: how the request came; None for a part of the manager.
    """

    name: str
    via: Way | None = None

    def to_text(self) -> str:
        """As the store keeps it."""
        return self.name if self.via is None else f"{self.name}@{self.via}"

    @classmethod
    def from_text(cls, text: str) -> "Actor":
        """What `to_text` gave."""
        name, _, via = text.partition("@")
        return cls(name, Way(via) if via in set(Way) else None)

    def to_json(self) -> dict[str, str | None]:
        """As REST and the stream of changes have it."""
        return {"name": self.name, "via": self.via}

    @property
    def in_words(self) -> str:
        """As a reason names it: "alice (page)". The home's own token is "the user", as there is no other one then."""
        if self.via is None:
            return f"the {self.name}"
        return "the user" if self.name == OWNER else f"{self.name} ({self.via})"


OWNER = "owner"
"""The name of the token of the home that may do everything."""
READ_ONLY = "read-only"
"""The name of the token of the home that may only look."""
MANAGER = Actor("manager")
TUNER = Actor("tuner")
ASSESSOR = Actor("assessor")
TRIAL_SCHEDULER = Actor("scheduler")
USER = Actor(OWNER, Way.REST)
"""Who asks where no one is named: the owner of the home."""

RESERVED_NAMES = frozenset(
    {OWNER, READ_ONLY, "full", "user", *(each.name for each in (MANAGER, TUNER, ASSESSOR, TRIAL_SCHEDULER))}
)
LONGEST_NAME = 40
_NAME = re.compile(rf"[A-Za-z0-9][A-Za-z0-9._-]{{0,{LONGEST_NAME - 1}}}")


def is_token_name(name: str) -> bool:
    """Whether a token may have this name: letters, digits, dot, underscore, hyphen; at most LONGEST_NAME."""
    return _NAME.fullmatch(name) is not None

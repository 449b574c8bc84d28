"""Tokens with names."""

import asyncio
import json
from pathlib import Path

import pytest

from proctor.manager.actors import LONGEST_NAME
from proctor.manager.errors import BadRequest, Conflict, NotFound, Unavailable
from proctor.manager.named_tokens import MOST_TOKENS, NamedTokens
from proctor.manager.security import Access, cookie_of

pytestmark = pytest.mark.anyio


class Hours:
    """A clock that stands until it is moved."""

    now = 7200.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Hours:
    return Hours()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "named-tokens.json"


@pytest.fixture
def tokens(file: Path, clock: Hours) -> NamedTokens:
    """As a manager that starts now has them."""
    return NamedTokens.read(file, clock)


async def add(tokens: NamedTokens, name: str, access: Access = Access.FULL) -> str:
    """Make a token."""
    return (await tokens.add(name, access, created_by="owner"))[0]


async def test_a_token_is_found_by_itself_and_by_its_cookie_after_a_restart_too(
    tokens: NamedTokens, file: Path, clock: Hours
) -> None:
    token, made = await tokens.add("alice", Access.READ, created_by="owner")
    again = NamedTokens.read(file, clock)
    for found in (again.find(token), again.find_cookie(cookie_of(token))):
        assert found is not None
        assert (found.name, found.access, found.created_by) == ("alice", Access.READ, "owner")
    for wrong in ("", token[:-1], "ä" * 40, "\ud800", cookie_of(token), made.token_hash, made.cookie_hash):
        assert again.find(wrong) is None
    for wrong in ("", token, made.token_hash, made.cookie_hash):
        assert again.find_cookie(wrong) is None


async def test_the_file_belongs_to_its_owner_alone_and_holds_nothing_that_opens_anything(
    tokens: NamedTokens, file: Path
) -> None:
    token = await add(tokens, "alice")
    assert file.stat().st_mode & 0o777 == 0o600
    text = file.read_text()
    content = json.loads(text)
    assert (content["version"], [entry["access"] for entry in content["tokens"]]) == (1, ["full"])
    assert token not in text
    assert token.removeprefix("proctor-") not in text
    assert cookie_of(token) not in text


async def test_what_is_revoked_is_gone_and_says_so_to_what_it_holds_open(
    tokens: NamedTokens, file: Path, clock: Hours
) -> None:
    token = await add(tokens, "Alice")
    other = await add(tokens, "bob")
    held = tokens.find(token)
    clock.now += 100_000
    tokens.find(token)  # recorded as used once more
    await tokens.revoke("alice")
    assert held is not None
    assert held.revoked.is_set()
    for known in (tokens, NamedTokens.read(file, clock)):
        assert known.find(token) is None
        assert known.find_cookie(cookie_of(token)) is None
        assert known.find(other) is not None
    with pytest.raises(NotFound, match="no token 'alice'; named tokens: bob"):
        await tokens.revoke("alice")


async def test_the_last_use_is_known_to_the_hour(tokens: NamedTokens, file: Path, clock: Hours) -> None:
    token, made = await tokens.add("alice", Access.FULL, created_by="owner")
    assert made.last_used_at is None
    clock.now = 2 * 3600 + 1800.0
    tokens.find(token)
    assert [each.last_used_at for each in tokens.all()] == [7200.0]
    written = file.stat().st_mtime_ns
    clock.now += 60
    tokens.find(token)
    assert file.stat().st_mtime_ns == written
    clock.now += 3600
    tokens.find(token)
    assert [each.last_used_at for each in NamedTokens.read(file, clock).all()] == [10800.0]


@pytest.mark.parametrize("name", ["", "-x", ".x", "a b", "a/b", "ä", "a\n", "x" * (LONGEST_NAME + 1), "<b>", "a@b"])
async def test_a_name_that_cannot_be_typed_is_refused(tokens: NamedTokens, file: Path, name: str) -> None:
    with pytest.raises(BadRequest, match="letters, digits"):
        await add(tokens, name)
    assert not file.exists()


@pytest.mark.parametrize("name", ["owner", "read-only", "Manager", "tuner", "assessor", "full"])
async def test_a_name_that_events_use_for_something_else_is_refused(tokens: NamedTokens, name: str) -> None:
    with pytest.raises(BadRequest, match="used by Proctor itself"):
        await add(tokens, name)


async def test_a_name_is_given_once_whatever_its_case_and_there_are_not_too_many(tokens: NamedTokens) -> None:
    await add(tokens, "alice")
    with pytest.raises(Conflict, match="a token 'alice' already"):
        await add(tokens, "Alice")
    for number in range(MOST_TOKENS - 1):
        await add(tokens, f"t{number}", Access.READ)
    with pytest.raises(Conflict, match=f"there are {MOST_TOKENS} tokens"):
        await add(tokens, "one-more", Access.READ)


async def test_requests_are_served_while_a_change_is_written_and_bring_nothing_back(
    tokens: NamedTokens, file: Path, clock: Hours
) -> None:
    token = await add(tokens, "alice")
    async with asyncio.TaskGroup() as group:
        revoking = group.create_task(tokens.revoke("alice"), name="revoke")
        adding = [group.create_task(add(tokens, name)) for name in ("bob", "carol")]
        while tokens.find(token) is not None:
            clock.now += 3600
            await asyncio.sleep(0)
    assert revoking.done()
    again = NamedTokens.read(file, clock)
    assert [each.name for each in again.all()] == ["bob", "carol"]
    assert all(again.find(each.result()) is not None for each in adding)


async def test_one_of_two_requests_for_a_name_gets_it(tokens: NamedTokens, file: Path, clock: Hours) -> None:
    asked = (add(tokens, name) for name in ("alice", "Alice"))
    _, second = await asyncio.gather(*asked, return_exceptions=True)
    assert isinstance(second, Conflict)
    assert [each.name for each in NamedTokens.read(file, clock).all()] == ["alice"]


async def test_a_token_that_cannot_be_written_down_is_not_made(tmp_path: Path, clock: Hours) -> None:
    tokens = NamedTokens.read(tmp_path / "absent" / "file", clock)
    with pytest.raises(Unavailable, match="cannot write"):
        await add(tokens, "alice")
    assert tokens.all() == []


@pytest.mark.parametrize(
    "text",
    ["{", "[]", '{"version": 2, "tokens": []}', '{"version": 1, "tokens": [{"name": "alice"}]}', '{"version": 1}'],
)
def test_a_damaged_file_is_named_and_not_overwritten(file: Path, clock: Hours, text: str) -> None:
    file.write_text(text)
    with pytest.raises(OSError, match="should hold the named tokens"):
        NamedTokens.read(file, clock)
    assert file.read_text() == text

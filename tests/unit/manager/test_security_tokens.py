"""The tokens of a home."""

from pathlib import Path

import pytest

from proctor.manager.security import Access, Tokens
from proctor.manager.settings import Home, SettingsError, WebSettings


def test_tokens_are_made_once_and_belong_to_their_owner_alone(tmp_path: Path) -> None:
    home = Home(tmp_path)
    first = Tokens.of(home)
    assert Tokens.of(home) == first
    assert first.full != first.readonly
    for file in (home.token_file, home.readonly_token_file):
        assert file.stat().st_mode & 0o777 == 0o600
    assert sorted(path.name for path in tmp_path.iterdir()) == ["readonly.token", "token"]


def test_a_token_that_others_may_read_is_closed_again(home: Home) -> None:
    Tokens.of(home)
    home.token_file.chmod(0o644)
    Tokens.of(home)
    assert home.token_file.stat().st_mode & 0o777 == 0o600


def test_an_empty_token_opens_nothing(home: Home) -> None:
    home.token_file.write_text("\n")
    with pytest.raises(OSError, match="at least 16 characters"):
        Tokens.of(home)


def test_a_token_of_no_bytes_is_made_anew(home: Home) -> None:
    home.token_file.touch()
    assert len(Tokens.of(home).full) > 16
    assert Tokens.of(home) == Tokens.of(home)


def test_each_token_allows_what_it_should() -> None:
    tokens = Tokens("a" * 20, "b" * 20)
    assert tokens.access("a" * 20) is Access.FULL
    assert tokens.access("b" * 20) is Access.READ
    for wrong in (None, "", "a" * 19, "ä" * 20):
        assert tokens.access(wrong) is Access.NONE


def test_each_cookie_allows_what_its_token_does_and_neither_is_the_other() -> None:
    tokens = Tokens("a" * 20, "b" * 20)
    full, readonly = tokens.cookie(Access.FULL), tokens.cookie(Access.READ)
    assert tokens.cookie_access(full) is Access.FULL
    assert tokens.cookie_access(readonly) is Access.READ
    assert tokens.access(full) is tokens.access(readonly) is Access.NONE
    for wrong in (None, "", tokens.full, tokens.readonly, full[:-1], "ä" * 20):
        assert tokens.cookie_access(wrong) is Access.NONE
    assert Tokens("c" * 20, "b" * 20).cookie_access(full) is Access.NONE


def test_tokens_of_files_replace_those_of_the_home_for_good(home: Home, tmp_path: Path) -> None:
    file = tmp_path / "token"
    before = Tokens.of(home)
    file.write_text("from-a-mounted-secret\n")
    Tokens.replace(home, WebSettings(token_file=str(file)))
    assert Tokens.of(home) == Tokens("from-a-mounted-secret", before.readonly)
    assert home.token_file.stat().st_mode & 0o777 == 0o600
    Tokens.replace(home, WebSettings())
    assert Tokens.of(home).full == "from-a-mounted-secret"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (None, "expected a file with a token, found .*: No such file"),
        ("too short\n", "should hold a token of at least 16"),
        ("two words of a passphrase", "should hold a token of at least 16"),
        ("", "should hold a token of at least 16"),
        ("ähnlich-wie-ein-token", "should hold a token of at least 16"),
    ],
)
def test_a_file_without_a_token_is_named_and_nothing_is_replaced(
    home: Home, tmp_path: Path, text: str | None, problem: str
) -> None:
    file = tmp_path / "secret"
    before = Tokens.of(home)
    if text is not None:
        file.write_text(text)
    with pytest.raises(SettingsError, match=f"PROCTOR_READONLY_TOKEN_FILE: .*{problem}"):
        Tokens.replace(home, WebSettings(readonly_token_file=str(file)))
    assert Tokens.of(home) == before


def test_a_read_only_token_that_may_do_everything_is_refused(home: Home, tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("a-token-for-everything")
    with pytest.raises(SettingsError, match="expected two tokens, found the same"):
        Tokens.replace(home, WebSettings(token_file=str(file), readonly_token_file=str(file)))

"""A manager with its home, and a way to run commands against it."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from fakes.served_manager import ServedManager

from proctor.manager.cli.main import cli

Invoke = Callable[..., Result]


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


@pytest.fixture
def served(home: Path) -> Iterator[ServedManager]:
    with ServedManager(home) as manager:
        yield manager


@pytest.fixture(scope="module")
def read_only(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedManager]:
    """For tests that change nothing, or only experiments of their own."""
    with ServedManager(tmp_path_factory.mktemp("read_only") / "home") as manager:
        yield manager


@pytest.fixture
def invoke(home: Path, monkeypatch: pytest.MonkeyPatch) -> Invoke:
    """Runs `proctor --home HOME …`, which has to end with `code` if that is given; the result has exit_code, stdout and
    stderr."""
    return runner(home, monkeypatch)


@pytest.fixture
def read(read_only: ServedManager, monkeypatch: pytest.MonkeyPatch) -> Invoke:
    """The same with the manager that is `read_only`."""
    return runner(read_only.home, monkeypatch)


def runner(home: Path, monkeypatch: pytest.MonkeyPatch) -> Invoke:
    for name in ("PROCTOR_URL", "PROCTOR_TOKEN", "PROCTOR_HOME"):
        monkeypatch.delenv(name, raising=False)

    def run(*arguments: str, input: str | None = None, code: int | None = None) -> Result:
        result = CliRunner().invoke(cli, ["--home", str(home), *arguments], input=input)
        assert code in (None, result.exit_code), (result.exit_code, result.output)
        return result

    return run

"""Which of the chaos tests run: those marked `chaos` take long, and only `--chaos` (make chaos) runs them."""

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--chaos`."""
    parser.addoption("--chaos", action="store_true", help="also run the long chaos tests (see docs/nothing-is-lost.md)")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Without the option the long ones are left out, and said so."""
    if config.getoption("--chaos", default=False):
        return
    long = pytest.mark.skip(reason="long: run by make chaos")
    for item in items:
        if item.get_closest_marker("chaos") is not None:
            item.add_marker(long)

"""What the tests of platform remote share."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from fakes.machines.group import namespace_group
from fakes.machines.requirements import missing_for_namespaces
from fakes.machines.scene import Scene, remote_scene

Stage = Callable[..., Scene]


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    """`stage(3, …)`: so many machines on a network of their own, made with the options of `namespace_group`, and a
    manager in the same network. Afterwards none of it runs."""
    if missing := missing_for_namespaces():
        pytest.skip(missing)
    with ExitStack() as stack:

        def make(number: int, **options: Any) -> Scene:
            group = stack.enter_context(namespace_group(tmp_path / "machines", number, **options))
            return stack.enter_context(remote_scene(group, tmp_path / "manager"))

        yield make

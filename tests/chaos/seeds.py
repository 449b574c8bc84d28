"""Plans of the tests that `make chaos` runs as well, for longer and with other seeds."""

from collections.abc import Iterable
from typing import Any

import pytest


def in_chaos(plans: Iterable[Any]) -> list[Any]:
    """The same plans, as parameters that only `make chaos` tries."""
    found = [plan if isinstance(plan, tuple) else (plan,) for plan in plans]
    return [pytest.param(*values, marks=pytest.mark.chaos) for values in found]

"""Those who look on are all let go, whatever one of them does."""

import pytest

from proctor.sdk.pytorch.callbacks.base import Callback, Callbacks


def test_every_log_is_closed_in_their_order_though_one_fails() -> None:
    closed = []

    class Closing(Callback):
        """Writes down that it was closed; the second one fails."""

        def __init__(self, number: int) -> None:
            self.number = number

        def close(self) -> None:
            closed.append(self.number)
            if self.number == 2:
                raise OSError("no")

    with pytest.raises(OSError, match="no"):
        Callbacks(logs=[Closing(1), Closing(2), Closing(3)]).close()
    assert closed == [1, 2, 3]

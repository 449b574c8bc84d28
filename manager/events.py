"""The doorbell of the change stream: the changes themselves lie in the store's `events` table, read by id."""

import asyncio
from contextlib import suppress


class ChangeFeed:
    """Wakes whoever waits for new rows in `events`. It carries no data, so a slow reader costs nothing."""

    def __init__(self) -> None:
        self._bell = asyncio.Event()

    def notify(self) -> None:
        """A transaction that wrote events was committed."""
        self._bell.set()
        self._bell = asyncio.Event()

    async def wait(self, timeout_seconds: float) -> None:
        """Return after the next `notify`, or when the time is over. Read the store after it, not before it only."""
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_seconds):
                await self._bell.wait()

    def bell(self) -> asyncio.Event:
        """The event of the next change: take it, read the store, then wait on it: nothing slips through."""
        return self._bell

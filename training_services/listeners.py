"""The listeners of one training service, and how what they answer becomes one answer."""

from collections.abc import Callable, Mapping, Sequence

from proctor.training_services.base import JournalChunk, MetricListener, StatusChange, StatusListener


class Listeners:
    """Who is told of metrics and of status changes. `on_added` is called after one was added."""

    def __init__(self, on_added: Callable[[], None] = lambda: None) -> None:
        self._metric: list[MetricListener] = []
        self._status: list[StatusListener] = []
        self._on_added = on_added

    @property
    def hear_metrics(self) -> bool:
        """Whether anybody listens to metrics."""
        return bool(self._metric)

    @property
    def hear_status(self) -> bool:
        """Whether anybody listens to status changes."""
        return bool(self._status)

    def add_metric(self, listener: MetricListener) -> None:
        """Tell `listener` of metrics from now on; adding it twice is adding it once."""
        if listener not in self._metric:
            self._metric.append(listener)
            self._on_added()

    def remove_metric(self, listener: MetricListener) -> None:
        """Tell it no more."""
        if listener in self._metric:
            self._metric.remove(listener)

    def add_status(self, listener: StatusListener) -> None:
        """Tell `listener` of status changes from now on; adding it twice is adding it once."""
        if listener not in self._status:
            self._status.append(listener)
            self._on_added()

    def remove_status(self, listener: StatusListener) -> None:
        """Tell it no more."""
        if listener in self._status:
            self._status.remove(listener)

    async def store(self, chunks: Sequence[JournalChunk]) -> Mapping[tuple[str, int], int]:
        """Hand chunks to every listener; what is stored is what all of them have stored.

        Raises whatever a listener raises: the chunks are to be delivered again.
        """
        if len(self._metric) == 1:
            return await self._metric[0](chunks)
        answers = [await listener(chunks) for listener in tuple(self._metric)]
        if not answers:
            return {}
        common = set(answers[0]).intersection(*answers[1:])
        return {key: min(answer[key] for answer in answers) for key in common}

    async def tell(self, changes: Sequence[StatusChange]) -> None:
        """Hand changes to every listener. Raises whatever a listener raises: they are to be delivered again."""
        for listener in tuple(self._status):
            await listener(changes)

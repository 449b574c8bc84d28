"""The stream of changes: parsing, coming back, closing."""

import pytest
from fakes.served_manager import TOKEN, ServedManager
from hypothesis import given
from hypothesis import strategies as st

from proctor.sdk.client import Client
from proctor.sdk.client.errors import ManagerUnreachable, Unauthorized
from proctor.sdk.client.events import EventStream, ServerSentEvent, Watch, parse_messages
from proctor.sdk.client.transport import Transport


def test_messages_are_read_as_the_standard_says() -> None:
    lines = [": hello", "", "id: 7", "event: trial.status", "data: {", "data:1}", "", "retry: 5", "", "data: cut short"]
    assert list(parse_messages(lines)) == [ServerSentEvent("7", "trial.status", "{\n1}")]


@given(st.lists(st.text(alphabet="abc: ", min_size=1), min_size=1))
def test_data_comes_back_as_it_was_sent(texts: list[str]) -> None:
    lines = [line for text in texts for line in (f"data: {text}", "")]
    assert [message.data for message in parse_messages(lines)] == texts


def test_changes_after_a_position_come_in_order(served: ServedManager, client: Client) -> None:
    for kind in ("one", "two", "three"):
        served.emit(kind)
    stream = iter(client.events(after=served.last_event() - 2))
    assert [next(stream)["kind"], next(stream)["kind"]] == ["two", "three"]


def test_a_broken_stream_goes_on_where_it_broke_off(served: ServedManager) -> None:
    after = served.last_event()
    with Transport(served.url, TOKEN) as transport:
        stream = iter(EventStream(transport, after=after, reconnect_seconds=(0.0,)))
        for number in range(4):
            served.emit(f"a{number}")
            served.emit(f"b{number}")
            assert [next(stream)["kind"] for _ in "ab"] == [f"a{number}", f"b{number}"]
            served.cut_off()
    assert len(served.requests("GET")) == 4


def test_a_manager_that_stays_away_is_told() -> None:
    with Transport("http://127.0.0.1:1", "x") as transport:
        stream = EventStream(transport, patience_seconds=0.0, reconnect_seconds=(0.0,))
        with pytest.raises(ManagerUnreachable, match="could not be reopened"):
            next(iter(stream))


def test_a_refusal_is_not_tried_again(served: ServedManager) -> None:
    with Transport(served.url, "wrong") as transport, pytest.raises(Unauthorized):
        next(iter(EventStream(transport)))
    assert len(served.requests("GET")) == 1


def test_a_watch_returns_when_it_stands_and_then_with_changes(served: ServedManager, client: Client) -> None:
    with Watch(client.events(), least_interval_seconds=0.0) as watch:
        assert watch.wait(10.0) == []
        served.emit("trial.status", trial_id="t")
        [event] = watch.wait(10.0)
        assert event["trial_id"] == "t"


def test_a_watch_ends_its_thread_while_it_waits(served: ServedManager, client: Client) -> None:
    with Watch(client.events()) as watch:
        watch.wait(10.0)
    assert not watch._thread.is_alive()


def test_a_watch_raises_what_has_ended_its_stream(served: ServedManager) -> None:
    with Client(served.url, "wrong") as stranger, Watch(stranger.events()) as watch:
        with pytest.raises(Unauthorized):
            watch.wait(10.0)

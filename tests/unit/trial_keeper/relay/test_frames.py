"""Frames come out as they went in, however the wire cuts them, and nothing else is taken for one."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proctor.trial_keeper.errors import RelayBroken
from proctor.trial_keeper.relay.frames import LONGEST_PAYLOAD, Frame, FrameDecoder, Kind, encode, encode_credit

CHANNELS = st.integers(0, 2**32 - 1)
FRAMES = st.one_of(
    st.builds(lambda channel, data: Frame(channel, Kind.DATA, data), CHANNELS, st.binary(min_size=1, max_size=300)),
    st.builds(lambda channel, kind: Frame(channel, kind), CHANNELS, st.sampled_from([Kind.OPEN, Kind.END, Kind.RESET])),
    st.builds(
        lambda channel, number: Frame(channel, Kind.CREDIT, number.to_bytes(4, "big")),
        CHANNELS,
        st.integers(0, 2**32 - 1),
    ),
)


@given(st.lists(FRAMES, max_size=20), st.data())
def test_frames_come_out_as_they_went_in_however_they_are_cut(frames: list[Frame], data: st.DataObject) -> None:
    wire = b"".join(encode(frame.channel, frame.kind, frame.payload) for frame in frames)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(wire)), max_size=20)))
    decoder = FrameDecoder()
    found = []
    for start, end in zip([0, *cuts], [*cuts, len(wire)], strict=True):
        found += decoder.feed(wire[start:end])
    assert found == frames


def test_a_credit_frame_holds_its_number() -> None:
    (frame,) = FrameDecoder().feed(encode_credit(7, 70_000))
    assert (frame.channel, frame.kind, frame.credit) == (7, Kind.CREDIT, 70_000)


@pytest.mark.parametrize(
    "wire",
    [
        b"Last login: Mon Nov 24",
        encode(1, Kind.DATA),
        encode(1, Kind.DATA, b"x" * (LONGEST_PAYLOAD + 1)),
        encode(1, Kind.OPEN, b"x"),
        encode(1, Kind.CREDIT, b"x"),
        b"\0\0\0\1\x63\0\0\0\0",
    ],
)
def test_what_is_no_frame_ends_the_relay(wire: bytes) -> None:
    with pytest.raises(RelayBroken, match="no frame"):
        FrameDecoder().feed(wire)


def test_a_long_frame_is_refused_by_its_head_before_its_bytes_are_kept() -> None:
    with pytest.raises(RelayBroken):
        FrameDecoder().feed(encode(1, Kind.DATA, b"x" * (LONGEST_PAYLOAD + 1))[:9])

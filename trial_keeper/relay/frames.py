"""The frames of a relay: many connections over one pair of pipes. Pure; both ends use it.

A frame is a head, `!IBI`: channel, kind, length; then so many bytes.

    OPEN    nothing          the node's end has accepted a connection; only it opens channels
    DATA    the bytes        never more than the other end has granted
    CREDIT  a number, `!I`   so many more bytes are granted; a channel begins with WINDOW_BYTES each way
    END     nothing          no more data this way (a half-closed connection)
    RESET   nothing          the connection is gone; what was not delivered is lost

A frame of a channel that is not there any more is left unread: the other end has not received its RESET yet.
"""

import struct
from dataclasses import dataclass
from enum import IntEnum

from proctor.trial_keeper.errors import RelayBroken

WINDOW_BYTES = 256 * 1024
LONGEST_PAYLOAD = 32 * 1024

_HEAD = struct.Struct("!IBI")
_NUMBER = struct.Struct("!I")


class Kind(IntEnum):
    """What a frame says."""

    OPEN = 1
    DATA = 2
    CREDIT = 3
    END = 4
    RESET = 5


@dataclass(frozen=True)
class Frame:
    """One frame as it was read."""

    channel: int
    kind: Kind
    payload: bytes = b""

    @property
    def credit(self) -> int:
        """The number in a CREDIT frame."""
        return int(_NUMBER.unpack(self.payload)[0])


def encode(channel: int, kind: Kind, payload: bytes = b"") -> bytes:
    """A frame's bytes."""
    return _HEAD.pack(channel, kind, len(payload)) + payload


def encode_credit(channel: int, number: int) -> bytes:
    """A CREDIT frame's bytes."""
    return encode(channel, Kind.CREDIT, _NUMBER.pack(number))


class FrameDecoder:
    """Cuts a stream of bytes into frames, however it arrives."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[Frame]:
        """The frames that are complete now. Raises RelayBroken on what is no frame."""
        self._buffer += data
        frames = []
        start = 0
        while len(self._buffer) - start >= _HEAD.size:
            channel, kind, length = _HEAD.unpack_from(self._buffer, start)
            _check(kind, length)
            end = start + _HEAD.size + length
            if len(self._buffer) < end:
                break
            frames.append(Frame(channel, Kind(kind), bytes(self._buffer[start + _HEAD.size : end])))
            start = end
        del self._buffer[:start]
        return frames


def _check(kind: int, length: int) -> None:
    """A login script that prints something, or a broken wire, must not be taken for data."""
    fits = {
        Kind.DATA: 0 < length <= LONGEST_PAYLOAD,
        Kind.CREDIT: length == _NUMBER.size,
        Kind.OPEN: length == 0,
        Kind.END: length == 0,
        Kind.RESET: length == 0,
    }
    if kind not in fits or not fits[Kind(kind)]:
        raise RelayBroken(f"what came over the relay is no frame (kind {kind}, length {length}); it is ended")

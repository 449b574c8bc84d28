"""Parts of text files as answers; the header `X-Next-Offset` says where the next part begins."""

import os
from pathlib import Path

from starlette.responses import Response

NEXT_OFFSET = "X-Next-Offset"


def text_part(data: bytes, offset: int) -> Response:
    """The bytes from `offset` of a file."""
    headers = {NEXT_OFFSET: str(offset + len(data)), "Cache-Control": "no-store"}
    return Response(data, media_type="text/plain; charset=utf-8", headers=headers)


def read_part(path: Path, offset: int, limit: int, *, is_cut: bool = False) -> tuple[bytes, int]:
    """At most `limit` bytes of a file and where they begin; a negative offset counts from the end.

    A file that is not there yet is empty; so is what follows its end.

    :param is_cut: it becomes empty now and then: an offset beyond its end is of the time before, and means its
        beginning.
    """
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            begin = 0 if is_cut and offset > size else begin_of(offset, size)
            if begin >= size:  # far beyond it, seek itself fails
                return b"", begin
            file.seek(begin)
            return file.read(limit), begin
    except FileNotFoundError:
        return b"", 0


def begin_of(offset: int, size: int) -> int:
    """The byte meant by an offset that may count from the end."""
    return max(0, size + offset) if offset < 0 else offset

"""Query parameters that several routes share."""

from typing import Annotated

from fastapi import Query

Cursor = Annotated[str | None, Query(description="`next_cursor` of the page before.", max_length=1000)]
Limit = Annotated[int, Query(ge=1, le=1000, description="How many items at most.")]
Offset = Annotated[
    int, Query(description="Byte to begin at; negative: counted from the end.", ge=-(2**53), le=2**53, examples=[-4096])
]
ByteLimit = Annotated[int, Query(ge=1, le=4 * 1024 * 1024, description="How many bytes at most.")]
DEFAULT_BYTES = 256 * 1024

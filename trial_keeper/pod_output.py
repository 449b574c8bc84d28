"""What the keeper of a pod leaves to a manager that comes back when the pod has ended: both ends of it.

In the pod's log, what the manager has not acknowledged, one record a line:

    proctor-record {"kind": "start", "job_id": "T.1", "pid": 17, "started_at": 1764000000.5}
    proctor-record {"kind": "journal", "job_id": "T.1", "member": "0", "offset": 120, "text": "{…}\\n"}
    proctor-record {"kind": "end", "job_id": "T.1", "exit": {"reason": "PREEMPTED", …}}
    proctor-record {"kind": "whole", "records": 3}

`text` is at most 4 KiB of the journal, bytes that are no UTF-8 as lone surrogates. The last record says how many came
before it: without it, or with fewer, the log was cut (`containerLogMaxSize`), and something is missing.

In the termination message, at most 4,096 bytes, the end and the first final metric of each rank, as in its journal, and
where it stands there:

    {"proctor": 1, "job_id": "T.1", "exit": {"reason": "EXITED_OK", …},
     "finals": {"0": {"offset": 120, "line": "{\\"kind\\": \\"final\\", …}"}}}

Neither holds a fencing token, because others may read them: the reader knows which job the pod was for.
"""

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from proctor.sdk.protocol import KIND_FINAL
from proctor.trial_keeper.protocol import Chunk, End, Exit, ReportHeader, Start, from_json, to_json

MOST_TERMINATION_BYTES = 4096
_VERSION = 1
_PREFIX = "proctor-record "
_LINE = re.compile(rb"(?:^|\s)" + _PREFIX.encode() + rb"(\{.*\})\s*$")  # a reader may have put the time in front
_PIECE_BYTES = 4096
_MOST_DETAIL = 300


@dataclass(frozen=True)
class PodLog:
    """What a pod's log holds of its job, as a report: `body` has the bytes of the header's chunks. Its session is
    empty."""

    header: ReportHeader
    body: bytes
    is_whole: bool
    """Nothing of what was written is missing."""


@dataclass(frozen=True)
class FinalMetric:
    """A final metric as the line of a journal, without its line break, and where that line begins."""

    offset: int
    line: bytes


@dataclass(frozen=True)
class TerminationMessage:
    """How the job of a pod ended."""

    job_id: str
    exit: Exit
    finals: dict[str, FinalMetric] = field(default_factory=dict)
    """The first one of each member."""


def format_records(header: ReportHeader, data: Iterable[bytes]) -> Iterator[str]:
    """The lines of a report, without the last one, which `format_whole` makes."""
    for start in header.starts:
        yield _line("start", start)
    for chunk, content in zip(header.chunks, data, strict=True):
        for begin in range(0, len(content), _PIECE_BYTES):
            text = content[begin : begin + _PIECE_BYTES].decode("utf-8", "surrogateescape")
            piece = {"job_id": chunk.job_id, "member": chunk.member, "offset": chunk.offset + begin, "text": text}
            yield _PREFIX + json.dumps({"kind": "journal", **piece})
    for end in header.ends:
        yield _line("end", end)


def format_whole(records: int) -> str:
    """The last line, after so many records."""
    return _PREFIX + json.dumps({"kind": "whole", "records": records})


def read_log(lines: Iterable[bytes], *, job_id: str, token: str) -> PodLog:
    """What the log of the pod of a job holds of it; everything else in the log is passed over.

    :param token: the fencing token of that job.
    """
    header, records, promised = ReportHeader(""), 0, -1
    body: list[bytes] = []
    for line in lines:
        found = _LINE.search(line)
        record = _parse(found[1]) if found else None
        if record is None:
            continue
        try:
            if record.get("kind") == "whole":
                promised = int(record["records"])
            elif record.get("job_id") == job_id and _add(header, body, {**record, "token": token}):
                records += 1
        except (KeyError, TypeError, ValueError):
            continue  # the log was cut in the middle of a line, or something else has written there
    return PodLog(header, b"".join(body), is_whole=records == promised)


def _add(header: ReportHeader, body: list[bytes], record: dict[str, Any]) -> bool:
    kind = record["kind"]
    if kind == "start":
        header.starts.append(from_json(Start, record))
    elif kind == "end":
        header.ends.append(from_json(End, record))
    elif kind == "journal":
        content = str(record["text"]).encode("utf-8", "surrogateescape")
        piece = from_json(Chunk, {**record, "length": len(content)})
        before = header.chunks[-1] if header.chunks else None
        if before is not None and before.member == piece.member and before.offset + before.length == piece.offset:
            header.chunks[-1] = replace(before, length=before.length + piece.length)  # lines go across pieces
        else:
            header.chunks.append(piece)
        body.append(content)
    else:
        return False  # of a later version
    return True


def add_finals(left: PodLog, message: TerminationMessage, *, token: str) -> PodLog:
    """What the log of a pod holds, with the final metrics that only its termination message has."""
    found: list[tuple[Chunk, bytes]] = []
    position = 0
    for chunk in left.header.chunks:
        found.append((chunk, left.body[position : position + chunk.length]))
        position += chunk.length
    for member, final in message.finals.items():
        own = [chunk for chunk in left.header.chunks if chunk.member == member]
        if not any(chunk.offset <= final.offset < chunk.offset + chunk.length for chunk in own):
            line = final.line + b"\n"
            found.append((Chunk(message.job_id, token, member, final.offset, len(line)), line))
    found.sort(key=lambda each: (each[0].member, each[0].offset))
    header = replace(left.header, chunks=[chunk for chunk, _ in found])
    return replace(left, header=header, body=b"".join(data for _, data in found))


def format_termination(message: TerminationMessage) -> bytes:
    """The termination message. What does not fit is left out: first the detail of the end is cut, then final metrics
    are dropped, the longest first."""
    finals = {
        member: {"offset": final.offset, "line": final.line.decode("utf-8", "replace")}
        for member, final in message.finals.items()
    }
    end = message.exit
    while len(data := _termination(message.job_id, end, finals)) > MOST_TERMINATION_BYTES:
        if len(end.detail) > _MOST_DETAIL:
            end = replace(end, detail=end.detail[: _MOST_DETAIL - 1] + "…")
        elif finals:
            del finals[max(finals, key=lambda member: len(str(finals[member])))]
        else:
            end = replace(end, detail="", lost_finals=[])
    return data


def read_termination(text: str, *, job_id: str) -> TerminationMessage | None:
    """What a termination message says of a job; None when it is no such message."""
    body = _parse(text.encode("utf-8", "surrogateescape"))
    if body is None or body.get("proctor") != _VERSION or body.get("job_id") != job_id:
        return None
    try:
        finals = {
            str(member): FinalMetric(int(final["offset"]), str(final["line"]).encode("utf-8"))
            for member, final in body["finals"].items()
            if isinstance(final, dict)  # keepers of earlier versions do not say where it stood
        }
        return TerminationMessage(job_id, from_json(Exit, body["exit"]), finals)
    except (KeyError, TypeError, ValueError, AttributeError):
        return None


def find_final(lines: Iterable[bytes], *, offset: int) -> FinalMetric | None:
    """The first final metric in the lines of a journal, the first of which begins at `offset`."""
    for line in lines:
        record = _parse(line) if b'"final"' in line else None
        if record is not None and record.get("kind") == KIND_FINAL:
            return FinalMetric(offset, line.strip())
        offset += len(line)
    return None


def _line(kind: str, message: Start | End) -> str:
    body = {name: value for name, value in to_json(message).items() if name != "token"}
    return _PREFIX + json.dumps({"kind": kind, **body})


def _termination(job_id: str, end: Exit, finals: dict[str, dict[str, Any]]) -> bytes:
    return json.dumps({"proctor": _VERSION, "job_id": job_id, "exit": to_json(end), "finals": finals}).encode()


def _parse(text: bytes) -> dict[str, Any] | None:
    try:
        body = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return body if isinstance(body, dict) else None

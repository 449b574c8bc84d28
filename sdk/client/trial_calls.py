"""The calls about one trial: what is done with it, and its jobs, metrics, logs, files and checkpoints."""

import io
import shutil
import tarfile
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import quote

from proctor.sdk.client.logs import LogPiece, read_tail
from proctor.sdk.client.transport import PAGE_SIZE, Calls, JsonObject, Query, path_of
from proctor.sdk.files import put_in_place


class TrialCalls(Calls):
    """One trial."""

    def find_trials(self, id_prefix: str) -> Iterator[JsonObject]:
        """At most 20 trials of all experiments by the beginning of their id."""
        return self._transport.pages("/trials", query={"id_prefix": id_prefix})

    def trial(self, trial_id: str) -> JsonObject:
        """One trial."""
        return self._get(path_of("trials", trial_id))

    def add_trial(self, experiment_id: str, parameters: Any) -> JsonObject:
        """Ask for a trial with these parameters."""
        return self._post(path_of("experiments", experiment_id, "trials"), {"parameters": parameters})

    def kill_trial(self, trial_id: str) -> JsonObject:
        """End a trial."""
        return self._post(path_of("trials", trial_id, "kill"))

    def pause_trial(self, trial_id: str) -> JsonObject:
        """Stop a trial, which may save first, and keep it PAUSED until a user resumes it."""
        return self._post(path_of("trials", trial_id, "pause"))

    def resume_trial(self, trial_id: str) -> JsonObject:
        """Have a PAUSED trial run again, from its newest checkpoint."""
        return self._post(path_of("trials", trial_id, "resume"))

    def retry_trial(self, trial_id: str, *, from_checkpoint: bool = False) -> JsonObject:
        """Run the parameters of an ended trial again, from the start or from its newest checkpoint."""
        query: Query = {"from_checkpoint": "true" if from_checkpoint else None}
        return self._post(path_of("trials", trial_id, "retry"), query=query)

    def clone_trial(self, trial_id: str, parameters: Mapping[str, Any]) -> JsonObject:
        """Continue from a trial's newest checkpoint, as a new trial with these values in place of some of its own."""
        return self._post(path_of("trials", trial_id, "clone"), {"parameters": dict(parameters)})

    def jobs(self, trial_id: str) -> Iterator[JsonObject]:
        """The attempts to run a trial, oldest first."""
        return self._transport.pages(path_of("trials", trial_id, "jobs"))

    def metrics(self, trial_id: str, *, kind: str | None = None, after: int | None = None) -> Iterator[JsonObject]:
        """What a trial has reported, oldest first. `kind`: intermediate, final, lost or unreadable."""
        query = {"kind": kind, "after": after, "limit": PAGE_SIZE}
        return self._transport.pages(path_of("trials", trial_id, "metrics"), query=query)

    def trial_ranks(self, trial_id: str) -> Iterator[JsonObject]:
        """What each rank of a distributed trial has reported in its newest job that has reported."""
        return self._transport.pages(path_of("trials", trial_id, "ranks"))

    def trial_curve(self, trial_id: str) -> Iterator[JsonObject]:
        """The visible curve of a trial: the intermediate metrics of its newest job, and before the point at which it
        resumed those of the job whose checkpoint it continues."""
        return self._transport.pages(path_of("trials", trial_id, "curve"), query={"limit": PAGE_SIZE})

    def checkpoints(self, trial_id: str) -> Iterator[JsonObject]:
        """The checkpoints that a trial has registered, oldest first."""
        return self._transport.pages(path_of("trials", trial_id, "checkpoints"), query={"limit": PAGE_SIZE})

    def download_checkpoint(self, trial_id: str, checkpoint_id: int, target: Path) -> int:
        """Save the files of a checkpoint (its `id` in `checkpoints`) in the folder `target`, which appears when all are
        there. Returns how many there are. Raises FileExistsError if it is there already, NotFound, with the reason,
        for one that was deleted."""
        if target.exists():
            raise FileExistsError(f"{target} is there already; choose another folder")
        target.parent.mkdir(parents=True, exist_ok=True)
        address = path_of("trials", trial_id, "checkpoints", str(checkpoint_id), "tar")
        with tempfile.TemporaryDirectory(dir=target.parent, prefix=f".{target.name}-") as unfinished:
            with self._transport.body(address) as pieces:
                count = _unpack(pieces, Path(unfinished, "checkpoint"))
            put_in_place(Path(unfinished, "checkpoint"), target)
        return count

    def trial_log(
        self,
        trial_id: str,
        *,
        stream: str = "stdout",
        job: int | None = None,
        offset: int = 0,
        limit: int | None = None,
    ) -> LogPiece:
        """A stretch of what a trial printed. `stream`: stdout or stderr. `job`: its newest if not given."""
        return self._log(
            path_of("trials", trial_id, "logs"), {"stream": stream, "job": job, "offset": offset, "limit": limit}
        )

    def trial_tail(self, trial_id: str, lines: int = 10, *, stream: str = "stdout", job: int | None = None) -> bytes:
        """The last lines of what a trial printed; the rest is not read. `stream` and `job` as for `trial_log`."""

        def read(offset: int, limit: int | None) -> LogPiece:
            return self.trial_log(trial_id, stream=stream, job=job, offset=offset, limit=limit)

        return read_tail(read, lines).data

    def search_logs(
        self,
        text: str,
        *,
        experiment_id: str | None = None,
        trial_id: str | None = None,
        ignore_case: bool = False,
        cursor: str | None = None,
        limit: int = 100,
    ) -> JsonObject:
        """Lines with this text in the output of all trials of an experiment, or of one trial: `items`, `not_here` (jobs
        whose output is not on the manager's machine), and `next_cursor`, where to continue; None: all was searched.

        :param cursor: `next_cursor` of the answer before.
        :param limit: how many lines at most.
        """
        of = ("trials", trial_id) if trial_id is not None else ("experiments", str(experiment_id))
        query: Query = {
            "q": text,
            "ignore_case": "true" if ignore_case else None,
            "cursor": cursor,
            "limit": limit,
        }
        found: JsonObject = self._transport.request("GET", path_of(*of, "logs", "search"), query=query)
        return found

    def files(self, trial_id: str) -> Iterator[JsonObject]:
        """The files of a trial's newest job: path and size_bytes."""
        return self._transport.pages(path_of("trials", trial_id, "files"))

    def download(self, trial_id: str, path: str, target: Path) -> None:
        """Save one file of a trial's newest job, piece by piece; the target appears when it is complete."""
        address = f"{path_of('trials', trial_id, 'files')}/{quote(path)}"
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent, prefix=f".{target.name}-") as unfinished:
            part = Path(unfinished, "file")
            with part.open("wb") as file:
                while (piece := self._log(address, {"offset": file.tell()})).data:
                    file.write(piece.data)
            put_in_place(part, target)


class _Pieces(io.RawIOBase):
    """A body that comes piece by piece, as a file to read from."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces = pieces
        self._rest = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._rest:
            piece = next(self._pieces, None)
            if piece is None:
                return 0
            self._rest = memoryview(piece)
        count = min(len(buffer), len(self._rest))
        buffer[:count], self._rest = self._rest[:count], self._rest[count:]
        return count


def _unpack(pieces: Iterator[bytes], folder: Path) -> int:
    """Write the regular files of a tar, less its one top folder, below `folder`; returns how many."""
    count = 0
    with tarfile.open(fileobj=io.BufferedReader(_Pieces(pieces)), mode="r|") as archive:
        for member in archive:
            parts = PurePosixPath(member.name).parts[1:]
            content = archive.extractfile(member)
            if content is None or not parts or ".." in parts:
                raise ValueError(f"{member.name} cannot be a file of a checkpoint")
            target = folder.joinpath(*parts)
            target.parent.mkdir(parents=True, exist_ok=True)
            with content, target.open("xb") as file:
                shutil.copyfileobj(content, file, 1 << 20)
            count += 1
    return count

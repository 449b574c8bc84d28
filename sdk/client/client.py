"""The manager's REST API as Python calls. Objects are the resources of the API as they travel, as dictionaries."""

import io
import os
import shutil
import struct
import tarfile
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from types import TracebackType
from typing import Any, Self
from urllib.parse import quote

from proctor.sdk.client.errors import ManagerUnreachable
from proctor.sdk.client.events import EventStream
from proctor.sdk.client.home import ENV_TOKEN, ENV_URL, find_home, read_address, read_token
from proctor.sdk.client.logs import LogPiece, read_tail
from proctor.sdk.client.transport import TIMEOUT_SECONDS, JsonObject, Query, Transport
from proctor.sdk.files import put_in_place

PAGE_SIZE = 500
MACHINES_TIMEOUT_SECONDS = 900.0
"""Each hop to each machine has a limit of its own; this one is for the sum."""


class Client:
    """Talks to one manager. Close it, or use it with `with`.

    Every call raises an error of `proctor.sdk.client.errors` when the manager cannot be asked or refuses.
    """

    def __init__(
        self,
        url: str | None = None,
        token: str | None = None,
        home: str | os.PathLike[str] | None = None,
        *,
        timeout_seconds: float = TIMEOUT_SECONDS,
    ) -> None:
        """Find the manager: `url`, else PROCTOR_URL, else the one running for `home`.

        :param token: else PROCTOR_TOKEN; else, for the home's own manager, the token in the home.
        :param home: the folder of the manager's state; PROCTOR_HOME or the platform's state directory if not given.
        """
        self.home = find_home(home)
        named, address = url or os.environ.get(ENV_URL), read_address(self.home)
        if named is None and address is None:
            raise ManagerUnreachable(f"no manager is running for {self.home}; start one with `proctor manager start`")
        own = "" if address is None else address.url
        self.url = (named or own).rstrip("/")
        given = token or os.environ.get(ENV_TOKEN)
        self.token = given or (read_token(self.home) if self.url == own else None)  # no other server gets our token
        self._transport = Transport(self.url, self.token, timeout_seconds=timeout_seconds)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection. Idempotent."""
        self._transport.close()

    def page_url(self, path: str = "/") -> str:
        """A page of the manager as a browser opens it, token included: keep it to yourself."""
        return f"{self.url}{path}" + (f"?token={quote(self.token)}" if self.token else "")

    # The manager

    def health(self) -> JsonObject:
        """Whether the manager is healthy; needs no token."""
        return self._get("/health")

    def version(self) -> JsonObject:
        """Who answers."""
        return self._get("/version")

    def session(self) -> JsonObject:
        """What the token allows (`access`: "full" or "read-only"), the manager's version, `url_prefix` and `limits`."""
        return self._get("/session")

    def nodes(self) -> Iterator[JsonObject]:
        """The machines on which trials run."""
        return self._transport.pages("/nodes")

    def node(self, node_id: str) -> JsonObject:
        """One of them."""
        return self._get(_path("nodes", node_id))

    def check_node(self, node_id: str) -> JsonObject:
        """Try to reach a machine now; the outcome is reported by events of kind `node`."""
        return self._post(_path("nodes", node_id, "check"))

    def drain_node(self, node_id: str, *, reason: str = "") -> JsonObject:
        """Give a machine no new jobs until it is resumed; what already runs there continues."""
        return self._post(_path("nodes", node_id, "drain"), {"reason": reason})

    def resume_node(self, node_id: str) -> JsonObject:
        """Give a drained or quarantined machine jobs again."""
        return self._post(_path("nodes", node_id, "resume"))

    def collect_node(self, node_id: str, *, experiment_id: str | None = None) -> Iterator[JsonObject]:
        """Collect the files that stopped experiments, or one of them, still have on a machine. Yields how far that is,
        every few seconds, one experiment after the other, until `is_finished`; `problem` says why files stay there. It
        continues if the caller stops iterating."""
        query = {"experiment_id": experiment_id}
        return self._transport.json_lines("POST", _path("nodes", node_id, "collect"), query=query)

    def forget_node(self, node_id: str) -> None:
        """Forget a machine that no experiment uses and that cannot be cleaned up; what is there stays there."""
        self._transport.request("POST", _path("nodes", node_id, "forget"))

    def check_platform(
        self,
        config: Mapping[str, Any],
        *,
        directory: str | os.PathLike[str],
        handover: str | None = None,
        machine: int | None = None,
    ) -> list[JsonObject]:
        """Try every hop to the machines of a configuration: steps of machine, name, verdict, found, advice.

        :param config: as in `create_experiment`, and so are the directory and the handover.
        :param machine: only this one, by its place in the list.
        """
        return self._ask_machines("check", config, directory, handover=handover, machine=machine)

    def clean_platform(
        self,
        config: Mapping[str, Any],
        *,
        directory: str | os.PathLike[str],
        handover: str | None = None,
        machine: int | None = None,
    ) -> list[JsonObject]:
        """Remove everything of the manager from the machines of a configuration; the rest is as in
        `check_platform`."""
        return self._ask_machines("clean", config, directory, handover=handover, machine=machine)

    def manager_log(self, *, offset: int = 0, limit: int | None = None) -> LogPiece:
        """A stretch of the manager's log; a negative offset counts from its end."""
        return self._log("/logs/manager", {"offset": offset, "limit": limit})

    def shutdown(self) -> None:
        """Ask the manager to leave; trials keep running under their keepers."""
        self._post("/shutdown")

    def events(self, *, experiment_id: str | None = None, after: int | None = None) -> EventStream:
        """Every change from now on, or after that event id."""
        return EventStream(self._transport, experiment_id=experiment_id, after=after)

    # Experiments

    def experiments(
        self,
        *,
        status: str | None = None,
        name: str | None = None,
        id_prefix: str | None = None,
        tags: Sequence[str] = (),
        archived: bool | None = False,
    ) -> Iterator[JsonObject]:
        """Experiments, newest first; or those of a status or a name, or at most 20 by the beginning of the id.

        :param tags: only those that have all of these.
        :param archived: False: without those that are archived and have ended; True: only those; None: all.
        """
        query: Query = {
            "status": status,
            "name": name,
            "id_prefix": id_prefix,
            "tag": list(tags) or None,
            "archived": "all" if archived is None else str(archived).lower(),
            "limit": PAGE_SIZE,
        }
        return self._transport.pages("/experiments", query=query)

    def experiment(self, experiment_id: str) -> JsonObject:
        """One experiment."""
        return self._get(_path("experiments", experiment_id))

    def create_experiment(
        self,
        config: Mapping[str, Any],
        *,
        directory: str | os.PathLike[str],
        handover: str | None = None,
        experiment_id: str | None = None,
        dry_run: bool = False,
    ) -> JsonObject:
        """Begin an experiment.

        :param config: as it would be written in YAML, without secrets.
        :param directory: where relative paths in it start; absolute.
        :param handover: name of a file in the home's incoming folder, from `credentials.write_caller_environment`.
        """
        body: JsonObject = {"config": dict(config), "directory": os.fspath(directory), "handover": handover}
        return self._post("/experiments", {**body, "experiment_id": experiment_id, "dry_run": dry_run})

    def load_experiment(
        self,
        archive: str,
        *,
        experiment_id: str | None = None,
        code_directory: str | None = None,
        handover: str | None = None,
    ) -> JsonObject:
        """Import a saved experiment, stopped.

        :param archive: name of a zip in the home's incoming folder, made by `proctor experiment save`.
        :param code_directory: where its code is now, if not where it was; absolute.
        :param handover: name of a file in the home's incoming folder, from `credentials.write_caller_environment`: the
            environment of its trials once it is resumed.
        """
        body = {"archive": archive, "experiment_id": experiment_id, "code_directory": code_directory}
        return self._post("/experiments/load", {**body, "handover": handover})

    def update_experiment(self, experiment_id: str, changes: Mapping[str, Any]) -> JsonObject:
        """Change limits or search space while it runs; None takes a limit away, what is left out stays.

        Keys: trial_concurrency, max_trial_number, max_experiment_duration_seconds, max_trial_duration_seconds,
        max_gpu_hours, priority, search_space, tags (all that it has from now on), archived.
        """
        found: JsonObject = self._transport.request("PATCH", _path("experiments", experiment_id), body=dict(changes))
        return found

    def delete_experiment(self, experiment_id: str, *, keep_checkpoints: bool = False) -> None:
        """Remove an experiment that does not run, with its folder; `keep_checkpoints`: not what is in its
        checkpointStorage."""
        query = {"keep_checkpoints": "true"} if keep_checkpoints else None
        self._transport.request("DELETE", _path("experiments", experiment_id), query=query)

    def stop_experiment(self, experiment_id: str) -> JsonObject:
        """End its trials and the experiment; it can be resumed."""
        return self._post(_path("experiments", experiment_id, "stop"))

    def resume_experiment(self, experiment_id: str, *, trials: bool = False) -> JsonObject:
        """Resume a stopped, failed or paused experiment; `trials`: its PAUSED trials, too, even if it is running."""
        return self._post(_path("experiments", experiment_id, "resume"), query=_with_trials(trials))

    def pause_experiment(self, experiment_id: str, *, trials: bool = False) -> JsonObject:
        """Stop starting new trials; running trials finish, unless `trials` pauses them, too."""
        return self._post(_path("experiments", experiment_id, "pause"), query=_with_trials(trials))

    def view_experiment(self, experiment_id: str) -> JsonObject:
        """Open a stopped experiment for reading only."""
        return self._post(_path("experiments", experiment_id, "view"))

    def stop_all(self) -> JsonObject:
        """Stop every experiment."""
        return self._post("/stop-all")

    def best(self, experiment_id: str) -> JsonObject | None:
        """The best trial so far: trial_id, sequence_id, value, parameters; None while there is none."""
        found: JsonObject | None = self.experiment(experiment_id)["best"]
        return found

    def curve(self, experiment_id: str) -> Iterator[JsonObject]:
        """Each trial that succeeded or was stopped early and has a final metric, with the best value until then."""
        return self._transport.pages(_path("experiments", experiment_id, "curve"))

    def failures(self, experiment_id: str, *, limit: int = 100) -> JsonObject:
        """Why its trials have failed: `failed` and `counted` (trials), `cause_count`, and `causes`, the most frequent
        first, each with `end_reason`, `detail`, `trials`, `nodes` and an `example`.

        :param limit: how many causes at most.
        """
        path = _path("experiments", experiment_id, "failures")
        found: JsonObject = self._transport.request("GET", path, query={"limit": limit})
        return found

    def export(
        self, experiment_id: str, *, status: str | None = None, intermediate: bool = False
    ) -> Iterator[JsonObject]:
        """The outcomes of its trials: parameter, value (None: it has no final metric), trial_id, sequence_id, status …

        :param status: only trials in this status; None: all that have ended.
        """
        query = {"status": status, "intermediate": "true" if intermediate else None}
        return self._transport.pages(_path("experiments", experiment_id, "export"), query=query)

    def import_data(
        self, experiment_id: str, rows: Sequence[Mapping[str, Any]], *, skip_outside: bool = False
    ) -> JsonObject:
        """Import results of another experiment: rows of `parameter` and `value`; rows without a value are skipped.

        Returns how many rows were `imported` and how many `skipped`. Nothing is imported where a row is outside of the
        search space, unless `skip_outside` leaves those out.
        """
        query: Query = {"skip_outside": "true" if skip_outside else None}
        path, body = _path("experiments", experiment_id, "import"), [dict(row) for row in rows]
        found: JsonObject = self._transport.request("POST", path, query=query, body=body)
        return found

    def dispatcher_log(self, experiment_id: str, *, offset: int = 0, limit: int | None = None) -> LogPiece:
        """A stretch of what tuner and assessor printed."""
        query: Query = {"source": "dispatcher", "offset": offset, "limit": limit}
        return self._log(_path("experiments", experiment_id, "logs"), query)

    # Trials

    def trials(
        self,
        experiment_id: str,
        *,
        status: str | None = None,
        filter: str | None = None,
        sort: str | None = None,
        page_size: int = PAGE_SIZE,
    ) -> Iterator[JsonObject]:
        """The trials of an experiment, page after page as they are asked for.

        :param filter: only those that it lets through: `status = SUCCEEDED and lr < 1e-3`.
        :param sort: sequence_id or a column of `table`, with a `-` for the greatest first; best or -best: the best, or
            the worst, value first.
        """
        query = {"status": status, "filter": filter, "sort": sort, "limit": page_size}
        return self._transport.pages(_path("experiments", experiment_id, "trials"), query=query)

    def table(
        self,
        experiment_id: str,
        *,
        filter: str | None = None,
        sort: Sequence[str] = (),
        columns: Sequence[str] = ("*",),
        offset: int = 0,
        limit: int = 1000,
    ) -> JsonObject:
        """The trials of an experiment by rows: `columns` (name, type, varies), `rows`, `total`, `matched`, `revision`.

        :param filter: only the trials that it lets through: `status = SUCCEEDED and lr < 1e-3`.
        :param sort: columns, each with a `-` for the greatest first.
        :param columns: names; `*` for all that are stored, `parameter.*`, `value.*`.
        :param offset: how many trials to leave out.
        """
        query: Query = {
            "filter": filter,
            "sort": list(sort) or None,
            "columns": ",".join(columns),
            "offset": offset,
            "limit": limit,
        }
        found: JsonObject = self._transport.request("GET", _path("experiments", experiment_id, "table"), query=query)
        return found

    def changes(self, experiment_id: str, *, after: int, columns: Sequence[str] = ("*",)) -> JsonObject:
        """What has changed in an experiment since an event: `experiment`, `rows` (a table), `points` of curves, and the
        `revision` to ask from next time; `reset`: read everything again.

        :param after: the `revision` of a table, or of the changes before.
        """
        query: Query = {"after": after, "columns": ",".join(columns)}
        found: JsonObject = self._transport.request("GET", _path("experiments", experiment_id, "changes"), query=query)
        return found

    def curves(
        self, experiment_id: str, trials: Sequence[int | str], *, key: str | None = None
    ) -> dict[int, list[tuple[float, float]]]:
        """The visible curves of at most 200 trials, by their numbers, as (step, value); a value that is not a finite
        number is NaN. Steps and values have the precision of a float32.

        :param trials: numbers or ids.
        :param key: of what was reported, nested ones with dots; None: its number.
        """
        query: Query = {"ids": ",".join(map(str, trials)), "key": key}
        data, _ = self._transport.fetch(_path("experiments", experiment_id, "curves"), query=query)
        return unpack_curves(data)

    def find_trials(self, id_prefix: str) -> Iterator[JsonObject]:
        """At most 20 trials of all experiments by the beginning of their id."""
        return self._transport.pages("/trials", query={"id_prefix": id_prefix})

    def trial(self, trial_id: str) -> JsonObject:
        """One trial."""
        return self._get(_path("trials", trial_id))

    def add_trial(self, experiment_id: str, parameters: Any) -> JsonObject:
        """Ask for a trial with these parameters."""
        return self._post(_path("experiments", experiment_id, "trials"), {"parameters": parameters})

    def kill_trial(self, trial_id: str) -> JsonObject:
        """End a trial."""
        return self._post(_path("trials", trial_id, "kill"))

    def pause_trial(self, trial_id: str) -> JsonObject:
        """Stop a trial, which may save first, and keep it PAUSED until it is resumed."""
        return self._post(_path("trials", trial_id, "pause"))

    def resume_trial(self, trial_id: str) -> JsonObject:
        """Have a PAUSED trial run again, from its newest checkpoint."""
        return self._post(_path("trials", trial_id, "resume"))

    def retry_trial(self, trial_id: str, *, from_checkpoint: bool = False) -> JsonObject:
        """Run the parameters of an ended trial again, from the start or from its newest checkpoint."""
        query: Query = {"from_checkpoint": "true" if from_checkpoint else None}
        return self._post(_path("trials", trial_id, "retry"), query=query)

    def clone_trial(self, trial_id: str, parameters: Mapping[str, Any]) -> JsonObject:
        """Continue from a trial's newest checkpoint, as a new trial with these values in place of some of its own."""
        return self._post(_path("trials", trial_id, "clone"), {"parameters": dict(parameters)})

    def jobs(self, trial_id: str) -> Iterator[JsonObject]:
        """The attempts to run a trial, oldest first."""
        return self._transport.pages(_path("trials", trial_id, "jobs"))

    def metrics(self, trial_id: str, *, kind: str | None = None, after: int | None = None) -> Iterator[JsonObject]:
        """What a trial has reported, oldest first. `kind`: intermediate, final, lost or unreadable."""
        query = {"kind": kind, "after": after, "limit": PAGE_SIZE}
        return self._transport.pages(_path("trials", trial_id, "metrics"), query=query)

    def trial_curve(self, trial_id: str) -> Iterator[JsonObject]:
        """The visible curve of a trial: the intermediate metrics of its newest job, and before the point at which it
        resumed those of the job whose checkpoint it continues."""
        return self._transport.pages(_path("trials", trial_id, "curve"), query={"limit": PAGE_SIZE})

    def checkpoints(self, trial_id: str) -> Iterator[JsonObject]:
        """The checkpoints that a trial has registered, oldest first."""
        return self._transport.pages(_path("trials", trial_id, "checkpoints"), query={"limit": PAGE_SIZE})

    def download_checkpoint(self, trial_id: str, checkpoint_id: int, target: Path) -> int:
        """Save the files of a checkpoint (its `id` in `checkpoints`) in the folder `target`, which appears when all are
        there. Returns how many there are. Raises FileExistsError if it is there already, NotFound, with the reason,
        for one that was deleted."""
        if target.exists():
            raise FileExistsError(f"{target} is there already; choose another folder")
        target.parent.mkdir(parents=True, exist_ok=True)
        address = _path("trials", trial_id, "checkpoints", str(checkpoint_id), "tar")
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
            _path("trials", trial_id, "logs"), {"stream": stream, "job": job, "offset": offset, "limit": limit}
        )

    def trial_tail(self, trial_id: str, lines: int = 10, *, stream: str = "stdout", job: int | None = None) -> bytes:
        """The last lines of what a trial printed; the rest is not read. `stream` and `job` as for `trial_log`."""

        def read(offset: int, limit: int | None) -> LogPiece:
            return self.trial_log(trial_id, stream=stream, job=job, offset=offset, limit=limit)

        return read_tail(read, lines).data

    def files(self, trial_id: str) -> Iterator[JsonObject]:
        """The files of a trial's newest job: path and size_bytes."""
        return self._transport.pages(_path("trials", trial_id, "files"))

    def download(self, trial_id: str, path: str, target: Path) -> None:
        """Save one file of a trial's newest job, piece by piece; the target appears when it is complete."""
        address = f"{_path('trials', trial_id, 'files')}/{quote(path)}"
        target.parent.mkdir(parents=True, exist_ok=True)
        part = target.with_name(f"{target.name}.part")
        try:
            with part.open("wb") as file:
                while (piece := self._log(address, {"offset": file.tell()})).data:
                    file.write(piece.data)
            put_in_place(part, target)
        finally:
            part.unlink(missing_ok=True)

    def _get(self, path: str) -> JsonObject:
        found: JsonObject = self._transport.request("GET", path)
        return found

    def _post(self, path: str, body: Any = None, query: "Query | None" = None) -> JsonObject:
        found: JsonObject = self._transport.request("POST", path, body=body, query=query)
        return found

    def _ask_machines(
        self,
        verb: str,
        config: Mapping[str, Any],
        directory: str | os.PathLike[str],
        *,
        handover: str | None,
        machine: int | None,
    ) -> list[JsonObject]:
        body = {"config": dict(config), "directory": os.fspath(directory), "handover": handover, "machine": machine}
        answer = self._transport.request(
            "POST", _path("platforms", verb), body=body, timeout_seconds=MACHINES_TIMEOUT_SECONDS
        )
        steps: list[JsonObject] = answer["items"]
        return steps

    def _log(self, path: str, query: Query) -> LogPiece:
        data, headers = self._transport.fetch(path, query=query)
        return LogPiece(data, int(headers["X-Next-Offset"]))


def unpack_curves(data: bytes) -> dict[int, list[tuple[float, float]]]:
    """What `curves` answers, by the numbers of the trials. Raises ValueError for anything else."""
    if data[:4] != b"PCRV":
        raise ValueError(f"expected curves, which begin with PCRV; found {data[:4]!r}")
    _, trials, points = struct.unpack_from("<III", data, 4)
    whole = struct.unpack_from(f"<{3 * trials}I", data, 16)
    numbers = struct.unpack_from(f"<{2 * points}f", data, 16 + 12 * trials)
    found = {}
    for place in range(trials):
        begin, end = whole[2 * trials + place], whole[2 * trials + place] + whole[trials + place]
        found[whole[place]] = list(zip(numbers[begin:end], numbers[points + begin : points + end], strict=True))
    return found


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


def _with_trials(trials: bool) -> Query:
    return {"trials": "true" if trials else None}


def _path(*parts: str) -> str:
    return "/" + "/".join(quote(part, safe="") for part in parts)

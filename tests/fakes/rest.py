"""A small manager that speaks the REST API over a real socket and keeps everything in memory.

Its resources are made by the API's own models, so a test that reads them reads what the manager would send.
"""

import json
import threading
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import parse_qs, unquote, urlsplit

from fakes.rest_nodes import NOW, USAGE, Answer, NodesOfRest, Row

from proctor.manager.api import models
from proctor.manager.api.description import Problem, ProblemItem
from proctor.manager.api.json_types import rfc3339
from proctor.manager.api.routes.failures import Failures
from proctor.manager.api.routes.importance import Importance
from proctor.manager.api.routes.schedulers import SchedulerState
from proctor.manager.lifecycle.states import ExperimentStatus
from proctor.manager.process.instance import ManagerAddress, write_address
from proctor.manager.settings import Home
from proctor.sdk.client.logs import LogPiece
from proctor.sdk.client.results import reported

TOKEN = "a-token-for-tests"
ENDED = {"SUCCEEDED", "FAILED", "EARLY_STOPPED", "USER_CANCELED", "SYS_CANCELED"}
STATUS_AFTER = {"stop": "STOPPED", "resume": "RUNNING", "pause": "PAUSED", "view": "VIEWED"}


class FakeRest(NodesOfRest):
    """The manager. Use it with `with`; `home` gets the files by which clients find it."""

    def __init__(self, home: Path, *, page: int = 3) -> None:
        """:param page: no list answer is longer, however much was asked for."""
        super().__init__(home)
        self.page = page
        self.experiments: dict[str, Row] = {}
        self.trials: dict[str, Row] = {}
        self.jobs: dict[str, list[Row]] = {}
        self.metrics: dict[str, list[Row]] = {}
        self.logs: dict[tuple[str, str, int], bytes] = {}
        self.away: dict[tuple[str, int], list[str]] = {}
        """Why the next readings of an attempt's log are refused, by trial and attempt: its machine is away."""
        self.dispatcher_log = b""
        self.log_bytes = 0
        """How much of all logs was asked for."""
        self.asked: list[tuple[str, str, Any]] = []
        self.queries: list[dict[str, str]] = []  # of what was posted
        self.checkpoints: dict[str, list[Row]] = {}  # by trial
        self.failures: Row = {"failed": 0, "counted": 0, "cause_count": 0, "causes": []}
        self.importances: list[Row] = []
        self.schedulers: dict[str, Row] = {}
        self.decisions: dict[str, list[Row]] = {}  # by trial
        self.views: dict[str, list[Row]] = {}
        self.has_views = True  # False: as a manager before there were saved views
        """The answers to come; the last one stays."""
        self.on_ask: dict[tuple[str, str], Any] = {}
        self.machines: Row | None = None
        """Of the experiments that are added from now on."""
        """Functions called after a request was answered, by (method, path): what happens next in the world."""
        self._events: list[Row] = []
        self._changed = threading.Condition()
        self._closing = False

    def __enter__(self) -> Self:
        handler = type("Handler", (_Handler,), {"rest": self})
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01})
        self._thread.start()
        self.home.mkdir(parents=True, exist_ok=True)
        address = ManagerAddress.of_this_process(host="127.0.0.1", port=self._server.server_port, url=self.url)
        write_address(Home(self.home), address)
        (self.home / "token").write_text(TOKEN + "\n")
        (self.home / "token").chmod(0o600)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    # What a test puts in

    def add_experiment(self, identifier: str, **changes: Any) -> Row:
        """A running experiment."""
        folder = self.home / "experiments" / identifier
        fields = {
            "id": identifier,
            "name": f"name of {identifier}",
            "status": "RUNNING",
            "reason": "",
            "config": {"trial_command": "python trial.py", "trial_code_directory": str(self.home)},
            "search_space": {"lr": {"_type": "uniform", "_value": [0, 1]}},
            "trial_concurrency": 2,
            "max_trial_number": 10,
            "max_experiment_duration_seconds": None,
            "max_trial_duration_seconds": None,
            "usage": USAGE,
            "trial_counts": {},
            "objective": {"metric": "default", "direction": "maximize"},
            "created_at": NOW,
            "started_at": NOW,
            "active_seconds": 5.0,
            "directory": str(folder),
            "url": f"{self.url}/experiments/{identifier}",
            "machines": self.machines,
        }
        made = models.Experiment(**{**fields, **changes}).model_dump(mode="json")
        self.experiments[identifier] = made
        return made

    def add_trial(self, experiment_id: str, identifier: str, **changes: Any) -> Row:
        """A trial that has succeeded."""
        sequence_id = sum(row["experiment_id"] == experiment_id for row in self.trials.values())
        fields = {
            "id": identifier,
            "experiment_id": experiment_id,
            "sequence_id": sequence_id,
            "status": "SUCCEEDED",
            "parameters": {"lr": 0.25, "layer": {"units": 8}},
            "parameter_id": sequence_id,
            "source": "algorithm",
            "jobs": 1,
            "final_value": float(sequence_id),
            "usage": USAGE,
            "created_at": NOW,
            "started_at": NOW,
            "ended_at": NOW,
            "directory": str(self.home / "experiments" / experiment_id / "trials" / f"{sequence_id}-{identifier}"),
        }
        made = models.Trial(**{**fields, **changes}).model_dump(mode="json")
        self.trials[identifier] = made
        self._count(experiment_id)
        return made

    def add_metric(self, trial_id: str, kind: str, value: float, **changes: Any) -> None:
        """A report."""
        rows = self.metrics.setdefault(trial_id, [])
        fields = {
            "id": len(rows) + 1,
            "trial_id": trial_id,
            "job": 1,
            "kind": kind,
            "sequence": sum(row["kind"] == kind for row in rows),
            "value": value,
            "time": NOW,
        }
        rows.append(models.Metric(**{**fields, **changes}).model_dump(mode="json"))

    def set_status(self, identifier: str, status: str, **changes: Any) -> None:
        """Move an experiment or a trial on, and tell the streams."""
        row = self.experiments.get(identifier) or self.trials[identifier]
        row.update(status=status, **changes)
        is_trial = "experiment_id" in row
        if is_trial:
            self._count(row["experiment_id"])
        self.emit(
            "trial.status" if is_trial else "experiment.status",
            experiment_id=row["experiment_id"] if is_trial else identifier,
            trial_id=identifier if is_trial else None,
        )

    def emit(self, kind: str, *, data: Row | None = None, **ids: Any) -> None:
        """A change, to every stream."""
        with self._changed:
            row = {"experiment_id": None, "trial_id": None, "job_id": None, **ids}
            time = rfc3339(NOW)
            self._events.append({"id": len(self._events) + 1, "time": time, "kind": kind, "data": data or {}, **row})
            self._changed.notify_all()

    def requests(self, method: str) -> list[tuple[str, Any]]:
        """What was asked with a method: paths without the API's prefix, and bodies."""
        return [(path, body) for asked, path, body in self.asked if asked == method]

    def _count(self, experiment_id: str) -> None:
        counts: dict[str, int] = {}
        for row in self.trials.values():
            if row["experiment_id"] == experiment_id:
                counts[row["status"]] = counts.get(row["status"], 0) + 1
        self.experiments[experiment_id]["trial_counts"] = counts

    # What a client gets

    def answer(self, method: str, parts: list[str], query: Mapping[str, str], body: Any) -> Any:
        """The JSON of an answer, or bytes, or None. Raises Answer."""
        match method, *parts:
            case "GET", "health":
                return {"status": "ok", "reason": ""}
            case "GET", "version":
                made = models.Version(version="0.1.0", python="3.11.9", home=str(self.home), pid=1, started_at=NOW)
                return made.model_dump(mode="json")
            case _, "nodes", *rest:
                return self.node_routes(method, rest, body)
            case "POST", "platforms", verb:
                return {"items": self.ask_machine(verb, body), "next_cursor": None}
            case "POST", "stop-all":
                return {"items": [self._stop(name) for name in self.experiments], "next_cursor": None}
            case _, "experiments", *rest:
                return self._experiment_routes(method, rest, query, body)
            case _, "trials", *rest:
                return self._trial_routes(method, rest, query)
        raise Answer(404, f"no route {method} {parts}")

    def _experiment_routes(self, method: str, parts: list[str], query: Mapping[str, str], body: Any) -> Any:
        match method, *parts:
            case ("GET",):
                return self._list_experiments(query)
            case ("POST",):
                return self._create(body)
            case "POST", "load":
                self.loaded_archive = (self.home / "incoming" / body["archive"]).read_bytes()
                return self.add_experiment(body["experiment_id"] or "loaded", status="STOPPED")
            case "GET", name:
                return self._experiment(name)
            case "PATCH", name:
                self._experiment(name).update(body)
                return self._experiment(name)
            case "DELETE", name:
                if self._experiment(name)["status"] != "STOPPED":
                    raise Answer(409, f"experiment {name} is running; stop it before you delete it")
                del self.experiments[name]
                return None
            case "GET", name, "trials":
                return self._list_trials(name, query)
            case "POST", name, "trials":
                made = {"status": "WAITING", "parameters": body["parameters"], "final_value": None}
                return self.add_trial(name, f"new{len(self.trials)}", **made)
            case "GET", name, "export":
                wanted = {query["status"]} if "status" in query else ENDED
                rows = [row for row in self.trials.values() if row["experiment_id"] == name]
                exported = [self._export_row(row, "intermediate" in query) for row in rows if row["status"] in wanted]
                return self._page(exported, query)
            case "POST", name, "import":
                known = [row for row in body if row["value"] is not None]
                outside = [row for row in known if "outside" in row["parameter"]] if "skip_outside" in query else []
                counts = {"skipped": len(body) - len(known), "outside": len(outside)}
                return {"imported": len(known) - len(outside), **counts}
            case "GET", name, "failures":
                return Failures(**self.failures).model_dump(mode="json")
            case "GET", name, "views" if self.has_views:
                return {"items": self.views.get(name, []), "next_cursor": None}
            case "GET", name, "views":
                raise Answer(404, "no such address")
            case "GET", name, "scheduler":
                return SchedulerState(**self.schedulers.get(name, {"name": None, "tables": []})).model_dump(mode="json")
            case "GET", name, "importance":
                found = self.importances.pop(0) if len(self.importances) > 1 else self.importances[0]
                return Importance(**found).model_dump(mode="json")
            case "GET", name, "curve":
                return {"items": [{"sequence_id": 0, "value": 1.0, "best": "NaN"}], "next_cursor": None}
            case "GET", name, "logs":
                return part_of(self.dispatcher_log, query, usual=100)
            case "POST", name, ("stop" | "resume" | "pause" | "view") as verb:
                if self._experiment(name)["status"] == "STOPPING" and verb != "stop":
                    raise Answer(409, f"experiment {name} is STOPPING; only a stopped or failed one can be resumed")
                self.set_status(self._experiment(name)["id"], STATUS_AFTER[verb])
                return self._experiment(name)
        raise Answer(405, f"no route {method} {parts}")

    def _trial_routes(self, method: str, parts: list[str], query: Mapping[str, str]) -> Any:
        match method, *parts:
            case ("GET",):
                found = sorted(row["id"] for row in self.trials.values() if row["id"].startswith(query["id_prefix"]))
                return {"items": [self.trials[name] for name in found[:20]], "next_cursor": None}
            case "GET", name:
                decisions = self.decisions.get(name, [])
                return models.TrialInFull(**self._trial(name), decisions=decisions).model_dump(mode="json")
            case "POST", name, "kill":
                self.set_status(self._trial(name)["id"], "USER_CANCELED")
                return self._trial(name)
            case "POST", name, ("pause" | "resume") as verb:
                changes = {"reason": ""} if verb == "pause" else {"reason": "waiting: resumed by the user"}
                self.set_status(self._trial(name)["id"], "PAUSED" if verb == "pause" else "WAITING", **changes)
                return self._trial(name)
            case "POST", name, "clone":
                old = self._trial(name)
                return self.add_trial(old["experiment_id"], f"clone{name}", status="WAITING", final_value=None)
            case "POST", name, "retry":
                old = self._trial(name)
                return self.add_trial(old["experiment_id"], f"again{name}", status="WAITING", final_value=None)
            case "GET", name, "jobs":
                return {"items": self.jobs.get(name, []), "next_cursor": None}
            case "GET", name, "metrics":
                rows = [row for row in self.metrics.get(name, []) if query.get("kind") in (None, row["kind"])]
                return self._page(rows, query)
            case "GET", name, "checkpoints":
                return self._page(self.checkpoints.get(name, []), query)
            case "GET", name, "curve":
                return self._page(_visible(self.metrics.get(name, [])), query)
            case "GET", name, "logs":
                key = (name, query["stream"], int(query.get("job", self._trial(name)["jobs"])))
                if reasons := self.away.get((name, key[2])):
                    raise Answer(503, reasons.pop(0))
                return part_of(self.logs.get(key, b""), query, usual=10)
        raise Answer(405, f"no route {method} {parts}")

    def events_after(self, position: int, experiment_id: str | None) -> list[Row] | None:
        """Waits for the events after a position; None when the manager goes."""
        with self._changed:
            while not self._closing:
                found = [row for row in self._events[position:] if experiment_id in (None, row["experiment_id"])]
                if found:
                    return found
                self._changed.wait(5.0)
        return None

    @property
    def last_event(self) -> int:
        """The id of the newest event."""
        return len(self._events)

    def _list_experiments(self, query: Mapping[str, str]) -> Row:
        rows = list(self.experiments.values())[::-1]
        rows = [row for row in rows if query.get("status") in (None, row["status"])]
        rows = [row for row in rows if query.get("name") in (None, row["name"])]
        rows = [row for row in rows if query.get("tag", "") in ("", *row["tags"])]
        if (archived := query.get("archived", "false")) != "all":
            over = (row["archived"] and ExperimentStatus(row["status"]).has_ended for row in rows)
            rows = [row for row, is_over in zip(rows, over, strict=True) if is_over == (archived == "true")]
        return self._page([row for row in rows if row["id"].startswith(query.get("id_prefix", ""))], query)

    def _list_trials(self, name: str, query: Mapping[str, str]) -> Row:
        self._experiment(name)
        rows = [row for row in self.trials.values() if row["experiment_id"] == name]
        rows = [row for row in rows if query.get("status") in (None, row["status"])]
        rows = self._filtered(rows, query)
        sort = query.get("sort", "sequence_id")
        if sort.removeprefix("-") not in ("sequence_id", "no", "value", "best", "time"):
            raise Answer(422, f"sort: expected a column, found {sort!r} (position 0)")
        if sort.endswith("best"):
            maximize = self.experiments[name]["objective"]["direction"] == "maximize"
            sort = "-value" if (sort == "best") == maximize else "value"
        key = "final_value" if sort.endswith("value") else "sequence_id"
        valued = sorted((row for row in rows if row[key] is not None), key=lambda row: row[key])
        if sort.startswith("-"):
            valued.reverse()
        return self._page([*valued, *(row for row in rows if row[key] is None)], query)

    @staticmethod
    def _filtered(rows: list[Row], query: Mapping[str, str]) -> list[Row]:
        """Knows filters such as `status = FAILED` only."""
        if "filter" not in query:
            return rows
        name, sign, value = query["filter"].split()
        if sign != "=" or name not in rows[0]:
            problem = ProblemItem(key="filter", position=0, message=f"expected a column, found {name!r}", found=name)
            raise Answer(422, f"filter: expected a column, found {name!r} (position 0)", [problem.model_dump()])
        return [row for row in rows if row[name] == value]

    def _create(self, body: Row) -> Row:
        handover = self.home / "incoming" / body["handover"]
        self.handed_over = json.loads(handover.read_text())
        self.handover_mode = handover.stat().st_mode & 0o777
        if "refuse" in body["config"].values():
            problem = {"key": "trialCommand", "message": "expected something better", "line": 3}
            raise Answer(422, "the configuration is not valid", [problem])
        if body["experiment_id"] in self.experiments:
            raise Answer(409, f"experiment {body['experiment_id']} already exists")
        handover.unlink()
        return self.add_experiment(body["experiment_id"] or f"exp{len(self.experiments)}", config=body["config"])

    def _stop(self, name: str) -> str:
        self.set_status(name, STATUS_AFTER["stop"])
        return name

    def _experiment(self, name: str) -> Row:
        if name not in self.experiments:
            raise Answer(404, f"there is no experiment {name}")
        return self.experiments[name]

    def _trial(self, name: str) -> Row:
        if name not in self.trials:
            raise Answer(404, f"there is no trial {name}")
        return self.trials[name]

    def _page(self, rows: list[Row], query: Mapping[str, str]) -> Row:
        begin = int(query.get("cursor", 0))
        end = begin + min(self.page, int(query.get("limit", self.page)))
        return {"items": rows[begin:end], "next_cursor": str(end) if end < len(rows) else None}

    def _export_row(self, row: Row, with_curve: bool) -> Row:
        curve = _visible(self.metrics.get(row["id"], [])) if with_curve else None
        made = models.ExportRow(
            parameter=row["parameters"],
            value=row["final_value"] if row["final_data"] is None else row["final_data"],
            trial_id=row["id"],
            sequence_id=row["sequence_id"],
            status=row["status"],
            reason=row["reason"],
            latest_value=row["latest_value"],
            intermediate=None if curve is None else [reported(point) for point in curve],
            intermediate_steps=None if curve is None else [point["step"] for point in curve],
        )
        return made.model_dump(mode="json")


class _Handler(BaseHTTPRequestHandler):
    """One connection, one request: HTTP/1.0."""

    rest: FakeRest

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""

    def do_GET(self) -> None:
        self._answer()

    do_POST = do_PATCH = do_DELETE = do_GET

    def _answer(self) -> None:
        address = urlsplit(self.path)
        path = address.path.removeprefix("/api/v1")
        parts = [unquote(part) for part in path.split("/") if part]
        query = {name: values[-1] for name, values in parse_qs(address.query).items()}
        length = int(self.headers.get("Content-Length") or 0)
        body = json.loads(self.rfile.read(length)) if length else None
        self.rest.asked.append((self.command, path, body))
        if self.command == "POST":
            self.rest.queries.append(query)
        try:
            if path != "/health" and self.headers.get("Authorization") != f"Bearer {TOKEN}":
                raise Answer(401, "a token is needed")
            if path == "/events":
                self._stream(query)
                return
            found = self.rest.answer(self.command, parts, query, body)
            self._send(200, found)
        except Answer as problem:
            document = Problem(
                title="Problem", status=problem.status, detail=problem.detail, problems=problem.problems
            ).model_dump(mode="json", exclude_none=True)
            self._send(problem.status, document)
        then = self.rest.on_ask.pop((self.command, path), None)
        if then is not None:
            then()

    def _send(self, status: int, found: Any) -> None:
        text = found.data if isinstance(found, LogPiece) else found if isinstance(found, bytes) else None
        data = text if text is not None else b"" if found is None else json.dumps(found).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json" if text is None else "text/plain")
        self.send_header("Content-Length", str(len(data)))
        if isinstance(found, LogPiece):
            self.send_header("X-Next-Offset", str(found.next_offset))
            self.rest.log_bytes += len(data)
        self.end_headers()
        self.wfile.write(data)

    def _stream(self, query: Mapping[str, str]) -> None:
        rest = self.rest
        given = self.headers.get("Last-Event-ID") or query.get("after")
        position = rest.last_event if given is None else int(given)
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        try:
            self.wfile.write(f"retry: 1000\n: from {position}\n\n".encode())
            self.wfile.flush()
            while (found := rest.events_after(position, query.get("experiment_id"))) is not None:
                for row in found:
                    text = f"id: {row['id']}\nevent: {row['kind']}\ndata: {json.dumps(row)}\n\n"
                    self.wfile.write(text.encode())
                    position = row["id"]
                self.wfile.flush()
        except (BrokenPipeError, ConnectionResetError):  # the client has gone
            return


def part_of(log: bytes, query: Mapping[str, str], *, usual: int) -> LogPiece:
    """What a reading of a log is answered; without a limit, `usual` bytes."""
    offset = int(query["offset"])
    begin = max(len(log) + offset, 0) if offset < 0 else offset
    data = log[begin:][: int(query.get("limit", usual))]
    return LogPiece(data, begin + len(data))


def _visible(rows: list[Row]) -> list[Row]:
    """The intermediates of the newest job, and before its first one those of the jobs before it."""
    points: list[Row] = []
    for row in sorted((row for row in rows if row["kind"] == "intermediate"), key=lambda row: row["job"]):
        points = [point for point in points if point["job"] == row["job"] or point["sequence"] < row["sequence"]]
        points.append(row)
    return points

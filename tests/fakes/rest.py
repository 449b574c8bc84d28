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
from proctor.manager.api.description import Problem
from proctor.manager.api.json_types import rfc3339
from proctor.manager.api.routes.schedulers import SchedulerState
from proctor.manager.process.instance import ManagerAddress, write_address
from proctor.manager.settings import Home

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
        self.asked: list[tuple[str, str, Any]] = []
        self.schedulers: dict[str, Row] = {}
        self.decisions: dict[str, list[Row]] = {}  # by trial
        self.on_ask: dict[tuple[str, str], Any] = {}
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
            case _, "experiments", *rest:
                return self._experiment_routes(method, rest, query, body)
            case _, "trials", *rest:
                return self._trial_routes(method, rest, query)
        raise Answer(404, f"no route {method} {parts}")

    def _experiment_routes(self, method: str, parts: list[str], query: Mapping[str, str], body: Any) -> Any:
        match method, *parts:
            case ("GET",):
                return self._list_experiments(query)
            case "GET", name:
                return self._experiment(name)
            case "GET", name, "trials":
                return self._list_trials(name, query)
            case "GET", name, "scheduler":
                return SchedulerState(**self.schedulers.get(name, {"name": None, "tables": []})).model_dump(mode="json")
            case "POST", name, ("stop" | "resume" | "pause" | "view") as verb:
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
            case "GET", name, "jobs":
                return {"items": self.jobs.get(name, []), "next_cursor": None}
            case "GET", name, "metrics":
                rows = [row for row in self.metrics.get(name, []) if query.get("kind") in (None, row["kind"])]
                return self._page(rows, query)
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
        return self._page([row for row in rows if row["id"].startswith(query.get("id_prefix", ""))], query)

    def _list_trials(self, name: str, query: Mapping[str, str]) -> Row:
        self._experiment(name)
        rows = [row for row in self.trials.values() if row["experiment_id"] == name]
        rows = [row for row in rows if query.get("status") in (None, row["status"])]
        sort = query.get("sort", "sequence_id")
        if sort.endswith("best"):
            maximize = self.experiments[name]["objective"]["direction"] == "maximize"
            sort = "-value" if (sort == "best") == maximize else "value"
        key = "final_value" if sort.endswith("value") else "sequence_id"
        valued = sorted((row for row in rows if row[key] is not None), key=lambda row: row[key])
        if sort.startswith("-"):
            valued.reverse()
        return self._page([*valued, *(row for row in rows if row[key] is None)], query)

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
        data = b"" if found is None else json.dumps(found).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
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

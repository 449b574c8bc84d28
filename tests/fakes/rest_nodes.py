"""The nodes and machines of the fake manager."""

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from proctor.manager.api import models

Row = dict[str, Any]
USAGE = {"gpu_hours": 6.5, "cpu_hours": 13.25}
NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


class Answer(Exception):
    """Raised by a route to answer with a problem document."""

    def __init__(self, status: int, detail: str, problems: list[Row] | None = None) -> None:
        super().__init__(detail)
        self.status, self.detail, self.problems = status, detail, problems


class NodesOfRest:
    """What the fake manager knows of nodes."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.node_rows: list[Row] = []
        self.found: dict[str, list[Row]] = {}
        """What there is to say of a machine, by host; nothing: one step that is ok."""
        self.refused = ""
        """Why machines cannot be asked about."""
        self.handed_over: Row = {}
        self.collections: dict[str, list[Row]] = {}
        """What a collection of files says, one after the other, by node."""

    def emit(self, kind: str, *, data: Row | None = None, **ids: Any) -> None:
        """A change, to every stream."""
        raise NotImplementedError

    def add_node(self, identifier: str, **changes: Any) -> Row:
        """A machine whose keeper answers."""
        fields = {"id": identifier, "kind": "remote", "status": "CONNECTED", "seen_at": NOW, "usage": USAGE}
        made = models.Node(**{**fields, **changes}).model_dump(mode="json")
        self.node_rows.append(made)
        return made

    def set_node(self, identifier: str, **changes: Any) -> None:
        """Move a node on, and tell the streams."""
        row = next(row for row in self.node_rows if row["id"] == identifier)
        row.update(changes)
        self.emit("node", data={"node_id": identifier, "status": row["status"], "reason": row["reason"]})

    def node_routes(self, method: str, parts: list[str], body: Any) -> Any:
        """What is below /nodes."""
        if not parts:
            return {"items": self.node_rows, "next_cursor": None}
        name, *verb = parts
        row = next((row for row in self.node_rows if row["id"] == name), None)
        if row is None:
            raise Answer(404, f"there is no node {name}")
        match method, *verb:
            case ("GET",):
                pass
            case "POST", "check":
                if row["kind"] == "local":
                    raise Answer(409, f"node {name} is not reached over a network")
            case "POST", "drain":
                row["hold"] = f"drained: {body['reason']}" if body["reason"] else "drained"
            case "POST", "collect":
                states = self.collections.get(name, [])
                return b"".join(models.FileCollection(**state).model_dump_json().encode() + b"\n" for state in states)
            case "POST", "resume":
                row["hold"] = ""
            case "POST", "forget":
                if row["experiments"]:
                    raise Answer(409, f"node {name} is used by experiment {row['experiments'][0]}")
                self.node_rows.remove(row)
                return None
            case _:
                raise Answer(405, f"no route {method} {parts}")
        return row

    def ask_machine(self, verb: str, body: Any) -> list[Row]:
        """What is found on one machine."""
        handover = self.home / "incoming" / body["handover"]
        self.handed_over = json.loads(handover.read_text())
        handover.unlink()
        if self.refused:
            raise Answer(503, self.refused)
        host = body["config"]["trainingService"]["machineList"][body["machine"]]["host"]
        step = {"machine": host, "name": verb, "verdict": "ok", "found": "as it should be", "advice": ""}
        return [{**step, **changes} for changes in self.found.get(host, [{}])]

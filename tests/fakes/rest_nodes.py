"""The nodes and machines of the fake manager."""

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

    def emit(self, kind: str, *, data: Row | None = None, **ids: Any) -> None:
        """A change, to every stream."""
        raise NotImplementedError

    def add_node(self, identifier: str, **changes: Any) -> Row:
        """A machine whose keeper answers."""
        fields = {"id": identifier, "kind": "remote", "status": "CONNECTED", "seen_at": NOW, "usage": USAGE}
        made = models.Node(**{**fields, **changes}).model_dump(mode="json")
        self.node_rows.append(made)
        return made

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
            case _:
                raise Answer(405, f"no route {method} {parts}")
        return row

    def ask_machine(self, verb: str, body: Any) -> list[Row]:
        """What is found on one machine."""
        handover = self.home / "incoming" / body["handover"]
        handover.unlink()
        host = body["config"]["trainingService"]["machineList"][body["machine"]]["host"]
        step = {"machine": host, "name": verb, "verdict": "ok", "found": "as it should be", "advice": ""}
        return [{**step, **changes} for changes in self.found.get(host, [{}])]

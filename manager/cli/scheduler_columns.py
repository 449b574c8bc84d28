"""How the tables of a trial scheduler read on a terminal, and what it has decided of a trial."""

from proctor.manager.cli.columns import local_time, number
from proctor.manager.cli.output import Column, TableRow


def scheduler_columns(table: TableRow) -> list[Column]:
    """Those of a table of a trial scheduler. Its rows are mappings from "0", as the columns are counted."""
    last = len(table["columns"]) - 1
    found = []
    for index, title in enumerate(table["columns"]):
        cells = [row[index] for row in table["rows"]]
        is_text = any(isinstance(cell, str) for cell in cells)

        def text(row: TableRow, key: str = str(index)) -> str:
            return row[key] if isinstance(row[key], str) else number(row[key])

        wraps = is_text and index == last
        found.append(Column(title.upper(), text, right=not is_text, gives_way=is_text and not wraps, wraps=wraps))
    return found


def decision_text(decision: TableRow) -> str:
    """`promoted to rung 9: 2nd of 7`, `continues from trial 3: the donor is at 0.91`."""
    if decision["kind"] != "clone":
        return decision["reason"] or "resumed"
    donor = decision["donor_sequence_id"]
    whom = f"trial {decision['donor_trial_id'] if donor is None else donor}"
    lacks = "" if decision["has_donor_checkpoint"] else "; but it had no checkpoint that could be read"
    return ": ".join(filter(None, (f"continues from {whom}", decision["reason"]))) + lacks


DECISIONS = (
    Column("TIME", lambda row: local_time(row["decided_at"])),
    Column("JOB", lambda row: "too late" if row["job"] == 0 else number(row["job"]), right=True),
    Column("DECISION", decision_text, wraps=True),
)

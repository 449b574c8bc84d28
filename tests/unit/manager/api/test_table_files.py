"""The table of trials as a file: CSV and Parquet."""

import csv
import io
import sys
from typing import Any

import pytest
from pyarrow import parquet

from proctor.manager.api.table_files import table_to_csv, table_to_parquet
from proctor.manager.store.trial_table.table import TableColumn, TrialTable

pytestmark = pytest.mark.anyio


def table() -> TrialTable:
    columns = [
        TableColumn("no", "number", [0, 1, 2]),
        TableColumn("value", "number", [0.1, None, -1e-7]),
        TableColumn("reason", "text", ["=cmd()", None, 'a "b",\nc \udce9']),
        TableColumn("started", "time", [1e9, None, 0.25]),
        TableColumn("parameter.model", "json", [{"_name": "a"}, "x", True]),
        TableColumn("parameter.@seed", "number", [2**63, 1, None]),
    ]
    return TrialTable(columns=columns, rows=3, total=3, matched=3, revision=1)


def test_csv_has_exact_numbers_and_no_formula() -> None:
    rows = list(csv.reader(io.StringIO(table_to_csv(table()).decode(), newline="")))
    assert rows == [
        ["no", "value", "reason", "started", "parameter.model", "parameter.@seed"],
        ["0", "0.1", "'=cmd()", "2001-09-09T01:46:40.000Z", '{"_name": "a"}', str(2**63)],
        ["1", "", "", "", "x", "1"],
        ["2", "-1e-07", 'a "b",\nc \\udce9', "1970-01-01T00:00:00.250Z", "true", ""],
    ]


def test_parquet_has_the_types_of_the_columns() -> None:
    found = parquet.read_table(io.BytesIO(table_to_parquet(table())))
    assert [str(field.type) for field in found.schema] == [
        "int64",
        "double",
        "string",
        "timestamp[us, tz=UTC]",
        "string",
        "double",
    ]
    assert found["value"].to_pylist() == [0.1, None, -1e-7]
    assert [None if each is None else each.timestamp() for each in found["started"].to_pylist()] == [1e9, None, 0.25]
    assert found["parameter.model"].to_pylist() == ['{"_name": "a"}', '"x"', "true"]
    assert found["reason"].to_pylist()[2] == 'a "b",\nc \\udce9'


async def test_the_file_has_the_rows_of_the_filter_and_a_name(api: Any) -> None:
    ran = await api.ran()
    path = f"{ran.path}/table?columns=no,status&sort=-no&filter=no%20%3E%200"
    answer = await api.client.get(f"{path}&format=csv")
    assert answer.headers["content-type"].startswith("text/csv")
    assert answer.headers["content-disposition"] == f'attachment; filename="{ran.id}.csv"'
    assert answer.text.splitlines() == ["no,status", "2,SUCCEEDED", "1,SUCCEEDED"]
    plain = await api.get(path)
    saved = await api.client.get(f"{path}&format=json", headers={"Accept": "application/vnd.proctor.columns"})
    assert saved.json() == plain
    assert (await api.client.get(f"{path}&format=xlsx")).status_code == 422


async def test_without_pyarrow_the_answer_names_it_and_the_session_does_not_offer_it(
    api: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    created = await api.create()
    answer = await api.get(f"{created.path}/table?format=parquet", status=501)
    assert "pip install pyarrow" in answer["detail"]
    assert (await api.get("/api/v1/session"))["export_formats"] == ["json", "csv"]


async def test_the_session_offers_parquet_with_pyarrow(api: Any) -> None:
    assert (await api.get("/api/v1/session"))["export_formats"] == ["json", "csv", "parquet"]
    created = await api.create()
    assert (await api.client.get(f"{created.path}/table?format=parquet")).content[:4] == b"PAR1"

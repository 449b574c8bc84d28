"""The table of an experiment's trials over REST, in both of its formats and as a file, and filtered lists of trials."""

import csv
import io
import json
import math
import sqlite3
import struct
import sys
from array import array
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyarrow import parquet

from proctor.manager.api.columnar import MEDIA_TYPE, pack_table, table_to_json
from proctor.manager.api.table_files import table_to_csv, table_to_parquet
from proctor.manager.lifecycle.states import TrialStatus
from proctor.manager.store.rows import TrialRow, update_row
from proctor.manager.store.tables import trials
from proctor.manager.store.trial_table.table import TableColumn, TrialTable

pytestmark = pytest.mark.anyio

BINARY = {"Accept": MEDIA_TYPE}
CODES = {"f64": "d", "i32": "i", "u8": "B", "u16": "H", "u32": "I"}


def unpack(data: bytes) -> dict[str, Any]:
    """The header of the binary format, with the `cells` of each column. As docs/rest.md describes it."""
    assert data[:4] == b"PCOL"
    (length,) = struct.unpack_from("<I", data, 4)
    header: dict[str, Any] = json.loads(data[8 : 8 + length])
    begin = 8 + length
    assert begin % 8 == 0
    assert header["version"] == 1
    for column in header["columns"]:
        assert column["at"] % 8 == 0
        column["cells"] = _cells(data[begin + column["at"] :], column, header["rows"])
    return header


def _cells(data: bytes, column: dict[str, Any], rows: int) -> list[Any]:
    if column["encoding"] == "text":
        ends = array("I", data[: 4 * (rows + 1)])
        texts = data[4 * (rows + 1) :]
        return _read_words([texts[begin:end].decode() for begin, end in pairwise(ends)], column)
    numbers = array(CODES[column["encoding"]])
    numbers.frombytes(data[: numbers.itemsize * rows])
    match column["encoding"]:
        case "f64":
            return [None if math.isnan(number) else number for number in numbers]
        case "i32":
            return [None if number == -(2**31) else number for number in numbers]
    null = 2 ** (8 * numbers.itemsize) - 1
    return _read_words([None if number == null else column["values"][number] for number in numbers], column)


def _read_words(words: Sequence[str | None], column: dict[str, Any]) -> list[Any]:
    if column["type"] == "text":
        return list(words)
    return [None if word is None else json.loads(word) for word in words]


async def insert(api: Any, experiment_id: str, **columns: Any) -> None:
    """One more trial."""
    row = TrialRow("insertd1", experiment_id, 900, TrialStatus.PAUSED, 900, created_at=1.0, **columns)
    await api.manager.control.write(lambda connection: trials.insert(connection, row))


async def test_the_table_has_a_row_for_every_trial(api: Any) -> None:
    ran = await api.ran()
    listed = (await api.get(f"{ran.path}/trials"))["items"]
    body = await api.get(f"{ran.path}/table?columns=no,id,status,value,parameter.*,created,ended")
    assert [each["name"] for each in body["columns"]] == [
        *("no", "id", "status", "value", "parameter.x", "created", "ended")
    ]  # fmt: skip
    assert body["rows"] == [
        [
            trial["sequence_id"],
            trial["id"],
            trial["status"],
            trial["final_value"],
            trial["parameters"]["x"],
            trial["created_at"],
            trial["ended_at"],
        ]
        for trial in listed
    ]
    assert (body["total"], body["matched"]) == (3, 3)
    assert body["revision"] > 0


async def test_both_formats_say_the_same(api: Any) -> None:
    ran = await api.ran()
    await insert(api, ran.id, parameters={"x": "NaN", "größe": [1, {"a": None}], "on": True}, reason="x" * 5000)
    address = f"{ran.path}/table"
    rows = await api.get(address)
    answer = await api.client.get(address, headers=BINARY)
    assert answer.headers["content-type"] == MEDIA_TYPE
    assert answer.headers["vary"] == "Accept"
    columns = unpack(answer.content)
    for key in ("total", "matched", "revision"):
        assert columns[key] == rows[key]
    assert columns["rows"] == len(rows["rows"]) == 4
    for place, (column, described) in enumerate(zip(columns["columns"], rows["columns"], strict=True)):
        assert {key: column[key] for key in described} == described
        cells = [row[place] for row in rows["rows"]]
        if column["type"] == "time":
            assert [cell is None for cell in cells] == [cell is None for cell in column["cells"]]
        else:
            assert column["cells"] == cells


@pytest.mark.slow
@given(
    st.lists(
        st.tuples(
            st.none() | st.integers(-(2**31), 2**70) | st.just(10**400),
            st.none() | st.floats(allow_nan=False, allow_infinity=False),
            st.none() | st.text(max_size=3),
            st.text(st.characters(codec="utf-8"), max_size=3),
            st.none() | st.booleans() | st.lists(st.integers(0, 9), max_size=2),
        ),
        max_size=30,
    )
)
def test_every_value_survives_the_binary_format(rows: list[tuple[Any, ...]]) -> None:
    types: tuple[Any, ...] = ("number", "number", "text", "text", "json")
    columns = [TableColumn(f"c{place}", kind, [row[place] for row in rows]) for place, kind in enumerate(types)]
    table = TrialTable(columns, rows=len(rows), total=50, matched=40, revision=7)
    found = unpack(pack_table(table))["columns"]
    for column, read in zip(columns, found, strict=True):
        expected = column.values
        if read["encoding"] == "f64":
            expected = [None if value in (None, 10**400) else float(value) for value in expected]
        assert read["cells"] == expected
        assert read["varies"] == (len({json.dumps(value) for value in column.values}) > 1)
    assert json.loads(table_to_json(table))["rows"] == [list(row) for row in rows]


def test_few_different_texts_are_indexes_and_many_are_one_block() -> None:
    many = [f"id{number}" for number in range(1000)]
    few = ["SUCCEEDED", "FAILED"] * 500
    missing = [*many[:-1], None]
    table = TrialTable(
        [TableColumn(name, "text", values) for name, values in (("many", many), ("few", few), ("missing", missing))],
        1000, 1000, 1000, 1,
    )  # fmt: skip
    table.columns.append(TableColumn("lists", "json", [[number] for number in range(1000)]))
    found = unpack(pack_table(table))["columns"]
    assert [column["encoding"] for column in found] == ["text", "u8", "u16", "text"]
    assert [column["cells"] for column in found] == [column.values for column in table.columns]


async def test_a_trial_whose_node_is_silent_says_so_as_elsewhere(api: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    ran = await api.ran()

    def run(connection: sqlite3.Connection) -> str:
        [first, *_] = trials.page(connection, ran.id).items
        update_row(connection, "trials", TrialRow, first.id, {"status": TrialStatus.RUNNING})
        return first.id

    running = await api.manager.control.write(run)
    monkeypatch.setattr(
        api.manager, "silence_of", lambda trial, node: f"silent: {trial.id}" if trial.id == running else ""
    )
    body = await api.get(f"{ran.path}/table?columns=reason")
    assert body["rows"][0] == [f"silent: {running}"]
    assert body["rows"][1] != [f"silent: {running}"]
    assert (await api.client.get(f"{ran.path}/table?columns=no")).status_code == 200


async def test_a_list_of_trials_takes_the_same_filter_and_any_column_as_order(api: Any) -> None:
    ran = await api.ran(max_trial_number=6)
    path = f"{ran.path}/trials"
    every = (await api.get(path))["items"]
    for query, expected in {
        "filter=x<0.5": [trial for trial in every if trial["parameters"]["x"] < 0.5],
        "filter=x<0.5&status=FAILED": [],
        "sort=-x": sorted(every, key=lambda trial: -trial["parameters"]["x"]),
        "sort=best&filter=no>1": sorted(every[2:], key=lambda trial: trial["final_value"]),
        "sort=-no": every[::-1],
        "sort=-sequence_id&filter=no>2": every[:2:-1],
    }.items():
        assert await api.pages(f"{path}?limit=2&{query}") == expected, query


MISTAKES = [
    ("filter=status = OK", "filter", 9, "'OK'"),
    ("filter=(x < 1", "filter", 6, "the end"),
    ("filter=y < 1", "filter", 0, "'y'"),
    ("sort=no&sort=-y", "sort", 1, "'y'"),
    ("columns=no,y", "columns", 3, "'y'"),
    ("columns=,no", "columns", 0, "''"),
    ("columns=parameter.", "columns", 0, "'parameter.'"),
]


async def test_a_mistake_is_answered_with_its_place(api: Any) -> None:
    ran = await api.ran()
    for query, key, position, found in MISTAKES:
        for what in ("table", "trials") if key == "filter" else ("table",):
            answer = await api.get(f"{ran.path}/{what}?{query}", status=422)
            [problem] = answer["problems"]
            assert (problem["key"], problem["position"], problem["found"]) == (key, position, found)
            assert problem["expected"]
            assert answer["detail"] == f"{key}: {problem['message']} (position {position})"


async def test_a_range_that_is_none_is_refused(api: Any) -> None:
    created = await api.create()
    ranges = ("limit=0", "limit=100001", "limit=many", "offset=-1", "offset=1e3")
    for query in (*ranges, "sort=" + "&sort=no" * 9, "columns=" + "a" * 10_001):
        assert (await api.get(f"{created.path}/table?{query}", status=422))["problems"]


WORDS = st.sampled_from(
    [
        "and",
        "or",
        "not",
        "(",
        ")",
        "x",
        "status",
        "value",
        "=",
        "<",
        "~",
        "in",
        "is",
        "null",
        "1e-3",
        '"',
        "'a'",
        "`",
        ",",
    ]
)
NOISE = st.lists(WORDS | st.text(max_size=3), max_size=12).map(" ".join)


@pytest.mark.slow
async def test_noise_is_answered_or_refused_never_failed(api: Any) -> None:
    ran = await api.ran()
    noises: list[tuple[str, str]] = []

    @given(NOISE, NOISE)
    @settings(max_examples=60, suppress_health_check=list(HealthCheck), database=None)
    def collect(first: str, second: str) -> None:
        noises.append((first, second))

    collect()
    for first, second in noises:
        for what, query in (
            ("table", {"filter": first, "columns": second or "*"}),
            ("table", {"sort": second or "no", "filter": "x < 1"}),
            ("trials", {"filter": first, "sort": second or "no", "cursor": first or "x"}),
        ):
            answer = await api.client.get(f"{ran.path}/{what}", params=query)
            assert answer.status_code in (200, 422), (what, query, answer.text)
            if answer.status_code == 422:
                assert answer.headers["content-type"] == "application/problem+json"
                assert len(answer.json()["detail"]) > 10


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
    assert await api.get(f"{path}&format=json", headers={"Accept": "application/vnd.proctor.columns"}) == plain
    assert (await api.client.get(f"{path}&format=xlsx")).status_code == 422


async def test_without_pyarrow_the_answer_names_it_and_the_session_does_not_offer_it(
    api: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    created = await api.create()
    assert "pip install pyarrow" in (await api.get(f"{created.path}/table?format=parquet", status=501))["detail"]
    assert (await api.get("/api/v1/session"))["export_formats"] == ["json", "csv"]


async def test_the_session_offers_parquet_with_pyarrow(api: Any) -> None:
    assert (await api.get("/api/v1/session"))["export_formats"] == ["json", "csv", "parquet"]
    created = await api.create()
    assert (await api.client.get(f"{created.path}/table?format=parquet")).content[:4] == b"PAR1"

"""The output of trials: parts of it by byte offset, what a search finds, how far it is, and what hostile files do."""

import os
from pathlib import Path
from typing import Any

import pytest

from proctor.manager.api.text import read_part
from proctor.manager.engine import log_search

pytestmark = pytest.mark.anyio


async def with_logs(api: Any, *logs: dict[str, bytes]) -> tuple[str, list[Path]]:
    """An experiment whose trials have these files; returns its id and the directories of the jobs."""
    ran = await api.ran(max_trial_number=len(logs))
    folders = []
    for trial, files in zip(ran.trials, logs, strict=True):
        folder = Path(trial["directory"], "jobs", "1")
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in files.items():
            (folder / name).write_bytes(content)
        folders.append(folder)
    return ran.id, folders


async def search(api: Any, experiment_id: str, **query: Any) -> dict[str, Any]:
    return dict(await api.get(f"/api/v1/experiments/{experiment_id}/logs/search", params=query, status=200))


async def test_lines_are_found_in_both_streams_of_all_jobs_with_their_places(api: Any) -> None:
    experiment_id, _ = await with_logs(
        api,
        {"stdout": b"one\nCUDA error: 2 CUDA errors\r\nCUDA", "stderr": b"none"},
        {"stdout": "späte CUDA\n".encode(), "stderr": b"x\n\ncuda"},
    )
    found = await search(api, experiment_id, q="CUDA")
    assert [
        (row["sequence_id"], row["stream"], row["line"], row["line_offset"], row["offset"], row["text"])
        for row in found["items"]
    ] == [
        (1, "stdout", 1, 0, 7, "späte CUDA"),
        (0, "stdout", 2, 4, 4, "CUDA error: 2 CUDA errors"),
        (0, "stdout", 3, 31, 31, "CUDA"),
    ]
    assert found["next_cursor"] is None
    assert found["searched_jobs"] == 2
    assert found["not_here"] == []
    alike = await search(api, experiment_id, q="CUDA", ignore_case="true")
    assert next((row["sequence_id"], row["stream"], row["line"]) for row in alike["items"]) == (1, "stderr", 3)


async def test_a_search_of_pages_of_one_line_finds_what_a_whole_search_finds(
    api: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_search, "_PIECE_BYTES", 64)
    lines = b"".join(b"%d needle %s\n" % (n, b"y" * (n * 7 % 150)) for n in range(60))
    experiment_id, _ = await with_logs(api, {"stdout": lines, "stderr": lines[:-1]}, {"stdout": lines})
    whole = (await search(api, experiment_id, q="needle", limit=1000))["items"]
    assert len(whole) == 180
    for row in whole:
        assert row["text"].lstrip("…").startswith(f"{row['line'] - 1} needle")
    assert await api.pages(f"/api/v1/experiments/{experiment_id}/logs/search?q=needle&limit=7") == whole


async def test_bounded_searches_say_where_to_continue(api: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_search, "_PIECE_BYTES", 100)
    monkeypatch.setattr(log_search, "MOST_BYTES", 150)
    experiment_id, _ = await with_logs(api, {"stdout": b"z" * 1000 + b"needle\n" + b"a needle"})
    found = await search(api, experiment_id, q="needle")
    assert found["items"] == []
    assert found["searched_bytes"] == 200
    assert found["next_cursor"]
    calls, items = 1, []
    while found["next_cursor"] is not None:
        found = await search(api, experiment_id, q="needle", cursor=found["next_cursor"])
        items += found["items"]
        calls += 1
    assert calls > 4
    assert [(row["offset"], row["line"], row["line_offset"]) for row in items] == [(1000, 1, 0), (1009, 2, 1007)]
    assert items[0]["text"] == "…" + "z" * 200 + "needle"


async def test_a_job_of_which_nothing_is_here_is_counted_once_wherever_a_search_stops(
    api: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    experiment_id, folders = await with_logs(api, {"stdout": b"needle"}, {}, {"stdout": b"needle"})
    for name in ("stdout", "stderr"):
        (folders[1] / name).unlink(missing_ok=True)
    (folders[0] / "stderr").unlink(missing_ok=True)
    overs = iter([False] * 3 + [True] + [False] * 100)  # it is over between the streams of the second job
    monkeypatch.setattr(log_search.LogSearch, "_is_over", lambda _: next(overs))
    first = await search(api, experiment_id, q="needle")
    second = await search(api, experiment_id, q="needle", cursor=first["next_cursor"])
    assert ".stdout." in first["next_cursor"]
    assert (first["searched_jobs"], first["not_here_count"]) == (1, 0)
    assert (second["searched_jobs"], second["not_here_count"]) == (1, 1)
    assert [row["sequence_id"] for row in second["not_here"]] == [1]


async def test_hostile_files_are_searched_or_left_out(api: Any, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_bytes(b"needle in a file of someone else\n")
    binary = bytes(range(256)) * 4000 + b"needle\x00\x1b[31m\xff\xfe\n"
    experiment_id, folders = await with_logs(
        api, {"stdout": binary, "stderr": b"needle" * 200_000}, {"stdout": b"x"}, {"stdout": b"y"}
    )
    (folders[1] / "stdout").unlink()
    (folders[1] / "stdout").symlink_to(secret)
    (folders[2] / "stdout").unlink()
    os.mkfifo(folders[2] / "stdout")
    found = await search(api, experiment_id, q="needle")
    assert [(row["sequence_id"], row["stream"]) for row in found["items"]] == [(0, "stderr"), (0, "stdout")]
    assert all(len(row["text"]) < 600 for row in found["items"])
    assert [row["sequence_id"] for row in found["not_here"]] == [2, 1]
    assert found["not_here_count"] == 2


async def test_a_trial_is_searched_alone(api: Any) -> None:
    experiment_id, _ = await with_logs(api, {"stdout": b"needle"}, {"stdout": b"needle"})
    trials = (await api.get(f"/api/v1/experiments/{experiment_id}/trials"))["items"]
    answer = await api.get(f"/api/v1/trials/{trials[0]['id']}/logs/search", params={"q": "needle"})
    assert [row["trial_id"] for row in answer["items"]] == [trials[0]["id"]]


@pytest.mark.parametrize(
    "query",
    ["q=", "q=a%0Ab", "", "q=a&cursor=7", "q=a&cursor=1.1.other.0.0.0.0", "q=a&limit=0", f"q={'a' * 1001}"],
)
async def test_what_cannot_be_searched_is_refused(api: Any, query: str) -> None:
    created = await api.create()
    answer = await api.client.get(f"{created.path}/logs/search?{query}")
    assert answer.status_code in (400, 422), answer.text


def test_what_follows_the_end_of_a_log_is_empty(tmp_path: Path) -> None:
    (tmp_path / "log").write_bytes(b"12345")
    assert read_part(tmp_path / "log", 2, 2) == (b"34", 2)
    assert read_part(tmp_path / "log", -2, 9) == (b"45", 3)
    assert read_part(tmp_path / "log", 9, 9) == (b"", 9)


def test_a_reader_of_a_log_that_was_cut_goes_on_at_its_beginning(tmp_path: Path) -> None:
    (tmp_path / "log").write_bytes(b"12345")
    assert read_part(tmp_path / "log", 9, 9, is_cut=True) == (b"12345", 0)
    assert read_part(tmp_path / "log", 5, 9, is_cut=True) == (b"", 5)

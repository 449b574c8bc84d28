"""Tables and charts that are read in a process of their own: what goes wrong there is answered as ever, and work for
clients that go away ends."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from fakes import heavy_reads
from fakes.heavy_reads import endless
from starlette.requests import Request
from starlette.types import Message

from proctor.manager.api import charts
from proctor.manager.api.routes import curves
from proctor.manager.api.routes.results import answer_while_connected
from proctor.manager.store.read_process import ReadProcess, ReadProcesses

pytestmark = pytest.mark.anyio


@pytest.fixture
async def experiment(api: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[str]:
    """The address of an experiment that is DONE, under a manager that reads in processes without pyarrow."""
    (tmp_path / "without" / "pyarrow").mkdir(parents=True)
    (tmp_path / "without" / "pyarrow" / "__init__.py").write_text("raise ImportError('there is no pyarrow')")
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path / 'without'}:{Path(heavy_reads.__file__).parents[1]}")
    async with ReadProcesses.open() as reads:
        monkeypatch.setattr(api.manager, "_reads", reads)
        yield (await api.ran()).path


@pytest.mark.slow
async def test_a_table_that_is_refused_names_the_key_and_the_place(api: Any, experiment: str) -> None:
    for query, problem in (
        ("filter=no%20%3E%200%20and%20lrr%20%3C%201", {"key": "filter", "position": 11, "found": "'lrr'"}),
        ("sort=no&sort=-nonesuch", {"key": "sort", "position": 1, "found": "'nonesuch'"}),
        ("columns=no,nonesuch", {"key": "columns", "position": 3, "found": "'nonesuch'"}),
    ):
        for accept in ("application/json", "application/vnd.proctor.columns"):
            answer = await api.get(f"{experiment}/table?{query}", headers={"Accept": accept}, status=422)
            assert answer["problems"][0].items() >= problem.items()
    assert (await api.get(f"{experiment}/table"))["total"] == 3


@pytest.mark.slow
async def test_a_file_that_needs_a_package_names_it(api: Any, experiment: str) -> None:
    answer = await api.client.get(f"{experiment}/table?format=parquet")
    assert answer.status_code == 501, answer.text
    assert "pip install pyarrow" in answer.json()["detail"]
    assert answer.headers["content-type"].startswith("application/problem+json")


@pytest.mark.slow
async def test_a_chart_that_takes_too_long_is_unavailable(
    api: Any, experiment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(curves, "TIME_LIMIT_SECONDS", 0.05)
    monkeypatch.setattr(charts, "density_block", endless)
    monkeypatch.setattr(charts, "curves_block", endless)
    for path in ("curves/density", "curves"):
        answer = await api.get(f"{experiment}/{path}", status=503)
        assert "took longer than 0.05 s and was interrupted. Ask for less at a time." in answer["detail"]


@pytest.mark.slow
async def test_a_chart_whose_process_dies_is_unavailable_and_the_next_one_is_read(
    api: Any, experiment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(*_: Any, **__: Any) -> Any:
        raise OSError(11, "no process can be started")

    with monkeypatch.context() as patches:
        patches.setattr(ReadProcess, "_start", fail)
        for path in ("curves/density", "curves", "table"):
            assert "no process can be started" in (await api.get(f"{experiment}/{path}", status=503))["detail"]
    for path in ("curves/density", "curves", "table"):
        assert (await api.client.get(f"{experiment}/{path}")).status_code == 200


class Client:
    """A connection that is open until it is closed."""

    def __init__(self) -> None:
        self.gone = asyncio.Event()
        self.has_asked = False
        self.request = Request({"type": "http", "method": "GET", "headers": []}, self.receive)

    async def receive(self) -> Message:
        if not self.has_asked:
            self.has_asked = True
            return {"type": "http.request", "body": b"", "more_body": False}
        await self.gone.wait()
        return {"type": "http.disconnect"}


async def test_work_is_canceled_with_its_client() -> None:
    client, work = Client(), asyncio.get_running_loop().create_future()
    async with asyncio.timeout(20), asyncio.TaskGroup() as group:
        answering = group.create_task(answer_while_connected(client.request, work))
        await asyncio.sleep(0)
        client.gone.set()
        answer = await answering
    assert work.cancelled()
    assert answer.status_code == 499


async def test_work_ends_with_its_route() -> None:
    work = asyncio.get_running_loop().create_future()
    answering = asyncio.ensure_future(answer_while_connected(Client().request, work))
    await asyncio.sleep(0)
    answering.cancel()
    with pytest.raises(asyncio.CancelledError):
        await answering
    assert work.cancelled()

import os

import pytest

from proctor.manager.dispatcher import protocol
from proctor.manager.dispatcher.client.in_process import open_in_process

pytestmark = pytest.mark.anyio
SPACE = {"x": {"_type": "uniform", "_value": [0, 1]}}


async def test_lines_are_answered_and_end_with_the_conversation():
    spec = protocol.AlgorithmSpec(name="Random")
    messages = [
        protocol.Initialize("e", SPACE, spec, None, 7, ""),
        protocol.RequestTrialJobs(1, [0, 1]),
        protocol.Ping(2),
        protocol.Terminate(),
    ]
    async with open_in_process() as channel:
        await channel.send(b"".join(protocol.encode(message) for message in messages))
        received = [type(protocol.decode(line)) async for line in channel.lines()]
    assert received == [protocol.Initialized, protocol.NewTrial, protocol.NewTrial, protocol.Pong]
    assert "own process" in channel.exit_message()


async def test_answers_of_own_classes_come_from_their_threads(tmp_path, monkeypatch):
    source = "class Own:\n def update_search_space(self, s): pass\n def generate_parameters(self, i): return {'x': i}\n"
    (tmp_path / "own_in_process.py").write_text(source + " def _on_exit(self): pass\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    spec = protocol.AlgorithmSpec(class_name="own_in_process.Own")
    monkeypatch.setattr(os, "environ", dict(os.environ))
    async with open_in_process() as channel:
        lines = channel.lines()
        await channel.send(protocol.encode(protocol.Initialize("e", SPACE, spec, None, 7, str(tmp_path))))
        assert isinstance(protocol.decode(await anext(lines)), protocol.Initialized)
        await channel.send(protocol.encode(protocol.RequestTrialJobs(1, [5])))
        assert protocol.decode(await anext(lines)) == protocol.NewTrial(1, 5, {"x": 5})

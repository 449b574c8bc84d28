"""The dispatcher's end of the conversation with its manager."""

import select
import socket
from concurrent.futures import ThreadPoolExecutor

from proctor.manager.dispatcher import protocol
from proctor.manager.dispatcher.host.host import Host

SECONDS = 30.0


def test_a_manager_that_dies_without_reading_an_answer_ends_the_conversation() -> None:
    ours, theirs = socket.socketpair()
    with theirs, ThreadPoolExecutor() as pool:
        served = pool.submit(Host(theirs).serve)
        ours.sendall(protocol.encode(protocol.Ping(1)))
        assert select.select([ours], [], [], SECONDS)[0]
        ours.close()  # the other end is reset
        assert served.result(SECONDS) is None

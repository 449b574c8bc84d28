"""The spawner: a small single-threaded process from which reapers are forked, because forking the keeper itself (an
event loop, threads, a large heap) would be slow and unsafe.

It takes one packet per launch on its standard input, a socket: two descriptors come with it, a memory file with the
request (see `jobs/launching.py`) and the socket on which the reaper reports that the trial runs.

A keeper starts it as a program of its own; only the keeper of a pod forks it, before it has a loop or threads
(`start_by_fork`). That spares each pod the start of a second Python.

It is the subreaper of its reapers: what a killed reaper leaves behind becomes its child, whatever it has done to its
session, its parents or its environment. Any child that is no reaper is such an orphan, and the keeper ends it
(`end_leftovers` of `jobs/cleanup.py`). So the spawner outlives its keeper for as long as it has children.
"""

import contextlib
import gc
import json
import os
import signal
import socket
import sys
import traceback

from proctor.sdk.failpoints import failpoint
from proctor.sdk.process_limits import restore_open_files
from proctor.trial_keeper.linux import processes
from proctor.trial_keeper.reaper import reaper


def main() -> None:
    """The program. `argv[1]` is the soft limit on open files that trials must have."""
    restore_open_files(int(sys.argv[1]))
    gc.collect()
    _serve()


def start_by_fork(log_file: str) -> "tuple[int, socket.socket]":
    """Become keeper and spawner; returns, in the keeper, the spawner's pid and the socket that takes launches. This
    process must have neither threads nor a loop, and a soft limit on open files that trials may have. Raises OSError.

    :param log_file: takes what the spawner and its reapers have to say.
    """
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    log = os.open(log_file, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    pid = os.fork()
    if pid == 0:
        try:
            os.setsid()
            for number, descriptor in enumerate((theirs.fileno(), log, log)):
                os.dup2(descriptor, number)
            os.closerange(3, max(map(int, os.listdir("/proc/self/fd"))) + 1)  # also what the platform left open
            _serve()
        except BaseException:
            traceback.print_exc()
            sys.stderr.flush()
            os._exit(1)
        os._exit(0)
    theirs.close()
    os.close(log)
    return pid, ours


def _serve() -> None:
    """Take launches from descriptor 0 until the keeper is gone, then wait until all reapers are."""
    processes.become_subreaper()
    signal.signal(signal.SIGCHLD, lambda number, frame: processes.reap_children())  # none may stay as a zombie
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    keeper = socket.socket(fileno=0)
    nothing = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    gc.freeze()
    gc.disable()  # a collection in a fork would copy every page
    while True:
        packet, descriptors, _, _ = socket.recv_fds(keeper, 16, 2)
        if not packet:
            break
        for descriptor in descriptors:  # recv_fds drops the flag for this; a trial must not hold the keeper's channel
            os.set_inheritable(descriptor, False)
        _launch(keeper, nothing, *descriptors)
    signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGCHLD,))
    while processes.reap_children():
        signal.sigwaitinfo((signal.SIGCHLD,))


def _launch(keeper: socket.socket, nothing: int, request: int, channel: int) -> None:
    failpoint("spawner.fork.before")
    try:
        pid = os.fork()
    except OSError as error:  # no processes left
        pid = -1
        with contextlib.suppress(OSError):
            os.write(channel, json.dumps({"errno": error.errno}).encode())
    if pid == 0:
        os.dup2(nothing, keeper.detach())  # the keeper must see it close when the spawner dies
        _be_reaper(request, channel)
    os.close(request)
    os.close(channel)
    failpoint("spawner.fork.after")


def _be_reaper(request: int, channel: int) -> None:
    try:
        with open(request, "rb") as file:
            file.seek(0)
            body = json.load(file)
        reaper.run(body, socket.socket(fileno=channel))
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
    finally:
        os._exit(0)


if __name__ == "__main__":
    main()

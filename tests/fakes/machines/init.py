"""Process 1 of a test machine: makes the machine's view of the file system, starts its SSH server, reaps its orphans.

Run as `python -I -S init.py SPECIFICATION` by `machine.py`, which talks with it by one JSON object a line. It lives as
long as its standard input is open; when it ends, every process of the machine ends with it. Standard library only.

The file system is the host's, except that
* /proc, /run and /tmp (and /var/lock) are the machine's own; what must stay visible of the host below them is put back;
* /run/machine is the machine's folder of settings, /run/home/USER the home of a user, on a small disk if requested;
* /etc/passwd, shadow and group name the machine's users, and the kernel's boot id is the machine's own.
"""

import ctypes
import glob
import json
import os
import signal
import socket
import struct
import sys
import time
import uuid

_NEW_MOUNTS, _NEW_HOST_NAME, _NEW_IPC, _NEW_PROCESSES, _NEW_NETWORK = (
    0x20000,
    0x4000000,
    0x8000000,
    0x20000000,
    0x40000000,
)
_BIND, _RECURSIVE, _PRIVATE, _DETACH = 0x1000, 0x4000, 0x40000, 2
_DIE_WITH_PARENT = 1
_PROGRAM_FOLDERS = ("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin", "/run/machine/bin")
_PATIENCE_SECONDS = 60.0
_POLL_SECONDS = 0.004

_libc = ctypes.CDLL(None, use_errno=True)


def main():
    """Enter the namespaces, become process 1 of the machine, serve."""
    specification = json.loads(sys.argv[1])
    if specification["network"] is not None:
        _call("setns", specification["network"], _NEW_NETWORK)
    _call("unshare", _NEW_MOUNTS | _NEW_HOST_NAME | _NEW_IPC | _NEW_PROCESSES)
    reported, report = os.pipe()
    child = os.fork()
    if child:
        _say({"pid": child})
        os.close(report)
        os.waitpid(child, 0)
        return
    os.close(report)
    os.read(reported, 1)  # until the parent has spoken: what the child says comes after it
    os.close(reported)
    _call("prctl", _DIE_WITH_PARENT, signal.SIGKILL, 0, 0, 0)
    _View(specification).make()
    _serve(_Server(specification))


def _call(name, *arguments):
    if getattr(_libc, name)(*arguments):
        number = ctypes.get_errno()
        raise OSError(number, f"{name}{arguments}: {os.strerror(number)}")


def _mount(source, target, kind=None, flags=0, data=None):
    def text(value):
        return None if value is None else os.fsencode(value)

    if _libc.mount(text(source), text(target), text(kind), ctypes.c_ulong(flags), text(data)):
        number = ctypes.get_errno()
        raise OSError(number, f"mount of {source} on {target}: {os.strerror(number)}")


class _View:
    """The file system as the machine sees it."""

    def __init__(self, specification):
        self._specification = specification

    def make(self):
        """Make it. The machine's own parts lie in memory: they go when its power goes."""
        _mount(None, "/", flags=_RECURSIVE | _PRIVATE)
        folder = os.open(self._specification["folder"], os.O_PATH)
        homes = [(home, os.open(home["source"], os.O_PATH)) for home in self._specification["homes"]]
        self._hide()
        _mount("proc", "/proc", "proc")
        os.makedirs("/run/sshd", 0o755, exist_ok=True)
        os.makedirs("/run/lock", exist_ok=True)
        os.chmod("/run/lock", 0o1777)
        self._bind(folder, "/run/machine")
        for home, descriptor in homes:
            self._home(home, descriptor)
        for name in ("passwd", "shadow", "group"):
            _mount(f"/run/machine/etc/{name}", f"/etc/{name}", flags=_BIND)
        with open("/run/boot_id", "w") as file:
            file.write(f"{uuid.uuid4()}\n")
        _mount("/run/boot_id", "/proc/sys/kernel/random/boot_id", flags=_BIND)
        socket.sethostname(self._specification["name"])
        os.chdir("/")

    def _hide(self):
        hidden = {os.path.realpath(path) for path in ("/run", "/tmp", "/var/tmp", "/var/lock")}
        for path in sorted(hidden):
            if any(path.startswith(f"{other}/") for other in hidden):
                continue
            kept = [keep for keep in self._specification["kept"] if keep.startswith(f"{path}/")]
            descriptors = [(keep, os.open(keep, os.O_PATH)) for keep in kept]
            _mount("tmpfs", path, "tmpfs", data="mode=0755" if path == "/run" else "mode=1777")
            for keep, descriptor in descriptors:
                self._bind(descriptor, keep)

    def _bind(self, descriptor, target):
        os.makedirs(target, exist_ok=True)
        _mount(f"/proc/self/fd/{descriptor}", target, flags=_BIND | _RECURSIVE)
        os.close(descriptor)

    def _home(self, home, descriptor):
        target = f"/run/home/{home['user']}"
        self._bind(descriptor, target)
        if home["disk_mb"] is not None:
            _mount(
                "tmpfs", target, "tmpfs", data=f"size={home['disk_mb']}m,mode=0700,uid={home['uid']},gid={home['uid']}"
            )


class _Server:
    """The machine's SSH server, and what else can be switched on it."""

    def __init__(self, specification):
        self._program = specification["sshd"]
        self._address = (specification["address"], specification["port"])
        self._pid = 0
        self._covered = []
        signal.signal(signal.SIGCHLD, self._reap)

    def start(self):
        """Start it; returns when it answers."""
        arguments = [self._program, "-D", "-f", "/run/machine/sshd_config", "-E", "/run/machine/log"]
        actions = [(os.POSIX_SPAWN_OPEN, number, "/dev/null", os.O_RDWR, 0) for number in range(3)]
        environment = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LANG": "C.UTF-8"}
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCHLD])
        try:
            self._pid = os.posix_spawn(
                self._program, arguments, environment, file_actions=actions, setsid=True, setsigmask=[]
            )
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGCHLD])
        _until(lambda: not self._pid or self._listens(), "its SSH server")
        if not self._pid:
            with open("/run/machine/log") as file:
                raise OSError(f"sshd has ended at once: {file.read()[-2000:]}")

    def stop(self):
        """No new connections; those that are open stay."""
        if self._pid:
            os.kill(self._pid, signal.SIGTERM)
        _until(lambda: not self._pid, "the end of its SSH server")

    def hide_python(self):
        """From now on there is no Python on the PATH: a folder that has one is covered by links to all the rest."""
        for folder in sorted({os.path.realpath(folder) for folder in _PROGRAM_FOLDERS}):
            if not glob.glob(f"{folder}/python*"):
                continue
            behind = f"/run/covered{folder}"
            os.makedirs(behind, exist_ok=True)
            _mount(folder, behind, flags=_BIND)
            _mount("tmpfs", folder, "tmpfs", data="mode=0755")
            for name in os.listdir(behind):
                if not name.startswith("python"):
                    os.symlink(f"{behind}/{name}", f"{folder}/{name}")
            self._covered += [behind, folder]

    def show_python(self):
        """Undo it."""
        while self._covered:
            _call("umount2", os.fsencode(self._covered.pop()), _DETACH)

    def _listens(self):
        """Without connecting: that would leave a trace, and count as one of its MaxStartups."""
        address, port = self._address
        [number] = struct.unpack("=I", socket.inet_aton(address))
        with open("/proc/net/tcp") as table:
            return any(line.split()[1] == f"{number:08X}:{port:04X}" and line.split()[3] == "0A" for line in table)

    def _reap(self, _number, _frame):
        while True:
            try:
                pid, _ = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if not pid:
                return
            if pid == self._pid:
                self._pid = 0


def _until(look, what):
    gives_up = time.monotonic() + _PATIENCE_SECONDS
    while not look():
        if time.monotonic() > gives_up:
            raise OSError(f"waited in vain for {what}")
        time.sleep(_POLL_SECONDS)


def _serve(server):
    orders = {
        "start": server.start,
        "stop": server.stop,
        "hide_python": server.hide_python,
        "show_python": server.show_python,
    }
    server.start()
    _say({"ready": True})
    for line in iter(sys.stdin.readline, ""):
        try:
            orders[json.loads(line)]()
            _say({"done": True})
        except Exception as error:
            _say({"failed": f"{type(error).__name__}: {error}"})


def _say(body):
    sys.stdout.write(json.dumps(body) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()

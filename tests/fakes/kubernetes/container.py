"""One container of a pod: a process with pid 1, in namespaces of its own, on a writable view of this machine's files.

Nothing that it writes reaches this machine's files, except through its volumes. Its network is this machine's loopback.
"""

import asyncio
import os
import shlex
import stat
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from signal import SIGKILL, Signals

from fakes.kubernetes.requirements import NAMESPACES

_PSEUDO_FILE_SYSTEMS = {"proc", "sysfs", "devtmpfs", "devpts", "cgroup", "cgroup2", "mqueue", "hugetlbfs", "tracefs"}
_DEVICES = {"null": 3, "zero": 5, "full": 7, "random": 8, "urandom": 9}
_MOST_MESSAGE_BYTES = 4096


class StartFailure(Exception):
    """A container's process could not be started."""


@dataclass(frozen=True)
class Mount:
    """A file or folder at a path of the container."""

    source: Path
    target: str
    is_read_only: bool = False


@dataclass
class Container:
    """One container. `folder` is its own, on this machine."""

    folder: Path
    command: Sequence[str]
    environment: Mapping[str, str]
    mounts: Sequence[Mount]
    hostname: str
    working_directory: str = "/"
    user: int | None = None
    has_read_only_root: bool = False
    termination_path: str = "/dev/termination-log"
    has_network: bool = True
    pid: int = 0
    """Of its first process, as this machine sees it."""
    was_killed_for_memory: bool = False
    _process: "asyncio.subprocess.Process" = field(init=False)

    @property
    def log(self) -> Path:
        """What it writes to standard output and error."""
        return self.folder / "log"

    @property
    def _complaints(self) -> Path:
        """What those say that start it."""
        return self.folder / "complaints"

    @property
    def is_running(self) -> bool:
        """Whether its process has not ended."""
        return self.pid != 0 and self._process.returncode is None

    async def start(self) -> None:
        """Start it, and wait until its command runs. Raises StartFailure."""
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / "root").mkdir()
        (self.folder / "termination").touch()
        (self.folder / "termination").chmod(0o666)
        _make_devices(self.folder / "dev")
        (self.folder / "start").write_text(self._script())
        network = () if self.has_network else ("--net",)
        words = ["setpriv", "--pdeathsig", "KILL", "--", *NAMESPACES, *network, "sh", "-e", str(self.folder / "start")]
        reading, writing = os.pipe()
        try:
            self.log.touch()
            with self._complaints.open("ab") as complaints:
                self._process = await asyncio.create_subprocess_exec(
                    *words, stdin=writing, stdout=complaints, stderr=complaints, cwd="/", start_new_session=True
                )
        finally:
            os.close(writing)
        try:
            said = await asyncio.to_thread(_read_line, reading)
        except BaseException:
            self.kill()
            raise
        if said != b"ready\n":
            await self._process.wait()
            raise StartFailure(f"{shlex.join(self.command)}: {self._complaints.read_text(errors='replace')[-500:]}")
        with suppress(OSError, IndexError):  # it has ended
            children = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children").read_text()
            self.pid = int(children.split()[0])

    async def wait(self) -> int:
        """Wait for its end. Its exit code, 128 and the number of the signal if one has killed it."""
        code = await self._process.wait()
        if code == 1 and self._complaints.read_bytes():
            code = -SIGKILL  # with which unshare could not end itself, as it does with other signals
        return code if code >= 0 else 128 - code

    def signal(self, number: Signals) -> None:
        """Send its first process a signal, as a container runtime does."""
        if self.pid and self._process.returncode is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        """End everything in it at once."""
        if self.pid:  # what waits for it ends when it has ended, with everything in its namespace
            self.signal(SIGKILL)
        elif self._process.returncode is None:  # its own `kill` may take the exit code away from the loop
            with suppress(ProcessLookupError):
                os.kill(self._process.pid, SIGKILL)

    def read_termination(self, *, or_log: bool) -> str:
        """The termination message, or the end of the log if that is asked for and there is none."""
        data = (self.folder / "termination").read_bytes()[-_MOST_MESSAGE_BYTES:]
        if not data and or_log:
            data = b"".join(self.log.read_bytes()[-2048:].splitlines(keepends=True)[-80:])
        return data.decode(errors="replace")

    def exec_words(self, command: Sequence[str]) -> list[str]:
        """How to run another command in it."""
        spaces = ["--mount", "--uts", "--ipc", "--pid", *(() if self.has_network else ("--net",))]
        enter = ["nsenter", "--target", str(self.pid), *spaces, "--root"]
        return [*enter, *self._run_in_root(command)]

    def _run_in_root(self, command: Sequence[str]) -> list[str]:
        """The words that run a command once its root folder is in place."""
        user = () if self.user is None else ("--reuid", str(self.user), "--regid", str(self.user), "--clear-groups")
        variables = [f"{name}={value}" for name, value in self.environment.items()]
        start = ["env", "-i", "-C", self.working_directory, *variables, *command]
        return ["setpriv", *user, "--pdeathsig", "KILL", "--", *start]

    def _script(self) -> str:
        """What its first process does before it becomes the command."""
        quote = shlex.quote
        log, base, root = quote(str(self.log)), str(self.folder / "root"), str(self.folder / "root" / "merged")
        lines = [
            f"hostname {quote(self.hostname)}",
            f"mount -t tmpfs -o size=256m,mode=755 tmpfs {quote(base)}",
            f"cd {quote(base)}",
            "mkdir upper work merged",
            "mount -t overlay -o lowerdir=/,upperdir=upper,workdir=work overlay merged",
            "mount -t proc proc merged/proc",
            "mount --rbind /sys merged/sys",
            "mount -t tmpfs -o size=64m,mode=755 tmpfs merged/dev",
            f"cp -a {quote(str(self.folder / 'dev'))}/. merged/dev/",
            "mount -t devpts -o newinstance,ptmxmode=0666,mode=0620 devpts merged/dev/pts",
        ]
        lines += [f"mount --rbind {quote(each)} merged{quote(each)}" for each in _other_mounts()]
        mounts = [*self.mounts, Mount(self.folder / "termination", self.termination_path)]
        for mount in sorted(mounts, key=lambda each: each.target.count("/")):
            inside = f"merged{os.path.realpath(mount.target)}"  # a link such as /var/run would lead out of it
            target, source = quote(inside), quote(str(mount.source))
            if mount.source.is_dir():
                lines.append(f"mkdir -p {target}")
            else:
                lines.append(f"mkdir -p {quote(os.path.dirname(inside))}; : >> {target}")
            lines.append(f"mount --bind {source} {target}")
            if mount.is_read_only:
                lines.append(f"mount -o remount,bind,ro {target}")
        lines.append(f"mkdir -p {quote('merged' + os.path.realpath(self.working_directory))}")
        if self.has_read_only_root:  # what is mounted in it is as writable as before
            lines.append("mount -o remount,bind,ro merged")
        lines.append("echo ready >&0")
        lines.append(
            f"exec chroot {quote(root)} {shlex.join(self._run_in_root(self.command))} < /dev/null >> {log} 2>&1"
        )
        return "\n".join(lines) + "\n"


def _make_devices(folder: Path) -> None:
    """What every container has in /dev."""
    folder.mkdir()
    for name, minor in _DEVICES.items():
        os.mknod(folder / name, stat.S_IFCHR | 0o666, os.makedev(1, minor))
        (folder / name).chmod(0o666)
    os.mknod(folder / "tty", stat.S_IFCHR | 0o666, os.makedev(5, 0))
    for name in ("pts", "shm", "mqueue"):
        (folder / name).mkdir()
    (folder / "shm").chmod(0o1777)
    (folder / "ptmx").symlink_to("pts/ptmx")
    (folder / "fd").symlink_to("/proc/self/fd")
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        (folder / name).symlink_to(f"/proc/self/fd/{number}")


def _other_mounts() -> list[str]:
    """The file systems of this machine besides its root, the outermost ones, without those that no file lies in."""
    found: list[str] = []
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        before, _, after = line.partition(" - ")
        target, kind = before.split()[4], after.split()[0]
        skipped = target == "/" or kind in _PSEUDO_FILE_SYSTEMS or target.startswith(("/proc", "/sys", "/dev"))
        if not skipped and "\\" not in target and not any(Path(target).is_relative_to(each) for each in found):
            found.append(target)
    return found


def _read_line(descriptor: int) -> bytes:
    """The first line that is written to a pipe, nothing if it is closed before. Blocks, and closes it."""
    with open(descriptor, "rb") as pipe:
        return pipe.readline()

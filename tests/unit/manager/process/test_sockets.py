"""The sockets of a manager."""

import os
import shutil
import socket
from pathlib import Path

import pytest
from fakes.descriptors import no_descriptors

from proctor.manager.process.instance import (
    AlreadyRunning,
    InstanceLock,
    ManagerAddress,
    StartError,
    read_address,
    remove_address,
    write_address,
)
from proctor.manager.process.sockets import (
    KeeperSocket,
    NotLoopback,
    PortInUse,
    listen_for_keepers,
    listen_tcp,
    read_last_port,
    web_url,
)
from proctor.manager.settings import Home, ListenAddress, WebSettings
from proctor.sdk.client import home as client_home
from proctor.sdk.client.client import Client
from proctor.sdk.client.errors import ManagerUnreachable
from proctor.trial_keeper.uplink.pointer import read_pointer


def test_a_manager_that_is_started_again_takes_its_last_port_unless_it_is_taken() -> None:
    with listen_tcp(WebSettings(port=0)) as first:
        port = first.getsockname()[1]
        with listen_tcp(WebSettings(), last_port=port) as other:
            assert other.getsockname()[1] != port
    with listen_tcp(WebSettings(), last_port=port) as again:
        assert again.getsockname()[1] == port


def test_a_port_that_is_taken_is_an_error_when_asked_for_and_passed_over_when_not() -> None:
    with listen_tcp(WebSettings(port=0)) as first:
        port = first.getsockname()[1]
        with pytest.raises(PortInUse, match=f"port {port} .* --port"):
            listen_tcp(WebSettings(port=port))
    with listen_tcp(WebSettings()) as one, listen_tcp(WebSettings()) as two:
        assert one.getsockname()[1] != two.getsockname()[1]


def test_an_address_that_others_can_reach_needs_the_flag() -> None:
    with pytest.raises(NotLoopback, match="--allow-remote"):
        listen_tcp(WebSettings(host="0.0.0.0", port=0))
    listen_tcp(WebSettings(host="0.0.0.0", port=0, allow_remote=True)).close()


@pytest.mark.parametrize("deep", ["", "x" * 120])
def test_keepers_find_the_socket_by_its_pointer_however_long_the_home_is(tmp_path: Path, deep: str) -> None:
    home = Home(tmp_path / deep)
    home.prepare()
    keeper_socket = KeeperSocket(home)
    with keeper_socket.listen(), socket.socket(socket.AF_UNIX) as client:
        path = home.socket_pointer.read_text()
        client.connect(path)
        assert Path(path).parent.stat().st_mode & 0o777 == 0o700
    keeper_socket.remove()
    assert not Path(path).exists()
    assert Path(path).parent == home.run_directory or not Path(path).parent.exists()
    assert home.socket_pointer.exists()


@pytest.mark.parametrize("deep", ["", "x" * 120])
def test_what_a_killed_manager_left_is_cleared_away(tmp_path: Path, deep: str) -> None:
    home = Home(tmp_path / deep)
    home.prepare()
    KeeperSocket(home).listen().close()
    left = Path(home.socket_pointer.read_text())
    assert left.exists()
    second = KeeperSocket(home)
    second.listen().close()
    second.remove()
    assert not left.exists()


@pytest.mark.parametrize("deep", ["", "x" * 120])
def test_a_socket_that_another_manager_listens_on_stays_though_the_pointer_names_it(tmp_path: Path, deep: str) -> None:
    """A copy of a home has the original's pointer, a renamed home the path at which there may be another one now."""
    original, copy = Home(tmp_path / "original" / deep), Home(tmp_path / "copy" / deep)
    for home in (original, copy):
        home.prepare()
    theirs = KeeperSocket(original)
    with theirs.listen(), socket.socket(socket.AF_UNIX) as keeper:
        path = original.socket_pointer.read_text()
        copy.socket_pointer.write_text(path)
        ours = KeeperSocket(copy)
        ours.listen().close()
        ours.remove()
        keeper.connect(path)
    theirs.remove()
    assert not Path(path).exists()


def test_a_manager_whose_home_was_renamed_under_it_leaves_the_next_home_of_that_name_alone(home: Home) -> None:
    address = ManagerAddress.of_this_process(host="127.0.0.1", port=1, url="http://127.0.0.1:1")
    first, second = KeeperSocket(home), KeeperSocket(home)
    with InstanceLock(home), first.listen():
        write_address(home, address)
        home.path.rename(home.path.with_name("renamed"))
        home.prepare()
        with second.listen(), socket.socket(socket.AF_UNIX) as keeper:
            home.lock_file.touch()
            write_address(home, address)
            first.remove()
            remove_address(home)
            keeper.connect(str(home.socket_file))
            assert home.manager_file.exists()
    second.remove()
    assert not home.socket_file.exists()


def put_there(path: Path, what: str) -> None:
    """What a power cut, a copied home or a person may have left in place of a socket or its pointer."""
    contents = {"an empty file": b"", "zeros": b"\0" * 40, "bytes that are no text": b"\xff\xfe not UTF-8"}
    if what == "a folder":
        (path / "inner").mkdir(parents=True)
    elif what == "a dangling link":
        path.symlink_to("nowhere")
    else:
        path.write_bytes(contents[what])


@pytest.mark.parametrize("name", ["socket", "manager.sock"])
@pytest.mark.parametrize("what", ["an empty file", "a folder", "a dangling link", "zeros", "bytes that are no text"])
def test_whatever_stands_in_place_of_the_socket_or_its_pointer_is_replaced(home: Home, name: str, what: str) -> None:
    put_there(home.run_directory / name, what)
    keeper_socket = KeeperSocket(home)
    with keeper_socket.listen(), socket.socket(socket.AF_UNIX) as client:
        client.connect(home.socket_pointer.read_text())
    keeper_socket.remove()


@pytest.mark.parametrize("kind", ["file", "folder"])
def test_what_a_damaged_pointer_names_is_left_alone_unless_it_is_a_socket(
    home: Home, tmp_path: Path, kind: str
) -> None:
    thesis = tmp_path / "proctor-thesis" / "thesis.txt"
    thesis.parent.mkdir()
    thesis.write_text("years of work")
    home.socket_pointer.write_text(str(thesis if kind == "file" else thesis.parent))
    keeper_socket = KeeperSocket(home)
    keeper_socket.listen().close()
    keeper_socket.remove()
    assert thesis.read_text() == "years of work"


@pytest.mark.parametrize("text", ["", "\0\0\0\0", "80", "99999999", "-1", "808\n8", "nothing"])
def test_a_damaged_file_of_the_last_port_keeps_no_manager_from_starting(home: Home, text: str) -> None:
    home.port_file.write_text(text)
    listen_tcp(WebSettings(), last_port=read_last_port(home)).close()


def test_a_last_port_that_cannot_be_listened_on_is_passed_over() -> None:
    class NoPrivileges(socket.socket):
        """As for a user who is not root."""

        def bind(self, address: tuple[str, int]) -> None:
            if address[1] < 1024:
                raise PermissionError(13, "Permission denied")
            super().bind(address)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(socket, "socket", NoPrivileges)
        with listen_tcp(WebSettings(), last_port=80) as listener:
            assert listener.getsockname()[1] >= 1024
        with pytest.raises(StartError, match="port 80"):
            listen_tcp(WebSettings(port=80))


def test_one_manager_for_one_home(home: Home) -> None:
    with InstanceLock(home):
        write_address(home, ManagerAddress.of_this_process(host="127.0.0.1", port=8080, url="http://127.0.0.1:8080"))
        with pytest.raises(AlreadyRunning, match=r"pid \d+ at http://127\.0\.0\.1:8080"), InstanceLock(home):
            pass
    with InstanceLock(home):
        assert read_address(home) is None


def test_an_address_of_a_process_that_is_gone_is_not_believed(home: Home) -> None:
    here = ManagerAddress.of_this_process(host="127.0.0.1", port=1, url="http://127.0.0.1:1")
    with InstanceLock(home):
        write_address(home, here)
        assert read_address(home) == here
        for other in ({"start_time": here.start_time + 1}, {"boot_id": "another"}):
            write_address(home, ManagerAddress(**{**vars(here), **other}))
            assert read_address(home) is None
        home.manager_file.write_text("{")
        assert read_address(home) is None


def test_a_copy_of_a_home_has_no_manager_and_says_why(home: Home, tmp_path: Path) -> None:
    with InstanceLock(home):
        write_address(home, ManagerAddress.of_this_process(host="127.0.0.1", port=1, url="http://127.0.0.1:1"))
        copy = Home(Path(shutil.copytree(home.path, tmp_path / "copy")))
        moved = Home(home.path.rename(tmp_path / "moved"))
        for there, manager in ((moved, os.getpid()), (copy, None)):
            address, client_side = read_address(there), client_home.read_address(there.path)
            assert (address and address.pid, client_side and client_side.pid) == (manager, manager)
        assert client_home.absence(moved.path) == ""
        said = f"manager.json names process {os.getpid()}, which does not serve this home: the home was copied"
        with pytest.raises(ManagerUnreachable, match=said):
            Client(home=copy.path)
    assert client_home.absence(home.path) == ""


def test_whether_a_manager_serves_a_home_is_unknown_without_descriptors(home: Home) -> None:
    with InstanceLock(home):
        assert client_home.serves(os.getpid(), home.path)
        with no_descriptors(), pytest.raises(OSError, match="Too many open files"):
            client_home.serves(os.getpid(), home.path)


@pytest.mark.parametrize(
    ("host", "url"),
    [("127.0.0.1", "http://127.0.0.1:5/p"), ("0.0.0.0", "http://127.0.0.1:5/p"), ("::1", "http://[::1]:5/p")],
)
def test_the_url_is_one_that_people_here_can_open(host: str, url: str) -> None:
    assert web_url(host, 5, "/p") == url


def test_the_pointer_for_keepers_holds_the_url_that_the_environment_names(home: Home) -> None:
    listen_for_keepers(home, ListenAddress("0.0.0.0", 0, "https://proctor-manager.lab.svc:8443")).socket.close()
    assert str(read_pointer(str(home.endpoint_pointer))) == "https://proctor-manager.lab.svc:8443"
    for url in ("http://proctor-manager:8443", "https://proctor-manager", "proctor-manager:8443"):
        with pytest.raises(StartError, match="PROCTOR_KEEPER_URL: expected a URL such as https://host:8443, found"):
            listen_for_keepers(home, ListenAddress("0.0.0.0", 0, url))

"""The sockets of a manager."""

import socket
from pathlib import Path

import pytest

from proctor.manager.instance import AlreadyRunning, InstanceLock, ManagerAddress, read_address, write_address
from proctor.manager.settings import Home, WebSettings
from proctor.manager.sockets import KeeperSocket, NotLoopback, PortInUse, listen_tcp, web_url


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


def test_one_manager_for_one_home(tmp_path: Path) -> None:
    home = Home(tmp_path)
    with InstanceLock(home):
        write_address(home, ManagerAddress.of_this_process(host="127.0.0.1", port=8080, url="http://127.0.0.1:8080"))
        with pytest.raises(AlreadyRunning, match=r"pid \d+ at http://127\.0\.0\.1:8080"), InstanceLock(home):
            pass
    with InstanceLock(home):
        assert read_address(home) is None


def test_an_address_of_a_process_that_is_gone_is_not_believed(tmp_path: Path) -> None:
    home = Home(tmp_path)
    here = ManagerAddress.of_this_process(host="127.0.0.1", port=1, url="http://127.0.0.1:1")
    write_address(home, here)
    assert read_address(home) == here
    for other in ({"start_time": here.start_time + 1}, {"boot_id": "another"}):
        write_address(home, ManagerAddress(**{**vars(here), **other}))
        assert read_address(home) is None
    home.manager_file.write_text("{")
    assert read_address(home) is None


@pytest.mark.parametrize(
    ("host", "url"),
    [("127.0.0.1", "http://127.0.0.1:5/p"), ("0.0.0.0", "http://127.0.0.1:5/p"), ("::1", "http://[::1]:5/p")],
)
def test_the_url_is_one_that_people_here_can_open(host: str, url: str) -> None:
    assert web_url(host, 5, "/p") == url

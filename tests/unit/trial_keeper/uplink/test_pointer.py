"""What a pointer file says, and how it is written."""

from pathlib import Path

import pytest

from proctor.trial_keeper.uplink.pointer import ManagerEndpoint, parse_endpoint, read_pointer, write_pointer

PIN = "0a" * 32


@pytest.mark.parametrize(
    "endpoint",
    [
        ManagerEndpoint("/home/bob/run/manager.sock"),
        ManagerEndpoint(host="proctor.example.org", port=8443, fingerprint=PIN),
        ManagerEndpoint(host="::1", port=1, fingerprint=PIN),
    ],
    ids=str,
)
def test_what_is_written_is_read_again(tmp_path: Path, endpoint: ManagerEndpoint) -> None:
    write_pointer(tmp_path / "pointer", endpoint)
    found = read_pointer(str(tmp_path / "pointer"))
    assert found == endpoint
    assert found.pointer == str(tmp_path / "pointer")
    assert [path.name for path in tmp_path.iterdir()] == ["pointer"]


def test_a_pointer_of_an_earlier_manager_names_a_socket(tmp_path: Path) -> None:
    (tmp_path / "pointer").write_bytes(b"/home/b\xf6b/run/manager.sock\n")
    assert read_pointer(str(tmp_path / "pointer")).socket_path == "/home/b\udcf6b/run/manager.sock"


@pytest.mark.parametrize("data", [b"", b"\n", b"\0\0\0"])
def test_a_pointer_that_was_cut_short_leads_nowhere(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "pointer").write_bytes(data)
    with pytest.raises(ValueError, match="should hold the path"):
        read_pointer(str(tmp_path / "pointer"))


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("https://host:8443", "64 hexadecimal digits"),
        (f"https://host:8443\nsha256:{PIN[2:]}", "64 hexadecimal digits"),
        (f"https://host:8443\nmd5:{PIN}", "64 hexadecimal digits"),
        (f"https://host:8443\nsha256:{PIN}\nsha256:{PIN}", "64 hexadecimal digits"),
        (f"https://host\nsha256:{PIN}", "such as https://host:8443"),
        (f"https://host:port\nsha256:{PIN}", "such as https://host:8443"),
        (f"https://host:99999\nsha256:{PIN}", "such as https://host:8443"),
        (f"https://:8443\nsha256:{PIN}", "such as https://host:8443"),
        (f"https://bob@host:8443\nsha256:{PIN}", "such as https://host:8443"),
        (f"https://host:8443/path\nsha256:{PIN}", "such as https://host:8443"),
        (f"https://[::1:8443\nsha256:{PIN}", "such as https://host:8443"),
    ],
)
def test_what_is_no_url_with_a_pin_is_refused(text: str, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        parse_endpoint(text, "/etc/pointer")


def test_a_pin_may_be_written_in_capitals() -> None:
    assert parse_endpoint(f"https://host:8443 SHA256:{PIN.upper()}").fingerprint == PIN

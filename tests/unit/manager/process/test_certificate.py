"""The certificate that keepers pin."""

from pathlib import Path

import pytest
from cryptography import x509

from proctor.manager.process.certificate import open_certificate
from proctor.manager.process.instance import StartError
from proctor.manager.settings import Home


def test_it_is_made_once_and_private(tmp_path: Path) -> None:
    home = Home(tmp_path)
    _, first = open_certificate(home, "10.0.0.1")
    before = home.keeper_certificate.read_bytes()
    home.keeper_certificate.chmod(0o644)
    _, second = open_certificate(home, "another.example.org")
    assert (first, before) == (second, home.keeper_certificate.read_bytes())
    assert home.keeper_certificate.stat().st_mode & 0o777 == 0o600
    assert [path.name for path in tmp_path.iterdir()] == ["keepers.pem"]


@pytest.mark.parametrize("host", ["10.0.0.1", "proctor.example.org", "::"])
def test_it_names_where_the_manager_listens_and_does_not_expire(tmp_path: Path, host: str) -> None:
    open_certificate(Home(tmp_path), host)
    certificate = x509.load_pem_x509_certificate(
        Home(tmp_path).keeper_certificate.read_bytes().partition(b"KEY-----\n")[2]
    )
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert {host, "localhost", "127.0.0.1"} <= {str(name.value) for name in names}
    assert certificate.not_valid_after_utc.year == 9999


@pytest.mark.parametrize("kept", [0, 100, 400])
def test_a_damaged_one_is_not_replaced(tmp_path: Path, kept: int) -> None:
    home = Home(tmp_path)
    open_certificate(home, "10.0.0.1")
    data = home.keeper_certificate.read_bytes()[:kept]
    home.keeper_certificate.write_bytes(data)
    with pytest.raises(StartError, match="restore it from a backup"):
        open_certificate(home, "10.0.0.1")
    assert home.keeper_certificate.read_bytes() == data


def test_a_key_without_its_certificate_is_refused(tmp_path: Path) -> None:
    home, other = Home(tmp_path / "home"), Home(tmp_path / "other")
    for each in (home, other):
        each.path.mkdir()
        open_certificate(each, "10.0.0.1")
    key = home.keeper_certificate.read_bytes().partition(b"-----BEGIN CERTIFICATE")[0]
    certificate = other.keeper_certificate.read_bytes().partition(b"PRIVATE KEY-----\n")[2].partition(b"KEY-----\n")[2]
    home.keeper_certificate.write_bytes(key + certificate)
    with pytest.raises(StartError, match="cannot be used"):
        open_certificate(home, "10.0.0.1")

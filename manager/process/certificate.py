"""The certificate by which keepers know the manager over a network. The only importer of cryptography.

It is made once, with its key in the same file, and never again: every keeper that was started pins it. So it does not
expire, and one that is lost or damaged is an error, not a reason to make another.
"""

import hashlib
import ipaddress
import re
import socket
import ssl
from contextlib import suppress
from datetime import UTC, datetime, timedelta

from proctor.manager.process.instance import StartError
from proctor.manager.settings import Home
from proctor.sdk.disk_errors import explain
from proctor.sdk.files import replace_file

_NEVER = datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC)  # RFC 5280's date of a certificate that does not expire
_CERTIFICATE = re.compile("-----BEGIN CERTIFICATE-----.*?-----END CERTIFICATE-----", re.DOTALL)


def open_certificate(home: Home, host: str) -> tuple[ssl.SSLContext, str]:
    """The TLS context with the home's certificate, and the SHA-256 of that in hexadecimal. Raises StartError.

    :param host: where the manager listens; named in a certificate that is made now.
    """
    path = home.keeper_certificate
    try:
        if not path.exists():
            replace_file(str(path), _make(host), durable=True, mode=0o600)
        if path.stat().st_mode & 0o077:
            path.chmod(0o600)
        text = path.read_text(encoding="ascii", errors="replace")
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.load_cert_chain(path)
        found = _CERTIFICATE.search(text)
        der = ssl.PEM_cert_to_DER_cert(found[0] if found else "")
    except (ssl.SSLError, ValueError) as error:
        raise StartError(
            f"{path} should hold the certificate for keepers and its key, and cannot be used: {error}; restore it from "
            "a backup. Delete it only if no keeper needs it: those that run pin it and refuse every other one"
        ) from error
    except OSError as error:
        raise StartError(f"{path} cannot be used: {explain(error, str(path))}") from error
    return context, hashlib.sha256(der).hexdigest()


def _make(host: str) -> bytes:
    """A new key and a certificate that it has signed itself, as PEM."""
    try:
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes, serialization
        from cryptography.hazmat.primitives.asymmetric import ec
        from cryptography.x509.oid import ExtendedKeyUsageOID
    except ImportError as error:
        raise StartError("--keeper-listen needs cryptography: pip install 'proctor[kubernetes]'") from error
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "Proctor manager, for keepers")])
    names: list[x509.GeneralName] = []
    for known in dict.fromkeys((host, socket.gethostname(), "localhost", "127.0.0.1", "::1")):
        try:
            names.append(x509.IPAddress(ipaddress.ip_address(known)))
        except ValueError:
            with suppress(UnicodeError):  # nothing depends on the names: the certificate is pinned
                names.append(x509.DNSName(known.encode("idna").decode()))
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(datetime.now(UTC) - timedelta(days=1))
        .not_valid_after(_NEVER)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .sign(key, hashes.SHA256())
    )
    pem, pkcs8 = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    return key.private_bytes(pem, pkcs8, serialization.NoEncryption()) + certificate.public_bytes(pem)

"""Certificates and keys for a federation on loopback."""

import datetime
import ipaddress
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

Key = ec.EllipticCurvePrivateKey


def authority(folder: Path) -> None:
    """ca.crt, server.pem and server.key."""
    ca, server = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    names = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
    root = _certificate("Test CA", ca, "Test CA", ca, x509.BasicConstraints(True, None))
    leaf = _certificate("localhost", server, "Test CA", ca, x509.SubjectAlternativeName(names))
    (folder / "ca.crt").write_bytes(root.public_bytes(serialization.Encoding.PEM))
    (folder / "server.pem").write_bytes(leaf.public_bytes(serialization.Encoding.PEM))
    (folder / "server.key").write_bytes(_private(server, serialization.PrivateFormat.PKCS8))


def node_key(path: Path) -> None:
    """A private key, and beside it the public one."""
    key = ec.generate_private_key(ec.SECP384R1())
    path.write_bytes(_private(key, serialization.PrivateFormat.OpenSSH))
    path.chmod(0o600)
    public = key.public_key().public_bytes(
        serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
    )
    path.with_suffix(".pub").write_bytes(public)


def _certificate(
    subject: str, key: Key, issuer: str, signer: Key, extension: x509.ExtensionType
) -> x509.Certificate:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, subject)]))
        .issuer_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, issuer)]))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(minutes=5))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(extension, critical=False)
        .sign(signer, hashes.SHA256())
    )


def _private(key: Key, form: serialization.PrivateFormat) -> bytes:
    return key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption())

"""Certificates that only the test trusts."""

from __future__ import annotations

import ipaddress
import ssl
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID


def self_signed(directory: Path, address: str = "127.0.0.1") -> tuple[Path, Path]:
    """Write a certificate for an address and its key, as PEM files."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "collector")])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(
            x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(address))]),
            critical=False,
        )
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    directory.mkdir(exist_ok=True)
    certificate_file, key_file = directory / "certificate.pem", directory / "key.pem"
    certificate_file.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    key_file.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    return certificate_file, key_file


@dataclass
class ClientAuthority:
    """Signs the certificates of clients."""

    directory: Path

    def __post_init__(self) -> None:
        self.directory.mkdir(exist_ok=True)
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "authority")])
        made = (
            _builder(self._name, self._key, timedelta(days=1))
            .issuer_name(self._name)
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            .sign(self._key, hashes.SHA256())
        )
        self.file = self.directory / "authority.pem"
        self.file.write_bytes(made.public_bytes(serialization.Encoding.PEM))

    def client(
        self, common_name: str, *uris: str, days: float = 1, file: str = ""
    ) -> ClientCertificate:
        """Write a certificate for a client; one with negative days has expired."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])
        builder = _builder(subject, key, timedelta(days=days)).issuer_name(self._name)
        if uris:
            names = [x509.UniformResourceIdentifier(uri) for uri in uris]
            builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
        made = builder.sign(self._key, hashes.SHA256())
        found = ClientCertificate(
            self.directory / f"{file or common_name}.pem",
            self.directory / f"{file or common_name}.key",
            made.public_bytes(serialization.Encoding.DER),
        )
        found.file.write_bytes(made.public_bytes(serialization.Encoding.PEM))
        found.key_file.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            )
        )
        return found


@dataclass(frozen=True)
class ClientCertificate:
    """A client's certificate and key as files, and the certificate as TLS passes it."""

    file: Path
    key_file: Path
    der: bytes

    def context(self, ca_file: Path) -> ssl.SSLContext:
        """Return the TLS context of a client that presents it."""
        context = ssl.create_default_context(cafile=str(ca_file))
        context.load_cert_chain(self.file, self.key_file)
        return context


def _builder(
    subject: x509.Name, key: ec.EllipticCurvePrivateKey, ends_in: timedelta
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=30))
        .not_valid_after(now + ends_in)
    )


def server_context(certificate_file: Path, key_file: Path) -> ssl.SSLContext:
    """Return the TLS context of a server that presents a certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate_file, key_file)
    return context

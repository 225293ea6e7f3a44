"""TLS from files of certificates and keys: of servers, and of clients that verify them."""

from __future__ import annotations

import ssl
from pathlib import Path

from railscope.settings import SettingsError


def client_tls(setting: str, ca_file: str) -> ssl.SSLContext | bool:
    """Return the TLS of a client that verifies servers with a CA file; without one, with the system's CAs.

    Raises SettingsError that names the setting.
    """
    try:
        return ssl.create_default_context(cafile=ca_file) if ca_file else True
    except OSError as error:
        message = f"invalid {setting} {ca_file!r}: {error}"
        raise SettingsError(message) from None


def client_pem(
    ca_file: str, certificate_file: str, key_file: str
) -> tuple[bytes | None, bytes | None, bytes | None]:
    """Return CA certificates, key and certificate of a client from their files, as gRPC takes them.

    Without a CA file, the CAs are those of the system; without a key file, the key is in the file of the certificate.
    Blocking; raises OSError.
    """
    trusted = ca_file or ssl.get_default_verify_paths().cafile
    names = trusted, certificate_file and (key_file or certificate_file), certificate_file
    authorities, key, certificate = (Path(name).read_bytes() if name else None for name in names)
    return authorities, key, certificate


def server_tls(
    certificate_file: str, key_file: str, client_ca_file: str = ""
) -> ssl.SSLContext | None:
    """Return the TLS context of a server; None for plain HTTP. Raises SettingsError.

    With a client CA, clients may present a certificate; one that does not chain to it is rejected.
    """
    if not certificate_file:
        if client_ca_file:
            message = f"invalid tls.client_ca_file: {client_ca_file}: expected tls.certificate_file as well"
            raise SettingsError(message)
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(certificate_file, key_file or None)
    except OSError as error:
        named = key_file or certificate_file
        fix = f"check that both are PEM files that this user can read, and that the key in {named} is that of the certificate"
        message = f"cannot use certificate {certificate_file} or key {named}: {error}; fix: {fix}"
        raise SettingsError(message) from error
    if client_ca_file:
        try:
            context.load_verify_locations(client_ca_file)
        except OSError as error:
            message = f"cannot use tls.client_ca_file {client_ca_file}: {error}"
            raise SettingsError(message) from error
        # Optional: other clients authenticate by token.
        context.verify_mode = ssl.CERT_OPTIONAL
    return context

"""Listen addresses, and TLS for servers."""

from __future__ import annotations

import ssl

from railscope.settings import SettingsError

MAX_PORT = 65_535
MAX_HOST = 255


def split_address(listen: str) -> tuple[str, int]:
    """Split "host:port" into host and port; IPv6 hosts are in brackets. Raises SettingsError."""
    host, colon, port = listen.rpartition(":")
    digits = port.isascii() and port.isdecimal() and len(port) <= len(str(MAX_PORT))
    if not colon or not digits or int(port) > MAX_PORT:
        message = (
            f"invalid listen address {listen[:200]!r}: expected HOST:PORT with a port from 0 to"
            f" {MAX_PORT}, such as 127.0.0.1:9469 or [::]:9469"
        )
        raise SettingsError(message)
    host = host.strip("[]")
    if not _is_host(host):
        message = (
            f"invalid listen address {listen[:200]!r}: expected the name or address of a host, such"
            " as 127.0.0.1:9469 or [::]:9469"
        )
        raise SettingsError(message)
    return host, int(port)


def _is_host(host: str) -> bool:
    """True if the text is a valid DNS host name: printable labels of 1 to 63 characters."""
    if len(host) > MAX_HOST or not host.isprintable() or " " in host:
        return False
    try:
        host.encode("idna")
    except UnicodeError:
        return False
    return True


def server_tls(
    certificate_file: str, key_file: str, client_ca_file: str = ""
) -> ssl.SSLContext | None:
    """Return the TLS context of a server; None for plain HTTP. Raises SettingsError.

    With a client CA, clients may present a certificate; one that does not chain to it is rejected.
    """
    if not certificate_file:
        if client_ca_file:
            message = f"tls.client_ca_file {client_ca_file} needs tls.certificate_file"
            raise SettingsError(message)
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(certificate_file, key_file or None)
    except OSError as error:
        message = f"certificate {certificate_file} or key {key_file} cannot be used: {error}"
        raise SettingsError(message) from error
    if client_ca_file:
        try:
            context.load_verify_locations(client_ca_file)
        except OSError as error:
            message = f"tls.client_ca_file {client_ca_file} cannot be used: {error}"
            raise SettingsError(message) from error
        context.verify_mode = ssl.CERT_OPTIONAL
    return context

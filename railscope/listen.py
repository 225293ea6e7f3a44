"""Addresses to listen on, and TLS for those who listen."""

from __future__ import annotations

import ssl

from aiohttp import web

from railscope.settings import SettingsError

LAST_ANSWER_SECONDS = 2.0
"""How long requests under way may take when a server stops."""


def runner(application: web.Application) -> web.AppRunner:
    """A runner for an application: no access log, a short goodbye."""
    return web.AppRunner(application, access_log=None, shutdown_timeout=LAST_ANSWER_SECONDS)


def split_address(listen: str) -> tuple[str, int]:
    """Host and port of "host:port"; IPv6 hosts stand in brackets. Raises SettingsError."""
    host, colon, port = listen.rpartition(":")
    if not colon or not port.isdecimal():
        message = f"listen address {listen!r} must be host:port"
        raise SettingsError(message)
    return host.strip("[]"), int(port)


def server_tls(certificate_file: str, key_file: str) -> ssl.SSLContext | None:
    """The TLS context of a server; None for plain HTTP. Raises SettingsError."""
    if not certificate_file:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(certificate_file, key_file or None)
    except OSError as error:
        message = f"certificate {certificate_file} or key {key_file} cannot be used: {error}"
        raise SettingsError(message) from error
    return context


async def start(running: web.AppRunner, listen: str, tls: ssl.SSLContext | None) -> tuple[str, int]:
    """Start listening and say where. Raises SettingsError where the address cannot be had."""
    host, port = split_address(listen)
    site = web.TCPSite(running, host, port, ssl_context=tls)
    try:
        await site.start()
    except OSError as error:
        message = f"cannot listen on {listen}: {error.strerror or error}"
        raise SettingsError(message) from error
    bound = running.addresses[0]
    return str(bound[0]), int(bound[1])

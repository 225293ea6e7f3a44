"""The collector's web server: aiohttp on an address."""

from __future__ import annotations

import ssl

from aiohttp import web

from railscope.listen import split_address
from railscope.settings import SettingsError

LAST_ANSWER_SECONDS = 2.0
"""How long requests under way may take when a server stops."""


def runner(application: web.Application) -> web.AppRunner:
    """A runner for an application: no access log, a short goodbye."""
    return web.AppRunner(application, access_log=None, shutdown_timeout=LAST_ANSWER_SECONDS)


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

"""The collector's web server: aiohttp on an address."""

from __future__ import annotations

import logging
import ssl

import structlog
from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from railscope.listen import split_address
from railscope.settings import SettingsError

log = structlog.get_logger(__name__)

LAST_ANSWER_SECONDS = 2.0
"""How long requests under way may take when a server stops."""


def runner(application: web.Application) -> web.AppRunner:
    """A runner for an application: no access log, a short goodbye."""
    return web.AppRunner(
        application, access_log=None, logger=_logger(), shutdown_timeout=LAST_ANSWER_SECONDS
    )


class _Unquoted(logging.Filter):
    """aiohttp quotes what it cannot read, and a header that it cannot read may hold a token."""

    def filter(self, record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if record.exc_info else None
        if not isinstance(error, HttpProcessingError):
            return True
        log.debug("request_unreadable", problem=type(error).__name__)
        return False


def _logger() -> logging.Logger:
    made = logging.getLogger("railscope.collector.web")
    if not made.filters:
        made.addFilter(_Unquoted())
    return made


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

"""The collector's web server: aiohttp on connections that are accepted within limits."""

from __future__ import annotations

import asyncio
import logging
import ssl
from http import HTTPStatus

import structlog
from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.typedefs import Handler

from railscope.connections import Acceptor, Connection, Connections, listening_sockets
from railscope.listen import split_address
from railscope.settings import SettingsError

log = structlog.get_logger(__name__)

LAST_ANSWER_SECONDS = 2.0
"""Maximum time for pending requests when a server stops."""


def runner(application: web.Application) -> web.AppRunner:
    """Return a runner for an application: no access log, a short shutdown timeout."""
    return web.AppRunner(
        application, access_log=None, logger=_logger(), shutdown_timeout=LAST_ANSWER_SECONDS
    )


class _Unquoted(logging.Filter):
    """Filter against aiohttp's quotes of unreadable input: an unreadable header may contain a token."""

    def filter(self, record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if record.exc_info else None
        if not isinstance(error, HttpProcessingError):
            return True
        log.debug("request_unreadable", problem=type(error).__name__)
        return False


def _no_log() -> logging.Logger:
    """Return a disabled logger: relevant requests are recorded in the audit log, others nowhere."""
    made = logging.getLogger("railscope.collector.requests")
    made.disabled = True
    return made


def _logger() -> logging.Logger:
    made = logging.getLogger("railscope.collector.web")
    if not made.filters:
        made.addFilter(_Unquoted())
    return made


class WebServer:
    """An application on an address, with a limit on connections and a timeout for request bodies."""

    def __init__(self, application: web.Application, connections: Connections) -> None:
        self.connections = connections
        application.middlewares.insert(0, self._watched)
        application.on_response_prepare.append(_name_no_software)
        self._runner = runner(application)
        self._acceptor = Acceptor(connections, self._protocol)

    async def start(self, listen: str, tls: ssl.SSLContext | None) -> tuple[str, int]:
        """Start listening and return the address. Raises SettingsError if it is unavailable."""
        host, port = split_address(listen)
        await self._runner.setup()
        try:
            sockets = await listening_sockets(host, port)
        except OSError as error:
            message = f"cannot listen on {listen}: {error.strerror or error}"
            raise SettingsError(message) from error
        bound = sockets[0].getsockname()
        self._acceptor.tls = tls
        self._acceptor.start(sockets)
        return str(bound[0]), int(bound[1])

    async def close(self) -> None:
        """Stop listening, finish pending requests, and close all connections."""
        await self._acceptor.stop()
        await self._runner.cleanup()
        await self._acceptor.close()

    def _protocol(self, _: Connection) -> asyncio.Protocol:
        made = self._runner.server
        if made is None:
            message = "the server is stopping"
            raise ConnectionAbortedError(message)
        return _Handler(
            made, loop=asyncio.get_running_loop(), access_log=_no_log(), logger=_logger()
        )  # fmt: skip

    @web.middleware
    async def _watched(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Mark a connection as answering during a request; its body must arrive within the timeout."""
        transport = request.transport
        connection = self._acceptor.by_transport.get(transport) if transport else None
        if connection is None:
            return await handler(request)
        connection.answers()
        try:
            return await handler(request)
        finally:
            connection.waits()


class _Handler(web.RequestHandler):
    """aiohttp's protocol; its responses to invalid requests quote nothing and name no software."""

    __slots__ = ()

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """Return the response to a request that failed."""
        super().handle_error(request, status, exc, message)
        answer = web.Response(status=status, text=f"{HTTPStatus(status).phrase}\n")
        answer.headers["Server"] = "railscope"
        answer.force_close()
        return answer


async def _name_no_software(_: web.Request, response: web.StreamResponse) -> None:
    """Remove the header that names software and versions."""
    response.headers.popall("Server", None)

"""The collector's web server: aiohttp on connections that are accepted within limits."""

from __future__ import annotations

import asyncio
import logging
import ssl
from http import HTTPStatus
from typing import Any

import structlog
from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.typedefs import Handler

from railscope import listen_address, server_connections
from railscope_collector.http.json_compression import JsonCompression

log = structlog.get_logger(__name__)

SHUTDOWN_TIMEOUT_SECONDS = 2.0
"""Maximum time for pending requests when a server stops."""


def make_runner(application: web.Application) -> web.AppRunner:
    """Return a runner for an application: no access log, a short shutdown timeout."""
    return web.AppRunner(
        application,
        access_log=None,
        logger=_request_logger(),
        shutdown_timeout=SHUTDOWN_TIMEOUT_SECONDS,
    )


class _UnquotedFilter(logging.Filter):
    """Filter of aiohttp's messages that quote invalid input: an invalid header may contain a token."""

    def filter(self, record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if record.exc_info else None
        if not isinstance(error, HttpProcessingError):
            return True
        log.debug("request_rejected", problem=type(error).__name__)
        return False


def _disabled_logger() -> logging.Logger:
    """Return a disabled logger: relevant requests are recorded in the audit log, others nowhere."""
    logger = logging.getLogger("railscope.collector.requests")
    logger.disabled = True
    return logger


def _request_logger() -> logging.Logger:
    logger = logging.getLogger("railscope.collector.web")
    if not logger.filters:
        logger.addFilter(_UnquotedFilter())
    return logger


class WebServer:
    """An application on an address, with a limit on connections and a timeout for request bodies."""

    def __init__(
        self, application: web.Application, connections: server_connections.ServerConnections
    ) -> None:
        self.connections = connections
        application.middlewares[:0] = self._track_request, JsonCompression().compress
        application.on_response_prepare.append(_remove_server_header)
        self._runner = make_runner(application)
        self._acceptor = server_connections.ConnectionAcceptor(connections, self._protocol)

    async def start(self, listen: str, tls: ssl.SSLContext | None) -> tuple[str, int]:
        """Start listening and return the address. Raises SettingsError if it is unavailable."""
        await self._runner.setup()
        sockets = await listen_address.listening_sockets(listen)
        bound = sockets[0].getsockname()
        self._acceptor.tls = tls
        self._acceptor.start(sockets)
        return str(bound[0]), int(bound[1])

    async def close(self) -> None:
        """Stop listening, finish pending requests, and close all connections."""
        await self._acceptor.stop()
        await self._runner.cleanup()
        await self._acceptor.close()

    def _protocol(self, connection: server_connections.ServerConnection) -> asyncio.Protocol:
        server = self._runner.server
        if server is None:
            message = "the server is stopping"
            raise ConnectionAbortedError(message)
        return _QuietRequestHandler(
            server,
            connection,
            loop=asyncio.get_running_loop(),
            access_log=_disabled_logger(),
            logger=_request_logger(),
            auto_decompress=False,  # no client compresses bodies: one that is broken raises in every reader
        )

    @web.middleware
    async def _track_request(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Mark a connection as answering from the end of the headers until the response is sent."""
        transport = request.transport
        if transport and (connection := self._acceptor.by_transport.get(transport)):
            connection.begin_response()
        return await handler(request)


class _QuietRequestHandler(web.RequestHandler):
    """aiohttp's protocol; its responses to invalid requests quote nothing and name no software."""

    __slots__ = ("_connection",)

    def __init__(
        self, manager: web.Server, connection: server_connections.ServerConnection, **options: Any
    ) -> None:
        super().__init__(manager, **options)
        self._connection = connection

    async def finish_response(
        self, request: web.BaseRequest, resp: web.StreamResponse, start_time: float | None
    ) -> tuple[web.StreamResponse, bool]:
        """Send a response. The deadline of the next request starts after it: middlewares return before."""
        try:
            return await super().finish_response(request, resp, start_time)
        finally:
            self._connection.begin_idle()

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """Return the response to a request that failed."""
        super().handle_error(request, status, exc, message)
        response = web.Response(status=status, text=f"{HTTPStatus(status).phrase}\n")
        response.headers["Server"] = "railscope"
        response.force_close()
        return response


async def _remove_server_header(_: web.Request, response: web.StreamResponse) -> None:
    """Remove the header that names software and versions."""
    response.headers.popall("Server", None)

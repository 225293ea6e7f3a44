"""The collector's web server: aiohttp on connections that are accepted within limits.

Requests that read from disk or database have a thread pool of their own. Ingest makes frames durable
in the default one: it stays available however many requests there are and however slow the database
is; and a client with many concurrent requests waits for its own, others do not.

After a start on a full disk the collector serves its data read-only, and waits for space: nothing is
written and nothing is opened for writing. The content of the state directory is read into a separate
collector, which serves views, API and metrics; frames get 503 with Retry-After, so that agents keep
them in their spools, and `/-/ready` states the reason. A running collector is not ready while a write
to the ledger or to the file system of its frame log fails.
"""

from __future__ import annotations

import asyncio
import errno
import gzip
import logging
import os
import ssl
import time
from collections.abc import Callable, Coroutine, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import Any, TypeVar

import structlog
from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.typedefs import Handler

from railscope import durable_files, listen_address, server_connections, service
from railscope_collector import cluster_head
from railscope_collector.access.credentials import Credential, Role
from railscope_collector.framelog import framelog
from railscope_collector.http import access_control as routes
from railscope_collector.ledger import membership
from railscope_collector.ledger.database import Database, call_database, find_ledger_problem

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


MIN_GZIP_BYTES = 2048
"""Shorter bodies are sent as they are."""
MAX_COMPRESSIONS = 2
"""Responses that are compressed at the same time; others wait."""
_GZIP_LEVEL = 5


def gzip_body(body: bytes) -> bytes:
    """Return a body compressed for clients that accept it. Blocking: 10 ms for each megabyte."""
    return gzip.compress(body, _GZIP_LEVEL, mtime=0)


def accepts_gzip(request: web.Request) -> bool:
    """True if a client accepts compressed responses."""
    offered = request.headers.get("Accept-Encoding", "").lower().replace(" ", "").split(",")
    return any(
        each.startswith("gzip") and not each.endswith((";q=0", ";q=0.0")) for each in offered
    )


@dataclass(slots=True)
class JsonCompression:
    """Compresses large JSON responses in threads."""

    _turns: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(MAX_COMPRESSIONS))

    @web.middleware
    async def compress(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Return the response of a handler, compressed if it is worth it."""
        response = await handler(request)
        if (
            request.method != "POST"
            and isinstance(response, web.Response)
            and response.content_type == "application/json"
            and isinstance(response.body, bytes)
            and len(response.body) >= MIN_GZIP_BYTES
            and "Content-Encoding" not in response.headers
            and accepts_gzip(request)
        ):
            async with self._turns:
                response.body = await service.run_in_thread(gzip_body, response.body)
            response.headers["Content-Encoding"] = "gzip"
        return response


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

    def _protocol(self, _: server_connections.ServerConnection) -> asyncio.Protocol:
        server = self._runner.server
        if server is None:
            message = "the server is stopping"
            raise ConnectionAbortedError(message)
        return _QuietRequestHandler(
            server,
            loop=asyncio.get_running_loop(),
            access_log=_disabled_logger(),
            logger=_request_logger(),
            auto_decompress=False,  # no client compresses bodies: one that is broken raises in every reader
        )

    @web.middleware
    async def _track_request(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Mark a connection as answering during a request; its body must arrive within the timeout."""
        transport = request.transport
        connection = self._acceptor.by_transport.get(transport) if transport else None
        if connection is None:
            return await handler(request)
        connection.begin_response()
        try:
            return await handler(request)
        finally:
            connection.begin_idle()


class _QuietRequestHandler(web.RequestHandler):
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
        response = web.Response(status=status, text=f"{HTTPStatus(status).phrase}\n")
        response.headers["Server"] = "railscope"
        response.force_close()
        return response


async def _remove_server_header(_: web.Request, response: web.StreamResponse) -> None:
    """Remove the header that names software and versions."""
    response.headers.popall("Server", None)


THREADS = 8
MAX_READS_PER_REQUESTER = 3
"""Maximum number of running or queued requests of one tenant, or of one credential of another role."""

ReadResultT = TypeVar("ReadResultT")


@dataclass(slots=True)
class ReadPool:
    """Executes reads for requests; `close` it at the end."""

    _threads: ThreadPoolExecutor = field(
        default_factory=lambda: ThreadPoolExecutor(THREADS, thread_name_prefix="reading")
    )
    _pending: dict[str, int] = field(default_factory=dict)

    async def read(self, credential: Credential, work: Callable[[], ReadResultT]) -> ReadResultT:
        """Return the result of the work, done off the loop. Raises HTTPTooManyRequests, or as the work."""
        with self.turn(credential):
            return await asyncio.get_running_loop().run_in_executor(self._threads, work)

    @contextmanager
    def turn(self, credential: Credential) -> Iterator[None]:
        """Count a read of a requester while it runs. Raises HTTPTooManyRequests."""
        requester = f"tenant/{credential.tenant}" if credential.tenant else credential.label
        pending = self._pending.get(requester, 0)
        if pending >= MAX_READS_PER_REQUESTER:
            text = f"too many requests of this kind: expected at most {MAX_READS_PER_REQUESTER} at once\n"
            raise web.HTTPTooManyRequests(text=text, headers={"Retry-After": "1"})
        self._pending[requester] = pending + 1
        try:
            yield
        finally:
            self._pending[requester] -= 1
            if not self._pending[requester]:
                del self._pending[requester]

    def close(self) -> None:
        """Shut the threads down; queued work is cancelled."""
        self._threads.shutdown(wait=False, cancel_futures=True)


PROBE_BYTES = framelog.MAX_GROUP_BYTES
"""Free space without which a collector does not start to write and is not ready."""
RETRY_SECONDS = 5.0
_PROBE_NAME = "probe"
_DISK_FULL_ERRORS = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS})


def find_write_problem(directory: Path) -> str:
    """Return the reason why a directory cannot be written; empty if it can. Blocking.

    Only a write with fsync and an allocation detect a quota, a full or a read-only file system. A
    probe that a process left behind when it was killed is deleted.
    """
    try:
        durable_files.delete_partial_files(directory, _PROBE_NAME)
        with (
            durable_files.partial_file(directory / _PROBE_NAME, b"probe") as path,
            path.open("rb+") as file,
        ):
            os.posix_fallocate(file.fileno(), 0, PROBE_BYTES)
            return ""
    except OSError as error:
        if error.errno in _DISK_FULL_ERRORS:
            return f"cannot write the state directory: {error.strerror}"
        raise


REUSE_SECONDS = 5.0
"""Time for which the result of a write is reused."""


@dataclass(slots=True)
class WriteProbe:
    """Result of the newest write to a target, for any number of concurrent callers."""

    target: str
    write: Callable[[], Coroutine[Any, Any, str]]
    """Writes, and returns the reason why that is impossible; empty if it is possible."""
    monotonic: Callable[[], float] = time.monotonic
    wait_seconds: float = 5.0
    _task: asyncio.Task[str] | None = None
    _problem: str = ""
    _ended_at: float | None = None

    async def problem(self) -> str:
        """Return the reason why the target cannot be written; empty if there is none.

        A write that has not ended after `wait_seconds` counts as failed; it continues, and later
        callers wait for the same one. The message of the system, which may contain hosts and files,
        is logged and not returned: readiness is served without a credential.
        """
        if self._ended_at is None or self.monotonic() - self._ended_at >= REUSE_SECONDS:
            if self._task is None:
                self._task = asyncio.create_task(self.write())
                self._task.add_done_callback(self._end_write)
            done, _ = await asyncio.wait({self._task}, timeout=self.wait_seconds)
            if not done:
                return f"no write to {self.target} has succeeded for {self.wait_seconds:g} s"
        if self._problem:
            return f"cannot write {self.target}; the collector's log has the reason"
        return ""

    async def close(self) -> None:
        """Wait for a write that has not ended."""
        if self._task:
            await asyncio.wait({self._task})

    def _end_write(self, task: asyncio.Task[str]) -> None:
        self._task = None
        if not task.cancelled():
            fault = task.exception()
            before = self._problem
            self._problem = f"{type(fault).__name__}: {fault}" if fault else task.result()
            self._ended_at = self.monotonic()
            if self._problem and not before:
                log.error("write_probe_failed", target=self.target, problem=self._problem)


def make_probes(
    open_database: Callable[[], Database], find_problem: Callable[[Path], str], directory: Path
) -> list[WriteProbe]:
    """Return the probes of the ledger and of the directory of the frame log."""
    return [
        WriteProbe("the ledger", lambda: call_database(find_ledger_problem, open_database)),
        WriteProbe("the frame log", lambda: service.run_in_thread(find_problem, directory)),
    ]


@dataclass(slots=True)
class SpaceWatch:
    """Waits until a directory can be written."""

    directory: Path
    retry_seconds: float = RETRY_SECONDS
    probe: Callable[[Path], str] = find_write_problem

    async def wait(self) -> None:
        """Return once there is space. Raises OSError for any other failure."""
        # No event signals that a file system has free space again.
        while await service.run_in_thread(self.probe, self.directory):  # noqa: ASYNC110 - as above
            await asyncio.sleep(self.retry_seconds)
        log.info("writes_resumed", directory=str(self.directory))


_OWN_ROUTES = frozenset({"healthy", "ready", "metrics"})
_HISTORY_ROUTES = frozenset(
    f"page_{page}{twin}" for page in ("node_history", "gpu") for twin in ("", "_json")
)


@dataclass(slots=True)
class ClusterRouting:
    """Answers requests about all nodes at the head, and refers to it at other collectors."""

    cluster: cluster_head.ClusterHead

    def route(
        self, own_handlers: routes.RouteHandlers, api: Iterable[str], pages: Iterable[str]
    ) -> routes.RouteHandlers:
        """Return handlers for all routes; `api` and `pages` are the names of those about all nodes."""
        if not self.cluster.is_enabled:
            return own_handlers
        names = set(api) - _OWN_ROUTES
        names |= {f"page_{page}{twin}" for page in pages for twin in ("", "_json")}
        return {
            **own_handlers,
            **{name: partial(self._answer, name, own_handlers[name]) for name in names},
        }

    async def _answer(
        self,
        name: str,
        own_handler: routes.RouteHandler,
        request: web.Request,
        credential: Credential,
    ) -> web.StreamResponse:
        cluster, state = self.cluster, self.cluster.state
        if name in _HISTORY_ROUTES:
            # The collector that received the frames of a node has them.
            node = request.match_info["node"]
            owner = state.followed.get(state.find_collector(node)) if state else None
            if owner and owner.member.name != cluster.name:
                return _refer(request, owner.member)
            if state is None and node in cluster.core.fleet.nodes:
                return await own_handler(request, credential)
        if state is None:
            return _refer(request, cluster.other_head)
        response = await state.handlers[name](request, credential)
        extent = state.refresher.views.extent
        # Pages and their twins state the collectors themselves.
        if extent is None or name.startswith("page_") or not isinstance(response, web.Response):
            return response
        if credential.role is Role.TENANT:
            extent = extent.for_tenant()
        if response.content_type == "application/json" and isinstance(response.body, bytes):
            response.body = extent.add_to(response.body)
        return response


def _refer(request: web.Request, member: membership.ClusterMember | None) -> web.Response:
    """Return a redirect to another collector; 503 while there is none."""
    if member is None:
        text = "no collector shows all nodes at present: another one begins within seconds"
        return routes.json_error(HTTPStatus.SERVICE_UNAVAILABLE, text, {"Retry-After": "5"})
    target = member.url + str(request.rel_url)
    content = {"error": f"collector {member.name} shows all nodes", "url": target}
    return routes.json_response(content, HTTPStatus.TEMPORARY_REDIRECT, {"Location": target})

"""Records between the collectors of one database: their server, and the client by which the head follows another one.

A reader that does not read is disconnected: records wait for it in memory. It begins again with a snapshot.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from http import HTTPStatus
from typing import NamedTuple

import aiohttp
import structlog
from aiohttp import web

from railscope import settings as setting_files, timestamps, tls_contexts
from railscope_collector import config, work_limits
from railscope_collector.ledger import cluster_extent, membership
from railscope_collector.state import feed_follower, record_feed

log = structlog.get_logger(__name__)

RECORDS_PATH = "/v1/records"
MAX_READERS = 4
"""Readers at the same time: one is the head, and a former one may not have noticed that it has no lease."""
WRITE_SECONDS = 30.0
"""Time for one part, after which a reader is considered not to read."""
SILENCE_SECONDS = 10.0
"""Time without a heartbeat after which a collector is unknown."""
RETRY_SECONDS = 1.0


@dataclass(slots=True)
class RecordServer:
    """Sends the records of a collector to others."""

    feed: record_feed.RecordFeed
    max_readers: int = MAX_READERS
    write_seconds: float = WRITE_SECONDS
    readers: int = 0
    disconnected: int = 0
    """Readers that were disconnected because they did not read, or were too slow."""
    rejected: int = 0
    """Requests beyond the number of readers."""

    async def serve(self, request: web.Request) -> web.StreamResponse:
        """Send records until the reader closes the connection or does not read."""
        if self.readers >= self.max_readers:
            self.rejected += 1
            text = f"{self.readers} readers of records: expected at most {self.max_readers}"
            return web.json_response(
                {"error": text}, status=HTTPStatus.SERVICE_UNAVAILABLE, headers={"Retry-After": "5"}
            )
        self.readers += 1
        try:
            return await self._send(request)
        finally:
            self.readers -= 1

    async def _send(self, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "application/octet-stream"})
        transport = request.transport
        connection = transport.get_extra_info("socket") if transport else None
        if connection is not None:
            # A machine that is off acknowledges nothing, and closes nothing.
            connection.setsockopt(
                socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, round(1000 * self.write_seconds)
            )
        problem = "too slow: it does not keep up with the records"
        try:
            await response.prepare(request)
            async with contextlib.aclosing(self.feed.parts()) as parts:
                async for part in parts:
                    async with asyncio.timeout(self.write_seconds):
                        await response.write(part)
        except TimeoutError:
            problem = f"it read nothing for {self.write_seconds:g} s"
        except ConnectionError:
            return response
        if not self.feed.is_closed:
            self.disconnected += 1
            log.warning("record_reader_disconnected", address=request.remote, problem=problem)
        # Not `close`, which waits until the reader has taken all data.
        if transport is not None:
            transport.abort()
        return response


class PeerAccess(NamedTuple):
    """Access to the records of other collectors."""

    token: str
    ca_file: str

    @classmethod
    def from_settings(cls, settings: config.ClusterSettings) -> PeerAccess:
        """Read the token. Raises SettingsError."""
        if not settings.token_file:
            message = "missing cluster.token_file: expected a token of role collector; fix: `railscope collector token --role collector NAME`"
            raise setting_files.SettingsError(message)
        token = setting_files.read_named_file("cluster.token_file", settings.token_file, "ascii")
        tls_contexts.client_tls("cluster.ca_file", settings.ca_file)
        return cls(token, settings.ca_file)


@dataclass(slots=True, eq=False)
class FollowedCollector:
    """One collector whose records the head reads; for its own, without a connection."""

    member: membership.ClusterMember
    begin: Callable[[], feed_follower.FeedFollower]
    """Returns a follower of a new connection."""
    on_problem: Callable[[], None] = lambda: None
    """Called when its nodes have become unknown."""
    wall_ns: Callable[[], int] = time.time_ns
    task: asyncio.Task[None] | None = None
    problem: str = "no snapshot yet"
    """Reason why its nodes are unknown; empty if they are not."""
    rejected: int = 0
    """Parts and facts that were not applied, since the start of the term."""
    rejected_problem: str = ""
    """Reason of the last one."""
    follower: feed_follower.FeedFollower | None = None
    applied_ns: int = 0
    """Time by its clock up to which all of its records were applied, also by an earlier connection; 0 if never."""

    def extent_member(self, nodes: int) -> cluster_extent.ExtentMember:
        """Return the collector as views state it."""
        follower = self.follower
        shift_ns = follower.shift_ns if follower else 0
        return cluster_extent.ExtentMember(
            self.member.name,
            self.member.url,
            nodes,
            not self.problem,
            self.problem,
            round(shift_ns / timestamps.SECOND_NS, 3),
            self.rejected,
            self.rejected_problem,
            self._lag_seconds(),
        )

    def _lag_seconds(self) -> float | None:
        if not self.follower or not self.applied_ns:
            return None
        applied_ns = self.applied_ns + self.follower.lead_ns()
        return round(max(0, self.wall_ns() - applied_ns) / timestamps.SECOND_NS, 3)

    async def read_own(self, feed: record_feed.RecordFeed) -> None:
        """Apply the records of this collector until cancelled."""
        while True:
            try:
                await self._apply(_reader_of(feed.parts()))
            except Exception as error:  # noqa: BLE001 - other collectors continue, and this one again
                self._set_problem(f"{type(error).__name__}: {error}")
            await asyncio.sleep(RETRY_SECONDS)

    async def read_other(self, access: PeerAccess) -> None:
        """Read the records of another collector until cancelled, again after each failure."""
        timeout = aiohttp.ClientTimeout(sock_connect=SILENCE_SECONDS, sock_read=SILENCE_SECONDS)
        url = self.member.url + RECORDS_PATH
        headers = {"Authorization": f"Bearer {access.token}"}
        async with aiohttp.ClientSession(headers=headers, timeout=timeout) as session:
            while True:
                try:
                    # At each attempt: the file may have been replaced.
                    tls = tls_contexts.client_tls("cluster.ca_file", access.ca_file)
                    # No redirects: the token is for this collector only.
                    async with session.get(url, ssl=tls, allow_redirects=False) as response:
                        if response.status == HTTPStatus.OK:
                            await self._apply(response.content.readexactly)
                        problem = f"status {response.status}: expected 200"
                except (record_feed.FeedError, setting_files.SettingsError) as error:
                    problem = str(error)
                except TimeoutError:
                    problem = f"no response for {SILENCE_SECONDS:g} s"
                except (asyncio.IncompleteReadError, aiohttp.ClientPayloadError):
                    problem = "the collector closed the connection"
                except Exception as error:  # noqa: BLE001 - other collectors continue, and this one again
                    problem = f"{type(error).__name__}: {error}"
                self._set_problem(problem)
                await asyncio.sleep(RETRY_SECONDS)

    def _set_problem(self, problem: str) -> None:
        if not self.problem:
            log.warning("collector_disconnected", collector=self.member.name, problem=problem)
        self.problem = problem
        self.on_problem()

    async def _apply(self, read: Callable[[int], Awaitable[bytes]]) -> None:
        """Apply parts until they end. Raises record_feed.FeedError, and as `read`."""
        follower = self.follower = self.begin()
        slices = work_limits.TimeSlices()
        async for part in record_feed.read_parts(read):
            before = follower.rejected
            await follower.apply(part, slices)
            if follower.rejected > before:
                self.rejected += follower.rejected - before
                self.rejected_problem = follower.problem
            # Before, a part of its nodes is not known yet.
            if follower.is_complete:
                self.applied_ns = follower.sender_ns
            if follower.is_complete and self.problem:
                self.problem = ""
                log.info(
                    "collector_included",
                    collector=self.member.name,
                    nodes=len(follower.nodes),
                    rejected=follower.rejected,
                    problem=follower.problem,
                )


def _reader_of(parts: AsyncIterator[bytes]) -> Callable[[int], Awaitable[bytes]]:
    """Return a function that reads exact sizes of encoded parts. It raises EOFError."""
    buffer = bytearray()

    async def read(size: int) -> bytes:
        while len(buffer) < size:
            part = await anext(parts, None)
            if part is None:
                message = "the head does not keep up with its own records"
                raise EOFError(message)
            buffer.extend(part)
        taken = bytes(buffer[:size])
        del buffer[:size]
        return taken

    return read

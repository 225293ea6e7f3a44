"""Links of the failover run: they change nothing, can be cut and delayed, and have bounds; drawn failures."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

from hypothesis import given, strategies as st

from tests.failover.failures import COLLECTORS, HOST, FailureKind, Link, draw_failures

Answer = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
Ends = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(ConnectionError):
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()
    writer.close()


@contextlib.asynccontextmanager
async def linked(answer: Answer = echo, path: Path | None = None) -> AsyncIterator[Link]:
    """Run a server, and a link to it."""
    serving: set[asyncio.Task[None] | None] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        serving.add(asyncio.current_task())
        await answer(reader, writer)

    if path:
        server = await asyncio.start_unix_server(serve, path)
    else:
        server = await asyncio.start_server(serve, HOST, 0)
    link = Link(path or server.sockets[0].getsockname()[1])
    await link.start()
    try:
        yield link
    finally:
        await link.close()
        server.close()
        await asyncio.gather(*filter(None, serving))


@contextlib.asynccontextmanager
async def connected(link: Link) -> AsyncIterator[Ends]:
    reader, writer = await asyncio.open_connection(HOST, link.port)
    try:
        yield reader, writer
    finally:
        writer.transport.abort()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()


async def is_silent(reader: asyncio.StreamReader) -> bool:
    try:
        async with asyncio.timeout(0.1):
            await reader.read(1)
    except TimeoutError:
        return True
    return False


@given(
    st.lists(st.tuples(st.binary(min_size=1, max_size=3000), st.sampled_from(["", "cut", "delay"])))
)
def test_what_is_sent_arrives_unchanged_whatever_fails_meanwhile(
    sent: list[tuple[bytes, str]],
) -> None:
    async def exchange() -> bytes:
        async with linked() as link, connected(link) as (reader, writer):
            for data, failure in sent:
                link.restore()
                link.delay_seconds = 0.001 if failure == "delay" else 0.0
                if failure == "cut":
                    link.cut()
                writer.write(data)
                await asyncio.sleep(0)
            link.restore()
            return await reader.readexactly(sum(len(data) for data, _ in sent))

    assert asyncio.run(exchange()) == b"".join(data for data, _ in sent)


async def test_a_cut_link_is_silent_and_closes_nothing_until_it_is_restored():
    async with linked() as link, connected(link) as (reader, writer):
        writer.write(b"before")
        assert await reader.readexactly(6) == b"before"
        link.cut()
        writer.write(b"meanwhile")
        async with connected(link) as (other_reader, other_writer):
            other_writer.write(b"another")
            assert await is_silent(reader)
            assert await is_silent(other_reader)
            link.restore()
            assert await reader.readexactly(9) == b"meanwhile"
            assert await other_reader.readexactly(7) == b"another"


@given(st.integers())
def test_drawn_failures_are_reproducible_and_follow_one_another_at_each_collector(
    seed: int,
) -> None:
    drawn = draw_failures(seed)
    assert drawn == draw_failures(seed)
    assert [each.kind for each in drawn].count(FailureKind.PROMOTION) == 1
    for name in COLLECTORS:
        own = [each for each in drawn if each.collector == name]
        assert own
        assert all(each.kind is not FailureKind.PROMOTION for each in own)
        assert all(0 < each.start < each.end < 1 for each in own)
        assert all(first.end <= then.start for first, then in itertools.pairwise(own))

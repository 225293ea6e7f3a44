"""Walks over tables of broken and hostile agents end, and never with rows that the table cannot have."""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections.abc import AsyncIterator, Mapping, Sequence

import pytest
from hypothesis import given, strategies as st

from railscope_collector.switches.snmp_reader import WalkBudget, walk_column
from railscope_collector.switches.snmp_session import open_session
from railscope_collector.switches.snmp_values import SnmpValue
from railscope_collector.switches.switch_reading import SwitchReadError
from railscope_collector.switches.switch_settings import ConfiguredSwitch, SnmpCredential

COLUMN = "1.3.6.1.2.1.2.2.1.10"
INDEXES = st.lists(st.integers(0, (1 << 32) - 1), min_size=1, max_size=3).map(tuple)


class ScriptedSession:
    """Answers a walk with given objects."""

    def __init__(self, objects: Sequence[tuple[str, SnmpValue]]) -> None:
        self.objects = objects

    async def get(self, oids: Sequence[str]) -> Mapping[str, SnmpValue]:
        return dict.fromkeys(oids, 0)

    async def walk(self, oid: str) -> AsyncIterator[tuple[str, SnmpValue]]:
        assert oid == COLUMN
        for each in self.objects:
            yield each


async def endless(count: int | None) -> AsyncIterator[tuple[str, SnmpValue]]:
    number = 0
    while True:
        number += 1
        yield f"{COLUMN}.{number if count is None else number % count}", number


def walked(objects: Sequence[tuple[str, SnmpValue]]) -> dict[tuple[int, ...], SnmpValue]:
    return asyncio.run(walk_column(ScriptedSession(objects), COLUMN, WalkBudget()))


@given(st.dictionaries(INDEXES, st.integers(0, (1 << 64) - 1)))
def test_rows_in_order_are_returned_whole_up_to_the_end_of_the_column(rows):
    objects = [(f"{COLUMN}.{'.'.join(map(str, index))}", rows[index]) for index in sorted(rows)]
    assert walked([*objects, ("1.3.6.1.2.1.2.2.1.11.1", 5)]) == rows


@given(st.lists(INDEXES, min_size=2, max_size=8))
def test_rows_out_of_order_are_an_error(indexes):
    objects = [(f"{COLUMN}.{'.'.join(map(str, index))}", 1) for index in indexes]
    if indexes == sorted(set(indexes)):
        assert list(walked(objects)) == indexes
    else:
        with pytest.raises(SwitchReadError, match="do not ascend") as failed:
            walked(objects)
        assert failed.value.reason == "limit"


@pytest.mark.parametrize("oid", [COLUMN, f"{COLUMN}5.1", "", "1.3", "2.1"])
def test_other_objects_end_a_walk(oid):
    assert walked([(f"{COLUMN}.1", 1), (oid, 2), (f"{COLUMN}.3", 3)]) == {(1,): 1}


@pytest.mark.parametrize("index", ["x", "1..2", "-1", "1.-2", "٣", ".".join(["1"] * 40)])
def test_invalid_index_is_an_error(index):
    with pytest.raises(SwitchReadError, match="invalid index"):
        walked([(f"{COLUMN}.{index}", 1)])


@pytest.mark.parametrize("count", [None, 7])
async def test_walk_without_an_end_ends_with_an_error(count):
    session = ScriptedSession(())
    session.walk = lambda _oid: endless(count)  # type: ignore[method-assign]
    with pytest.raises(SwitchReadError) as failed:
        await walk_column(session, COLUMN, WalkBudget())
    assert failed.value.reason == "limit"


def test_large_texts_end_a_walk():
    objects = [(f"{COLUMN}.{number}", bytes(60_000)) for number in range(1, 1000)]
    with pytest.raises(SwitchReadError, match="too much data"):
        walked(objects)


class MutatingAgent(asyncio.DatagramProtocol):
    """An agent whose answers are damaged at random: types, lengths, ends, and nesting."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)  # noqa: S311 - no secret
        self.transport: asyncio.DatagramTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.DatagramTransport)
        self.transport = transport

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        choose = self.random
        pdu = data[data.index(b"public") + 6 :]
        request_id = pdu[4 : 4 + pdu[3]]
        bindings = b"".join(self._binding(row) for row in range(choose.randint(0, 6)))
        body = _part(2, request_id) + _part(2, b"\0") * 2 + _part(0x30, bindings)
        kind = choose.choice((0xA2, 0xA2, 0xA2, 0xA8, 0xA0))
        answer = bytearray(_part(0x30, _part(2, b"\1") + _part(4, b"public") + _part(kind, body)))
        for _ in range(choose.randint(0, 4)):
            answer[choose.randrange(len(answer))] = choose.randrange(256)
        if choose.random() < 0.2:
            answer = answer[: choose.randrange(len(answer))]
        if choose.random() < 0.02:
            answer = bytearray(b"\x30\x80" * 15_000)
        assert self.transport
        self.transport.sendto(bytes(answer), addr)

    def _binding(self, row: int) -> bytes:
        oid = _part(6, bytes((0x2B, 6, 1, 2, 1, 2, 2, 1, 10, row + self.random.randrange(3))))
        tag = self.random.choice((2, 4, 5, 6, 0x40, 0x41, 0x42, 0x43, 0x44, 0x46, 0x80, 0x82, 9))
        return _part(0x30, oid + _part(tag, os.urandom(self.random.choice((0, 1, 4, 8, 9, 200)))))


def _part(tag: int, content: bytes) -> bytes:
    size = len(content)
    length = bytes((size,)) if size < 128 else bytes((0x82, size >> 8, size & 0xFF))
    return bytes((tag,)) + length + content


async def test_damaged_datagrams_never_raise_another_error():
    transport, _ = await asyncio.get_running_loop().create_datagram_endpoint(
        lambda: MutatingAgent(1), local_addr=("127.0.0.1", 0)
    )
    switch = ConfiguredSwitch(
        name="hostile",
        address="127.0.0.1",
        host="127.0.0.1",
        port=transport.get_extra_info("sockname")[1],
        credential=SnmpCredential(community="public"),
        tables="standard",
        period_seconds=30,
        timeout_seconds=0.005,
    )
    errors, deadline = 0, time.monotonic() + 60
    for _ in range(400):
        assert time.monotonic() < deadline
        try:
            session = await open_session(switch)
            await walk_column(session, COLUMN, WalkBudget())
        except SwitchReadError:
            errors += 1
    transport.close()
    assert errors > 100

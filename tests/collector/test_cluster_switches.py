"""Several collectors with the same switches: the head polls, no other does, and each reading is exposed and diagnosed once."""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path

import msgspec
from running_collector import RunningCollector, run_collector
from support import postgresql, sonic_switch
from test_cluster_head import settings_of, until, until_head

from railscope.wire import Batch, Envelope
from railscope_collector.config import CollectorSettings, IngestLimits, SwitchesSettings
from railscope_collector.fleet.fleet import SWITCH_PREFIX
from railscope_collector.framelog.segment_files import FrameRecord
from railscope_collector.switches.switch_polling import PolledSwitch

SWITCH = "leaf-07"
RECEIVED = sonic_switch.port_row(1)["SAI_PORT_STAT_IF_IN_OCTETS"]


def polled_by(one: RunningCollector) -> PolledSwitch:
    return one.collector.switches.polling.polled[SWITCH]


async def exposed(*collectors: RunningCollector) -> list[str]:
    """Return a counter of a port as all collectors together expose it."""
    line = (
        rf'^railscope_switch_port_receive_bytes_total{{switch="{SWITCH}",port="Ethernet0"}} (\S+)$'
    )
    pages = [(await one.get("/metrics"))[1] for one in collectors]
    return [value for page in pages for value in re.findall(line, page, re.MULTILINE)]


def polls_received(head: RunningCollector) -> list[int]:
    """Return a list of the polls that the diagnosis of the head gets from now on, by the time of their receipt."""
    state, found = head.collector.cluster.role.state, list[int]()
    assert state
    take = state.diagnosis.forward

    def note(record: FrameRecord, _: Envelope, batches: Sequence[Batch]) -> None:
        if record.node == SWITCH_PREFIX + SWITCH and batches:
            found.append(record.received_wall_ns)

    assert take in state.core.on_new_batches
    state.core.on_new_batches.append(note)
    return found


async def test_the_head_alone_polls_and_another_one_continues_when_it_ends(
    tmp_path: Path, server: postgresql.PostgreSQL
) -> None:
    url = server.database()
    async with sonic_switch.sonic_switch() as switch, AsyncExitStack() as stack:
        file = str(switch.write_switches(tmp_path, plaintext=True, period_seconds=5.0))

        def settings(name: str) -> CollectorSettings:
            given = SwitchesSettings(file=file)
            return msgspec.structs.replace(
                settings_of(tmp_path, name, url), switches=given, limits=IngestLimits()
            )

        first = AsyncExitStack()
        head = await first.enter_async_context(run_collector(settings("a")))
        await until_head(head.collector.cluster)
        other = await stack.enter_async_context(run_collector(settings("b")))
        await until_head(other.collector.cluster)
        assert head.collector.cluster.role.state, "the first one is the head"

        polls = await until(lambda: switch.requests.count(sonic_switch.PORTS))
        await until(lambda: switch.requests.count(sonic_switch.PORTS) > polls)
        await until(lambda: polled_by(head).polled_ns)
        assert (polled_by(other).polled_ns, polled_by(other).problem) == (0, "")
        assert await exposed(head, other) == [RECEIVED]
        assert other.collector.core.fleet.switches == {}
        of_head = head.collector.cluster.role.state.diagnosis
        await until(lambda: of_head.pid)
        received = polls_received(head)
        await until(lambda: received)
        assert len(set(received)) == len(received)

        await first.aclose()
        await until(lambda: other.collector.cluster.role.state)
        await until(lambda: polled_by(other).polled_ns)
        assert await exposed(other) == [RECEIVED]
        of_other = other.collector.cluster.role.state.diagnosis  # type: ignore[union-attr] # it is the head now
        await until(lambda: of_other.pid)
        continued = polls_received(other)
        await until(lambda: continued)

        again = msgspec.structs.replace(
            head.collector.settings, listen=head.url.removeprefix("http://")
        )
        back = await stack.enter_async_context(run_collector(again))
        await until_head(back.collector.cluster)
        before = switch.requests.count(sonic_switch.PORTS)
        await until(lambda: switch.requests.count(sonic_switch.PORTS) > before)
        assert polled_by(back).polled_ns == 0

        async def is_exposed_once() -> bool:
            return await exposed(back, other) == [RECEIVED]

        await until(is_exposed_once)
    server.drop(url)

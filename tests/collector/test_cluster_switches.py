"""Several collectors with the same switches: the head polls, no other does, and each reading is exposed and diagnosed once."""

from __future__ import annotations

import re
from contextlib import AsyncExitStack
from pathlib import Path

import msgspec
from running_collector import RunningCollector, run_collector
from support import postgresql, sonic_switch
from test_cluster_head import settings_of, until, until_head, until_true

from railscope_collector.config import CollectorSettings, IngestLimits, SwitchesSettings
from railscope_collector.diagnosis.switch_counters import CounterTrack
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


def tracks(head: RunningCollector) -> list[CounterTrack]:
    """Return the counters of the switch in the diagnosis of the head."""
    state = head.collector.cluster.state
    assert state
    senders = state.diagnosis.engine._diagnosis.switches.readings.senders  # type: ignore[union-attr] # noqa: SLF001 - readings of switches are in no document
    return list(senders[SWITCH].tracks()) if SWITCH in senders else []


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
        assert head.collector.cluster.state, "the first one is the head"

        polls = await until_true(lambda: switch.requests.count(sonic_switch.PORTS))
        await until_true(lambda: switch.requests.count(sonic_switch.PORTS) > polls)
        await until_true(lambda: polled_by(head).polled_ns)
        assert (polled_by(other).polled_ns, polled_by(other).problem) == (0, "")
        assert await exposed(head, other) == [RECEIVED]
        assert other.collector.core.fleet.switches == {}
        samples = await until_true(
            lambda: [track for track in tracks(head) if len(track.samples) > 0]
        )
        assert all(
            len(track.samples) < switch.requests.count(sonic_switch.PORTS) for track in samples
        )

        await first.aclose()
        await until_true(lambda: other.collector.cluster.state)
        await until_true(lambda: polled_by(other).polled_ns)
        assert await exposed(other) == [RECEIVED]
        await until_true(lambda: tracks(other))

        again = msgspec.structs.replace(
            head.collector.settings, listen=head.url.removeprefix("http://")
        )
        back = await stack.enter_async_context(run_collector(again))
        await until_head(back.collector.cluster)
        before = switch.requests.count(sonic_switch.PORTS)
        await until_true(lambda: switch.requests.count(sonic_switch.PORTS) > before)
        assert polled_by(back).polled_ns == 0

        async def is_exposed_once() -> bool:
            return await exposed(back, other) == [RECEIVED]

        await until(is_exposed_once)
    server.drop(url)

"""Switches of pages: polls at chosen times, with readings of any number of ports, in a running collector."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from railscope.catalog import entities, switches as catalog
from railscope.catalog.declare import Metric
from railscope.frame import Entity, NodeTimestamp
from railscope.timestamps import SECOND_NS
from railscope_collector.switches import switch_frames, switch_reading
from railscope_collector.switches.switch_settings import ConfiguredSwitch, SnmpCredential

if TYPE_CHECKING:
    from running_collector import RunningCollector

COUNTERS = (
    catalog.SENT, catalog.RECEIVED, catalog.SENT_PACKETS, catalog.RECEIVED_PACKETS, catalog.SENT_DISCARDS, catalog.RECEIVED_DISCARDS,
)  # fmt: skip
BY_PRIORITY = (catalog.PFC_SENT, catalog.PFC_RECEIVED, catalog.PFC_RECEIVED_TIME)
OF_QUEUES = (catalog.QUEUE_MARKED_PACKETS, catalog.QUEUE_DROPPED_PACKETS, catalog.QUEUE_OCCUPANCY, catalog.QUEUE_WATERMARK)  # fmt: skip


def port_name(number: int) -> str:
    return f"Ethernet1/{number}"


def reading(
    name: str, ports: int, grown: int, alias: str = "", neighbour: str = "gpu-0001"
) -> switch_reading.SwitchReading:
    """Return a reading: priority 3, the bytes and the queues of every port have grown by this, all else by nothing."""
    streams: dict[str, switch_reading.StreamReadings] = {}

    def add(stream: str, metric: Metric, entity: Entity, value: int) -> None:
        streams.setdefault(stream, []).append(((metric, entity), value))

    facts = {"system_name": name, "description": "A switch of tests", "missing_tables": ""}
    switch = Entity(entities.SWITCH, (name,), facts)
    add(switch_reading.SWITCH, catalog.PORTS, switch, ports)
    for number in range(1, ports + 1):
        key = (name, port_name(number))
        port = Entity(entities.SWITCH_PORT, key, {"alias": alias})
        add(switch_reading.PORTS, catalog.PORT_UP, port, number % 2)
        add(switch_reading.PORTS, catalog.PORT_ENABLED, port, 1)
        add(switch_reading.PORTS, catalog.SPEED, port, 400_000)
        for metric in COUNTERS:
            growing = metric in {catalog.SENT, catalog.RECEIVED}
            add(switch_reading.PORTS, metric, port, 10**18 + grown if growing else 5)
        for part in map(str, range(8)):
            priority = Entity(entities.SWITCH_PRIORITY, (*key, part))
            queue = Entity(entities.SWITCH_QUEUE, (*key, part))
            for metric in BY_PRIORITY:
                add(switch_reading.PRIORITY, metric, priority, 7 + grown * (part == "3"))
            for metric in OF_QUEUES:
                add(switch_reading.QUEUES, metric, queue, 9 + grown)
        facts = {"system_name": neighbour, "neighbour_port": "02:bb:00:00:00:01"}
        neighbours = Entity(entities.SWITCH_NEIGHBOUR, key, facts)
        add(switch_reading.NEIGHBOURS, catalog.NEIGHBOUR_KNOWN, neighbours, 1)
    return switch_reading.SwitchReading(streams)


class UnusedReader:
    """Reader of a switch that only the test reads."""

    async def read(self) -> switch_reading.SwitchReading:
        raise AssertionError


def configure(running: RunningCollector, *names: str) -> None:
    """Configure switches that only the test polls; before the collector starts."""
    polling = running.collector.switches.polling
    polling.configured = [
        ConfiguredSwitch(
            name=name,
            address="192.0.2.7",
            host="192.0.2.7",
            port=161,
            credential=SnmpCredential(community="c"),
            tables="standard",
            period_seconds=3600.0,
            timeout_seconds=1.0,
        )
        for name in names
    ]
    polling.make_reader = lambda _: UnusedReader()
    polling.random_share = lambda: 1.0


async def poll(
    running: RunningCollector, name: str, found: switch_reading.SwitchReading, seconds_ago: int = 0
) -> None:
    """Store a reading as of a poll some time ago."""
    polling = running.collector.switches.polling
    now = NodeTimestamp(polling.wall_ns(), time.clock_gettime_ns(time.CLOCK_BOOTTIME))
    ago_ns = seconds_ago * SECOND_NS
    switch = polling.polled[name]
    at = NodeTimestamp(now.wall_ns - ago_ns, now.boot_ns - ago_ns)
    problem = await switch_frames.store_reading(
        switch.frames, found, at, polling.submit, lambda: now.wall_ns
    )
    assert problem == ""
    await running.collector.reader.wait_until_applied()
    switch.polled_ns = now.wall_ns - ago_ns

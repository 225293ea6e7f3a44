"""Minutes of real traffic through the real sources and the sampler: no byte is lost or added."""

from __future__ import annotations

import asyncio
from collections import defaultdict

import numpy as np
from support.clock import ManualClock
from support.port_traffic import SERVERS, CapturedPort, ports, traffic_capture
from support.reading import ORIGIN, at_period
from support.sampling import run_sampler

from railscope.batch_encoding import encode_batches
from railscope.capture import Capture
from railscope.catalog import nic as catalog
from railscope.catalog.rdma import COUNTER_FILES
from railscope.envelopes import unpack
from railscope.frame import Frame
from railscope.reading import Absent
from railscope.wire import envelope, pack
from railscope_agent.host.recorded_host import RecordedHost
from railscope_agent.sources.nic_counters import NicSource
from railscope_agent.sources.rdma import RdmaSource
from railscope_collector.fleet import sheets

STEP_SECONDS = 1.0
MAX_ROWS = 500
MAX_BYTES = 1 << 26
Key = tuple[str, str]
"""Metric, and interface or RDMA device."""


def play_capture(capture: Capture) -> list[Frame]:
    """Return all frames that the sampler makes of a capture, second by second."""
    clock = ManualClock()
    start_ns = clock.now().boot_ns
    host = RecordedHost(capture, clock, lambda: clock.now().boot_ns - start_ns)
    sources = [at_period(source, STEP_SECONDS) for source in (NicSource(), RdmaSource())]

    async def run() -> list[Frame]:
        async with run_sampler(host, sources) as running:  # type: ignore[arg-type]  # a host as well
            while clock.now().boot_ns - start_ns < capture.about.duration_ns:
                await running.step(STEP_SECONDS)
            return running.frames

    return asyncio.run(run())


def counter_series(frames: list[Frame]) -> dict[Key, list[int]]:
    """The values of every counter in the order of time, in bytes or packets."""
    found: dict[Key, list[int]] = defaultdict(list)
    for frame in frames:
        for metric, entity, reading in frame.readings():
            assert not isinstance(reading, Absent)
            if metric.name.endswith("_total"):
                found[metric.name, entity.key[0]].append(int(reading * metric.scale))
    return found


def decode_frames(frames: list[Frame]) -> dict[Key, list[int]]:
    """Return the same values, as decoded by the collector from the agent's envelopes."""
    found: dict[Key, list[int]] = defaultdict(list)
    for schema in {frame.schema.stream: frame.schema for frame in frames}.values():
        batches = encode_batches(frame for frame in frames if frame.schema is schema)
        sealed = envelope(ORIGIN, batches, [], agent_version="0")
        for batch in unpack(pack(sealed), MAX_BYTES).batches:
            width = len(schema.columns)
            rows = sheets.rows_at(batch, range(batch.rows), np.arange(width), width)
            for column, (metric, entity) in enumerate(schema.columns):
                if metric.name.endswith("_total"):
                    values = [int(int(value) * metric.scale) for value in rows[:, column]]
                    found[metric.name, entity.key[0]] += values
    return found


def check(port: CapturedPort, seen: dict[Key, list[int]]) -> None:
    """Check that the growth of the counters of a port equals the sum of its rows."""

    def grown(metric: str, name: str) -> int:
        values = seen[metric, name]
        assert values == sorted(values)
        return values[-1] - values[0]

    sent_packets, sent_bytes, received_packets, received_bytes = port.totals()
    interface, device = port.interface, port.rdma_device
    assert grown(catalog.SENT.name, interface) == sent_bytes
    assert grown(catalog.RECEIVED.name, interface) == received_bytes
    assert grown(catalog.SENT_PACKETS.name, interface) == sent_packets
    assert grown(catalog.RECEIVED_PACKETS.name, interface) == received_packets
    assert grown(COUNTER_FILES["port_xmit_packets"].name, device) == sent_packets
    assert grown(COUNTER_FILES["port_rcv_packets"].name, device) == received_packets
    # The RDMA port counts whole units of four bytes only.
    assert grown(COUNTER_FILES["port_xmit_data"].name, device) == sent_bytes // 4 * 4
    assert grown(COUNTER_FILES["port_rcv_data"].name, device) == received_bytes // 4 * 4


def test_counters_grow_by_the_traffic_on_the_wire() -> None:
    nics = ports(SERVERS[0])
    assert len(nics) == 4
    for port in nics:
        port.rows = dict(list(port.rows.items())[:MAX_ROWS])
    frames = play_capture(traffic_capture(SERVERS[0], nics))
    seen, shipped = counter_series(frames), decode_frames(frames)
    assert seen == shipped
    for port in nics:
        check(port, shipped)

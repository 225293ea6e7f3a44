"""Two switches beside simulated nodes: leaf-1 is polled by gNMI, leaf-2 pushes by OTLP; their counters grow."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
from support import cumulus_pushes as cumulus, sonic_switch

from bench.harness import free_port

PORTS = 8
PER_SECOND = 1000
PUSH_SECONDS = 1.0
CHASSIS = "9c:05:91:00:00:00"
"""Chassis of leaf-1 as simulated nodes receive it by LLDP."""
GROWING = (sonic_switch.PORTS, sonic_switch.QUEUES)


def alias(number: int) -> str:
    """Name of a port as simulated nodes receive it by LLDP."""
    return f"Ethernet{(number + 1) // 2}/{2 - number % 2}"


class GrowingTables(dict[tuple[str, ...], sonic_switch.Row]):
    """Answers of a switch whose counters grow with the time since its start."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        tables = json.dumps([[*item] for item in sonic_switch.sonic_tables(PORTS).items()])
        for number in range(PORTS, 0, -1):
            tables = tables.replace(f'"etp{number}', f'"{alias(number)}')
        tables = tables.replace("02:aa:00:00:00:07", CHASSIS)
        super().__init__((tuple(path), rows) for path, rows in json.loads(tables))
        self.monotonic, self.started = monotonic, monotonic()

    def __getitem__(self, path: tuple[str, ...]) -> sonic_switch.Row:
        rows = super().__getitem__(path)
        grown = int((self.monotonic() - self.started) * PER_SECOND)
        if path not in GROWING:
            return rows
        return {port: {name: _grow(text, grown) for name, text in row.items()} for port, row in rows.items()}  # fmt: skip


def _grow(text: str, grown: int) -> str:
    return str(int(text) % (1 << 62) + grown) if text.isdigit() else text


def _pushed(seconds: float) -> Iterator[cumulus.Pushed]:
    count = int(seconds * PER_SECOND)
    now_ns = time.time_ns()
    for port in map(alias, range(1, PORTS + 1)):
        for name, value in {"oper_state": 1, "oper_aggregate_speed": 400_000_000_000, "if_in_octets": count, "if_out_octets": count,
                            "if_in_discards": 0, "if_out_discards": count}.items():  # fmt: skip
            yield cumulus.Pushed(name, value, port, (), now_ns)
        for name in ("sp_rx_pause", "sp_tx_pause", "sp_rx_pause_duration", "sp_tx_pause_duration"):
            yield cumulus.priority(name, count, port=port, timestamp_ns=now_ns)
        for name in ("tc_tx_ecn_marked_tc", "tc_tx_wred_discard", "tc_tx_no_buffer_discard_uc"):
            yield cumulus.queue(name, count, port=port, timestamp_ns=now_ns)
        group = (("pg", "3"),)
        yield cumulus.Pushed("pg_rx_buffer_discard", count, port, group, now_ns)


@dataclass
class LiveSwitches:
    """Two switches, and the settings of a collector that reads them."""

    directory: Path
    otlp_port: int = field(default_factory=free_port)
    settings: dict[str, str] = field(default_factory=dict)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[LiveSwitches]:
        """Serve the one and push the other."""
        async with sonic_switch.sonic_switch() as switch, asyncio.TaskGroup() as group:
            switch.tables = GrowingTables(time.monotonic)
            self._write(switch)
            pushing = group.create_task(self._push())
            try:
                yield self
            finally:
                pushing.cancel()

    def _write(self, switch: sonic_switch.SonicSwitch) -> None:
        file = switch.write_switches(self.directory, "leaf-1", plaintext=True, period_seconds=5)
        pushes = '[leaf-2]\naddress = "127.0.0.1"\nprotocol = "otlp"\nperiod_seconds = 5\n'
        # Nothing listens on the discard port.
        unread = '[leaf-3]\naddress = "127.0.0.1:9"\nprotocol = "gnmi"\nplaintext = true\nperiod_seconds = 5\n'
        file.write_text(file.read_text() + pushes + unread)
        self.settings = {
            "RAILSCOPE_COLLECTOR_SWITCHES__FILE": str(file),
            "RAILSCOPE_COLLECTOR_OTLP_RECEIVER__LISTEN": f"127.0.0.1:{self.otlp_port}",
        }

    async def _push(self) -> None:
        url, started = f"http://127.0.0.1:{self.otlp_port}/v1/metrics", time.monotonic()
        headers = {"Content-Type": "application/x-protobuf"}
        async with aiohttp.ClientSession(headers=headers) as session:
            while True:
                body = cumulus.body(_pushed(time.monotonic() - started), "leaf-2")
                # As a switch does: nothing listens before the collector has started.
                with contextlib.suppress(aiohttp.ClientError):
                    async with session.post(url, data=body) as response:
                        assert response.status == 200, await response.text()
                await asyncio.sleep(PUSH_SECONDS)

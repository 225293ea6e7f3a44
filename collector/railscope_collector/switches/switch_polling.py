"""Polling of switches: one task for each switch, with its period, jitter and back-off.

A poll that fails, for whatever reason, concerns its switch only. Of a group of collectors the active one polls, and only
while its lease is valid.
"""

from __future__ import annotations

import asyncio
import random
import secrets
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import structlog

from railscope import extras, listen_address
from railscope.catalog import switches as catalog
from railscope.frame import NodeTimestamp
from railscope.settings import SettingsError
from railscope.timestamps import SECOND_NS
from railscope_collector.config import SwitchesSettings
from railscope_collector.fleet.fleet import SWITCH_PREFIX
from railscope_collector.fleet.view_cells import ViewCell
from railscope_collector.state.collector_state import CollectorState
from railscope_collector.switches import (
    link_ends,
    snmp_reader,
    snmp_session,
    switch_frames,
    switch_reading,
    switch_view,
)
from railscope_collector.switches.switch_settings import (
    ConfiguredSwitch,
    read_cabling,
    read_switches,
)

log = structlog.get_logger(__name__)

MAX_CONCURRENT_POLLS = 16
MAX_NAMED = 8
"""Switches that the result of a probe names."""
MAX_BACK_OFF_SECONDS = 300.0
MAX_FIRST_SECONDS = 60.0
# Switches that were configured together would otherwise be polled at the same moment forever.
_JITTER = 0.1
_MAX_DOUBLINGS = 10


def make_reader(switch: ConfiguredSwitch) -> switch_reading.SwitchReader:
    """Return the reader of a switch by its protocol."""
    if switch.protocol == "snmp":
        return snmp_reader.SnmpReader(switch, time.monotonic)
    with extras.importing("switches", "protocol = 'gnmi'", "grpcio"):
        from railscope_collector.switches import gnmi_reader  # noqa: PLC0415 - an extra: only collectors that use gNMI have gRPC
    return gnmi_reader.GnmiReader(switch, time.monotonic)


@dataclass(slots=True)
class PolledSwitch:
    """A switch with its reader, and the result of its polls."""

    settings: ConfiguredSwitch
    reader: switch_reading.SwitchReader
    frames: switch_frames.SwitchFrames
    problem: str = ""
    """Problem of the last poll; empty if it succeeded, or if there was none."""
    polled_ns: int = 0
    """Time of the last successful poll."""
    duration_ns: int = 0
    failures: Counter[str] = field(default_factory=Counter)
    consecutive_failures: int = 0
    dialect: str = ""
    """Dialect of the last reading; empty before the first one."""

    def next_delay(self, random_share: float) -> float:
        """Return the seconds until the next poll: the period, doubled with each failure; `random_share` is 0 to 1."""
        # The first failure has no delay: a datagram may be lost. The bound keeps the shift from becoming a huge number.
        doublings = min(max(self.consecutive_failures - 1, 0), _MAX_DOUBLINGS)
        period = self.settings.period_seconds
        seconds = max(min(period * (1 << doublings), MAX_BACK_OFF_SECONDS), period)
        return seconds * (1 + _JITTER * (2 * random_share - 1))


@dataclass(slots=True)
class SwitchPolling:
    """Polls all configured switches."""

    configured: Sequence[ConfiguredSwitch]
    wall_ns: Callable[[], int]
    may_poll: Callable[[], bool] = lambda: True
    """True if this collector polls, and not another one."""
    cabling: Sequence[link_ends.CabledLink] = ()
    submit: switch_frames.Submit = switch_frames.reject_envelope
    make_reader: Callable[[ConfiguredSwitch], switch_reading.SwitchReader] = make_reader
    random_share: Callable[[], float] = random.random
    polled: dict[str, PolledSwitch] = field(default_factory=dict)
    """Configured switches by name, while the collector runs."""

    @classmethod
    def from_settings(
        cls,
        settings: SwitchesSettings,
        wall_ns: Callable[[], int],
        may_poll: Callable[[], bool],
        submit: switch_frames.Submit = switch_frames.reject_envelope,
    ) -> SwitchPolling:
        """Return the polling of the switches in the settings. Blocking; raises SettingsError."""
        configured = [each for each in read_switches(settings) if each.protocol != "otlp"]
        if any(switch.protocol == "snmp" for switch in configured):
            snmp_session.check_library()
        for switch in configured:
            make_reader(switch)  # its library must be installed
            if switch.plaintext and not listen_address.is_loopback(switch.host):
                log.warning("switch_connection_unencrypted", switch=switch.name)
        return cls(configured, wall_ns, may_poll, read_cabling(settings), submit)

    async def run(self) -> None:
        """Poll until cancelled, while permitted."""
        run = secrets.token_hex(8)
        self.polled = {
            switch.name: PolledSwitch(
                switch,
                self.make_reader(switch),
                switch_frames.SwitchFrames(switch.name, run, switch.protocol == "snmp"),
            )
            for switch in self.configured
        }
        turns = asyncio.Semaphore(MAX_CONCURRENT_POLLS)
        async with asyncio.TaskGroup() as group:
            for switch in self.polled.values():
                group.create_task(self._follow(switch, turns))

    async def probe(self) -> str:
        """Read all switches once, and return a summary. Raises SettingsError."""
        if not self.configured:
            return "off: no switches.file"
        problems: list[str] = []
        found = await asyncio.gather(*(self._probe(each, problems) for each in self.configured))
        if problems:
            raise SettingsError("; ".join(problems[:MAX_NAMED]))
        more = len(found) - MAX_NAMED
        named = found[:MAX_NAMED] + ([f"and {more} more that answer"] if more > 0 else [])
        return "; ".join(named)

    async def _probe(self, switch: ConfiguredSwitch, problems: list[str]) -> str:
        """Return the summary of a switch, or add its problem."""
        try:
            async with asyncio.timeout(switch.period_seconds):
                reading = await self.make_reader(switch).read()
        except (switch_reading.SwitchReadError, TimeoutError) as error:
            problem = str(error) or "poll not completed within its period"
            problems.append(f"{switch.name}: {problem}")
            return ""
        return f"{switch.name}: {switch_reading.summarize(reading)}"

    async def _follow(self, switch: PolledSwitch, turns: asyncio.Semaphore) -> None:
        # The first polls of all switches are spread over time.
        first_seconds = min(switch.settings.period_seconds, MAX_FIRST_SECONDS)
        await asyncio.sleep(self.random_share() * first_seconds)
        while True:
            if self.may_poll():
                # After the sleep: a switch that does not answer holds a turn only while it is polled.
                async with turns:
                    await self.poll(switch)
            await asyncio.sleep(switch.next_delay(self.random_share()))

    async def poll(self, switch: PolledSwitch) -> None:
        """Poll a switch once; a failure is counted, and logged if it is another one than before."""
        reason, problem = "", ""
        try:
            started = switch_frames.timestamp_now(self.wall_ns)
            async with asyncio.timeout(switch.settings.period_seconds):
                reading = await switch.reader.read()
            # Without a timeout: frames have numbers from here on, and one that is not stored would be missing.
            problem = await self._store(switch, reading, started)
            reason = "rejected" if problem else ""
        except switch_reading.SwitchReadError as error:
            reason, problem = error.reason, str(error)
        except TimeoutError:
            reason = "timeout"
            problem = f"poll not completed within {switch.settings.period_seconds:g} s"
        except Exception as fault:  # noqa: BLE001 - the other switches, and the collector, must continue
            reason, problem = "fault", f"{type(fault).__name__}: {fault}"
        if problem and problem != switch.problem:
            name, advice = switch.settings.name, "docs/switches.md"
            log.warning(
                "switch_poll_failed", switch=name, reason=reason, problem=problem, advice=advice
            )
        elif switch.problem and not problem:
            log.info("switch_poll_resumed", switch=switch.settings.name)
        switch.problem = problem
        switch.consecutive_failures = switch.consecutive_failures + 1 if problem else 0
        if problem:
            switch.failures[reason] += 1

    async def _store(
        self, switch: PolledSwitch, reading: switch_reading.SwitchReading, started: NodeTimestamp
    ) -> str:
        """Store the frames of a reading that began at a time; return the reason if they are rejected."""
        ended = switch_frames.timestamp_now(self.wall_ns)
        if reading.dialect != switch.dialect:
            switch.dialect = reading.dialect
            log.info("switch_dialect_found", switch=switch.settings.name, dialect=switch.dialect)
        duration_ns = ended.boot_ns - started.boot_ns
        middle_ns = duration_ns // 2
        # Each value was read at some time of the poll.
        timestamp = NodeTimestamp(
            ended.wall_ns - (duration_ns - middle_ns), started.boot_ns + middle_ns, middle_ns
        )
        problem = await switch_frames.store_reading(
            switch.frames, reading, timestamp, self.submit, self.wall_ns
        )
        if not problem:
            switch.polled_ns, switch.duration_ns = ended.wall_ns, duration_ns
        return problem

    def cells(self) -> Iterator[ViewCell]:
        """Yield the state of the polls of each switch that this collector polls."""
        for name, switch in self.polled.items() if self.may_poll() else ():
            if switch.polled_ns or switch.problem:
                yield ViewCell(catalog.UP, (name,), int(not switch.problem))
            if switch.polled_ns:
                yield ViewCell(catalog.LAST_POLL, (name,), switch.polled_ns / SECOND_NS)
                yield ViewCell(catalog.POLL_TIME, (name,), switch.duration_ns / SECOND_NS)
            for reason, count in switch.failures.items():
                yield ViewCell(catalog.POLL_FAILURES, (name, reason), count)

    def problems(self) -> dict[str, str]:
        """Return the reason why each switch is not read; empty for one that is read."""
        if not self.may_poll():
            return {each.name: switch_view.ELSEWHERE for each in self.configured}
        return {
            name: each.problem or ("" if each.polled_ns else "not polled yet")
            for name, each in self.polled.items()
        }

    def snapshots(self, core: CollectorState) -> dict[str, switch_view.SwitchSnapshot]:
        """Return the readings of each switch whose last poll succeeded; stored ones of before a restart may be old."""
        problems = self.problems()
        polled = [name for name in self.polled if not problems[name]]
        nodes = {name: core.fleet.switches.get(SWITCH_PREFIX + name) for name in polled}
        return {name: switch_view.take_snapshot(node) for name, node in nodes.items()}

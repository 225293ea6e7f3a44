"""Simulated switches as the collector reads them, in each dialect: the readers, with the answers of the switch in place of a network."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from railscope.frame import NodeTimestamp
from railscope.timestamps import SECOND_NS
from railscope.wire import SentAt
from railscope_collector.switches import (
    comware_dialout,
    gnmi_reader,
    gnmi_session,
    snmp_reader,
    switch_frames,
    switch_reading,
)
from railscope_collector.switches.snmp_values import SnmpValue
from railscope_collector.switches.switch_pushes import SwitchPushes
from railscope_collector.switches.switch_settings import ConfiguredSwitch, GnmiAccess
from railscope_simulator import (
    comware_telemetry,
    gnmi_server,
    openconfig_answers,
    snmp_answers,
    sonic_answers,
)
from railscope_simulator.switch_ports import SimulatedSwitch

DIALECTS = ("sonic", "openconfig", "comware", "snmp", "dialout")
_TABLES = {"comware": "comware", "snmp": "standard"}


class GnmiAnswers:
    """Answers of a simulated switch, as the reader of gNMI receives them."""

    def __init__(self, switch: SimulatedSwitch) -> None:
        self._switch = switch

    async def get(self, target: str, path: gnmi_session.TablePath) -> bytes | None:
        found = sonic_answers.find_answer(self._switch, (target, *path))
        if found is None:
            return None
        return gnmi_server.encode_answer(target, json.dumps(found).encode())

    async def capabilities(self) -> bytes | None:
        return gnmi_server.encode_capabilities(openconfig_answers.MODELS)

    async def subscribe(self, request: bytes) -> AsyncGenerator[bytes, None]:
        async def requests() -> AsyncIterator[bytes]:
            yield request

        answer = gnmi_server.answer_subscriptions(
            lambda: openconfig_answers.state_leaves(self._switch)
        )
        async for body in answer(requests(), None):
            yield body


class SnmpAnswers:
    """Objects of a simulated switch, as the reader of SNMP receives them."""

    def __init__(self, switch: SimulatedSwitch, tables: str) -> None:
        self._objects: list[tuple[str, SnmpValue]] = [
            (_text(oid), _text(value) if isinstance(value, tuple) else value)
            for oid, _, value in snmp_answers.find_objects(switch, tables)
        ]

    async def get(self, oids: Sequence[str]) -> Mapping[str, SnmpValue]:
        known = dict(self._objects)
        return {oid: known[oid] for oid in oids if oid in known}

    async def walk(self, oid: str) -> AsyncIterator[tuple[str, SnmpValue]]:
        for found, value in self._objects:
            if found.startswith(f"{oid}."):
                yield found, value


def _text(numbers: Sequence[int]) -> str:
    return ".".join(map(str, numbers))


class DialoutPushes:
    """Messages of a simulated switch by dial-out, as readings of one poll."""

    def __init__(self, switch: SimulatedSwitch, seconds: Callable[[], float]) -> None:
        self._switch, self._seconds = switch, seconds
        self._pushes = SwitchPushes(
            switch.name, switch_frames.SwitchFrames(switch.name, "run", has_narrow_counters=False)
        )

    async def read(self) -> switch_reading.SwitchReading:
        time_ns = round((1 + self._seconds()) * SECOND_NS)
        now, streams = NodeTimestamp(time_ns, time_ns), dict[str, switch_reading.StreamReadings]()
        for path, text in comware_telemetry.telemetry_texts(self._switch, time_ns):
            message = comware_dialout.DialoutMessage(path, text, self._switch.name)
            values = comware_dialout.decode_rows(self._switch.name, message, text, time_ns)
            push = self._pushes.accept(values, now)
            assert not push.unmapped
            self._pushes.keep(push, now)
            streams |= push.reading.streams
        return switch_reading.SwitchReading(streams)


class PollEnvelope(NamedTuple):
    """Body of the envelope of a poll, its sender, and the clocks at its sending."""

    node: str
    body: bytes
    sent: SentAt


@dataclass
class PolledSwitch:
    """A simulated switch that is read in a dialect at simulated times."""

    switch: SimulatedSwitch
    dialect: str
    seconds: float = 0.0
    frames: switch_frames.SwitchFrames = field(init=False)
    reader: switch_reading.SwitchReader = field(init=False)

    def __post_init__(self) -> None:
        has_narrow_counters = self.dialect in _TABLES
        self.frames = switch_frames.SwitchFrames(
            self.switch.name, "run", has_narrow_counters=has_narrow_counters
        )
        self.reader = self._make_reader()

    def _make_reader(self) -> switch_reading.SwitchReader:
        if self.dialect == "dialout":
            return DialoutPushes(self.switch, lambda: self.seconds)
        configured = ConfiguredSwitch(
            name=self.switch.name,
            host="127.0.0.1",
            port=1,
            gnmi=None if self.dialect in _TABLES else GnmiAccess(),
            dialect=self.dialect,
            period_seconds=10.0,
            timeout_seconds=1.0,
        )
        if self.dialect in _TABLES:
            tables = _TABLES[self.dialect]

            async def connect(_: ConfiguredSwitch) -> SnmpAnswers:
                return SnmpAnswers(self.switch, tables)

            return snmp_reader.SnmpReader(configured, lambda: self.seconds, connect)

        @contextlib.asynccontextmanager
        async def open_session(_: ConfiguredSwitch) -> AsyncIterator[gnmi_session.GnmiSession]:
            yield GnmiAnswers(self.switch)

        return gnmi_reader.GnmiReader(configured, lambda: self.seconds, open_session)

    async def poll(self, wall_ns: int, offset_ns: int) -> PollEnvelope:
        """Return the envelope of a poll at a time."""
        self.seconds = offset_ns / SECOND_NS
        stamp = NodeTimestamp(wall_ns, SECOND_NS + offset_ns, SECOND_NS // 100)
        frames = self.frames.frames(await self.reader.read(), stamp)
        sealed = switch_frames.pack_frames(frames, stamp, with_schemas=True)
        return PollEnvelope(frames[0].origin.node, *sealed)

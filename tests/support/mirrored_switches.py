"""Switches beside recorded nodes: their ports count what the NICs at the other end count, and tests add what else they report."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

from railscope import envelopes
from railscope.catalog import nic, switches as catalog
from railscope.catalog.declare import Metric
from railscope.frame import Entity, NodeTimestamp
from railscope.reading import Reading
from railscope.timestamps import SECOND_NS
from railscope.wire import Envelope, WireSchema, schema_hash
from railscope_collector.diagnosis.switch_evidence import LinkedPort
from railscope_collector.fleet.fleet import SWITCH_PREFIX
from railscope_collector.live_diagnosis.diagnosis_engine import ReceivedBatches
from railscope_collector.switches import switch_frames, switch_reading

PRIORITY = "3"
PAUSES = {nic.PFC_SENT.name: catalog.PFC_RECEIVED, nic.PFC_RECEIVED.name: catalog.PFC_SENT}
_MAX_BYTES = 64 << 20

Port = tuple[str, str]
Amount = Callable[[float], Reading]
"""Value of a counter or gauge, or the reason of its absence, by the seconds since the start."""
Amounts = dict[tuple[Metric, Port, str], Amount]
"""By metric, port and priority, queue or priority group, which is empty for the whole port."""


@dataclass(slots=True)
class MirroredSwitches:
    """Switches of a recorded cluster; all times are on the collector's clock."""

    start_ns: int
    offset_ns: int
    """The nodes' clocks minus the collector's."""
    links: dict[Port, LinkedPort] = field(default_factory=dict)
    uplinks: dict[Port, str] = field(default_factory=dict)
    """Neighbours of the uplinks."""
    amounts: Amounts = field(default_factory=dict)
    """Further values; those of pauses replace the mirrored ones."""
    factor: float = 1.0
    """Pauses that a port counts, for each of the NIC."""
    schemas: dict[bytes, WireSchema] = field(default_factory=dict)
    _counted: dict[tuple[Port, Metric], list[tuple[int, int]]] = field(
        default_factory=lambda: defaultdict(list)
    )
    _frames: dict[str, switch_frames.SwitchFrames] = field(default_factory=dict)

    @classmethod
    def beside(
        cls,
        frames: Iterable[Envelope],
        schemas: Mapping[bytes, WireSchema],
        start_ns: int,
        offset_ns: int,
    ) -> MirroredSwitches:
        """Return the leaves that these nodes are linked to."""
        found = cls(start_ns, offset_ns)
        ports: dict[tuple[str, str], Port] = {}
        for envelope in frames:
            for batch in envelope.batches:
                schema = schemas[batch.schema]
                for entity in schema.entities:
                    if entity.kind == "nic_neighbour" and entity.facts.get("switch"):
                        port = entity.facts["switch"], entity.facts["switch_port"]
                        ports[envelope.node, entity.key[0]] = port
                        link = LinkedPort(*port, envelope.node, entity.key[0], is_certain=True)
                        found.links[port] = link
                if schema.stream == "nic":
                    found._add_counters(envelope.node, schema, batch.wall_ns[-1], batch.base, ports)
        return found

    def _add_counters(
        self,
        node: str,
        schema: WireSchema,
        wall_ns: int,
        base: bytes,
        ports: Mapping[tuple[str, str], Port],
    ) -> None:
        values, column = np.frombuffer(base, "<i8"), 0
        for group in schema.groups:
            for member in group.entities:
                key = schema.entities[member].key
                if group.metric in PAUSES and key[1] == PRIORITY and (node, key[0]) in ports:
                    at = ports[node, key[0]], PAUSES[group.metric]
                    self._counted[at].append((wall_ns - self.offset_ns, int(values[column])))
                column += 1

    def pauses(self, port: Port, metric: Metric, time_ns: int) -> int:
        """Return the frames that a port has counted at a time, between the samples of the NIC."""
        counted = self._counted[port, metric]
        number = bisect_right(counted, (time_ns, 1 << 62))
        if not 0 < number < len(counted):
            return int(self.factor * counted[min(number, len(counted) - 1)][1])
        (from_ns, before), (to_ns, after) = counted[number - 1 : number + 1]
        share = (time_ns - from_ns) / (to_ns - from_ns)
        return int(self.factor * (before + share * (after - before)))

    def poll(self, switch: str, time_ns: int) -> ReceivedBatches:
        """Return the frames of a poll, as the collector stores them."""
        seconds = (time_ns - self.start_ns) / SECOND_NS
        kinds = {
            "switch_priority": switch_reading.PRIORITY, "switch_queue": switch_reading.QUEUES,
            "switch_priority_group": "switch_watermarks", "switch_port": switch_reading.PORTS,
        }  # fmt: skip
        streams: dict[str, switch_reading.StreamReadings] = defaultdict(list)
        added = {key: amount for key, amount in self.amounts.items() if key[1][0] == switch}
        for port in (each for each in self.links if each[0] == switch):
            for metric in PAUSES.values():
                if (metric, port, PRIORITY) not in added:
                    entity = Entity(metric.about, (*port, PRIORITY))
                    value = self.pauses(port, metric, time_ns)
                    streams[switch_reading.PRIORITY].append(((metric, entity), value))
        for (metric, port, number), amount in added.items():
            key = (*port, number) if number else port
            entity = Entity(metric.about, key)
            streams[kinds[metric.about.name]].append(((metric, entity), amount(seconds)))
        for port, neighbour in self.uplinks.items():
            if port[0] == switch:
                entity = Entity(catalog.NEIGHBOUR_KNOWN.about, port, {"system_name": neighbour})
                streams[switch_reading.NEIGHBOURS].append(((catalog.NEIGHBOUR_KNOWN, entity), 1))
        reading = switch_reading.SwitchReading(streams)
        made = self._frames.setdefault(
            switch, switch_frames.SwitchFrames(switch, "run", has_narrow_counters=False)
        )
        stamp = NodeTimestamp(time_ns, time_ns - self.start_ns + SECOND_NS, SECOND_NS // 20)
        body, _ = switch_frames.pack_frames(made.frames(reading, stamp), stamp, with_schemas=True)
        envelope = envelopes.unpack(body, _MAX_BYTES)
        self.schemas |= {schema_hash(schema): schema for schema in envelope.schemas}
        return ReceivedBatches(
            SWITCH_PREFIX + switch, envelope.run, time_ns, 0, envelope.batches, envelope.boot_id
        )

    def polls(
        self, switches: Iterable[str], to_ns: int, period_seconds: float, first_seconds: float = 1.0
    ) -> Iterator[ReceivedBatches]:
        """Yield the polls of switches with a period, one second after another."""
        for number, switch in enumerate(switches):
            time_ns = self.start_ns + round((first_seconds + number % 7) * SECOND_NS)
            while time_ns < to_ns:
                yield self.poll(switch, time_ns)
                time_ns += round(period_seconds * SECOND_NS)

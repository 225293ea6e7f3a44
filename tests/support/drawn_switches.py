"""Switches beside a drawn cluster: what their ports count."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

from support.drawn_cluster import FULL_STOP_FRAMES, RAILS, START_NS, DrawnFeed, Row, node_name
from support.schemas import wire_schema

from railscope import batch_encoding
from railscope.catalog import switches as catalog
from railscope.catalog.declare import Metric
from railscope.frame import Entity, NodeTimestamp
from railscope.reading import Reading
from railscope.timestamps import SECOND_NS
from railscope_collector.diagnosis.cluster_diagnosis import SLOT_SECONDS
from railscope_collector.diagnosis.switch_fabric import LinkedPort
from railscope_collector.fleet.fleet import SWITCH_PREFIX
from railscope_collector.switches import switch_reading
from railscope_collector.switches.switch_frames import SwitchFrames

PRIORITY = "3"
_STREAMS = {
    "switch_priority": switch_reading.PRIORITY, "switch_queue": switch_reading.QUEUES,
    "switch_priority_group": "switch_watermarks", "switch_port": switch_reading.PORTS,
}  # fmt: skip

Port = tuple[str, str]


@dataclass
class DrawnSwitches:
    """Values of all ports; they are polled in each slot, a second before its end."""

    feed: DrawnFeed
    values: dict[tuple[Metric, Port, str], Reading] = field(default_factory=dict)
    """By metric, port, and the number of a queue, which is empty for the whole port."""
    neighbours: dict[Port, str] = field(default_factory=dict)
    shares: dict[tuple[int, int], float] = field(default_factory=dict)
    """Share of the pauses of a NIC that its port counts, by node and rail."""
    silent: set[str] = field(default_factory=set)
    """Switches that this poll does not read."""
    _links: dict[tuple[int, int], Port] = field(default_factory=dict)
    _counted: defaultdict[tuple[int, int], list[float]] = field(
        default_factory=lambda: defaultdict(lambda: [0.0, 0.0])
    )
    _frames: dict[str, SwitchFrames] = field(default_factory=dict)

    def link(self, nodes: Iterable[int]) -> None:
        """Link the NICs of nodes to the leaves of their pod, each node to the ports with its number in the pod."""
        cluster = self.feed.cluster
        for node in nodes:
            pod, number = divmod(node, cluster.nodes_per_pod)
            for rail in range(RAILS):
                leaf = cluster.leaf_name.format(pod=pod, rail=rail)
                self._links[node, rail] = leaf, f"Ethernet{number}"

    def begin(self) -> None:
        """Let the diagnosis know the links."""
        links = [
            LinkedPort(*port, node_name(node), f"eth{rail}", is_certain=True)
            for (node, rail), port in self._links.items()
        ]
        self.feed.diagnosis.fabric.set_links(links, START_NS)

    def poll(self, slot: int, row: Row) -> None:
        """Count the pauses of a slot at the ports, and store what switches report of it."""
        of_switch = defaultdict[str, list[tuple[Metric, Entity, Reading]]](list)
        for place, share in self.shares.items():
            counts, port = self._counted[place], self._links[place]
            for number, name in enumerate(("pausing", "paused")):
                rate = row.nic[f"{name}_frames"][place] + row.nic[name][place] * FULL_STOP_FRAMES
                counts[number] += rate * SLOT_SECONDS
            for value, at_port in zip(
                counts, (catalog.PFC_RECEIVED, catalog.PFC_SENT), strict=True
            ):
                entity = Entity(at_port.about, (*port, PRIORITY))
                of_switch[port[0]].append((at_port, entity, int(share * value)))
        mirrored = {
            (metric, entity.key) for rows in of_switch.values() for metric, entity, _ in rows
        }
        for (metric, port, number), value in self.values.items():
            key = (*port, number) if number else port
            if (metric, key) not in mirrored:
                of_switch[port[0]].append((metric, Entity(metric.about, key), value))
        for port, name in self.neighbours.items():
            entity = Entity(catalog.NEIGHBOUR_KNOWN.about, port, {"system_name": name})
            of_switch[port[0]].append((catalog.NEIGHBOUR_KNOWN, entity, 1))
        for name, values in of_switch.items():
            if name not in self.silent:
                self._store(name, slot, values)
        self.feed.diagnosis.readings.flush()

    def _store(
        self, switch: str, slot: int, values: Iterable[tuple[Metric, Entity, Reading]]
    ) -> None:
        diagnosis = self.feed.diagnosis
        streams = defaultdict[str, switch_reading.StreamReadings](list)
        for metric, entity, value in values:
            stream = _STREAMS.get(metric.about.name, switch_reading.PRIORITY)
            is_neighbour = metric is catalog.NEIGHBOUR_KNOWN
            at = switch_reading.NEIGHBOURS if is_neighbour else stream
            streams[at].append(((metric, entity), value))
        made = self._frames.setdefault(
            switch, SwitchFrames(switch, "run", has_narrow_counters=False)
        )
        time_ns = diagnosis.end_of(slot) - SECOND_NS
        stamp = NodeTimestamp(time_ns, time_ns - START_NS + SECOND_NS, SECOND_NS // 20)
        for frame in made.frames(switch_reading.SwitchReading(streams), stamp):
            batch, schema = batch_encoding.encode_batch([frame]), wire_schema(frame.schema)
            schemas, name = {batch.schema: schema}, SWITCH_PREFIX + switch
            diagnosis.add_switch(name, "run", (batch,), schemas.__getitem__, lambda at_ns: at_ns)

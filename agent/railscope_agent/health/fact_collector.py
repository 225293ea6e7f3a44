"""Facts about the NICs and GPUs of a node from the frames of their sources.

A collector follows the metrics that its rules use. The facts of a NIC are those of its interface, its RDMA port and its
PCI device. A NIC that has left the bus keeps the names that it had. NICs for management, bridges and virtual functions
are not judged.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from railscope.catalog import declare, entities
from railscope.frame import Entity, Frame, Schema
from railscope.reading import Absent, Reading
from railscope_agent.health import counter_window, health_facts, rule
from railscope_agent.health.nic_link_rules import LINK_RULES, PCIE_RULES
from railscope_agent.health.nic_traffic_rules import TRAFFIC_RULES
from railscope_agent.health.setting_rules import GPU_PATH, GPU_SETTING_RULES, NIC_SETTING_RULES
from railscope_agent.sampling import probe_result, status
from railscope_agent.topology.network_device import NodeNetwork
from railscope_agent.topology.pci_distance import distance_between

DeviceName = tuple[str, ...]
"""Kind and key of a device: ("gpu", UUID), ("nic", interface), ("pcie", address)."""
_CounterKey = tuple[DeviceName, declare.Metric, health_facts.DevicePart]

NIC_RULES = (*PCIE_RULES, *LINK_RULES, *NIC_SETTING_RULES, *TRAFFIC_RULES)
"""All rules about NICs, causes before their consequences."""
SOURCES = (
    "nic",
    "rdma",
    "link",
    "link_errors",
    "nic_settings",
    "optics",
    "pcie",
    "mig",
    rule.HEALTH,
    rule.LOAD,
    rule.SETTINGS,
    rule.KERNEL_LOG,
)
"""Sources of facts about NICs, and about settings of GPUs."""
_NOT_JUDGED = frozenset({"management", "bridge", "virtual_function"})
_JUDGED_WITHOUT_RDMA = frozenset({"compute", "storage"})
_ABSENT_BY_VERDICT = {
    probe_result.ProbeVerdict.DENIED: Absent.DENIED,
    probe_result.ProbeVerdict.BROKEN: Absent.ERROR,
}
_SETTINGS = (entities.NIC_SETTINGS, entities.GPU_SETTINGS)


class _MetricColumns(NamedTuple):
    """Columns of a metric of a device."""

    metric: declare.Metric
    places: Mapping[health_facts.DevicePart, int]
    """Position of each part in the frame."""
    counters: slice
    """Positions in the window; empty for a metric whose increase no rule uses."""


@dataclass(slots=True)
class SourceReadings:
    """Readings of one source: its current frame, and the increase of its counters."""

    frame: Frame | None = None
    values: Sequence[Reading] = ()
    """Readings of the last frame."""
    columns: dict[DeviceName, list[_MetricColumns]] = field(default_factory=dict)
    """Columns that rules use, by device."""
    window: counter_window.CounterWindow[_CounterKey] = field(
        default_factory=counter_window.CounterWindow
    )
    _schema: Schema | None = None
    _followed: tuple[int, ...] = ()
    """Positions of the counters in the window."""
    _taken_ns: int = -1

    def add(
        self, frame: Frame, used: frozenset[declare.Metric], followed: frozenset[declare.Metric]
    ) -> None:
        """Process the latest frame: columns of the `used` metrics, and increases of the `followed` ones."""
        if frame is not self.frame:
            self.values = frame.all_readings()
        self.frame = frame
        if frame.schema is not self._schema:
            self._plan(frame.schema, used, followed)
        # A frame is read for several verdicts: its increases count once.
        if frame.timestamp.boot_ns > self._taken_ns:
            self._taken_ns = frame.timestamp.boot_ns
            self.window.add(self._taken_ns, [self.values[place] for place in self._followed])

    def _plan(
        self,
        schema: Schema,
        used: frozenset[declare.Metric],
        followed: frozenset[declare.Metric],
    ) -> None:
        self._schema, self.columns = schema, {}
        places: dict[tuple[DeviceName, declare.Metric], dict[health_facts.DevicePart, int]] = {}
        for place, (metric, entity) in enumerate(schema.columns):
            if metric in used:
                whole = entity.whole_key
                device, part = (entity.kind.outermost.name, *whole), entity.key[len(whole) :]
                places.setdefault((device, metric), {})[part] = place
        counters: dict[_CounterKey, int] = {}
        for (device, metric), parts in places.items():
            first = len(counters)
            if metric in followed:
                counters |= {(device, metric, part): place for part, place in parts.items()}
            columns = _MetricColumns(metric, parts, slice(first, len(counters)))
            self.columns.setdefault(device, []).append(columns)
        self._followed = tuple(counters.values())
        self.window.set_keys(tuple(counters))

    def reading(self, device: DeviceName, metric: declare.Metric) -> tuple[Reading, int]:
        """Return a reading of a device itself, and its time on the boot clock."""
        if frame := self.frame:
            for columns in self.columns.get(device, ()):
                if columns.metric is metric and () in columns.places:
                    return self.values[columns.places[()]], frame.timestamp.boot_ns
        return Absent.UNSUPPORTED, -1


class FactCollector:
    """Facts about every device seen so far, as of the last frames."""

    def __init__(
        self,
        rules: Iterable[rule.HealthRule] = (*NIC_RULES, *GPU_SETTING_RULES),
        sources: Sequence[str] = SOURCES,
        *more: declare.Metric,
    ) -> None:
        """Collect the facts that these rules use, and `more` metrics, from the frames of `sources`."""
        pairs = [(metric, each.compares_readings) for each in rules for metric in each.metrics]
        self._used = frozenset({*more, *(metric for metric, _ in pairs)})
        counter = declare.MetricKind.COUNTER
        self._followed = frozenset(m for m, compares in pairs if compares and m.kind is counter)
        self.sources = {name: SourceReadings() for name in sources}
        self.absent: dict[str, Absent] = {}
        """Sources without current readings, with the reasons."""
        self.partial: dict[str, Absent] = {}
        """Sources that could not read some devices: reasons for the devices that they do not contain."""
        self.devices: dict[DeviceName, Entity] = {}
        """All devices with their names, those that have left among them."""
        self._labels: dict[DeviceName, dict[str, str]] = defaultdict(dict)
        self._settings: dict[DeviceName, Mapping[str, str]] = {}

    def update(self, statuses: Mapping[str, status.SourceState], now_ns: int) -> None:
        """Process the latest frames of a running agent, and drop stale ones; devices and counters are kept."""
        self.absent = {}
        for name, source in self.sources.items():
            latest = status.latest_frame(statuses.get(name), now_ns)
            if isinstance(latest, Frame):
                self.add(latest)
            else:
                source.frame = None
                self.absent[name] = latest
        self.partial = {
            name: reason
            for name, state in statuses.items()
            for finding in state.findings
            if (reason := _ABSENT_BY_VERDICT.get(finding.verdict))
        }

    def add(self, frame: Frame) -> None:
        """Process a frame; one of another source is ignored."""
        source = self.sources.get(frame.schema.stream)
        if source is None:
            return
        # Entities and their labels are part of the schema: with the same one there is nothing new.
        if source.frame is None or source.frame.schema is not frame.schema:
            for entity in frame.schema.entities:
                self._add_entity(entity)
        source.add(frame, self._used, self._followed)

    def _add_entity(self, entity: Entity) -> None:
        device = (entity.kind.outermost.name, *entity.whole_key)
        if entity.kind in _SETTINGS:
            self._settings[device] = entity.facts
        elif entity.kind.part_of is None:
            self._labels[device].update(entity.facts)
            if entity.facts:
                self.devices[device] = entity

    def facts(self, parts: Sequence[DeviceName]) -> health_facts.HealthFacts:
        """Return the facts about a device with these parts, without those about its peers."""
        readings: dict[declare.Metric, dict[health_facts.DevicePart, Reading]] = {}
        changes: dict[
            declare.Metric, dict[health_facts.DevicePart, health_facts.CounterIncrease]
        ] = {}
        labels: dict[str, str] = {}
        settings: dict[str, str] = {}
        for name in reversed(parts):  # the role of the PCI device is its kind
            labels |= self._labels.get(name, {})
            settings |= self._settings.get(name, {})
        for name in parts:
            for source in self.sources.values():
                if source.frame is None:
                    continue
                for metric, places, counters in source.columns.get(name, ()):
                    values = map(source.values.__getitem__, places.values())
                    readings.setdefault(metric, {}).update(zip(places, values, strict=True))
                    increases = source.window.increases(counters)
                    changes.setdefault(metric, {}).update(
                        (part, increase)
                        for part, increase in zip(places, increases, strict=False)
                        if increase
                    )
        absent = {
            name: reason
            for name, reason in self.partial.items()
            if name not in self.sources or self.sources[name].columns.keys().isdisjoint(parts)
        }
        # A source that the node does not support is no obstacle: rules may use other sources in its place.
        absent |= {name: why for name, why in self.absent.items() if why is not Absent.UNSUPPORTED}
        return health_facts.HealthFacts(
            readings,
            changes,
            absent_sources=absent,
            labels=labels,
            settings=settings,
        )

    def gpus(self) -> dict[str, health_facts.HealthFacts]:
        """Return the facts about each GPU; its peers have the same model."""
        devices = {name[1]: [name] for name in self._labels if name[0] == entities.GPU.name}
        return self._with_peers(devices, lambda of: (of.labels.get("model", ""),))

    def add_gpu_paths(self, network: NodeNetwork) -> None:
        """Add the distance of each NIC from the GPU of its rail."""
        gpus = {gpu.address: gpu for gpu in network.gpus}
        for device in network.devices:
            if device.gpu in gpus:
                distance = distance_between(device.device.place, gpus[device.gpu].place)
                self._labels[entities.PCIE.name, device.address][GPU_PATH] = distance.name

    def nics(self) -> dict[str, health_facts.HealthFacts]:
        """Return the facts about each NIC, by interface, or by RDMA port if it has none."""
        return self._with_peers(self._nic_devices(), _nic_group)

    def _nic_devices(self) -> dict[str, list[DeviceName]]:
        """Return the devices that are parts of each NIC: ports that are bonded may share an RDMA device."""
        nics: dict[str, list[DeviceName]] = {}
        ports: list[DeviceName] = []
        addresses_in_use = set[str]()
        by_rdma_device: defaultdict[str, list[str]] = defaultdict(list)
        for name, labels in self._labels.items():
            kind, key = name[0], name[1:]
            role, device = labels.get("role", ""), labels.get("rdma_device")
            if role in _NOT_JUDGED:
                continue
            if kind == entities.NIC.name and (device or role in _JUDGED_WITHOUT_RDMA):
                nics.setdefault(key[0], []).append(name)
                by_rdma_device[device or ""].append(key[0])
                addresses_in_use.add(labels.get("pci_address", "") if device else "")
            elif kind == entities.RDMA_PORT.name and key[1] != "0":
                ports.append(name)
        for name in ports:
            interface, shared = self._labels[name].get("interface"), by_rdma_device[name[1]]
            address = self._labels[name].get("pci_address")
            if address and address in addresses_in_use and not (interface or shared):
                continue  # its function has another RDMA device now: a bond was dissolved
            for nic in [interface] if interface else shared or ["/".join(name[1:])]:
                nics.setdefault(nic, []).append(name)
        for names in nics.values():
            addresses = {self._labels[name].get("pci_address") for name in names}
            names += [
                name
                for address in addresses
                if address and (name := (entities.PCIE.name, address)) in self._labels
            ]
        return nics

    def _with_peers(
        self,
        devices: Mapping[str, list[DeviceName]],
        group: Callable[[health_facts.HealthFacts], tuple[str, ...]],
    ) -> dict[str, health_facts.HealthFacts]:
        alone = {name: self.facts(parts) for name, parts in devices.items()}
        groups = {name: group(facts) for name, facts in alone.items()}
        return {
            name: replace(
                facts,
                peers=tuple(
                    peer
                    for other, peer in alone.items()
                    if other != name and groups[other] == groups[name]
                ),
            )
            for name, facts in alone.items()
        }


def _nic_group(facts: health_facts.HealthFacts) -> tuple[str, ...]:
    """Return role, driver, model and PCI function: second ports are often unused."""
    names = ("role", "driver", "vendor", "device", "hca")
    function = facts.labels.get("pci_address", "").rpartition(".")[2]
    return (*(facts.labels.get(name, "") for name in names), function)

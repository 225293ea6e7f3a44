"""Facts about the NICs and GPUs of a node with those of their peers, from all frames of a check.

The facts of a NIC are those of its interface, its RDMA port and its PCI device. A NIC that has left the bus keeps
the names that it had. NICs for management, bridges and virtual functions are not judged.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from railscope.catalog import entities
from railscope.frame import Entity, Frame
from railscope.reading import Absent
from railscope_agent.health import health_facts, rule, source_readings
from railscope_agent.health.nic_link_rules import LINK_RULES, PCIE_RULES
from railscope_agent.health.nic_traffic_rules import TRAFFIC_RULES
from railscope_agent.health.setting_rules import GPU_PATH, GPU_SETTING_RULES, NIC_SETTING_RULES
from railscope_agent.sampling import probe_result, status
from railscope_agent.topology.network_device import NodeNetwork
from railscope_agent.topology.pci_distance import distance_between

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
"""Sources of facts."""
_NOT_JUDGED = frozenset({"management", "bridge", "virtual_function"})
_JUDGED_WITHOUT_RDMA = frozenset({"compute", "storage"})
_ABSENT_BY_VERDICT = {
    probe_result.ProbeVerdict.DENIED: Absent.DENIED,
    probe_result.ProbeVerdict.BROKEN: Absent.ERROR,
}
_SETTINGS = (entities.NIC_SETTINGS, entities.GPU_SETTINGS)


@dataclass(frozen=True, slots=True)
class AbsentSources:
    """Reasons of sources without current readings: of any device, or of the devices that they do not contain."""

    whole: Mapping[str, Absent] = field(default_factory=dict)
    partial: Mapping[str, Absent] = field(default_factory=dict)

    @classmethod
    def from_statuses(
        cls, statuses: Mapping[str, status.SourceState], now_ns: int
    ) -> AbsentSources:
        """Return those of a running agent, without unsupported ones: rules may use other sources in their place."""
        latest = {name: status.latest_frame(statuses.get(name), now_ns) for name in SOURCES}
        return cls(
            {
                name: frame
                for name, frame in latest.items()
                if isinstance(frame, Absent) and frame is not Absent.UNSUPPORTED
            },
            {
                name: reason
                for name, state in statuses.items()
                for finding in state.findings
                if (reason := _ABSENT_BY_VERDICT.get(finding.verdict))
            },
        )


class NodeHealthFacts:
    """Facts about every NIC and GPU seen so far, as of the last frames."""

    def __init__(self, rules: Iterable[rule.HealthRule] = (*NIC_RULES, *GPU_SETTING_RULES)) -> None:
        """Collect the facts that these rules use."""
        self._metrics = source_readings.metrics_of_rules(rules)
        self._sources: dict[str, source_readings.SourceReadings] = {}
        self.devices: dict[source_readings.DeviceName, Entity] = {}
        """All devices with their names, those that have left among them."""
        self._labels: dict[source_readings.DeviceName, dict[str, str]] = defaultdict(dict)
        self._settings: dict[source_readings.DeviceName, Mapping[str, str]] = {}

    def add(self, frame: Frame) -> None:
        """Process a frame."""
        stream = frame.schema.stream
        if stream not in SOURCES:
            return
        readings = self._sources.setdefault(stream, source_readings.SourceReadings(self._metrics))
        # Entities and their labels are part of the schema: with the same one there is nothing new.
        if readings.frame is None or readings.frame.schema is not frame.schema:
            self._add_entities(frame.schema.entities)
        readings.add(frame)

    def drop_readings(self, stream: str) -> None:
        """Drop the current readings of a source, which are stale; devices and earlier counters are kept."""
        if stream in self._sources:
            self._sources[stream].add(None)

    def _add_entities(self, found: Iterable[Entity]) -> None:
        for entity in found:
            device = (entity.kind.outermost.name, *entity.whole_key)
            if entity.kind in _SETTINGS:
                self._settings[device] = entity.facts
            elif entity.kind.part_of is None:
                self._labels[device].update(entity.facts)
                if entity.facts:
                    self.devices[device] = entity

    def gpus(self, absent_sources: AbsentSources) -> dict[str, health_facts.HealthFacts]:
        """Return the facts about each GPU; its peers have the same model."""
        devices = {name[1]: [name] for name in self._labels if name[0] == entities.GPU.name}
        return self._with_peers(devices, absent_sources, lambda of: (of.labels.get("model", ""),))

    def add_gpu_paths(self, network: NodeNetwork) -> None:
        """Add the distance of each NIC from the GPU of its rail."""
        gpus = {gpu.address: gpu for gpu in network.gpus}
        for device in network.devices:
            if device.gpu in gpus:
                distance = distance_between(device.device.place, gpus[device.gpu].place)
                self._labels[entities.PCIE.name, device.address][GPU_PATH] = distance.name

    def nics(self, absent_sources: AbsentSources) -> dict[str, health_facts.HealthFacts]:
        """Return the facts about each NIC, by interface, or by RDMA port if it has none."""
        return self._with_peers(self._nic_devices(), absent_sources, _nic_group)

    def _nic_devices(self) -> dict[str, list[source_readings.DeviceName]]:
        """Return the devices that are parts of each NIC: ports that are bonded may share an RDMA device."""
        nics: dict[str, list[source_readings.DeviceName]] = {}
        ports: list[source_readings.DeviceName] = []
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
        devices: Mapping[str, list[source_readings.DeviceName]],
        absent_sources: AbsentSources,
        group: Callable[[health_facts.HealthFacts], tuple[str, ...]],
    ) -> dict[str, health_facts.HealthFacts]:
        alone = {name: self._facts(parts, absent_sources) for name, parts in devices.items()}
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

    def _facts(
        self, parts: Sequence[source_readings.DeviceName], absent_sources: AbsentSources
    ) -> health_facts.HealthFacts:
        labels: dict[str, str] = {}
        settings: dict[str, str] = {}
        for name in reversed(parts):  # the role of the PCI device is its kind
            labels |= self._labels[name]
            settings |= self._settings.get(name, {})
        readings, changes = source_readings.merge_source_facts(
            each.facts_of_device(name) for name in parts for each in self._sources.values()
        )
        absent = {
            name: reason
            for name, reason in absent_sources.partial.items()
            if name not in self._sources or self._sources[name].columns.keys().isdisjoint(parts)
        }
        return health_facts.HealthFacts(
            readings,
            changes,
            absent_sources={**absent, **absent_sources.whole},
            labels=labels,
            settings=settings,
        )


def _nic_group(facts: health_facts.HealthFacts) -> tuple[str, ...]:
    """Return role, driver, model and PCI function: second ports are often unused."""
    names = ("role", "driver", "vendor", "device", "hca")
    function = facts.labels.get("pci_address", "").rpartition(".")[2]
    return (*(facts.labels.get(name, "") for name in names), function)

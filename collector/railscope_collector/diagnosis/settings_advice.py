"""Advice about settings: devices that are set differently from their peers, or from their switch ports.

Settings and versions are facts of the frames. Devices of the same kind, model and role are compared. A value is drift if few devices have it against a clear majority; a difference between rails, which all nodes share, is a
design, and a setting that changed on several nodes recently is a rollout. A NIC is also compared with what its switch port announces, and its leaf with that of its rail.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from railscope.timestamps import SECOND_NS
from railscope.wire import WireEntity
from railscope_collector.diagnosis.devices import MAX_DEVICES_PER_NODE, MAX_FACT
from railscope_collector.diagnosis.findings import (
    SLOTS_PER_MINUTE,
    Cause,
    DiagnosisView,
    Finding,
    FindingEvidence,
)
from railscope_collector.diagnosis.quantities import DeviceKind

MIN_MAJORITY, COMPARE_SLOTS = 4, 10 * SLOTS_PER_MINUTE

_NIC_SETTINGS = (
    "pfc", "trust", "dscp_map", "traffic_classes", "bandwidth", "scheduling", "buffer_of_priority", "ecn_notification",
    "ecn_reaction", "np_cnp_dscp", "np_cnp_prio", "rdma_traffic_class", "rdma_cm_tos", "rdma_cm_mode", "gid_types", "mtu",
    "pause", "applications", "rate_limits", "dcbx", "firmware",
)  # fmt: skip
_GPU_SETTINGS = ("driver", "vbios", "firmware_version", "ecc", "persistence", "power_limit")
_COMPARED: Mapping[str, tuple[str, ...]] = MappingProxyType({
    "nic": _NIC_SETTINGS, "gpu": _GPU_SETTINGS, "node": ("kernel",),
})  # fmt: skip
"""Settings that are compared, the most specific first; FEC and autonegotiation depend on the cable."""

_DUTIES = frozenset(
    {"pfc", "trust", "dscp_map", "applications", "ecn_notification", "ecn_reaction"}
)
"""Settings without which a NIC sends into lossy queues, pauses no port, or lets no sender slow down."""

_CONSEQUENCES = frozenset({"cnp_not_sent", "cnp_ignored", "unprotected_traffic"})
"""Classes that show such a setting by traffic: while a node has one of these incidents, the setting is advice on it."""

_MODEL: Mapping[str, tuple[str, ...]] = MappingProxyType({
    "nic": ("role", "driver", "board"), "gpu": ("model", "part_number"), "node": (),
})  # fmt: skip
"""Facts that peers have in common."""

_FACTS: Mapping[str, tuple[str, Mapping[str, str]]] = MappingProxyType({
    "nic": ("nic", {name: name for name in ("role", "driver", "firmware")}),
    "nic_settings": ("nic", {name: name for name in _COMPARED["nic"]}),
    "nic_neighbour": ("nic", {"pfc": "switch_pfc", "dscp_map": "switch_dscp_map", "largest_frame_bytes": "switch_frame"}),
    "rdma_port": ("nic", {"board": "board"}),
    "gpu": ("gpu", {"model": "model", "part_number": "part_number", "driver": "driver", "vbios": "vbios", "gsp_firmware": "firmware_version"}),
    "gpu_settings": ("gpu", {"ecc": "ecc", "persistence": "persistence"}),
    "node": ("node", {"kernel": "kernel"}),
})  # fmt: skip
"""Facts that are used of each kind of entity: the kind of device that they belong to, and their names here."""


class DeviceKey(NamedTuple):
    """Identity of a device: its kind, its node, and its interface or UUID."""

    kind: str
    node: str
    name: str = ""


@dataclass(slots=True)
class DeviceSettings:
    """Settings of all devices as of a time, and the last change of each.

    Facts of later frames are kept until their time: an evaluation uses nothing that was recorded after it.
    """

    values: dict[DeviceKey, dict[str, str]] = field(default_factory=dict)
    changed_ns: dict[tuple[DeviceKey, str], int] = field(default_factory=dict)
    version: int = 0
    _later: list[tuple[int, int, str, tuple[WireEntity, ...]]] = field(default_factory=list)
    _added: int = 0
    _devices_of: Counter[tuple[str, str]] = field(default_factory=Counter)
    """Devices of each node and kind, which are bounded."""

    def add(self, timestamp_ns: int, node: str, entities: Iterable[WireEntity]) -> None:
        """Add the facts of a node's schema from a time on."""
        used = tuple(entity for entity in entities if entity.kind in _FACTS and entity.facts)
        if used:
            self._added += 1
            insort(self._later, (timestamp_ns, self._added, node, used))

    def advance(self, timestamp_ns: int) -> None:
        """Apply the facts up to a time."""
        count = bisect_right(self._later, timestamp_ns, key=lambda added: added[0])
        present, self._later = self._later[:count], self._later[count:]
        for time_ns, _, node, entities in present:
            for entity in entities:
                self._apply(time_ns, node, entity)

    def _apply(self, time_ns: int, node: str, entity: WireEntity) -> None:
        kind, names = _FACTS[entity.kind]
        own_name = entity.facts.get("interface", "") if entity.kind == "rdma_port" else ""
        key = DeviceKey(kind, node, own_name or "".join(entity.key[:1]))
        if key not in self.values:
            if self._devices_of[node, kind] >= MAX_DEVICES_PER_NODE:
                return
            self._devices_of[node, kind] += 1
        values = self.values.setdefault(key, {})
        for fact, name in names.items():
            text = entity.facts.get(fact, "")[: 4 * MAX_FACT]
            if text and values.get(name) != text:
                if name in values:
                    self.changed_ns[key, name] = time_ns
                values[name] = text
                self.version += 1


@dataclass(frozen=True, slots=True)
class SettingDeviation:
    """A value of a setting that a minority of peers has, or that differs from the one of the switch port."""

    setting: str
    value: str
    usual: str
    devices: tuple[DeviceKey, ...]
    peers: int
    """Peers with the usual value; 0 if it is that of the switch port."""
    since_ns: int
    group: tuple[str, ...] = ()
    """Kind and model of the devices."""

    @property
    def text(self) -> str:
        """Value, and that of the peers."""
        has_value = f"{self.peers} peers have" if self.peers else "the switch port announces"
        return f"{self.setting} {self.value}, {has_value} {self.usual}"


class ConfigDrift:
    """Comparison of settings, repeated when a setting has changed."""

    def __init__(self) -> None:
        self.settings = DeviceSettings()
        self._compared = (-1, -1)
        self._found: dict[tuple[DeviceKey, ...], list[SettingDeviation]] = {}
        """Deviations by the devices that have them."""

    def findings(self, view: DiagnosisView) -> Iterator[Finding]:
        """Yield one finding for each set of devices that deviate in the same settings."""
        self.settings.advance(view.timestamp_ns)
        state = self.settings.version, view.signals.slot // COMPARE_SLOTS
        if self._compared != state:
            self._compared, self._found = state, defaultdict(list)
            for each in (*self._deviations(view), *self._mismatches(view)):
                self._found[each.devices].append(each)
        for found in self._found.values():
            first = found[0]
            subject = " ".join((*first.group, first.setting, first.value, first.usual))
            yield replace(_finding(view, "config_drift", found), subject=subject)
        for found in _wrong_cables(view):
            yield _finding(view, "cabling_fault", found)

    def _mismatches(self, view: DiagnosisView) -> Iterator[SettingDeviation]:
        """Yield settings of NICs that contradict what their switch ports announce, by the two values."""
        found: dict[tuple[str, str, str], list[DeviceKey]] = defaultdict(list)
        framed = 0
        for key, values in self.settings.values.items():
            if key.kind == "nic" and "switch_frame" in values and "mtu" in values:
                framed += 1
            if key.kind == "nic" and _is_comparable(view, key):
                for contradiction in _contradictions(values):
                    found[contradiction].append(key)
        for (setting, value, announced), devices in sorted(found.items()):
            # A size that most ports announce too small is one that the switches state wrongly.
            if setting != "mtu" or len(devices) <= framed / 2:
                since_ns = max(
                    self.settings.changed_ns.get((key, name), 0)
                    for key in devices
                    for name in (setting, f"switch_{setting}")
                )
                yield SettingDeviation(
                    setting, value, announced, tuple(sorted(devices)), 0, since_ns
                )

    def _deviations(self, view: DiagnosisView) -> Iterator[SettingDeviation]:
        groups: dict[tuple[str, ...], list[DeviceKey]] = defaultdict(list)
        self._add_power_limits(view)
        for key, values in self.settings.values.items():
            if _is_comparable(view, key):
                models = (values.get(name, "") for name in _MODEL[key.kind])
                of_node = _gpu_models(view, key.node) if key.kind != "gpu" else ()
                groups[key.kind, *models, *of_node].append(key)
        for model, group in groups.items():
            for setting in _COMPARED[model[0]]:
                yield from self._compare(view, setting, model, group)

    def _add_power_limits(self, view: DiagnosisView) -> None:
        limits = view.devices.sums[DeviceKind.GPU].latest("power_limit")
        for gpu, limit in zip(view.devices.gpus, limits.tolist(), strict=True):
            values = self.settings.values.get(DeviceKey("gpu", gpu.node, gpu.uuid))
            if values is not None and not np.isnan(limit):
                values["power_limit"] = f"{limit:.0f} W"

    def _compare(
        self,
        view: DiagnosisView,
        setting: str,
        model: tuple[str, ...],
        group: Sequence[DeviceKey],
    ) -> Iterator[SettingDeviation]:
        """Yield the values of a setting that few devices of a group have."""
        thresholds = view.thresholds.advice
        values = {
            key: self.settings.values[key][setting]
            for key in group
            if setting in self.settings.values[key]
        }
        counts = Counter(values.values())
        if len(counts) < 2:  # noqa: PLR2004 - a second value
            return
        usual, count = counts.most_common(1)[0]
        changed = {key: self.settings.changed_ns.get((key, setting), 0) for key in values}
        recent_ns = view.timestamp_ns - round(thresholds.rollout_seconds * SECOND_NS)
        rollout = {key.node for key, time_ns in changed.items() if time_ns > recent_ns}
        if (
            count < max(MIN_MAJORITY, thresholds.majority * len(values))
            or len(rollout) >= thresholds.rollout_nodes
        ):
            return
        usual_nodes = {key.node for key, value in values.items() if value == usual}
        if len(usual_nodes) < len({key.node for key, value in values.items() if value != usual}):
            return  # the devices of few nodes
        is_design = _designed(view, values, usual)
        found = defaultdict(list)
        for key, value in values.items():
            if value != usual and not is_design(key):
                found[value].append(key)
        for value, devices in sorted(found.items()):
            since_ns = max(changed[key] for key in devices)
            yield SettingDeviation(
                setting, value, usual, tuple(sorted(devices)), count, since_ns, model
            )


def _gpu_models(view: DiagnosisView, name: str) -> list[str]:
    """Return the models of a node's GPUs: only nodes with equal ones, and their NICs, are compared."""
    node, gpus = view.devices.nodes[name], view.devices.gpus
    return sorted({gpus[position].model for position in node.gpus.values()})


def _is_comparable(view: DiagnosisView, key: DeviceKey) -> bool:
    """True for a known device; NICs without a link are left out, as drivers report other settings then."""
    node = view.devices.nodes.get(key.node)
    if node is None or key.kind != "nic":
        return node is not None and (key.kind != "gpu" or key.name in node.gpus)
    return key.name in node.nics and view.signals.nic["link_up"][node.nics[key.name]] != 0


def _designed(
    view: DiagnosisView, values: Mapping[DeviceKey, str], usual: str
) -> Callable[[DeviceKey], bool]:
    """Return a function: true for a device whose peers on other nodes, at the same place, deviate as well."""
    places: dict[str, list[DeviceKey]] = defaultdict(list)
    for key in values:
        places[_place(view, key)].append(key)

    def is_design(key: DeviceKey) -> bool:
        same_place = [other for other in places[_place(view, key)] if other.node != key.node]
        agreeing = sum(values[other] == usual for other in same_place)
        return agreeing <= len(same_place) / 2

    return is_design


def _place(view: DiagnosisView, key: DeviceKey) -> str:
    """Return the rail of a NIC, or the index of a GPU."""
    node = view.devices.nodes[key.node]
    if key.kind == "nic":
        return view.devices.nics[node.nics[key.name]].rail
    return view.devices.gpus[node.gpus[key.name]].index if key.kind == "gpu" else ""


MAX_LEAVES = 4
"""Leaves that a text names."""


def _wrong_cables(view: DiagnosisView) -> Iterable[list[SettingDeviation]]:
    """Return the NICs of each node that are on leaves of other rails."""
    found: dict[str, list[SettingDeviation]] = defaultdict(list)
    for wrong in view.groups.wrong_rails:
        node, interface = wrong.end.nic
        position = view.devices.nodes[node].nics[interface]
        if view.signals.nic["link_up"][position] == 1:  # as of a node that reports
            port, more = view.devices.nics[position].switch_port, wrong.leaves[MAX_LEAVES:]
            place = f"of {interface} at {wrong.end.leaf} {port}".rstrip()
            usual = ", ".join((*wrong.leaves[:MAX_LEAVES], *["..."] * bool(more)))
            key = DeviceKey("nic", node, interface)
            found[node].append(SettingDeviation("cable", place, usual, (key,), wrong.peers, 0))
    return found.values()


_FRAME_BYTES = 18
"""Ethernet header and checksum."""


def _contradictions(values: Mapping[str, str]) -> Iterator[tuple[str, str, str]]:
    """Yield setting, value and announced value for what a NIC and its switch port set differently."""
    pfc, announced = values.get("pfc", ""), values.get("switch_pfc", "")
    if pfc and announced and pfc != announced:
        yield "pfc", pfc, announced
    own_map, switch_map = (
        dict(_dscp_priorities(values.get(name, ""))) for name in ("dscp_map", "switch_dscp_map")
    )
    for dscp in sorted(own_map.keys() & switch_map.keys()):
        if own_map[dscp] != switch_map[dscp]:
            yield "dscp_map", f"{own_map[dscp]}:{dscp}", f"{switch_map[dscp]}:{dscp}"
    mtu, frame = values.get("mtu", ""), values.get("switch_frame", "")
    if mtu.isdecimal() and frame.isdecimal() and int(mtu) + _FRAME_BYTES > int(frame):
        yield "mtu", mtu, f"frames of {frame} bytes"


def _dscp_priorities(text: str) -> Iterator[tuple[int, int]]:
    """Yield DSCP and priority of a map such as 3:24-31+46,6:48."""
    for entry in text.split(","):
        priority, _, spans = entry.partition(":")
        for span in filter(None, spans.split("+")):
            first, _, last = span.partition("-")
            if priority.isdecimal() and first.isdecimal() and (last or first).isdecimal():
                dscps = range(int(first), min(int(last or first), 63) + 1)
                yield from ((dscp, int(priority)) for dscp in dscps)


def _finding(
    view: DiagnosisView, class_name: str, deviations: Sequence[SettingDeviation]
) -> Finding:
    """Return the finding of devices that deviate."""
    devices = [*dict.fromkeys(key for each in deviations for key in each.devices)]
    affected = tuple(_entity_of(view, key) for key in devices)
    nodes = Counter(key.node for key in devices)
    node = min(nodes, key=lambda name: (-nodes[name], name))
    cause = affected[0] if len(affected) == 1 else Cause("node", name=node)
    nics = np.array([each.position for each in affected if each.kind == "nic"], np.intp)
    evidence = tuple(
        FindingEvidence(
            each.setting, len(each.devices), each.peers, each.text, each.devices[0].node, slots=0
        )
        for each in deviations[:8]
    )
    # One that has always been another may be meant; one that changed while the device ran has ended its duty.
    fails = any(each.setting in _DUTIES and each.since_ns for each in deviations)
    fails = fails and not any(
        name in _CONSEQUENCES and not fault.reach.nodes.isdisjoint(nodes)
        for (name, _), fault in view.open_faults.items()
    )
    return Finding(
        class_name,
        cause,
        evidence,
        severity="warning" if fails else "",
        onset_ns=max(each.since_ns for each in deviations),
        parts=tuple(nics.tolist()),
        detail=f"{_count(devices)}: " + "; ".join(each.text for each in deviations),
        affected=affected,
        onset_slots=COMPARE_SLOTS,
    )


def _entity_of(view: DiagnosisView, key: DeviceKey) -> Cause:
    node = view.devices.nodes[key.node]
    if key.kind == "nic":
        return Cause("nic", node.nics[key.name])
    return Cause("gpu", node.gpus[key.name]) if key.kind == "gpu" else Cause("node", name=key.node)


def _count(devices: Sequence[DeviceKey]) -> str:
    kind = {"nic": "NIC", "gpu": "GPU", "node": "node"}[devices[0].kind]
    nodes = len({key.node for key in devices})
    text = f"{len(devices)} {kind}{'s' if len(devices) > 1 else ''}"
    return text if kind == "node" else f"{text} of {nodes} node{'s' if nodes > 1 else ''}"

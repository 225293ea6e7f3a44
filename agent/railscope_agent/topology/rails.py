"""Assignment of NICs to GPUs, the rails that follow from it, and rails and roles in the settings.

A rail is the position of the GPU that a NIC is nearest to, never a number in the NIC's name:
`mlx5_N` counts all ports of a node, storage included. NICs are identified by PCI address alone,
so that no renaming moves a rail. Distance comes first, then the NUMA node, then bus order.

Rails and roles in the settings take precedence over those that the agent detects.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

from railscope.settings import SettingsError
from railscope_agent.config import TopologySettings
from railscope_agent.sampling.source import format_count
from railscope_agent.topology import pci


@dataclass(frozen=True, slots=True)
class RailNic:
    """A NIC that may be a rail: its place and its model.

    One that has another purpose, too, is used only if no other is as near. One that is missing has its rail still,
    and no GPU uses it.
    """

    place: pci.PciPlace
    model: str
    has_other_purpose: bool = False
    is_missing: bool = False


@dataclass(frozen=True, slots=True)
class RailPosition:
    """GPU of a NIC (its position), plane if a GPU has several NICs, and reason."""

    gpu: int
    plane: int
    reason: str


@dataclass(frozen=True, slots=True)
class RailAssignment:
    """Result of the assignment, by PCI address of a NIC and by position of a GPU.

    `nics` is the NIC that each GPU uses, its own or a neighbour's, empty if there is none; `rails` the
    rail of each GPU; `why_not` the reason why a NIC is not assigned.
    """

    assigned: Mapping[str, RailPosition]
    nics: tuple[str, ...]
    rails: tuple[int, ...]
    why_not: Mapping[str, str]


def assign_rails(gpus: Sequence[pci.PciPlace], nics: Sequence[RailNic]) -> RailAssignment:
    """Assign NICs to GPUs; the index of a GPU in the sequence is its position.

    Each GPU gets the nearest free NIC within `RAIL_REACH`, nearest pairs first. The remaining ones are
    assigned as further planes, as many as most GPUs get. If no NIC has a host bridge in common with a GPU,
    as on trays with Grace processors and in some virtual machines, distance is not meaningful, and NUMA
    node and order decide.
    """
    ordered = sorted(nics, key=lambda nic: pci.bus_order(nic.place.address))
    usual_model = _find_usual_model(gpus, ordered)
    if _lacks_shared_bridge(gpus, ordered):
        assigned, why_not = _assign_by_numa_node(gpus, ordered, usual_model)
        present = {nic.place.address for nic in ordered if not nic.is_missing}
        nic_by_gpu = {
            position.gpu: address for address, position in assigned.items() if address in present
        }
    else:
        assigned, why_not = _assign_by_distance(gpus, ordered, usual_model)
        nic_by_gpu = _select_nics(gpus, ordered, assigned)
    gpus_with_nic = {position.gpu for position in assigned.values()}
    chosen = tuple(nic_by_gpu.get(position, "") for position in range(len(gpus)))
    return RailAssignment(
        assigned, chosen, _number_rails(gpus, gpus_with_nic, chosen, assigned), why_not
    )


def _find_usual_model(gpus: Sequence[pci.PciPlace], nics: Sequence[RailNic]) -> str:
    """Return the model of most NICs near GPUs: a different one among them has another purpose."""
    near = [nic for nic in nics if _nearest_distance(gpus, nic) <= pci.RAIL_REACH]
    models = Counter(nic.model for nic in near or nics)
    return models.most_common(1)[0][0] if models else ""


def _nearest_distance(gpus: Sequence[pci.PciPlace], nic: RailNic) -> pci.PciDistance:
    return min((pci.pci_distance(gpu, nic.place) for gpu in gpus), default=pci.PciDistance.SYS)


def _lacks_shared_bridge(gpus: Sequence[pci.PciPlace], nics: Sequence[RailNic]) -> bool:
    """True if no NIC shares a host bridge with a GPU, leaving out those of the node's own network."""
    bridges = {gpu.bridge for gpu in gpus}
    candidates = [
        nic
        for nic in nics
        if not nic.has_other_purpose or _nearest_distance(gpus, nic) <= pci.RAIL_REACH
    ]
    return bool(gpus) and all(nic.place.bridge not in bridges for nic in candidates)


# By distance ------------------------------------------------------------------------------------


def _assign_by_distance(
    gpus: Sequence[pci.PciPlace], nics: Sequence[RailNic], usual_model: str
) -> tuple[dict[str, RailPosition], dict[str, str]]:
    taken: dict[str, tuple[int, int]] = {}
    for plane in count():
        free = [nic for nic in nics if nic.place.address not in taken]
        if plane:
            free = [nic for nic in free if nic.model == usual_model and not nic.has_other_purpose]
        gpu_by_address = _assign_one_each(gpus, free, usual_model)
        if not gpu_by_address:
            break
        taken |= {address: (gpu, plane) for address, gpu in gpu_by_address.items()}
    planes = _count_usual_nics(Counter(gpu for gpu, _ in taken.values()))
    assigned, why_not = {}, {}
    for nic in nics:
        address = nic.place.address
        gpu, plane = taken.get(address, (-1, planes))
        if plane < planes:
            assigned[address] = RailPosition(gpu, plane, _describe_distance(gpus, nic))
        else:
            why_not[address] = _explain_distance(gpus, nic, planes)
    return assigned, why_not


def _assign_one_each(
    gpus: Sequence[pci.PciPlace], nics: Sequence[RailNic], usual_model: str
) -> dict[str, int]:
    """Assign at most one NIC to each GPU, the nearest pairs first."""
    pairs = sorted(
        (
            distance,
            not pci.same_numa_node(gpu, nic.place),
            nic.model != usual_model,
            nic.has_other_purpose,
            position,
            order,
        )
        for order, nic in enumerate(nics)
        for position, gpu in enumerate(gpus)
        if (distance := pci.pci_distance(gpu, nic.place)) <= pci.RAIL_REACH
    )
    gpu_by_address: dict[str, int] = {}
    served: set[int] = set()
    for *_, position, order in pairs:
        address = nics[order].place.address
        if address not in gpu_by_address and position not in served:
            gpu_by_address[address] = position
            served.add(position)
    return gpu_by_address


def _count_usual_nics(nics_by_gpu: Counter[int]) -> int:
    """Return the most common number of NICs among GPUs with any; on a tie the lesser one."""
    sizes = Counter(nics_by_gpu.values())
    return min(sizes, key=lambda size: (-sizes[size], size), default=0)


def _select_nics(
    gpus: Sequence[pci.PciPlace], nics: Sequence[RailNic], assigned: Mapping[str, RailPosition]
) -> dict[int, str]:
    """Return the NIC of each GPU: its own of the first plane, or a neighbour's, evenly shared."""
    first = [
        nic
        for nic in nics
        if (of_nic := assigned.get(nic.place.address)) and of_nic.plane == 0 and not nic.is_missing
    ]
    nic_by_gpu = {assigned[nic.place.address].gpu: nic.place.address for nic in first}
    load: Counter[str] = Counter()
    for position, gpu in enumerate(gpus):
        near = [nic for nic in first if pci.pci_distance(gpu, nic.place) <= pci.RAIL_REACH]
        if position in nic_by_gpu or not near:
            continue
        shared = min(
            near,
            key=lambda nic: (
                pci.pci_distance(gpu, nic.place),
                not pci.same_numa_node(gpu, nic.place),
                load[nic.place.address],
            ),
        )
        nic_by_gpu[position] = shared.place.address
        load[shared.place.address] += 1
    return nic_by_gpu


def _describe_distance(gpus: Sequence[pci.PciPlace], nic: RailNic) -> str:
    distance = _nearest_distance(gpus, nic)
    near = [str(p) for p, gpu in enumerate(gpus) if pci.pci_distance(gpu, nic.place) is distance]
    if len(near) == 1:
        return f"{distance.name} to GPU {near[0]}"
    return f"{distance.name} to GPUs {', '.join(near)}, in bus order"


def _explain_distance(gpus: Sequence[pci.PciPlace], nic: RailNic, planes: int) -> str:
    if not gpus:
        return "the node has no GPU"
    distance = _nearest_distance(gpus, nic)
    if distance > pci.RAIL_REACH:
        return f"distance {distance.name} to the nearest GPU exceeds {pci.RAIL_REACH.name}"
    return (
        f"{_describe_distance(gpus, nic)}, but each GPU of this node has "
        f"{format_count(planes, 'NIC')}"
    )


# By NUMA node -----------------------------------------------------------------------------------


def _assign_by_numa_node(
    gpus: Sequence[pci.PciPlace], nics: Sequence[RailNic], usual_model: str
) -> tuple[dict[str, RailPosition], dict[str, str]]:
    """Assign NICs at NUMA nodes with one of the usual model per GPU; elsewhere it would be a guess."""
    gpus_by_node: defaultdict[str, list[int]] = defaultdict(list)
    for position, gpu in enumerate(gpus):
        gpus_by_node[gpu.numa_node].append(position)
    nics_by_node: defaultdict[str, list[str]] = defaultdict(list)
    for nic in nics:
        if nic.model == usual_model and not nic.has_other_purpose:
            nics_by_node[nic.place.numa_node].append(nic.place.address)
    assigned: dict[str, RailPosition] = {}
    for node, positions in gpus_by_node.items():
        if node and len(nics_by_node[node]) >= len(positions):
            why = f"NUMA node {node} and bus order: no host bridge in common with a GPU"
            pairs = zip(nics_by_node[node], positions, strict=False)
            assigned |= {address: RailPosition(position, 0, why) for address, position in pairs}
    why_not = {
        nic.place.address: _explain_numa_node(
            nic,
            usual_model,
            len(nics_by_node[nic.place.numa_node]),
            len(gpus_by_node[nic.place.numa_node]),
        )
        for nic in nics
        if nic.place.address not in assigned
    }
    return assigned, why_not


def _explain_numa_node(nic: RailNic, usual_model: str, nics: int, gpus: int) -> str:
    if not nic.place.numa_node:
        return "no host bridge in common with a GPU, and its NUMA node is unknown"
    if nic.has_other_purpose:
        return "no host bridge in common with a GPU, and it carries the default route"
    if nic.model != usual_model:
        return f"no host bridge in common with a GPU, and most NICs are of model {usual_model}"
    nic_count = f"NUMA node {nic.place.numa_node} has {format_count(nics, 'NIC')}"
    return f"no host bridge in common with a GPU, and {nic_count} for {format_count(gpus, 'GPU')}"


# Numbers ----------------------------------------------------------------------------------------


def _number_rails(
    gpus: Sequence[pci.PciPlace],
    gpus_with_nic: set[int],
    nics: Sequence[str],
    assigned: Mapping[str, RailPosition],
) -> tuple[int, ...]:
    """Return the rail of each GPU: its position, or fewer numbers if GPUs share their NICs.

    GPUs below one root port are a group. If no group has a NIC for each of its GPUs, rails are counted by
    group, as many in each as the group with the most has NICs: a NIC that is missing on one node moves no
    rail.
    """
    groups: defaultdict[tuple[str, str], list[int]] = defaultdict(list)
    for position, gpu in enumerate(gpus):
        groups[gpu.bridge, gpu.chain[0]].append(position)
    rails_per_group = max(
        (sum(p in gpus_with_nic for p in group) for group in groups.values()), default=0
    )
    if not rails_per_group or any(gpus_with_nic.issuperset(group) for group in groups.values()):
        return tuple(range(len(gpus)))
    rails: dict[int, int] = {}
    for number, group in enumerate(groups.values()):
        served = [position for position in group if position in gpus_with_nic]
        taken = -1
        for place, position in enumerate(served):
            # At the relative position of its GPU in the group, and no number twice.
            spread = group.index(position) * rails_per_group // len(group)
            last = rails_per_group - len(served) + place
            taken = min(max(taken + 1, spread), last)
            rails[position] = number * rails_per_group + taken
        for place, position in enumerate(group):
            address = nics[position]
            shared = assigned[address].gpu if address else position
            rails[position] = rails.get(
                shared, number * rails_per_group + place * rails_per_group // len(group)
            )
    return tuple(rails[position] for position in range(len(gpus)))


COMPUTE, STORAGE, MANAGEMENT, BRIDGE, VIRTUAL_FUNCTION = ROLES = (
    "compute",
    "storage",
    "management",
    "bridge",
    "virtual_function",
)
"""Roles of network devices. A bridge leads to an NVSwitch and is not a NIC."""
_RAIL = "rail"


@dataclass(frozen=True)
class RailRules:
    """The validated settings of the section [topology].

    A name is an RDMA device, an interface or a PCI address.
    """

    rails: Mapping[str, int] = field(default_factory=dict)
    roles: Sequence[tuple[re.Pattern[str], str]] = ()
    rail_pattern: re.Pattern[str] | None = None
    expected_megabits_per_second: Mapping[str, int] = field(default_factory=dict)
    tree: pci.NcclTopology | None = None

    def find_rail(self, names: Iterable[str]) -> tuple[int, str] | None:
        """Return the rail of the device with these names, and the setting that specifies it."""
        of_device = list(names)
        for name in of_device:
            if name in self.rails:
                return self.rails[name], f"topology.rails contains {name}"
        for name in of_device:
            match = self.rail_pattern.fullmatch(name) if self.rail_pattern else None
            if match and (match[_RAIL] or "").isdecimal():
                return int(match[_RAIL]), f"topology.rail_pattern matches {name}"
        return None

    def find_role(self, names: Iterable[str]) -> tuple[str, str] | None:
        """Return the role of the device with these names, and its setting; the first match counts."""
        of_device = list(names)
        for pattern, role in self.roles:
            if any(map(pattern.fullmatch, of_device)):
                return role, f"topology.roles contains {pattern.pattern}"
        return None

    def find_unused(self, names: Iterable[str]) -> tuple[str, ...]:
        """Return names and patterns in the settings that match none of these names."""
        of_node = set(names)
        plain = dict.fromkeys((*self.rails, *self.expected_megabits_per_second))
        patterns = [p.pattern for p, _ in self.roles if not any(map(p.fullmatch, of_node))]
        return (*(name for name in plain if name not in of_node and name not in ROLES), *patterns)

    def expected_speed(self, names: Iterable[str]) -> int | None:
        """Return the expected line rate of a link in Mb/s, by its names and its role."""
        speeds = (self.expected_megabits_per_second.get(name) for name in names)
        return next((speed for speed in speeds if speed is not None), None)


def parse_rail_rules(settings: TopologySettings) -> RailRules:
    """Validate the settings. Raises SettingsError that names the setting and a valid value."""
    for name, rail in settings.rails.items():
        if rail < 0:
            message = f"invalid topology.rails: {name} = {rail}: expected 0 or more"
            raise SettingsError(message)
    for name, megabits in settings.expected_megabits_per_second.items():
        if megabits <= 0:
            message = (
                f"invalid topology.expected_megabits_per_second: {name} = {megabits}: "
                "expected Mb/s, such as 400000"
            )
            raise SettingsError(message)
    roles = [_parse_role(name, role) for name, role in settings.roles.items()]
    pattern, tree = _parse_rail_pattern(settings.rail_pattern), _read_nccl_file(settings.nccl_file)
    rules = RailRules(settings.rails, roles, pattern, settings.expected_megabits_per_second, tree)
    for name in settings.rails:
        role_setting = rules.find_role([name])
        if role_setting and role_setting[0] != COMPUTE:
            message = (
                f"conflicting role of {name}: topology.rails contains it, and "
                f"{role_setting[1]} = {role_setting[0]!r}: expected {COMPUTE}; fix: remove it from "
                "one of them"
            )
            raise SettingsError(message)
    return rules


def _parse_role(name: str, role: str) -> tuple[re.Pattern[str], str]:
    if role not in ROLES:
        message = f"invalid topology.roles: {name} = {role!r}: expected one of {', '.join(ROLES)}"
        raise SettingsError(message)
    return _compile_pattern("topology.roles", name), role


def _parse_rail_pattern(text: str) -> re.Pattern[str] | None:
    if not text:
        return None
    pattern = _compile_pattern("topology.rail_pattern", text)
    if _RAIL not in pattern.groupindex:
        message = (
            f"invalid topology.rail_pattern {text!r}: expected a group "
            rf"(?P<{_RAIL}>\d+) for the number"
        )
        raise SettingsError(message)
    return pattern


def _compile_pattern(setting: str, text: str) -> re.Pattern[str]:
    try:
        return re.compile(text, re.ASCII)
    except re.error as error:
        message = f"invalid {setting}: {text!r}: expected a regular expression: {error}"
        raise SettingsError(message) from error


def _read_nccl_file(file: str) -> pci.NcclTopology | None:
    if not file:
        return None
    from railscope_agent.topology.nccl_xml import parse_nccl_topology  # noqa: PLC0415 - few have one, and XML is large

    try:
        return parse_nccl_topology(Path(file).read_bytes())
    except OSError as error:
        message = f"cannot read topology.nccl_file {file}: {error.strerror}"
        raise SettingsError(message) from error
    except pci.NcclFileError as error:
        message = f"invalid topology.nccl_file {file}: {error}"
        raise SettingsError(message) from error

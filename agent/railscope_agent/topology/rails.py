"""Assignment of NICs to GPUs, and the rails that follow from it.

A rail is the position of the GPU that a NIC is nearest to, never a number in the NIC's name:
`mlx5_N` counts all ports of a node, storage included. NICs are identified by PCI address alone,
so that no renaming moves a rail. Distance comes first, then the NUMA node, then bus order.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import count

from railscope_agent.sampling.probe_result import format_count
from railscope_agent.topology import pci, pci_distance


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
    near = [nic for nic in nics if _nearest_distance(gpus, nic) <= pci_distance.RAIL_REACH]
    models = Counter(nic.model for nic in near or nics)
    return models.most_common(1)[0][0] if models else ""


def _nearest_distance(gpus: Sequence[pci.PciPlace], nic: RailNic) -> pci_distance.PciDistance:
    return min(
        (pci_distance.distance_between(gpu, nic.place) for gpu in gpus),
        default=pci_distance.PciDistance.SYS,
    )


def _lacks_shared_bridge(gpus: Sequence[pci.PciPlace], nics: Sequence[RailNic]) -> bool:
    """True if no NIC shares a host bridge with a GPU, leaving out those of the node's own network."""
    bridges = {gpu.bridge for gpu in gpus}
    candidates = [
        nic
        for nic in nics
        if not nic.has_other_purpose or _nearest_distance(gpus, nic) <= pci_distance.RAIL_REACH
    ]
    return bool(gpus) and all(nic.place.bridge not in bridges for nic in candidates)


# By distance ------------------------------------------------------------------------------------


def _assign_by_distance(
    gpus: Sequence[pci.PciPlace], nics: Sequence[RailNic], usual_model: str
) -> tuple[dict[str, RailPosition], dict[str, str]]:
    taken: dict[str, tuple[int, int]] = {}
    # One plane after the other: each GPU has its first NIC before any has a second one.
    for plane in count():
        free = [nic for nic in nics if nic.place.address not in taken]
        # A GPU without another NIC takes any model; in further planes a different one is for another purpose.
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
    # Position and order come last: pairs at the same distance are joined in bus order, so that the result is
    # the same each time.
    pairs = sorted(
        (
            distance,
            not pci_distance.same_numa_node(gpu, nic.place),
            nic.model != usual_model,
            nic.has_other_purpose,
            position,
            order,
        )
        for order, nic in enumerate(nics)
        for position, gpu in enumerate(gpus)
        if (distance := pci_distance.distance_between(gpu, nic.place)) <= pci_distance.RAIL_REACH
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
    # Counts the GPUs that share a NIC of another one: equally near NICs get equally many.
    load: Counter[str] = Counter()
    for position, gpu in enumerate(gpus):
        near = [
            nic
            for nic in first
            if pci_distance.distance_between(gpu, nic.place) <= pci_distance.RAIL_REACH
        ]
        if position in nic_by_gpu or not near:
            continue
        shared = min(
            near,
            key=lambda nic: (
                pci_distance.distance_between(gpu, nic.place),
                not pci_distance.same_numa_node(gpu, nic.place),
                load[nic.place.address],
            ),
        )
        nic_by_gpu[position] = shared.place.address
        load[shared.place.address] += 1
    return nic_by_gpu


def _describe_distance(gpus: Sequence[pci.PciPlace], nic: RailNic) -> str:
    distance = _nearest_distance(gpus, nic)
    near = [
        str(p)
        for p, gpu in enumerate(gpus)
        if pci_distance.distance_between(gpu, nic.place) is distance
    ]
    if len(near) == 1:
        return f"{distance.name} to GPU {near[0]}"
    return f"{distance.name} to GPUs {', '.join(near)}, in bus order"


def _explain_distance(gpus: Sequence[pci.PciPlace], nic: RailNic, planes: int) -> str:
    if not gpus:
        return "the node has no GPU"
    distance = _nearest_distance(gpus, nic)
    if distance > pci_distance.RAIL_REACH:
        return f"distance {distance.name} to the nearest GPU exceeds {pci_distance.RAIL_REACH.name}"
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

"""Assignment of NICs to GPUs, and the rails that follow from it.

A rail is the position of the GPU that a NIC is nearest to, never a number in the NIC's name: `mlx5_N`
counts all ports of a node, storage included. NICs are identified by PCI address alone, so that no renaming
moves a rail. Distance comes first, then the NUMA node, then bus order.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import count

from agent.sampling.facts import counted
from agent.topology.distance import RAIL_REACH, Distance, distance, same_numa_node
from agent.topology.pci import Place, bus_order


@dataclass(frozen=True, slots=True)
class Card:
    """A NIC that may be a rail: its place and its model.

    One with `put_last` is used only if no other is as near, because it has another purpose, too.
    """

    place: Place
    model: str
    put_last: bool = False


@dataclass(frozen=True, slots=True)
class Seat:
    """GPU of a NIC (its position), plane if a GPU has several NICs, and reason."""

    gpu: int
    plane: int
    why: str


@dataclass(frozen=True, slots=True)
class Seating:
    """Result of the assignment, by PCI address of a NIC and by position of a GPU.

    `cards` is the NIC that each GPU uses, its own or a neighbour's, empty if there is none; `rails` the
    rail of each GPU; `why_not` the reason for which a NIC has no seat.
    """

    seats: Mapping[str, Seat]
    cards: tuple[str, ...]
    rails: tuple[int, ...]
    why_not: Mapping[str, str]

    def rail(self, address: str) -> int | None:
        """Return the rail of a NIC, which is that of its GPU."""
        found = self.seats.get(address)
        return None if found is None else self.rails[found.gpu]


def seat(gpus: Sequence[Place], cards: Sequence[Card]) -> Seating:
    """Assign NICs to GPUs; the index of a GPU in the sequence is its position.

    Each GPU gets the nearest free NIC within `RAIL_REACH`, nearest pairs first. The remaining ones are
    assigned as further planes, as many as most GPUs get. If no NIC has a host bridge in common with a GPU,
    as on trays with Grace processors and in some virtual machines, distance is not meaningful, and NUMA
    node and order decide.
    """
    ordered = sorted(cards, key=lambda card: bus_order(card.place.address))
    usual = _usual_model(gpus, ordered)
    if _apart(gpus, ordered):
        seats, why_not = _by_numa_node(gpus, ordered, usual)
        used = {found.gpu: address for address, found in seats.items()}
    else:
        seats, why_not = _by_distance(gpus, ordered, usual)
        used = _used(gpus, ordered, seats)
    own = {found.gpu for found in seats.values()}
    chosen = tuple(used.get(position, "") for position in range(len(gpus)))
    return Seating(seats, chosen, _rails(gpus, own, chosen, seats), why_not)


def _usual_model(gpus: Sequence[Place], cards: Sequence[Card]) -> str:
    """Return the model of most NICs near GPUs: a different one among them has another purpose."""
    near = [card for card in cards if _nearest(gpus, card) <= RAIL_REACH]
    models = Counter(card.model for card in near or cards)
    return models.most_common(1)[0][0] if models else ""


def _nearest(gpus: Sequence[Place], card: Card) -> Distance:
    return min((distance(gpu, card.place) for gpu in gpus), default=Distance.SYS)


def _apart(gpus: Sequence[Place], cards: Sequence[Card]) -> bool:
    """True if no NIC shares a host bridge with a GPU, leaving out those of the node's own network."""
    bridges = {gpu.bridge for gpu in gpus}
    there = [card for card in cards if not card.put_last or _nearest(gpus, card) <= RAIL_REACH]
    return bool(gpus) and all(card.place.bridge not in bridges for card in there)


# By distance ------------------------------------------------------------------------------------


def _by_distance(
    gpus: Sequence[Place], cards: Sequence[Card], usual: str
) -> tuple[dict[str, Seat], dict[str, str]]:
    taken: dict[str, tuple[int, int]] = {}
    for plane in count():
        free = [card for card in cards if card.place.address not in taken]
        if plane:
            free = [card for card in free if card.model == usual and not card.put_last]
        found = _one_each(gpus, free, usual)
        if not found:
            break
        taken |= {address: (gpu, plane) for address, gpu in found.items()}
    planes = _planes(Counter(gpu for gpu, _ in taken.values()))
    seats, why_not = {}, {}
    for card in cards:
        address = card.place.address
        gpu, plane = taken.get(address, (-1, planes))
        if plane < planes:
            seats[address] = Seat(gpu, plane, _near(gpus, card))
        else:
            why_not[address] = _too_far_or_many(gpus, card, planes)
    return seats, why_not


def _one_each(gpus: Sequence[Place], cards: Sequence[Card], usual: str) -> dict[str, int]:
    """Assign at most one NIC to each GPU, the nearest pairs first."""
    pairs = sorted(
        (
            apart,
            not same_numa_node(gpu, card.place),
            card.model != usual,
            card.put_last,
            position,
            order,
        )
        for order, card in enumerate(cards)
        for position, gpu in enumerate(gpus)
        if (apart := distance(gpu, card.place)) <= RAIL_REACH
    )
    found: dict[str, int] = {}
    seated: set[int] = set()
    for *_, position, order in pairs:
        address = cards[order].place.address
        if address not in found and position not in seated:
            found[address] = position
            seated.add(position)
    return found


def _planes(cards_by_gpu: Counter[int]) -> int:
    """Return the most common number of NICs among GPUs with any; on a tie the lesser one."""
    sizes = Counter(cards_by_gpu.values())
    return min(sizes, key=lambda size: (-sizes[size], size), default=0)


def _used(
    gpus: Sequence[Place], cards: Sequence[Card], seats: Mapping[str, Seat]
) -> dict[int, str]:
    """Return the NIC of each GPU: its own of the first plane, or a neighbour's, evenly shared."""
    first = [card for card in cards if (s := seats.get(card.place.address)) and s.plane == 0]
    used = {seats[card.place.address].gpu: card.place.address for card in first}
    load: Counter[str] = Counter()
    for position, gpu in enumerate(gpus):
        near = [card for card in first if distance(gpu, card.place) <= RAIL_REACH]
        if position in used or not near:
            continue
        shared = min(
            near,
            key=lambda card: (
                distance(gpu, card.place),
                not same_numa_node(gpu, card.place),
                load[card.place.address],
            ),
        )
        used[position] = shared.place.address
        load[shared.place.address] += 1
    return used


def _near(gpus: Sequence[Place], card: Card) -> str:
    apart = _nearest(gpus, card)
    near = [str(p) for p, gpu in enumerate(gpus) if distance(gpu, card.place) is apart]
    if len(near) == 1:
        return f"{apart.name} to GPU {near[0]}"
    return f"{apart.name} to GPUs {', '.join(near)}, in bus order"


def _too_far_or_many(gpus: Sequence[Place], card: Card, planes: int) -> str:
    if not gpus:
        return "there is no GPU"
    apart = _nearest(gpus, card)
    if apart > RAIL_REACH:
        return f"{apart.name} from the nearest GPU: beyond {RAIL_REACH.name} it is no rail"
    return f"{_near(gpus, card)}, but a GPU has {counted(planes, 'card')} here, not more"


# By NUMA node -----------------------------------------------------------------------------------


def _by_numa_node(
    gpus: Sequence[Place], cards: Sequence[Card], usual: str
) -> tuple[dict[str, Seat], dict[str, str]]:
    """Assign NICs at NUMA nodes with one of the usual model per GPU; elsewhere it would be a guess."""
    waiting: defaultdict[str, list[int]] = defaultdict(list)
    for position, gpu in enumerate(gpus):
        waiting[gpu.numa_node].append(position)
    offered: defaultdict[str, list[str]] = defaultdict(list)
    for card in cards:
        if card.model == usual and not card.put_last:
            offered[card.place.numa_node].append(card.place.address)
    seats: dict[str, Seat] = {}
    for node, positions in waiting.items():
        if node and len(offered[node]) >= len(positions):
            why = f"NUMA node {node} and bus order: no host bridge in common with a GPU"
            pairs = zip(offered[node], positions, strict=False)
            seats |= {address: Seat(position, 0, why) for address, position in pairs}
    why_not = {
        card.place.address: _why_no_seat(card, usual, len(offered[card.place.numa_node]),
                                         len(waiting[card.place.numa_node]))
        for card in cards if card.place.address not in seats
    }  # fmt: skip
    return seats, why_not


def _why_no_seat(card: Card, usual: str, cards: int, gpus: int) -> str:
    if not card.place.numa_node:
        return "no host bridge in common with a GPU, and its NUMA node is not known"
    if card.put_last:
        return "no host bridge in common with a GPU, and it carries the default route"
    if card.model != usual:
        return f"no host bridge in common with a GPU, and most cards are of model {usual}"
    here = f"NUMA node {card.place.numa_node} has {counted(cards, 'card')}"
    return f"no host bridge in common with a GPU, and {here} for {counted(gpus, 'GPU')}"


# Numbers ----------------------------------------------------------------------------------------


def _rails(
    gpus: Sequence[Place], own: set[int], used: Sequence[str], seats: Mapping[str, Seat]
) -> tuple[int, ...]:
    """Return the rail of each GPU: its position, or fewer numbers if GPUs share their NICs.

    GPUs below one root port are a group. If no group has a NIC for each of its GPUs, rails are counted by
    group, as many in each as the group with the most has NICs: a NIC that is missing on one node moves no
    rail.
    """
    groups: defaultdict[tuple[str, str], list[int]] = defaultdict(list)
    for position, gpu in enumerate(gpus):
        groups[gpu.bridge, gpu.chain[0]].append(position)
    most = max((sum(p in own for p in group) for group in groups.values()), default=0)
    if not most or any(own.issuperset(group) for group in groups.values()):
        return tuple(range(len(gpus)))
    rails: dict[int, int] = {}
    for number, group in enumerate(groups.values()):
        seated = [position for position in group if position in own]
        taken = -1
        for place, position in enumerate(seated):
            # At the relative position of its GPU in the group, and no number twice.
            spread = group.index(position) * most // len(group)
            last = most - len(seated) + place
            taken = min(max(taken + 1, spread), last)
            rails[position] = number * most + taken
        for place, position in enumerate(group):
            address = used[position]
            shared = seats[address].gpu if address else position
            rails[position] = rails.get(shared, number * most + place * most // len(group))
    return tuple(rails[position] for position in range(len(gpus)))

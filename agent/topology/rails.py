"""Which network card is whose, and which rail that makes it.

A rail is the position of the GPU that a card is nearest to, never a number in the card's name:
`mlx5_N` counts all ports of a server, storage included. Cards are told apart by PCI address alone,
so that no renaming moves a rail. Distance comes first, then the NUMA node, then bus order.
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
    """A card that may be a rail: where it sits, and of what model it is.

    One to be put last is taken only where no other is as near: it has other business, too.
    """

    place: Place
    model: str
    put_last: bool = False


@dataclass(frozen=True, slots=True)
class Seat:
    """A card's GPU (its position), its plane where a GPU has several cards, and why."""

    gpu: int
    plane: int
    why: str


@dataclass(frozen=True, slots=True)
class Seating:
    """What came of it, by PCI address of a card and by position of a GPU.

    `cards` gives the card each GPU uses, its own or a neighbour's, empty where it has none; `rails`
    the rail of each GPU; `why_not` the reason why a card has no seat.
    """

    seats: Mapping[str, Seat]
    cards: tuple[str, ...]
    rails: tuple[int, ...]
    why_not: Mapping[str, str]

    def rail(self, address: str) -> int | None:
        """The rail of a card, that of the GPU where it is seated."""
        found = self.seats.get(address)
        return None if found is None else self.rails[found.gpu]


def seat(gpus: Sequence[Place], cards: Sequence[Card]) -> Seating:
    """Seat cards at GPUs; the place of a GPU in the sequence is its position.

    Each GPU takes the nearest free card within `RAIL_REACH`, nearest pairs first. What is left goes
    round again as further planes, as many as most GPUs get. Where no card has a host bridge in
    common with a GPU, as on trays with Grace processors and in some virtual machines, distance says
    nothing, and NUMA node and order decide.
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
    """The model most cards near GPUs are of: a stranger among them has other business."""
    near = [card for card in cards if _nearest(gpus, card) <= RAIL_REACH]
    models = Counter(card.model for card in near or cards)
    return models.most_common(1)[0][0] if models else ""


def _nearest(gpus: Sequence[Place], card: Card) -> Distance:
    return min((distance(gpu, card.place) for gpu in gpus), default=Distance.SYS)


def _apart(gpus: Sequence[Place], cards: Sequence[Card]) -> bool:
    """Whether no card has a host bridge in common with a GPU, those for the server's own aside."""
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
    """At most one card for each GPU, the nearest pairs first."""
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
    """How many cards most GPUs have that have any; the smaller number where two are as usual."""
    sizes = Counter(cards_by_gpu.values())
    return min(sizes, key=lambda size: (-sizes[size], size), default=0)


def _used(
    gpus: Sequence[Place], cards: Sequence[Card], seats: Mapping[str, Seat]
) -> dict[int, str]:
    """The card each GPU uses: its own of the first plane, or a neighbour's, evenly shared."""
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
    """Seat cards at nodes that have one of the usual model for every GPU; else it is a guess."""
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
    """The rail of each GPU: its position, or fewer numbers where GPUs share their cards.

    GPUs below one root port are a group. Where no group has a card for each of its GPUs, rails are
    counted by group, as many in each as the best equipped has cards: a card that is missing on one
    server moves no rail.
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
            # Each where its GPU stands among the group, and no number twice.
            spread = group.index(position) * most // len(group)
            last = most - len(seated) + place
            taken = min(max(taken + 1, spread), last)
            rails[position] = number * most + taken
        for place, position in enumerate(group):
            address = used[position]
            shared = seats[address].gpu if address else position
            rails[position] = rails.get(shared, number * most + place * most // len(group))
    return tuple(rails[position] for position in range(len(gpus)))

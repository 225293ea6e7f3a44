"""The inventory held against what nodes show.

Present, missing and unknown devices of a node add up to what the inventory says of it; those beyond
are unexpected. A silent node's devices are unknown: that it does not report is no sign that they are
gone. A node that was never heard of is missing, with all that it should have.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from collector.files.inventory_file import Expected
from collector.fleet.shown_devices import GPU, RDMA_PORT, Shown

KINDS = (GPU, RDMA_PORT)


class State(StrEnum):
    """How a node stands to the inventory."""

    PRESENT = "present"
    SILENT = "silent"
    MISSING = "missing"
    UNEXPECTED = "unexpected"


@dataclass(frozen=True, slots=True)
class Heard:
    """A node as the collector hears it now; each kind of device, or why nothing is known of it."""

    reporting: bool
    instant_ns: int
    devices: Mapping[str, Shown | str]


class Counts(NamedTuple):
    """How many devices of one kind a node has, against the inventory."""

    present: int
    missing: int
    unknown: int
    unexpected: int

    @property
    def expected(self) -> int:
        """What the inventory says."""
        return self.present + self.missing + self.unknown


@dataclass(frozen=True, slots=True)
class Standing:
    """A node against the inventory; `counts` of the kinds that the inventory tells of."""

    node: str
    state: State
    counts: Mapping[str, Counts]
    reasons: Mapping[str, str]
    """Why devices are unknown."""
    heard: Heard | None = None


def stand(expected: Mapping[str, Expected], heard: Mapping[str, Heard]) -> Iterator[Standing]:
    """How each node of the inventory, and each one that reports without being in it, stands."""
    for node in sorted(expected.keys() | {n for n, one in heard.items() if one.reporting}):
        yield standing(node, expected.get(node), heard.get(node))


def standing(node: str, expected: Expected | None, heard: Heard | None) -> Standing:
    """How one node stands."""
    if expected is None:
        return Standing(node, State.UNEXPECTED, {}, {}, heard)
    wanted = {GPU: expected.gpus, RDMA_PORT: expected.rdma_ports}
    numbers = {kind: number for kind, number in wanted.items() if number is not None}
    if heard is None:
        nothing = {kind: Counts(0, number, 0, 0) for kind, number in numbers.items()}
        return Standing(node, State.MISSING, nothing, {})
    state = State.PRESENT if heard.reporting else State.SILENT
    counts: dict[str, Counts] = {}
    reasons: dict[str, str] = {}
    for kind, number in numbers.items():
        shown = heard.devices.get(kind, "nothing is known of it")
        if isinstance(shown, str):
            counts[kind] = Counts(0, 0, number, 0)
            reasons[kind] = shown
        else:
            counts[kind] = count(number, shown)
    return Standing(node, state, counts, reasons, heard)


def count(expected: int, shown: Shown) -> Counts:
    """What is shown against a number.

    What may be there or not counts as unknown as far as the inventory has room for it: only what is
    certainly not there is missing, and only what is certainly too much is unexpected.
    """
    present = min(len(shown.present), expected)
    unknown = min(len(shown.unknown), expected - present)
    missing = expected - present - unknown
    return Counts(present, missing, unknown, max(len(shown.present) - expected, 0))

"""The inventory compared with the devices that nodes show.

Present, missing and unknown devices of a node add up to the number in the inventory; further ones
are unexpected. A stale node's devices are unknown: stale data does not show that they are gone. A
node that never reported is missing, with all of its expected devices.
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
    """State of a node relative to the inventory."""

    PRESENT = "present"
    STALE = "stale"
    MISSING = "missing"
    UNEXPECTED = "unexpected"


@dataclass(frozen=True, slots=True)
class Heard:
    """Current reports of a node; for each kind its devices, or the reason for which they are unknown."""

    reporting: bool
    instant_ns: int
    devices: Mapping[str, Shown | str]


class Counts(NamedTuple):
    """Numbers of devices of one kind in a node, relative to the inventory."""

    present: int
    missing: int
    unknown: int
    unexpected: int

    @property
    def expected(self) -> int:
        """Number in the inventory."""
        return self.present + self.missing + self.unknown


@dataclass(frozen=True, slots=True)
class Standing:
    """A node compared with the inventory; `counts` of the kinds that the inventory lists."""

    node: str
    state: State
    counts: Mapping[str, Counts]
    reasons: Mapping[str, str]
    """Reasons for unknown devices."""
    heard: Heard | None = None


def stand(expected: Mapping[str, Expected], heard: Mapping[str, Heard]) -> Iterator[Standing]:
    """Yield the comparison of each node that is in the inventory or reports."""
    for node in sorted(expected.keys() | {n for n, one in heard.items() if one.reporting}):
        yield standing(node, expected.get(node), heard.get(node))


def standing(node: str, expected: Expected | None, heard: Heard | None) -> Standing:
    """Compare one node."""
    if expected is None:
        return Standing(node, State.UNEXPECTED, {}, {}, heard)
    wanted = {GPU: expected.gpus, RDMA_PORT: expected.rdma_ports}
    numbers = {kind: number for kind, number in wanted.items() if number is not None}
    if heard is None:
        nothing = {kind: Counts(0, number, 0, 0) for kind, number in numbers.items()}
        return Standing(node, State.MISSING, nothing, {})
    state = State.PRESENT if heard.reporting else State.STALE
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
    """Compare the shown devices with a number.

    Devices that may be there or not count as unknown up to the number in the inventory: only
    devices that are certainly not there are missing, and only those that certainly exceed the
    number are unexpected.
    """
    present = min(len(shown.present), expected)
    unknown = min(len(shown.unknown), expected - present)
    missing = expected - present - unknown
    return Counts(present, missing, unknown, max(len(shown.present) - expected, 0))

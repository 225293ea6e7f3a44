"""Contents of the pages of switches, and of their JSON twins."""

from __future__ import annotations

import msgspec


class CountedValue(msgspec.Struct, frozen=True):
    """Increase of a counter or value of a gauge in base units, or the reason for its absence."""

    value: float | None = None
    absent: str = ""


class SwitchRow(msgspec.Struct, frozen=True):
    """A switch in a list."""

    name: str
    state: str
    """`read`, or `unknown` with the reason: its readings are then as of `newest_ns`."""
    reason: str
    newest_ns: int
    """Time of its newest readings; 0 if there are none."""
    age_seconds: float | None
    ports: int | None
    ports_up: int | None
    """None while the switch is unknown."""
    links: int
    faults: int


class CablingFaultRow(msgspec.Struct, frozen=True):
    """A cabling fault: the NIC of the link of a port, and the one that contradicting evidence names, or the leaves of its rail."""

    kind: str
    switch: str
    port: str
    found: tuple[str, str]
    stated: tuple[str, str]
    expected_leaves: tuple[str, ...]
    """Leaves of the rail of the NIC, of one on a leaf of another rail."""


class SwitchesModel(msgspec.Struct, frozen=True):
    """All switches, unknown ones first."""

    timestamp_ns: int
    rows: tuple[SwitchRow, ...]
    found: int
    page: int
    pages: int
    faults: tuple[CablingFaultRow, ...]
    fault_count: int


class LinkedNic(msgspec.Struct, frozen=True):
    """The NIC at the other end of a port, and its GPU."""

    node: str
    interface: str
    rail: str
    gpu: str
    """Index of the GPU on the same rail; empty if it is not known."""
    evidence: tuple[str, ...]


class PortRow(msgspec.Struct, frozen=True):
    """A port of a switch; increases are those of the interval of the page."""

    port: str
    alias: str
    state: str
    """`up`, `down`, `disabled`, or `unknown`."""
    speed: CountedValue
    neighbour: str
    link: LinkedNic | None
    pauses_sent: CountedValue
    pauses_received: CountedValue
    dropped: CountedValue
    marks: CountedValue
    depth: CountedValue
    watermark: CountedValue


class ShownInterval(msgspec.Struct, frozen=True):
    """Interval of increases, between two readings of the switch; the reason if there is none."""

    from_ns: int = 0
    to_ns: int = 0
    absent: str = ""


class SwitchModel(msgspec.Struct, frozen=True):
    """One switch, with a page of its ports."""

    timestamp_ns: int
    row: SwitchRow
    system_name: str
    description: str
    missing_tables: str
    interval: ShownInterval
    ports: tuple[PortRow, ...]
    found: int
    page: int
    pages: int
    faults: tuple[CablingFaultRow, ...]
    fault_count: int


class ComparedRow(msgspec.Struct, frozen=True):
    """Increase of a quantity at both ends of a link."""

    quantity: str
    priority: str
    """Empty for the whole port."""
    unit: str
    switch: CountedValue
    nic: CountedValue
    difference: float | None
    """Excess of the switch over the NIC; None if unknown, or if both do not count the same."""


class QueueRow(msgspec.Struct, frozen=True):
    """A queue towards the NIC."""

    queue: str
    marks: CountedValue
    dropped: CountedValue
    wred_dropped: CountedValue
    storms: CountedValue
    depth: CountedValue
    watermark: CountedValue


class SwitchPortModel(msgspec.Struct, frozen=True):
    """A port of a switch and the NIC at the other end, side by side."""

    timestamp_ns: int
    row: SwitchRow
    port: PortRow
    interval: ShownInterval
    compared: tuple[ComparedRow, ...]
    nic_absent: str
    """Reason why the side of the NIC is absent; empty if it is there."""
    queues: tuple[QueueRow, ...]
    faults: tuple[CablingFaultRow, ...]

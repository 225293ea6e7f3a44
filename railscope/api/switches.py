"""Switches, their ports, and the links between ports and NICs."""

from __future__ import annotations

import msgspec


class Counted(msgspec.Struct, frozen=True):
    """Rate of a counter per second or value of a gauge in base units, or the reason for its absence."""

    value: int | float | None = None
    absent: str = ""


class LinkEnd(msgspec.Struct, frozen=True):
    """A NIC at the end of a link; empty for none."""

    node: str
    interface: str


class CablingFault(msgspec.Struct, frozen=True, omit_defaults=True):
    """Contradicting evidence of a link: the NIC that it connects a port to, and the NIC that other evidence names."""

    kind: str
    switch: str
    port: str
    found: LinkEnd
    stated: LinkEnd
    expected_leaves: tuple[str, ...] = ()
    """Leaves of the rail of a NIC that is on a leaf of another rail."""


class PortLink(msgspec.Struct, frozen=True):
    """The NIC at the other end of a port, and the GPU on its rail."""

    node: str
    interface: str
    rail: str
    evidence: tuple[str, ...]
    switch: str | msgspec.UnsetType = msgspec.UNSET
    port: str | msgspec.UnsetType = msgspec.UNSET
    """Switch and port, in the list of links only."""
    gpu: str | msgspec.UnsetType = msgspec.UNSET
    """Index of the GPU; empty if it is not known."""


class LinkList(msgspec.Struct, frozen=True):
    """The first links of all switches and the first cabling faults, with the numbers of all."""

    timestamp_ns: int
    total: int
    links: tuple[PortLink, ...]
    total_cabling_faults: int
    cabling_faults: tuple[CablingFault, ...]


class SwitchPort(msgspec.Struct, frozen=True, omit_defaults=True):
    """A port of a switch; rates are those between its last two readings."""

    port: str
    state: str
    """`up`, `down`, `disabled`, or `unknown`."""
    speed: Counted
    """Bytes per second."""
    pauses_sent: Counted
    pauses_received: Counted
    dropped: Counted
    marks: Counted
    depth: Counted
    """Of its deepest queue, as `watermark`."""
    watermark: Counted
    index: str = ""
    alias: str = ""
    description: str = ""
    mac_address: str = ""
    lldp_port_id: str = ""
    neighbour: dict[str, str] = {}
    """Facts that the neighbour announces by LLDP."""
    link: PortLink | None = None


class _SwitchFacts(msgspec.Struct, frozen=True, kw_only=True):
    switch: str
    state: str
    """`read`, or `unknown` with the reason: the readings are then as of `newest_ns`."""
    reason: str = ""
    newest_ns: int | None = None
    """Time of its newest readings."""
    age_seconds: float | None = None
    uptime_seconds: float | None = None
    uptime: float | None = None
    """As `uptime_seconds`; removed in the release after the next one."""
    ports_up: int | None = None
    links: int = 0
    faults: int = 0
    system_name: str = ""
    chassis: str = ""
    description: str = ""
    missing_tables: str = ""
    """Tables that the switch does not have, whose readings are absent."""


class Switch(_SwitchFacts, frozen=True, kw_only=True):
    """A switch in a list."""

    ports: int | None = None


class SwitchList(msgspec.Struct, frozen=True):
    """A part of the switches, unknown ones first."""

    timestamp_ns: int
    rows: tuple[Switch, ...]
    switches: tuple[Switch, ...]
    """As `rows`; removed in the release after the next one."""
    found: int
    cabling_faults: tuple[CablingFault, ...]
    """The first ones."""
    total_cabling_faults: int
    offset: int = 0


class SwitchDetail(_SwitchFacts, frozen=True, kw_only=True):
    """One switch, with a part of its ports; `faults` is the number of all of its cabling faults."""

    timestamp_ns: int
    ports: tuple[SwitchPort, ...]
    found: int
    """Number of all ports."""
    cabling_faults: tuple[CablingFault, ...]
    offset: int = 0


class ComparedRate(msgspec.Struct, frozen=True):
    """Rate of a quantity at both ends of a link."""

    quantity: str
    priority: str
    """Empty for the whole port."""
    unit: str
    switch: Counted
    """Between the last two readings of the switch."""
    nic: Counted
    """Mean of the last minute; of pause time the largest share of ten seconds."""


class SwitchQueue(msgspec.Struct, frozen=True):
    """A queue towards the NIC."""

    queue: str
    marks: Counted
    dropped: Counted
    wred_dropped: Counted
    no_buffer_dropped: Counted
    storms: Counted
    ended_storms: Counted
    depth: Counted
    watermark: Counted
    used_share: Counted
    """Of its buffer, as `peak_share`: some switches report no bytes."""
    peak_share: Counted


class PriorityGroup(msgspec.Struct, frozen=True):
    """Buffer of what a port receives in a priority."""

    priority_group: str
    dropped: Counted
    headroom: Counted
    """Size of the headroom, in bytes."""
    headroom_watermark: Counted
    headroom_used_share: Counted
    headroom_peak_share: Counted
    """Of the headroom: some switches report no bytes."""


class TransceiverLane(msgspec.Struct, frozen=True):
    """A lane of the transceiver of a port; lane 0 is the whole transceiver."""

    lane: str
    receive_power: Counted
    """Watts, as `transmit_power`."""
    transmit_power: Counted
    bias_current: Counted
    """Amperes."""


class PortFact(msgspec.Struct, frozen=True):
    """A further quantity of a port: the rate of a counter, or the highest value of a gauge of its priorities."""

    quantity: str
    metric: str
    unit: str
    value: Counted


class SwitchPortDetail(msgspec.Struct, frozen=True):
    """A port of a switch and the NIC at the other end, side by side."""

    timestamp_ns: int
    switch: Switch
    port: SwitchPort
    compared: tuple[ComparedRate, ...]
    nic_absent: str
    """Reason why the side of the NIC is absent; empty if it is there."""
    queues: tuple[SwitchQueue, ...]
    priority_groups: tuple[PriorityGroup, ...]
    lanes: tuple[TransceiverLane, ...]
    facts: tuple[PortFact, ...]
    cabling_faults: tuple[CablingFault, ...]

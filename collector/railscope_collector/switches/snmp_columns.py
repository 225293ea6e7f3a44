"""The SNMP objects of each fact: columns of the standard MIBs, and the tables of each manufacturer.

A fact of a manufacturer is a row here: metric, column, and the conversion to the stored step.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from railscope.catalog import declare, switches as catalog
from railscope.reading import Reading
from railscope_collector.switches import switch_reading as base
from railscope_collector.switches.snmp_values import (
    Index,
    SnmpValue,
    as_nanowatts,
    as_number,
    microamperes,
    microvolts,
    millidegrees,
)

_IF, _IFX = "1.3.6.1.2.1.2.2.1.", "1.3.6.1.2.1.31.1.1.1."
IF_COLUMNS: Mapping[str, str] = {
    "ifDescr": f"{_IF}2", "ifType": f"{_IF}3", "ifPhysAddress": f"{_IF}6", "ifAdminStatus": f"{_IF}7",
    "ifOperStatus": f"{_IF}8", "ifInDiscards": f"{_IF}13", "ifInErrors": f"{_IF}14", "ifOutDiscards": f"{_IF}19",
    "ifOutErrors": f"{_IF}20", "ifName": f"{_IFX}1", "ifHCInOctets": f"{_IFX}6", "ifHCInUcastPkts": f"{_IFX}7",
    "ifHCInMulticastPkts": f"{_IFX}8", "ifHCInBroadcastPkts": f"{_IFX}9", "ifHCOutOctets": f"{_IFX}10",
    "ifHCOutUcastPkts": f"{_IFX}11", "ifHCOutMulticastPkts": f"{_IFX}12", "ifHCOutBroadcastPkts": f"{_IFX}13",
    "ifHighSpeed": f"{_IFX}15", "ifAlias": f"{_IFX}18",
}  # fmt: skip
"""Columns of ifTable and ifXTable (RFC 2863), by interface.

Bytes and packets are those of 64 bits only: the others have 32, and at 400 Gb/s 2^32 bytes pass in 86 milliseconds. A
switch must have the former for ports above 650 Mb/s.
"""
COUNTERS: Mapping[declare.Metric, str] = {
    catalog.RECEIVED: "ifHCInOctets", catalog.SENT: "ifHCOutOctets", catalog.RECEIVED_ERRORS: "ifInErrors",
    catalog.SENT_ERRORS: "ifOutErrors", catalog.RECEIVED_DISCARDS: "ifInDiscards", catalog.SENT_DISCARDS: "ifOutDiscards",
}  # fmt: skip
PACKET_KINDS = ("Ucast", "Multicast", "Broadcast")
_PFC = "1.3.111.2.802.1.1.21.1.1.1."
PFC_COLUMNS: Mapping[str, str] = {"sent": f"{_PFC}2", "received": f"{_PFC}3"}
"""ieee8021PfcIfTable, by interface: requests are sent, indications received."""
_LLDP = "1.0.8802.1.1.2.1."
NEIGHBOUR_COLUMNS: Mapping[str, str] = {
    "chassis_kind": f"{_LLDP}4.1.1.4", "chassis": f"{_LLDP}4.1.1.5", "port_kind": f"{_LLDP}4.1.1.6",
    "port": f"{_LLDP}4.1.1.7", "port_description": f"{_LLDP}4.1.1.8", "system_name": f"{_LLDP}4.1.1.9",
    "local_kind": f"{_LLDP}3.7.1.2", "local_port": f"{_LLDP}3.7.1.3", "local_description": f"{_LLDP}3.7.1.4",
}  # fmt: skip
"""lldpRemTable, by time, local port and number; lldpLocPortTable, by local port."""
SYS_UPTIME = "1.3.6.1.2.1.1.3.0"
SCALARS: Mapping[str, str] = {
    "sysDescr": "1.3.6.1.2.1.1.1.0", "sysObjectID": "1.3.6.1.2.1.1.2.0", "sysUpTime": SYS_UPTIME,
    "sysName": "1.3.6.1.2.1.1.5.0", "chassis_kind": f"{_LLDP}3.1.0", "chassis": f"{_LLDP}3.2.0",
}  # fmt: skip


STANDARD, COMWARE = "standard", "comware"
"""Manufacturers by whose names the reader decides."""

# Tables of manufacturers -------------------------------------------------------------------------


class Fact(NamedTuple):
    """A metric, and the column that holds it."""

    metric: declare.Metric
    column: str
    after: Index = ()
    """Numbers of the index behind the one of the priority or queue."""
    convert: Callable[[SnmpValue | None], Reading] = as_number


# Compared by identity: each is declared once, and is a key.
@dataclass(frozen=True, slots=True, eq=False)
class VendorTable:
    """A table of a manufacturer: facts of ports, or of the priorities, queues or lanes of ports."""

    name: str
    """Name in `missing_tables`."""
    stream: str
    facts: Sequence[Fact]
    of_ports: Sequence[Fact] = ()
    """Facts of lanes that are read by interface alone, for ports without rows of lanes: those of lane 0."""
    before: Index = ()
    """Numbers of the index between the one of the interface and the one of the priority or queue."""
    first: int | None = 0
    """Number of priority or queue 0; None if only the rows show it, as they begin with 0 or end with 8."""
    changes_slowly: bool = False
    """True for a table that is read once per minute: a transceiver measures by itself, and its bus is slow."""

    @property
    def about(self) -> declare.EntityKind:
        """Kind of entity of all facts."""
        return self.facts[0].metric.about

    @property
    def columns(self) -> Mapping[str, str]:
        """Columns to read, by themselves."""
        return {fact.column: fact.column for fact in (*self.facts, *self.of_ports)}


_CISCO_PFC, _CISCO_QUEUES = "1.3.6.1.4.1.9.9.813.1.2.1.", "1.3.6.1.4.1.9.9.580.1.5.5.1.4"
_MELLANOX = "1.3.6.1.4.1.33049.15.1.1.1."
_EGRESS = 2
_PRIORITIES, _QUEUES = "PFC by priority", "queues"


def _priorities(sent: str, received: str) -> VendorTable:
    facts = Fact(catalog.PFC_RECEIVED, received), Fact(catalog.PFC_SENT, sent)
    return VendorTable(_PRIORITIES, base.PRIORITY, facts)


_CISCO = (
    _priorities(f"{_CISCO_PFC}2", f"{_CISCO_PFC}3"),
    VendorTable(
        _QUEUES,
        base.QUEUES,
        # Statistics of unicast packets (csqIfQosGroupStats)
        (
            Fact(catalog.QUEUE_PACKETS, _CISCO_QUEUES, (1,)),
            Fact(catalog.QUEUE_BYTES, _CISCO_QUEUES, (2,)),
            Fact(catalog.QUEUE_DROPPED_PACKETS, _CISCO_QUEUES, (5,)),
            Fact(catalog.QUEUE_DROPPED_BYTES, _CISCO_QUEUES, (6,)),
        ),
        before=(_EGRESS,),
        first=1,
    ),
)


_HH3C = "1.3.6.1.4.1.25506.2."
_RATES, _BUFFERS, _ETHER, _QOS = (
    f"{_HH3C}{table}." for table in ("40.2.2.5.1", "40.2.2.6.1", "40.5.1.1.1", "65.1.1.2.1.1")
)
_MODULE, _CHANNEL = f"{_HH3C}70.1.1.1.", f"{_HH3C}70.1.2.1."
_COMWARE = (
    VendorTable(
        "frame errors and pauses",
        base.PORTS,
        (
            Fact(catalog.FCS_ERRORS, f"{_ETHER}8"),
            Fact(catalog.PAUSE_RECEIVED, f"{_ETHER}9"),
            Fact(catalog.PAUSE_SENT, f"{_ETHER}10"),
        ),
    ),
    VendorTable(
        "PFC rate by priority",
        base.PRIORITY,
        (
            Fact(catalog.PFC_RECEIVED_RATE, f"{_RATES}2"),
            Fact(catalog.PFC_SENT_RATE, f"{_RATES}3"),
        ),
        first=1,
    ),
    VendorTable(
        _QUEUES,
        base.QUEUES,
        (
            Fact(catalog.QUEUE_PACKETS, f"{_QOS}1"),
            Fact(catalog.QUEUE_BYTES, f"{_QOS}3"),
            Fact(catalog.QUEUE_DROPPED_PACKETS, f"{_QOS}2"),
            Fact(catalog.QUEUE_DROPPED_BYTES, f"{_QOS}6"),
        ),
        first=None,
    ),
    VendorTable(
        "WRED drops and depth of queues",
        base.QUEUE_MARKS,
        (
            Fact(catalog.QUEUE_WRED_DROPPED_PACKETS, f"{_QOS}17"),
            Fact(catalog.QUEUE_OCCUPANCY, f"{_QOS}10"),
        ),
        first=None,
    ),
    # The amounts in this table have no stated unit; their shares have one.
    VendorTable(
        "buffers of queues",
        base.QUEUE_MARKS,
        (Fact(catalog.QUEUE_USED, f"{_BUFFERS}4"), Fact(catalog.QUEUE_PEAK, f"{_BUFFERS}5")),
        first=1,
    ),
    VendorTable(
        "buffers of priority groups",
        base.WATERMARKS,
        (
            Fact(catalog.GROUP_USED, f"{_BUFFERS}10"),
            Fact(catalog.GROUP_PEAK, f"{_BUFFERS}11"),
            Fact(catalog.GROUP_HEADROOM_USED, f"{_BUFFERS}16"),
            Fact(catalog.GROUP_HEADROOM_PEAK, f"{_BUFFERS}17"),
        ),
        first=1,
    ),
    VendorTable(
        "transceivers",
        base.LANES,
        (
            Fact(catalog.TRANSCEIVER_TEMPERATURE, f"{_MODULE}15", convert=millidegrees),
            Fact(catalog.TRANSCEIVER_SUPPLY, f"{_MODULE}16", convert=microvolts),
        ),
        changes_slowly=True,
    ),
    VendorTable(
        "power of transceivers",
        base.LANES,
        (
            Fact(catalog.TRANSCEIVER_RECEIVE_POWER, f"{_CHANNEL}3", convert=as_nanowatts),
            Fact(catalog.TRANSCEIVER_TRANSMIT_POWER, f"{_CHANNEL}2", convert=as_nanowatts),
            Fact(catalog.TRANSCEIVER_BIAS, f"{_CHANNEL}5", convert=microamperes),
        ),
        of_ports=(
            Fact(catalog.TRANSCEIVER_RECEIVE_POWER, f"{_MODULE}12", convert=as_nanowatts),
            Fact(catalog.TRANSCEIVER_TRANSMIT_POWER, f"{_MODULE}9", convert=as_nanowatts),
            Fact(catalog.TRANSCEIVER_BIAS, f"{_MODULE}17", convert=microamperes),
        ),
        changes_slowly=True,
    ),
)
VENDOR_TABLES: Mapping[str, Sequence[VendorTable]] = {
    STANDARD: (),
    "cisco": _CISCO,
    "sonic": _CISCO,
    "onyx": (_priorities(f"{_MELLANOX}15", f"{_MELLANOX}8"),),
    COMWARE: _COMWARE,
}
DEFAULT_TABLES: Sequence[VendorTable] = _CISCO
"""Tables whose facts are absent, not omitted, where a manufacturer has none of them."""
_ENTERPRISES = "1.3.6.1.4.1."
_VENDOR_OF_ENTERPRISE = {
    9: "cisco",
    8072: "sonic",
    25506: COMWARE,
    33049: "onyx",
}
"""Numbers of IANA in sysObjectID. 8072 is Net-SNMP, which SONiC runs; of other systems with it the tables have no rows."""


def find_vendor(object_id: SnmpValue | None) -> str:
    """Return the manufacturer's tables that a sysObjectID stands for; the standard ones if it is unknown."""
    text = object_id if isinstance(object_id, str) else ""
    number = text.removeprefix(".").removeprefix(_ENTERPRISES).partition(".")[0]
    enterprise = int(number) if number.isascii() and number.isdecimal() else 0
    return _VENDOR_OF_ENTERPRISE.get(enterprise, STANDARD)

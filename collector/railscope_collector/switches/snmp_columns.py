"""The SNMP objects to read: scalars, interfaces and neighbours of every switch, and the tables of each manufacturer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from railscope_collector.switches.snmp_values import SnmpValue
from railscope_collector.switches.switch_facts import (
    CISCO,
    COMWARE,
    FACTS,
    INTERFACES,
    LLDP,
    STANDARD,
    SnmpTable,
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

# Tables of manufacturers -------------------------------------------------------------------------

_COLUMNS_OF = {"sonic": CISCO}
"""Column of the table of facts for a manufacturer that has the tables of another one."""
_OPTIONAL = [
    (column, oid)
    for facts in FACTS.values()
    for fact in facts
    for column, oid in fact.snmp.items()
    if oid.table not in {INTERFACES, LLDP}
]
VENDOR_TABLES: Mapping[str, Sequence[SnmpTable]] = {
    vendor: tuple(
        dict.fromkeys(
            oid.table
            for column, oid in _OPTIONAL
            if column in {STANDARD, _COLUMNS_OF.get(vendor, vendor)}
        )
    )
    for vendor in (*dict.fromkeys(column for column, _ in _OPTIONAL), *_COLUMNS_OF)
}
"""Tables that a switch need not have, by manufacturer."""
DEFAULT_COLUMNS = frozenset({STANDARD, CISCO})
"""Facts in these columns are absent, not omitted, where a manufacturer has none of them."""
TABLE_COLUMNS: Mapping[SnmpTable, Mapping[str, str]] = {
    table: {
        name: name
        for _, oid in _OPTIONAL
        if oid.table is table
        for name in (oid.name, oid.whole)
        if name
    }
    for tables in VENDOR_TABLES.values()
    for table in tables
}
"""Columns to read of these tables, by themselves."""
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

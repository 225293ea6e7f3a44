"""The facts of switches: a row for each fact, and a column for each dialect with its name of the fact.

Unit, kind and width of a fact are those of its metric in the catalog. Several names in a cell are alternatives; `+` joins
counters whose sum the fact is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from typing import NamedTuple, TypeAlias, TypeVar

from railscope.catalog import declare, switches as catalog
from railscope.reading import Absent, Reading, known_speed
from railscope_collector.switches import switch_reading as base

STANDARD, CISCO, ONYX, COMWARE = "standard", "cisco", "onyx", "comware"
"""Columns by SNMP: the MIBs that every switch may have, and those of manufacturers."""
OPENCONFIG, CUMULUS = "openconfig", "cumulus"
POOLS = "switch_pools"
"""Stream of the frames of a switch that only SONiC has."""


# Columns of SNMP ---------------------------------------------------------------------------------


# Compared by identity: each is declared once, and is a key.
@dataclass(frozen=True, slots=True, eq=False)
class SnmpTable:
    """A table of a MIB: a switch has all of it or nothing. Its rows have the interface first in their index."""

    name: str
    """Name in `missing_tables`."""
    before: tuple[int, ...] = ()
    """Numbers of the index between the one of the interface and the one of the priority or queue."""
    first: int | None = 0
    """Number of priority or queue 0; None if only the rows show it, as they begin with 0 or end with 8."""
    changes_slowly: bool = False
    """True for a table that is read once per minute: a transceiver measures by itself, and its bus is slow."""


class Oid(NamedTuple):
    """A column of a table of a MIB."""

    table: SnmpTable
    name: str
    after: tuple[int, ...] = ()
    """Numbers of the index behind the one of the priority or queue."""
    whole: str = ""
    """Column by interface alone, for ports without rows of lanes: it is about the whole transceiver."""


INTERFACES, LLDP = SnmpTable("IF-MIB"), SnmpTable("LLDP-MIB")
"""Tables of each switch, from which texts are read as well: their columns have names (`snmp_columns`)."""
_PFC = SnmpTable("IEEE8021-PFC-MIB")
_CISCO_PFC, _ONYX_PFC = (SnmpTable("PFC by priority") for _ in range(2))
_CISCO_QUEUES = SnmpTable("queues", before=(2,), first=1)
"""Statistics of unicast packets (csqIfQosGroupStats); 2 is egress."""
_HH3C_ETHER = SnmpTable("frame errors and pauses")
_HH3C_RATES = SnmpTable("PFC rate by priority", first=1)
_HH3C_QUEUES = SnmpTable("queues", first=None)
_HH3C_MARKS = SnmpTable("WRED drops and depth of queues", first=None)
_HH3C_BUFFERS = SnmpTable("buffers of queues", first=1)
"""Its amounts have no stated unit; its shares have one."""
_HH3C_GROUPS = SnmpTable("buffers of priority groups", first=1)
_HH3C_OPTICS = SnmpTable("transceivers", changes_slowly=True)
_HH3C_LANES = SnmpTable("power of transceivers", changes_slowly=True)

_PFC_IF, _CISCO_IF, _MELLANOX = (
    "1.3.111.2.802.1.1.21.1.1.1.", "1.3.6.1.4.1.9.9.813.1.2.1.", "1.3.6.1.4.1.33049.15.1.1.1."
)  # fmt: skip
_QOS_GROUP = "1.3.6.1.4.1.9.9.580.1.5.5.1.4"
_HH3C = "1.3.6.1.4.1.25506.2."
_RATE, _BUFFER, _ETHER, _QOS = (
    f"{_HH3C}{table}." for table in ("40.2.2.5.1", "40.2.2.6.1", "40.5.1.1.1", "65.1.1.2.1.1")
)
_MODULE, _CHANNEL = f"{_HH3C}70.1.1.1.", f"{_HH3C}70.1.2.1."

# Prefixes of names -------------------------------------------------------------------------------

_SAI_PORT, _SAI_PFC = "COUNTERS/SAI_PORT_STAT_IF_", "COUNTERS/SAI_PORT_STAT_PFC_{}_"
_SAI_QUEUE, _WATCHDOG_QUEUE = "Queues/SAI_QUEUE_STAT_", "Queues/PFC_WD_QUEUE_STATS_"
_SAI_GROUP = "PriorityGroups/SAI_INGRESS_PRIORITY_GROUP_STAT_"
OC_PORT, SRL_PORT = "interfaces/interface[name]/", "interface[name]/"
OC_STATE, OC_ETHERNET = f"{OC_PORT}state/", f"{OC_PORT}ethernet/state/"
_OC, _SRL = f"{OC_STATE}counters/", f"{SRL_PORT}statistics/"
_OC_ETHER, _SRL_ETHER = f"{OC_ETHERNET}counters/", f"{SRL_PORT}ethernet/statistics/"
_OC_PFC = f"{OC_PORT}ethernet/pfc/priorities/priority[index]/state/"
_OC_WATCHDOG = f"{OC_PORT}ethernet/pfc/watchdog/tx-queues/tx-queue[index][queue-type]/state/"
_SRL_PFC = "qos/interfaces/interface[interface-id]/pfc/statistics/pfc-priority[index]/"
OC_QUEUE = "qos/interfaces/interface[interface-id]/output/queues/queue[name]/state/"
_SRL_QUEUE = "qos/interfaces/interface[interface-id]/output/queues/queue[queue-name]/queue-statistics/aggregate-statistics/"
_OC_LANE = "components/component[name]/transceiver/physical-channels/channel[index]/state/"
_SRL_LANE = f"{SRL_PORT}transceiver/channel[index]/"
OC_NEIGHBOUR, SRL_NEIGHBOUR = (
    "lldp/interfaces/interface[name]/neighbors/neighbor[id]/state/", "system/lldp/interface[name]/neighbor[id]/"
)  # fmt: skip

# The table ---------------------------------------------------------------------------------------

Cell: TypeAlias = "str | tuple[str, ...]"
Name = TypeVar("Name")
Names: TypeAlias = tuple[tuple[Name, ...], ...]
"""Alternatives, of which the first that a switch answers counts; several names of one are counters to add."""
SUM = " + "


class Fact(NamedTuple):
    """A row: the metric, and the names of the fact in each dialect; empty if the dialect does not have it."""

    metric: declare.Metric
    snmp: Mapping[str, Oid] = {}
    """By manufacturer."""
    sonic: Cell = ()
    """Table of the databases and field; `{}` is the priority."""
    openconfig: Cell = ()
    """Path, which Arista EOS extends."""
    srlinux: Cell = ()
    """Path of Nokia's own models."""
    cumulus: Cell = ()
    """Metric by OTLP."""


def _if(name: str) -> Mapping[str, Oid]:
    return {STANDARD: Oid(INTERFACES, name)}


def _packets(direction: str) -> Mapping[str, Oid]:
    return _if(SUM.join(f"ifHC{direction}{kind}Pkts" for kind in ("Ucast", "Multicast", "Broadcast")))  # fmt: skip


def _comware(table: SnmpTable, name: str, whole: str = "") -> Mapping[str, Oid]:
    return {COMWARE: Oid(table, name, whole=whole)}


def _all(name: str) -> str:
    return SUM.join(map(name.format, base.PRIORITIES))


# fmt: off
FACTS: Mapping[str, Sequence[Fact]] = {
    base.PORTS: (
        Fact(catalog.PORT_UP, _if("ifOperStatus"), "PORT_TABLE/oper_status", f"{OC_STATE}oper-status", f"{SRL_PORT}oper-state", "interface_oper_state"),
        Fact(catalog.PORT_ENABLED, _if("ifAdminStatus"), "PORT_TABLE/admin_status", f"{OC_STATE}admin-status", f"{SRL_PORT}admin-state"),
        Fact(catalog.SPEED, _if("ifHighSpeed"), "PORT_TABLE/speed", f"{OC_ETHERNET}port-speed", f"{SRL_PORT}ethernet/port-speed", "interface_oper_aggregate_speed"),
        Fact(catalog.RECEIVED, _if("ifHCInOctets"), f"{_SAI_PORT}IN_OCTETS", f"{_OC}in-octets", f"{_SRL}in-octets", "interface_if_in_octets"),
        Fact(catalog.SENT, _if("ifHCOutOctets"), f"{_SAI_PORT}OUT_OCTETS", f"{_OC}out-octets", f"{_SRL}out-octets", "interface_if_out_octets"),
        # Some switches with SONiC count multicast and broadcast together only; some with OpenConfig have no total of all kinds.
        Fact(
            catalog.RECEIVED_PACKETS, _packets("In"),
            (f"{_SAI_PORT}IN_UCAST_PKTS + {_SAI_PORT}IN_MULTICAST_PKTS + {_SAI_PORT}IN_BROADCAST_PKTS", f"{_SAI_PORT}IN_UCAST_PKTS + {_SAI_PORT}IN_NON_UCAST_PKTS"),
            (f"{_OC}in-pkts", f"{_OC}in-unicast-pkts + {_OC}in-multicast-pkts + {_OC}in-broadcast-pkts"), f"{_SRL}in-packets",
            "interface_if_in_ucast_pkts + interface_if_in_multicast_pkts + interface_if_in_broadcast_pkts",
        ),
        Fact(
            catalog.SENT_PACKETS, _packets("Out"),
            (f"{_SAI_PORT}OUT_UCAST_PKTS + {_SAI_PORT}OUT_MULTICAST_PKTS + {_SAI_PORT}OUT_BROADCAST_PKTS", f"{_SAI_PORT}OUT_UCAST_PKTS + {_SAI_PORT}OUT_NON_UCAST_PKTS"),
            (f"{_OC}out-pkts", f"{_OC}out-unicast-pkts + {_OC}out-multicast-pkts + {_OC}out-broadcast-pkts"), f"{_SRL}out-packets",
            "interface_if_out_ucast_pkts + interface_if_out_multicast_pkts + interface_if_out_broadcast_pkts",
        ),
        Fact(catalog.RECEIVED_ERRORS, _if("ifInErrors"), f"{_SAI_PORT}IN_ERRORS", f"{_OC}in-errors", f"{_SRL}in-error-packets", "interface_if_in_errors"),
        Fact(catalog.SENT_ERRORS, _if("ifOutErrors"), f"{_SAI_PORT}OUT_ERRORS", f"{_OC}out-errors", f"{_SRL}out-error-packets", "interface_if_out_errors"),
        Fact(catalog.RECEIVED_DISCARDS, _if("ifInDiscards"), f"{_SAI_PORT}IN_DISCARDS", f"{_OC}in-discards", f"{_SRL}in-discarded-packets", "interface_if_in_discards"),
        Fact(catalog.SENT_DISCARDS, _if("ifOutDiscards"), f"{_SAI_PORT}OUT_DISCARDS", f"{_OC}out-discards", f"{_SRL}out-discarded-packets", "interface_if_out_discards"),
        # In ieee8021PfcIfTable requests are sent, indications received. By OpenConfig all priorities are added.
        Fact(catalog.ALL_PFC_RECEIVED, {STANDARD: Oid(_PFC, f"{_PFC_IF}3")}, _all(f"{_SAI_PFC}RX_PKTS"), f"{_OC_PFC}in-frames", f"{_SRL_PFC}pfc-pause-frames-received"),
        Fact(catalog.ALL_PFC_SENT, {STANDARD: Oid(_PFC, f"{_PFC_IF}2")}, _all(f"{_SAI_PFC}TX_PKTS"), f"{_OC_PFC}out-frames", f"{_SRL_PFC}pfc-pause-frames-generated"),
        Fact(catalog.PAUSE_RECEIVED, _comware(_HH3C_ETHER, f"{_ETHER}9"), (), f"{_OC_ETHER}in-mac-pause-frames", f"{_SRL_ETHER}in-mac-pause-frames", "interface_dot3_in_pause_frames"),
        Fact(catalog.PAUSE_SENT, _comware(_HH3C_ETHER, f"{_ETHER}10"), (), f"{_OC_ETHER}out-mac-pause-frames", f"{_SRL_ETHER}out-mac-pause-frames", "interface_dot3_out_pause_frames"),
        Fact(catalog.FCS_ERRORS, _comware(_HH3C_ETHER, f"{_ETHER}8"), (), (f"{_OC}in-fcs-errors", f"{_OC_ETHER}in-crc-errors"), (), "interface_dot3_stats_fcs_errors"),
        Fact(catalog.SYMBOL_ERRORS, cumulus="interface_dot3_stats_symbol_errors"),
        Fact(catalog.CORRECTED, cumulus="interface_phy_stats_phy_corrected_bits"),
        Fact(catalog.UNCORRECTED_SYMBOLS, cumulus="interface_phy_stats_phy_symbol_errors"),
        Fact(catalog.FEC_CORRECTED, {}, f"{_SAI_PORT}IN_FEC_CORRECTABLE_FRAMES", f"{_OC_ETHER}fec-corrected-blocks"),
        Fact(catalog.FEC_UNCORRECTABLE, {}, f"{_SAI_PORT}IN_FEC_NOT_CORRECTABLE_FRAMES", f"{_OC_ETHER}fec-uncorrectable-blocks"),
    ),
    base.PRIORITY: (
        Fact(
            catalog.PFC_RECEIVED,
            {
                CISCO: Oid(_CISCO_PFC, f"{_CISCO_IF}3"),
                ONYX: Oid(_ONYX_PFC, f"{_MELLANOX}8"),
            },
            f"{_SAI_PFC}RX_PKTS", f"{_OC_PFC}in-frames", f"{_SRL_PFC}pfc-pause-frames-received", "interface_sp_rx_pause",
        ),
        Fact(
            catalog.PFC_SENT,
            {
                CISCO: Oid(_CISCO_PFC, f"{_CISCO_IF}2"),
                ONYX: Oid(_ONYX_PFC, f"{_MELLANOX}15"),
            },
            f"{_SAI_PFC}TX_PKTS", f"{_OC_PFC}out-frames", f"{_SRL_PFC}pfc-pause-frames-generated", "interface_sp_tx_pause",
        ),
        Fact(catalog.PFC_RECEIVED_RATE, _comware(_HH3C_RATES, f"{_RATE}2")),
        Fact(catalog.PFC_SENT_RATE, _comware(_HH3C_RATES, f"{_RATE}3")),
        Fact(catalog.PAUSES_ENDED, {}, f"{_SAI_PFC}ON2OFF_RX_PKTS"),
        Fact(catalog.ESTIMATED_PAUSE, {}, "COUNTERS/EST_PORT_STAT_PFC_{}_RX_PAUSE_DURATION_US"),
        Fact(catalog.PFC_RECEIVED_TIME, cumulus="interface_sp_rx_pause_duration"),
        Fact(catalog.PFC_SENT_TIME, cumulus="interface_sp_tx_pause_duration"),
        Fact(catalog.PFC_RECEIVED_TRANSITIONS, cumulus="interface_sp_rx_pause_transition"),
    ),
    base.QUEUES: (
        Fact(catalog.QUEUE_PACKETS, {CISCO: Oid(_CISCO_QUEUES, _QOS_GROUP, (1,)), COMWARE: Oid(_HH3C_QUEUES, f"{_QOS}1")}, f"{_SAI_QUEUE}PACKETS", f"{OC_QUEUE}transmit-pkts", f"{_SRL_QUEUE}transmitted-packets", "interface_tc_tx_uc_frames"),
        Fact(catalog.QUEUE_BYTES, {CISCO: Oid(_CISCO_QUEUES, _QOS_GROUP, (2,)), COMWARE: Oid(_HH3C_QUEUES, f"{_QOS}3")}, f"{_SAI_QUEUE}BYTES", f"{OC_QUEUE}transmit-octets", f"{_SRL_QUEUE}transmitted-octets"),
        Fact(catalog.QUEUE_DROPPED_PACKETS, {CISCO: Oid(_CISCO_QUEUES, _QOS_GROUP, (5,)), COMWARE: Oid(_HH3C_QUEUES, f"{_QOS}2")}, f"{_SAI_QUEUE}DROPPED_PACKETS", f"{OC_QUEUE}dropped-pkts", f"{_SRL_QUEUE}dropped-packets"),
        Fact(catalog.QUEUE_DROPPED_BYTES, {CISCO: Oid(_CISCO_QUEUES, _QOS_GROUP, (6,)), COMWARE: Oid(_HH3C_QUEUES, f"{_QOS}6")}, f"{_SAI_QUEUE}DROPPED_BYTES", f"{OC_QUEUE}dropped-octets", f"{_SRL_QUEUE}dropped-octets"),
        Fact(catalog.QUEUE_NO_BUFFER_DROPPED, cumulus="interface_tc_tx_no_buffer_discard_uc"),
    ),
    base.QUEUE_MARKS: (
        Fact(catalog.QUEUE_MARKED_PACKETS, {}, f"{_SAI_QUEUE}WRED_ECN_MARKED_PACKETS", f"{OC_QUEUE}ecn-marked-pkts", f"{_SRL_QUEUE}ecn-marked-packets", "interface_tc_tx_ecn_marked_tc"),
        Fact(catalog.QUEUE_MARKED_BYTES, {}, f"{_SAI_QUEUE}WRED_ECN_MARKED_BYTES", f"{OC_QUEUE}ecn-marked-octets"),
        Fact(catalog.QUEUE_WRED_DROPPED_PACKETS, _comware(_HH3C_MARKS, f"{_QOS}17"), f"{_SAI_QUEUE}WRED_DROPPED_PACKETS", f"{OC_QUEUE}wred-dropped-pkts", (), "interface_tc_tx_wred_discard"),
        Fact(catalog.QUEUE_OCCUPANCY, _comware(_HH3C_MARKS, f"{_QOS}10"), f"{_SAI_QUEUE}CURR_OCCUPANCY_BYTES"),
        Fact(catalog.QUEUE_USED, _comware(_HH3C_BUFFERS, f"{_BUFFER}4")),
        Fact(catalog.QUEUE_PEAK, _comware(_HH3C_BUFFERS, f"{_BUFFER}5")),
    ),
    base.WATCHDOG: (
        Fact(catalog.WATCHDOG_STORM, {}, "Queues/PFC_WD_STATUS"),
        Fact(catalog.WATCHDOG_DETECTED, {}, f"{_WATCHDOG_QUEUE}DEADLOCK_DETECTED", f"{_OC_WATCHDOG}stuck-count"),
        Fact(catalog.WATCHDOG_RESTORED, {}, f"{_WATCHDOG_QUEUE}DEADLOCK_RESTORED", f"{_OC_WATCHDOG}recovery-count", f"{_SRL_PFC}deadlock-recovery-occurrences"),
        Fact(catalog.WATCHDOG_DROPPED, {}, f"{_WATCHDOG_QUEUE}TX_DROPPED_PACKETS + {_WATCHDOG_QUEUE}RX_DROPPED_PACKETS"),
    ),
    base.WATERMARKS: (
        # A gauge, though its type is counter64 (openconfig-qos-interfaces: "Maximum observed queue length", bytes).
        Fact(catalog.QUEUE_WATERMARK, {}, f"{_SAI_QUEUE}SHARED_WATERMARK_BYTES", f"{OC_QUEUE}max-queue-len"),
        Fact(catalog.GROUP_SHARED_WATERMARK, {}, f"{_SAI_GROUP}SHARED_WATERMARK_BYTES"),
        Fact(catalog.GROUP_HEADROOM_WATERMARK, {}, f"{_SAI_GROUP}XOFF_ROOM_WATERMARK_BYTES"),
        Fact(catalog.GROUP_HEADROOM, {}, "BUFFER_PROFILE_TABLE/xoff"),
        Fact(catalog.GROUP_USED, _comware(_HH3C_GROUPS, f"{_BUFFER}10")),
        Fact(catalog.GROUP_PEAK, _comware(_HH3C_GROUPS, f"{_BUFFER}11")),
        Fact(catalog.GROUP_HEADROOM_USED, _comware(_HH3C_GROUPS, f"{_BUFFER}16")),
        Fact(catalog.GROUP_HEADROOM_PEAK, _comware(_HH3C_GROUPS, f"{_BUFFER}17")),
        Fact(catalog.GROUP_DROPPED, cumulus="interface_pg_rx_buffer_discard"),
        Fact(catalog.GROUP_SHARED_DROPPED, cumulus="interface_pg_rx_shared_buffer_discard"),
    ),
    POOLS: (
        Fact(catalog.POOL_WATERMARK, {}, "SAI_BUFFER_POOL_STAT_WATERMARK_BYTES"),
        Fact(catalog.POOL_HEADROOM_WATERMARK, {}, "SAI_BUFFER_POOL_STAT_XOFF_ROOM_WATERMARK_BYTES"),
    ),
    base.LANES: (
        Fact(catalog.TRANSCEIVER_TEMPERATURE, _comware(_HH3C_OPTICS, f"{_MODULE}15")),
        Fact(catalog.TRANSCEIVER_SUPPLY, _comware(_HH3C_OPTICS, f"{_MODULE}16")),
        Fact(catalog.TRANSCEIVER_RECEIVE_POWER, _comware(_HH3C_LANES, f"{_CHANNEL}3", f"{_MODULE}12"), (), f"{_OC_LANE}input-power/instant", f"{_SRL_LANE}input-power/latest-value"),
        Fact(catalog.TRANSCEIVER_TRANSMIT_POWER, _comware(_HH3C_LANES, f"{_CHANNEL}2", f"{_MODULE}9"), (), f"{_OC_LANE}output-power/instant", f"{_SRL_LANE}output-power/latest-value"),
        Fact(catalog.TRANSCEIVER_BIAS, _comware(_HH3C_LANES, f"{_CHANNEL}5", f"{_MODULE}17"), (), f"{_OC_LANE}laser-bias-current/instant", f"{_SRL_LANE}laser-bias-current/latest-value"),
    ),
    base.NEIGHBOURS: (
        Fact(catalog.NEIGHBOUR_KNOWN, {STANDARD: Oid(LLDP, "chassis")}, "LLDP_ENTRY_TABLE/lldp_rem_chassis_id", f"{OC_NEIGHBOUR}chassis-id", f"{SRL_NEIGHBOUR}chassis-id", "lldp_neighbor_info"),
    ),
}
# fmt: on
"""Rows by the stream of the frames of a switch that is polled."""

_OPTICAL_POWERS = {catalog.TRANSCEIVER_RECEIVE_POWER, catalog.TRANSCEIVER_TRANSMIT_POWER}
UNITS: Mapping[str, Mapping[declare.Metric, Fraction]] = {
    COMWARE: {
        catalog.TRANSCEIVER_TEMPERATURE: Fraction(1),
        catalog.TRANSCEIVER_SUPPLY: declare.CENTI,
        catalog.TRANSCEIVER_BIAS: declare.CENTI * declare.MILLI,
        **dict.fromkeys(_OPTICAL_POWERS, declare.CENTI),
    },
    OPENCONFIG: {
        catalog.TRANSCEIVER_BIAS: declare.MILLI,
        **dict.fromkeys(_OPTICAL_POWERS, Fraction(1)),
    },
    CUMULUS: {catalog.SPEED: Fraction(1, 8)},
}
"""Unit of those facts that a dialect does not state in the steps of the catalog, in base units; of optical powers in dBm."""


def as_stored(
    metric: declare.Metric, value: Reading | Decimal, unit: Fraction | None = None
) -> Reading:
    """Return a value of a unit in the steps of the catalog."""
    # A mark of an unknown speed is none in another unit.
    if metric is catalog.SPEED and isinstance(value, int):
        value = known_speed(value)
    if isinstance(value, Absent):
        return value
    if unit is None:
        return int(value)
    amount = Fraction(value) * unit
    if metric in _OPTICAL_POWERS:
        return base.as_nanowatts(float(amount))
    steps = int(amount / metric.scale)
    return known_speed(steps) if metric is catalog.SPEED else steps


# Selection ---------------------------------------------------------------------------------------


def select(*columns: Callable[[Fact], Cell]) -> Mapping[str, Mapping[declare.Metric, Names[str]]]:
    """Return the names in columns, by stream and metric; those of later columns are further alternatives."""
    return {
        stream: {fact.metric: names for fact in facts if (names := _names(fact, columns))}
        for stream, facts in FACTS.items()
    }


def _names(fact: Fact, columns: Iterable[Callable[[Fact], Cell]]) -> Names[str]:
    cells = (column(fact) for column in columns)
    texts = (text for cell in cells for text in ((cell,) if isinstance(cell, str) else cell))
    return tuple(tuple(text.split(SUM)) for text in texts)

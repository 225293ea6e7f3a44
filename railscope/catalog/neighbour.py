"""Switch ports that NICs are connected to, from LLDP."""

from railscope.catalog.declare import EventClass, Kind, Metric, Rollup
from railscope.catalog.entities import NIC, NIC_NEIGHBOUR

_LLDP = "LLDP frames (IEEE 802.1AB) of the interface"

NEIGHBOUR_INFO = Metric(
    "railscope_nic_neighbour_info",
    Kind.INFO,
    NIC_NEIGHBOUR,
    help="Switch and switch port that this interface is plugged into.",
    origin=_LLDP,
)
NEIGHBOUR_KNOWN = Metric(
    "railscope_nic_neighbour_known",
    Kind.GAUGE,
    NIC,
    rollups=(Rollup.SUM, Rollup.MIN),
    help="Whether the neighbour of an interface with a carrier is known (1) or not (0).",
    origin=_LLDP,
)

NEIGHBOUR_EVENT = EventClass(
    "nic_neighbour_changed",
    NIC,
    "warning",
    help="An interface is plugged into another switch port than before.",
    origin=_LLDP,
    facts=("before", "after"),
)

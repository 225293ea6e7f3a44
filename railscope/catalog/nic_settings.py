"""Settings of NICs: priorities, congestion control, buffers, pause, rings, speed.

Numeric settings are metrics; all others are facts of one info metric. The resulting link state (speed,
carrier) is declared elsewhere.
"""

from fractions import Fraction

from railscope.catalog.declare import EntityKind, EventClass, Kind, Metric, Rollup, Unit
from railscope.catalog.entities import (
    NIC,
    NIC_BUFFER,
    NIC_BUFFER_THRESHOLD,
    NIC_DCQCN,
    NIC_DIRECTION,
    NIC_ECN,
    NIC_PRIORITY,
    NIC_SETTINGS,
    NIC_TRAFFIC_CLASS,
    NODE,
)

_SPREAD = (Rollup.MIN, Rollup.MAX)
_PERCENT = Fraction(1, 100)


def _setting(  # noqa: PLR0913 - options of some of the settings below
    stem: str,
    help_: str,
    *,
    about: EntityKind = NIC,
    unit: Unit = Unit.NONE,
    scale: Fraction = Fraction(1),
    rollups: tuple[Rollup, ...] = (),
    origin: str,
) -> Metric:
    return Metric(
        f"railscope_nic_setting_{stem}",
        Kind.GAUGE,
        about,
        unit=unit,
        scale=scale,
        rollups=rollups,
        help=help_,
        origin=origin,
    )


SETTINGS_INFO = Metric(
    "railscope_nic_settings_info",
    Kind.INFO,
    NIC_SETTINGS,
    help="What this network card is set to, in short and always in the same words.",
    origin="dcbnl and ethtool netlink, ETHTOOL_GDRVINFO, /sys/class/net, /sys/class/infiniband, configfs rdma_cm",
)
MTU = _setting(
    "mtu_bytes",
    "Largest packet the interface sends.",
    unit=Unit.BYTES,
    rollups=_SPREAD,
    origin="/sys/class/net/*/mtu",
)
EXPECTED_SPEED = _setting(
    "expected_speed_bytes_per_second",
    "Line rate the link should have: as configured, else the highest that card and peer both can.",
    unit=Unit.BYTES_PER_SECOND,
    scale=Fraction(125_000),
    rollups=(Rollup.SUM, Rollup.MIN),
    origin="ETHTOOL_MSG_LINKMODES_GET, supported and peer modes (Mb/s)",
)
AUTONEGOTIATION = _setting(
    "autonegotiation_enabled",
    "Whether the card negotiates speed with its peer (1) or not (0).",
    origin="ETHTOOL_A_LINKMODES_AUTONEG",
)
PFC_ENABLED = _setting(
    "pfc_enabled",
    "Whether priority flow control is on for this priority (1) or not (0).",
    about=NIC_PRIORITY,
    rollups=(Rollup.SUM,),
    origin="DCB_ATTR_IEEE_PFC, pfc_en",
)
TRAFFIC_CLASS = _setting(
    "traffic_class",
    "Traffic class that packets of this priority are sent in.",
    about=NIC_PRIORITY,
    origin="DCB_ATTR_IEEE_ETS, prio_tc",
)
BANDWIDTH = _setting(
    "bandwidth_ratio",
    "Share of the link that enhanced transmission selection gives this traffic class.",
    about=NIC_TRAFFIC_CLASS,
    unit=Unit.RATIO,
    scale=_PERCENT,
    origin="DCB_ATTR_IEEE_ETS, tc_tx_bw (percent)",
)
BUFFER = _setting(
    "buffer_bytes",
    "Size of this receive buffer of the port.",
    about=NIC_BUFFER,
    unit=Unit.BYTES,
    origin="DCB_ATTR_DCB_BUFFER, or OFED /sys/class/net/*/qos/buffer_size",
)
PORT_BUFFER = _setting(
    "port_buffer_bytes",
    "Memory the port has for all of its receive buffers.",
    unit=Unit.BYTES,
    origin="DCB_ATTR_DCB_BUFFER, or OFED /sys/class/net/*/qos/buffer_size",
)
BUFFER_THRESHOLD = _setting(
    "buffer_threshold_bytes",
    "Filling of this receive buffer at which the card sends pause (xoff) and ends it (xon).",
    about=NIC_BUFFER_THRESHOLD,
    unit=Unit.BYTES,
    origin="OFED /sys/class/net/*/qos/buffer_size",
)
ECN_ENABLED = _setting(
    "ecn_enabled",
    "Whether RoCE congestion control is on for this priority (1) or not (0), on the side that notifies and on the side that reacts.",
    about=NIC_ECN,
    rollups=(Rollup.SUM,),
    origin="OFED /sys/class/net/*/ecn/{roce_np,roce_rp}/enable/*",
)
DCQCN_PARAMETER = _setting(
    "dcqcn_parameter",
    "A parameter of RoCE congestion control, in the driver's own unit.",
    about=NIC_DCQCN,
    origin="debugfs mlx5/*/cc_params/*, or OFED /sys/class/net/*/ecn/{roce_np,roce_rp}/* by the names of the former; configfs bnxt_re/*/ports/*/cc/*, debugfs bnxt_re/*/cc_config/*",
)
RDMA_CM_TOS = _setting(
    "rdma_cm_tos",
    "Type of service of connections that RDMA-CM makes, unless they ask for another.",
    rollups=_SPREAD,
    origin="/sys/kernel/config/rdma_cm/*/ports/*/default_roce_tos",
)
RDMA_TRAFFIC_CLASS = _setting(
    "rdma_traffic_class",
    "Traffic class that the driver puts on all RoCE packets; absent where none is set.",
    rollups=_SPREAD,
    origin="OFED /sys/class/infiniband/*/tc/*/traffic_class",
)
PAUSE_ENABLED = _setting(
    "pause_enabled",
    "Whether link-wide pause is on in this direction (1) or not (0); it should not be where PFC is.",
    about=NIC_DIRECTION,
    rollups=(Rollup.SUM,),
    origin="ETHTOOL_MSG_PAUSE_GET",
)
RING = _setting(
    "ring_entries",
    "Entries of a ring of this direction.",
    about=NIC_DIRECTION,
    origin="ETHTOOL_MSG_RINGS_GET",
)
RING_LIMIT = _setting(
    "ring_limit_entries",
    "Most entries a ring of this direction can have.",
    about=NIC_DIRECTION,
    origin="ETHTOOL_MSG_RINGS_GET",
)
FEC_ACTIVE = Metric(
    "railscope_nic_fec_active",
    Kind.STATE,
    NIC,
    states={0: "none", 1: "baser", 2: "rs", 3: "llrs"},
    help="Forward error correction that the link uses now; absent while it is down.",
    origin="ETHTOOL_A_FEC_ACTIVE",
)
LINK_LANES = Metric(
    "railscope_nic_link_lanes",
    Kind.GAUGE,
    NIC,
    unit=Unit.LANES,
    help="Lanes the link uses now.",
    origin="ETHTOOL_A_LINKMODES_LANES",
)

SETTING_EVENT = EventClass(
    "nic_setting_changed",
    NIC,
    "warning",
    help="A setting of a network card is another than at the last read.",
    origin="railscope_nic_settings_info and what it is made from",
    facts=("setting", "before", "after"),
    audited=True,
)
SUPPRESSED_EVENT = EventClass(
    "nic_changes_suppressed",
    NODE,
    "warning",
    help="More settings of NICs changed between two reads than are reported individually.",
    origin="the agent",
    facts=("event", "changes"),
    audited=True,
)

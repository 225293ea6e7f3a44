"""Settings of NICs: priorities, congestion control, buffers, pause, rings, speed.

Numeric settings are metrics; all others are facts of one info metric. The resulting link state (speed,
carrier) is declared elsewhere.
"""

# fmt: off

from railscope.catalog import declare, entities

_SETTING = declare.MetricTable(entities.NIC)

SETTINGS_INFO = _SETTING.info("railscope_nic_settings_info", "Settings of this NIC in canonical form, and a hash of all settings, those that are metrics included; no hash while some cannot be read or the link is down.", "dcbnl and ethtool netlink, ETHTOOL_GDRVINFO, /sys/class/net, /sys/class/infiniband, configfs rdma_cm", about=entities.NIC_SETTINGS, detail=declare.BASIC)
MTU = _SETTING.gauge("railscope_nic_setting_mtu_bytes", "Largest packet the interface sends.", "/sys/class/net/*/mtu", detail=declare.FULL)
EXPECTED_SPEED = _SETTING.gauge("railscope_nic_setting_expected_speed_bytes_per_second", "Line rate the link should have: as configured, else the maximum that NIC and peer support.", "ETHTOOL_MSG_LINKMODES_GET, supported and peer modes (Mb/s)", scale=declare.MEGABIT, detail=declare.BASIC)
AUTONEGOTIATION = _SETTING.gauge("railscope_nic_setting_autonegotiation_enabled", "1 if the NIC negotiates speed with its peer, 0 otherwise.", "ETHTOOL_A_LINKMODES_AUTONEG", detail=declare.FULL)
PFC_ENABLED = _SETTING.gauge("railscope_nic_setting_pfc_enabled", "1 if priority flow control is on for this priority.", "DCB_ATTR_IEEE_PFC, pfc_en", about=entities.NIC_PRIORITY, detail=declare.BASIC, total=SETTINGS_INFO)
TRAFFIC_CLASS = _SETTING.gauge("railscope_nic_setting_traffic_class", "Traffic class that packets of this priority are sent in.", "DCB_ATTR_IEEE_ETS, prio_tc", about=entities.NIC_PRIORITY, detail=declare.FULL)
BANDWIDTH = _SETTING.gauge("railscope_nic_setting_bandwidth_ratio", "Share of the link that enhanced transmission selection assigns to this traffic class.", "DCB_ATTR_IEEE_ETS, tc_tx_bw (percent)", about=entities.NIC_TRAFFIC_CLASS, scale=declare.CENTI, detail=declare.FULL)
BUFFER = _SETTING.gauge("railscope_nic_setting_buffer_bytes", "Size of this receive buffer of the port.", "DCB_ATTR_DCB_BUFFER, or OFED /sys/class/net/*/qos/buffer_size", about=entities.NIC_BUFFER, detail=declare.FULL)
PORT_BUFFER = _SETTING.gauge("railscope_nic_setting_port_buffer_bytes", "Memory the port has for all of its receive buffers.", "DCB_ATTR_DCB_BUFFER, or OFED /sys/class/net/*/qos/buffer_size", detail=declare.FULL)
BUFFER_THRESHOLD = _SETTING.gauge("railscope_nic_setting_buffer_threshold_bytes", "Filling of this receive buffer at which the NIC sends pause (xoff) and ends it (xon).", "OFED /sys/class/net/*/qos/buffer_size", about=entities.NIC_BUFFER_THRESHOLD)
ECN_ENABLED = _SETTING.gauge("railscope_nic_setting_ecn_enabled", "1 if RoCE congestion control is on for this priority, at the notification or the reaction point, 0 otherwise.", "OFED /sys/class/net/*/ecn/{roce_np,roce_rp}/enable/*", about=entities.NIC_ECN, detail=declare.FULL)
DCQCN_PARAMETER = _SETTING.gauge("railscope_nic_setting_dcqcn_parameter", "A parameter of RoCE congestion control, in the driver's own unit.", "debugfs mlx5/*/cc_params/*, or OFED /sys/class/net/*/ecn/{roce_np,roce_rp}/* by the names of the former; configfs bnxt_re/*/ports/*/cc/*, debugfs bnxt_re/*/cc_config/*", about=entities.NIC_DCQCN, detail=declare.FULL)
RDMA_CM_TOS = _SETTING.gauge("railscope_nic_setting_rdma_cm_tos", "Type of service of connections that RDMA-CM makes, unless they request another.", "/sys/kernel/config/rdma_cm/*/ports/*/default_roce_tos", detail=declare.FULL)
RDMA_TRAFFIC_CLASS = _SETTING.gauge("railscope_nic_setting_rdma_traffic_class", "Traffic class that the driver puts on all RoCE packets; absent where none is set.", "OFED /sys/class/infiniband/*/tc/*/traffic_class", detail=declare.FULL)
PAUSE_ENABLED = _SETTING.gauge("railscope_nic_setting_pause_enabled", "1 if link-wide pause is on in this direction, 0 otherwise; it should not be where PFC is.", "ETHTOOL_MSG_PAUSE_GET", about=entities.NIC_DIRECTION, detail=declare.FULL)
RING = _SETTING.gauge("railscope_nic_setting_ring_entries", "Entries of a ring of this direction.", "ETHTOOL_MSG_RINGS_GET", about=entities.NIC_DIRECTION, detail=declare.FULL)
RING_LIMIT = _SETTING.gauge("railscope_nic_setting_ring_limit_entries", "Maximum entries of a ring of this direction.", "ETHTOOL_MSG_RINGS_GET", about=entities.NIC_DIRECTION, detail=declare.FULL)
FEC_ACTIVE = _SETTING.state("railscope_nic_fec_active", "Forward error correction that the link uses now; absent while it is down.", "ETHTOOL_A_FEC_ACTIVE", states={0: "none", 1: "baser", 2: "rs", 3: "llrs"})
LINK_LANES = _SETTING.gauge("railscope_nic_link_lanes", "Lanes the link uses now.", "ETHTOOL_A_LINKMODES_LANES")
SETTING_EVENT = declare.EventClass("nic_setting_changed", entities.NIC, "warning", "A setting of a NIC changed since the last read.", "railscope_nic_settings_info and what it is made from", ("setting", "before", "after"), audited=True)
SUPPRESSED_EVENT = declare.EventClass("nic_changes_suppressed", entities.NODE, "warning", "More settings of NICs changed between two reads than are reported individually.", "the agent", ("event", "changes"), audited=True)

"""Switches: ports, priorities and queues, as the switches themselves report them to the collector.

Directions are those of the switch port: what it receives, the connected server sent. A pause that the port receives is
one by which the server paused the switch.
"""

# fmt: off
from railscope.catalog import declare, entities

SINCE_START = "Counts from the start of the switch or from when the counter was last cleared."
_SWITCH = declare.MetricTable(entities.SWITCH, detail=declare.BASIC)
_PORT = declare.MetricTable(entities.SWITCH_PORT, "IF-MIB ", resets=SINCE_START, detail=declare.BASIC)
_ALL_PRIORITIES = declare.MetricTable(entities.SWITCH_PORT, "IEEE8021-PFC-MIB ", resets=SINCE_START, detail=declare.BASIC)
_PRIORITY = declare.MetricTable(entities.SWITCH_PRIORITY, "CISCO-PFC-EXT-MIB ", resets=SINCE_START, detail=declare.BASIC)
_QUEUE = declare.MetricTable(entities.SWITCH_QUEUE, "CISCO-SWITCH-QOS-MIB csqIfQosGroupStatsTable: ", resets=SINCE_START)
_NEIGHBOUR = declare.MetricTable(entities.SWITCH_NEIGHBOUR, "LLDP-MIB lldpRemTable", detail=declare.BASIC)

# State of the polls: of the collector that polls, in no frame --------------------------------------
UP = _SWITCH.gauge("railscope_switch_up", "1 if the last poll of this switch succeeded, 0 otherwise; its other metrics are absent then.", "collector")
LAST_POLL = _SWITCH.gauge("railscope_switch_last_poll_timestamp_seconds", "Time of the last successful poll of this switch.", "collector", scale=declare.NANO)
POLL_TIME = _SWITCH.gauge("railscope_switch_poll_seconds", "Duration of the last successful poll of this switch.", "collector", scale=declare.NANO)
POLL_FAILURES = _SWITCH.counter("railscope_switch_poll_failures_total", "Polls of this switch that failed, by reason: timeout (no answer in time), error (an answer that is an error or malformed), limit (more rows or bytes than a poll may have, or rows that do not ascend), rejected (frames that the collector did not accept), fault (a defect of the collector).", "collector", about=entities.SWITCH_FAILURE, resets="Counts from the start of the collector.")

# Readings ------------------------------------------------------------------------------------------
SWITCH_INFO = _SWITCH.info("railscope_switch_info", "Identity of a switch; `missing_tables` are those that it does not have, whose metrics are absent.", "SNMPv2-MIB sysName, sysDescr; LLDP-MIB lldpLocChassisId")
UPTIME = _SWITCH.gauge("railscope_switch_uptime_seconds", "Time since the switch, or its management agent, started; it begins again after 497 days with SNMP.", "SNMPv2-MIB sysUpTime", scale=declare.CENTI)
PORTS = _SWITCH.gauge("railscope_switch_ports", "Ethernet ports of the switch, those beyond the limit of 512 included, which are not read.", "IF-MIB ifTable")
PORT_INFO = _PORT.info("railscope_switch_port_info", "Identity of a switch port: index, alias, description and MAC address.", "ifIndex, ifAlias, ifDescr, ifPhysAddress")
PORT_UP = _PORT.gauge("railscope_switch_port_up", "1 if the port can pass packets, 0 otherwise.", "ifOperStatus")
PORT_ENABLED = _PORT.gauge("railscope_switch_port_enabled", "1 if the port is enabled in the switch's configuration, 0 otherwise.", "ifAdminStatus")
SPEED = _PORT.gauge("railscope_switch_port_speed_bytes_per_second", "Speed of the port.", "ifHighSpeed", scale=declare.MEGABIT)
RECEIVED = _PORT.counter("railscope_switch_port_receive_bytes_total", "Bytes the port received.", "ifHCInOctets")
SENT = _PORT.counter("railscope_switch_port_transmit_bytes_total", "Bytes the port sent.", "ifHCOutOctets")
RECEIVED_PACKETS = _PORT.counter("railscope_switch_port_receive_packets_total", "Packets the port received: unicast, multicast and broadcast.", "ifHCInUcastPkts, ifHCInMulticastPkts, ifHCInBroadcastPkts")
SENT_PACKETS = _PORT.counter("railscope_switch_port_transmit_packets_total", "Packets the port sent: unicast, multicast and broadcast.", "ifHCOutUcastPkts, ifHCOutMulticastPkts, ifHCOutBroadcastPkts")
RECEIVED_ERRORS = _PORT.counter("railscope_switch_port_receive_errors_total", "Packets received with errors.", "ifInErrors", bits=32)
SENT_ERRORS = _PORT.counter("railscope_switch_port_transmit_errors_total", "Packets that could not be sent because of errors.", "ifOutErrors", bits=32)
RECEIVED_DISCARDS = _PORT.counter("railscope_switch_port_receive_discarded_packets_total", "Packets received and dropped without an error, for example for lack of a buffer.", "ifInDiscards", bits=32)
SENT_DISCARDS = _PORT.counter("railscope_switch_port_transmit_discarded_packets_total", "Packets dropped before sending without an error, for example because a queue was full.", "ifOutDiscards", bits=32)
ALL_PFC_RECEIVED = _ALL_PRIORITIES.counter("railscope_switch_port_all_priorities_receive_pfc_pause_frames_total", "PFC pause frames of all priorities received: the server paused the switch.", "ieee8021PfcIndications", bits=32)
ALL_PFC_SENT = _ALL_PRIORITIES.counter("railscope_switch_port_all_priorities_transmit_pfc_pause_frames_total", "PFC pause frames of all priorities sent: the switch paused the server.", "ieee8021PfcRequests", bits=32)
PFC_RECEIVED = _PRIORITY.counter("railscope_switch_port_receive_pfc_pause_frames_total", "PFC pause frames of a priority received: the server paused the switch.", "cpfcIfPriorityIndications; MELLANOX-QOS-MIB mellanoxQoSPrioRxPausePkts")
PFC_SENT = _PRIORITY.counter("railscope_switch_port_transmit_pfc_pause_frames_total", "PFC pause frames of a priority sent: the switch paused the server.", "cpfcIfPriorityRequests; MELLANOX-QOS-MIB mellanoxQoSPrioTxPausePkts")
QUEUE_PACKETS = _QUEUE.counter("railscope_switch_queue_transmit_packets_total", "Unicast packets sent from a queue.", "1")
QUEUE_BYTES = _QUEUE.counter("railscope_switch_queue_transmit_bytes_total", "Bytes of the unicast packets sent from a queue.", "2")
QUEUE_DROPPED_PACKETS = _QUEUE.counter("railscope_switch_queue_dropped_packets_total", "Unicast packets that a queue dropped.", "5")
QUEUE_DROPPED_BYTES = _QUEUE.counter("railscope_switch_queue_dropped_bytes_total", "Bytes of the unicast packets that a queue dropped.", "6")
NEIGHBOUR_INFO = _NEIGHBOUR.info("railscope_switch_neighbour_info", "Device that is connected to a switch port, as announced to the switch: usually a server and one of its NICs.")
NEIGHBOUR_KNOWN = _NEIGHBOUR.gauge("railscope_switch_neighbour_known", "1 if the device that is connected to a switch port is known to the switch, 0 otherwise.")

# Of SONiC by gNMI ----------------------------------------------------------------------------------
_SONIC_PRIORITY = declare.MetricTable(entities.SWITCH_PRIORITY, "SONiC COUNTERS_DB ", resets=SINCE_START, detail=declare.BASIC)
_SONIC_QUEUE = declare.MetricTable(entities.SWITCH_QUEUE, "SONiC COUNTERS_DB SAI_QUEUE_STAT_", resets=SINCE_START)
_WATCHDOG = declare.MetricTable(entities.SWITCH_QUEUE, "SONiC COUNTERS_DB PFC_WD_", resets=SINCE_START)
_GROUP = declare.MetricTable(entities.SWITCH_PRIORITY_GROUP, "SONiC COUNTERS_DB SAI_INGRESS_PRIORITY_GROUP_STAT_")
_POOL = declare.MetricTable(entities.SWITCH_POOL, "SONiC COUNTERS_DB SAI_BUFFER_POOL_STAT_")
PAUSES_ENDED = _SONIC_PRIORITY.counter("railscope_switch_port_receive_pfc_pauses_ended_total", "Pauses of a priority by the server that ended.", "SAI_PORT_STAT_PFC_n_ON2OFF_RX_PKTS")
ESTIMATED_PAUSE = _SONIC_PRIORITY.counter("railscope_switch_port_receive_pfc_pause_estimated_seconds_total", "Time for which the server paused a priority of the switch, estimated by software of the switch from polls of the pause state: not measured, and received pauses only.", "EST_PORT_STAT_PFC_n_RX_PAUSE_DURATION_US", scale=declare.MICRO)
QUEUE_MARKED_PACKETS = _SONIC_QUEUE.counter("railscope_switch_queue_ecn_marked_packets_total", "Packets of a queue that the switch marked with ECN; the switch counts them if its counter group WRED_ECN_QUEUE is enabled.", "WRED_ECN_MARKED_PACKETS")
QUEUE_MARKED_BYTES = _SONIC_QUEUE.counter("railscope_switch_queue_ecn_marked_bytes_total", "Bytes of the packets of a queue that the switch marked with ECN.", "WRED_ECN_MARKED_BYTES")
QUEUE_WRED_DROPPED_PACKETS = _SONIC_QUEUE.counter("railscope_switch_queue_wred_dropped_packets_total", "Packets of a queue that WRED dropped.", "WRED_DROPPED_PACKETS")
QUEUE_OCCUPANCY = _SONIC_QUEUE.gauge("railscope_switch_queue_occupancy_bytes", "Buffer that a queue occupied when the switch last read it.", "CURR_OCCUPANCY_BYTES")
QUEUE_WATERMARK = _SONIC_QUEUE.gauge("railscope_switch_queue_watermark_bytes", "Largest shared buffer that a queue has occupied since the switch last cleared the watermark.", "SHARED_WATERMARK_BYTES")
WATCHDOG_STORM = _WATCHDOG.gauge("railscope_switch_queue_pfc_watchdog_storm", "1 while the PFC watchdog treats a queue as blocked by a storm of pauses, 0 otherwise.", "STATUS")
WATCHDOG_DETECTED = _WATCHDOG.counter("railscope_switch_queue_pfc_watchdog_detected_storms_total", "Storms of pauses that the PFC watchdog detected in a queue.", "QUEUE_STATS_DEADLOCK_DETECTED")
WATCHDOG_RESTORED = _WATCHDOG.counter("railscope_switch_queue_pfc_watchdog_restored_storms_total", "Storms of pauses after which the PFC watchdog restored a queue.", "QUEUE_STATS_DEADLOCK_RESTORED")
WATCHDOG_DROPPED = _WATCHDOG.counter("railscope_switch_queue_pfc_watchdog_dropped_packets_total", "Packets to send and received packets of its priority that the PFC watchdog dropped.", "QUEUE_STATS_TX_DROPPED_PACKETS, PFC_WD_QUEUE_STATS_RX_DROPPED_PACKETS")
GROUP_SHARED_WATERMARK = _GROUP.gauge("railscope_switch_priority_group_shared_watermark_bytes", "Largest shared buffer that received packets of a priority group have occupied since the switch last cleared the watermark.", "SHARED_WATERMARK_BYTES")
GROUP_HEADROOM_WATERMARK = _GROUP.gauge("railscope_switch_priority_group_headroom_watermark_bytes", "Largest headroom that a priority group has occupied since the switch last cleared the watermark; above 0, the port had to pause its sender.", "XOFF_ROOM_WATERMARK_BYTES")
POOL_WATERMARK = _POOL.gauge("railscope_switch_pool_watermark_bytes", "Largest part of a buffer pool that was occupied since the switch last cleared the watermark.", "WATERMARK_BYTES")
POOL_HEADROOM_WATERMARK = _POOL.gauge("railscope_switch_pool_headroom_watermark_bytes", "Largest part of the headroom of a buffer pool that was occupied since the switch last cleared the watermark.", "XOFF_ROOM_WATERMARK_BYTES")

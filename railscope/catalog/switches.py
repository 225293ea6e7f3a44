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
_QUEUE = declare.MetricTable(entities.SWITCH_QUEUE, "CISCO-SWITCH-QOS-MIB csqIfQosGroupStatsTable: ", resets=SINCE_START, detail=declare.BASIC)
_NEIGHBOUR = declare.MetricTable(entities.SWITCH_NEIGHBOUR, "LLDP-MIB lldpRemTable", detail=declare.BASIC)
_FAULT = declare.MetricTable(entities.CABLING_FAULT, "collector", detail=declare.BASIC)
_LINK = declare.MetricTable(entities.SWITCH_LINK, "collector", detail=declare.BASIC)

_CUMULUS_PORT = declare.MetricTable(entities.SWITCH_PORT, "Cumulus Linux nvswitch_interface_", resets=SINCE_START, detail=declare.BASIC)
_CUMULUS_PRIORITY = declare.MetricTable(entities.SWITCH_PRIORITY, "Cumulus Linux nvswitch_interface_", resets=SINCE_START, detail=declare.BASIC)
_CUMULUS_QUEUE = declare.MetricTable(entities.SWITCH_QUEUE, "Cumulus Linux nvswitch_interface_", resets=SINCE_START, detail=declare.BASIC)
_CUMULUS_GROUP = declare.MetricTable(entities.SWITCH_PRIORITY_GROUP, "Cumulus Linux nvswitch_interface_", resets=SINCE_START, detail=declare.BASIC)
_RECEIVER = declare.MetricTable(entities.CLUSTER, resets="Counts from the start of the collector.", detail=declare.BASIC)

# State of the polls: of the collector that polls, in no frame --------------------------------------
UP = _SWITCH.gauge("railscope_switch_up", "1 if the last poll of this switch succeeded, or its last push is not older than three periods, 0 otherwise; its other metrics are absent then.", "collector")
LAST_POLL = _SWITCH.gauge("railscope_switch_last_poll_timestamp_seconds", "Time of the last successful poll, or stored push, of this switch.", "collector", scale=declare.NANO)
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
QUEUE_PACKETS = _QUEUE.counter("railscope_switch_queue_transmit_packets_total", "Packets sent from a queue: unicast ones, or all where the switch does not count them apart.", "1")
QUEUE_BYTES = _QUEUE.counter("railscope_switch_queue_transmit_bytes_total", "Bytes of the packets sent from a queue, which are those of the packet count.", "2")
QUEUE_DROPPED_PACKETS = _QUEUE.counter("railscope_switch_queue_dropped_packets_total", "Packets that a queue dropped: unicast ones, or all where the switch does not count them apart.", "5")
QUEUE_DROPPED_BYTES = _QUEUE.counter("railscope_switch_queue_dropped_bytes_total", "Bytes of the packets that a queue dropped, which are those of the packet count.", "6")
NEIGHBOUR_INFO = _NEIGHBOUR.info("railscope_switch_neighbour_info", "Device that is connected to a switch port, as announced to the switch: usually a server and one of its NICs.")
CABLING_FAULTS = _FAULT.gauge("railscope_cabling_faults", "Contradictions in the evidence of links, and NICs on leaves of other rails (wrong_rail), by kind; absent while the switch of no NIC is known.")
CABLING_NOT_LOGGED = _FAULT.counter("railscope_cabling_changes_not_logged_total", "Cabling faults that appeared or disappeared without a log line, beyond 32 per minute.", about=entities.CLUSTER, resets="Counts from the start of the collector.")
LINK_INFO = _LINK.info("railscope_switch_link_info", "Node, interface and rail of the NIC that a switch port is connected to, by LLDP of either end or the cabling file; absent for a port without a known NIC, and while the switch is not read.")
NEIGHBOUR_KNOWN = _NEIGHBOUR.gauge("railscope_switch_neighbour_known", "1 if the device that is connected to a switch port is known to the switch, 0 otherwise.")

# Of SONiC by gNMI ----------------------------------------------------------------------------------
_SONIC_PORT = declare.MetricTable(entities.SWITCH_PORT, "SONiC COUNTERS_DB ", resets=SINCE_START, detail=declare.BASIC)
_SONIC_PRIORITY = declare.MetricTable(entities.SWITCH_PRIORITY, "SONiC COUNTERS_DB ", resets=SINCE_START, detail=declare.BASIC)
_SONIC_QUEUE = declare.MetricTable(entities.SWITCH_QUEUE, "SONiC COUNTERS_DB SAI_QUEUE_STAT_", resets=SINCE_START, detail=declare.BASIC)
_WATCHDOG = declare.MetricTable(entities.SWITCH_QUEUE, "SONiC COUNTERS_DB PFC_WD_", resets=SINCE_START, detail=declare.BASIC)
_GROUP = declare.MetricTable(entities.SWITCH_PRIORITY_GROUP, "SONiC COUNTERS_DB SAI_INGRESS_PRIORITY_GROUP_STAT_", detail=declare.BASIC)
_PROFILE = declare.MetricTable(entities.SWITCH_PRIORITY_GROUP, "SONiC APPL_DB ", detail=declare.BASIC)
_POOL = declare.MetricTable(entities.SWITCH_POOL, "SONiC COUNTERS_DB SAI_BUFFER_POOL_STAT_", detail=declare.BASIC)
FEC_CORRECTED = _SONIC_PORT.counter("railscope_switch_port_receive_fec_corrected_frames_total", "FEC frames received with errors that were corrected.", "SAI_PORT_STAT_IF_IN_FEC_CORRECTABLE_FRAMES")
FEC_UNCORRECTABLE = _SONIC_PORT.counter("railscope_switch_port_receive_fec_uncorrectable_frames_total", "FEC frames received with errors that could not be corrected.", "SAI_PORT_STAT_IF_IN_FEC_NOT_CORRECTABLE_FRAMES")
PAUSES_ENDED = _SONIC_PRIORITY.counter("railscope_switch_port_receive_pfc_pauses_ended_total", "Pauses of a priority by the server that ended.", "SAI_PORT_STAT_PFC_n_ON2OFF_RX_PKTS")
ESTIMATED_PAUSE = _SONIC_PRIORITY.counter("railscope_switch_port_receive_pfc_pause_estimated_seconds_total", "Time for which the server paused a priority of the switch, estimated by software of the switch from polls of the pause state: not measured, and received pauses only.", "EST_PORT_STAT_PFC_n_RX_PAUSE_DURATION_US", scale=declare.MICRO)
QUEUE_MARKED_PACKETS = _SONIC_QUEUE.counter("railscope_switch_queue_ecn_marked_packets_total", "Packets of a queue that the switch marked with ECN; SONiC counts them if its counter group WRED_ECN_QUEUE is enabled.", "WRED_ECN_MARKED_PACKETS; Cumulus Linux nvswitch_interface_tc_tx_ecn_marked_tc")
QUEUE_MARKED_BYTES = _SONIC_QUEUE.counter("railscope_switch_queue_ecn_marked_bytes_total", "Bytes of the packets of a queue that the switch marked with ECN.", "WRED_ECN_MARKED_BYTES")
QUEUE_WRED_DROPPED_PACKETS = _SONIC_QUEUE.counter("railscope_switch_queue_wred_dropped_packets_total", "Packets of a queue that WRED dropped.", "WRED_DROPPED_PACKETS; Cumulus Linux nvswitch_interface_tc_tx_wred_discard")
QUEUE_OCCUPANCY = _SONIC_QUEUE.gauge("railscope_switch_queue_occupancy_bytes", "Buffer that a queue occupied when the switch last read it.", "CURR_OCCUPANCY_BYTES")
QUEUE_WATERMARK = _SONIC_QUEUE.gauge("railscope_switch_queue_watermark_bytes", "Largest shared buffer that a queue has occupied since the switch last cleared the watermark.", "SHARED_WATERMARK_BYTES")
WATCHDOG_STORM = _WATCHDOG.gauge("railscope_switch_queue_pfc_watchdog_storm", "1 while the PFC watchdog treats a queue as blocked by a storm of pauses, 0 otherwise.", "STATUS")
WATCHDOG_DETECTED = _WATCHDOG.counter("railscope_switch_queue_pfc_watchdog_detected_storms_total", "Storms of pauses that the PFC watchdog detected in a queue.", "QUEUE_STATS_DEADLOCK_DETECTED")
WATCHDOG_RESTORED = _WATCHDOG.counter("railscope_switch_queue_pfc_watchdog_restored_storms_total", "Storms of pauses after which the PFC watchdog restored a queue.", "QUEUE_STATS_DEADLOCK_RESTORED")
WATCHDOG_DROPPED = _WATCHDOG.counter("railscope_switch_queue_pfc_watchdog_dropped_packets_total", "Packets to send and received packets of its priority that the PFC watchdog dropped.", "QUEUE_STATS_TX_DROPPED_PACKETS, PFC_WD_QUEUE_STATS_RX_DROPPED_PACKETS")
GROUP_SHARED_WATERMARK = _GROUP.gauge("railscope_switch_priority_group_shared_watermark_bytes", "Largest shared buffer that received packets of a priority group have occupied since the switch last cleared the watermark.", "SHARED_WATERMARK_BYTES")
GROUP_HEADROOM_WATERMARK = _GROUP.gauge("railscope_switch_priority_group_headroom_watermark_bytes", "Largest headroom that a priority group has occupied since the switch last cleared the watermark; above 0, the port had to pause its sender.", "XOFF_ROOM_WATERMARK_BYTES")
GROUP_HEADROOM = _PROFILE.gauge("railscope_switch_priority_group_headroom_bytes", "Headroom that the buffer profile of a priority group has for packets that arrive after a pause was sent.", "BUFFER_PG_TABLE profile, BUFFER_PROFILE_TABLE xoff")
POOL_WATERMARK = _POOL.gauge("railscope_switch_pool_watermark_bytes", "Largest part of a buffer pool that was occupied since the switch last cleared the watermark.", "WATERMARK_BYTES")
POOL_HEADROOM_WATERMARK = _POOL.gauge("railscope_switch_pool_headroom_watermark_bytes", "Largest part of the headroom of a buffer pool that was occupied since the switch last cleared the watermark.", "XOFF_ROOM_WATERMARK_BYTES")

# Of H3C Comware by SNMP -----------------------------------------------------------------------------
_HH3C_PRIORITY = declare.MetricTable(entities.SWITCH_PRIORITY, "HH3C-IF-EXT-MIB hh3cIfPfcDot1pTable ", detail=declare.BASIC)
_HH3C_QUEUE = declare.MetricTable(entities.SWITCH_QUEUE, "HH3C-IF-EXT-MIB hh3cIfQueBufferTable ", detail=declare.BASIC)
_HH3C_GROUP = declare.MetricTable(entities.SWITCH_PRIORITY_GROUP, "HH3C-IF-EXT-MIB hh3cIfQueBufferTable ", detail=declare.BASIC)
PFC_RECEIVED_RATE = _HH3C_PRIORITY.gauge("railscope_switch_port_receive_pfc_pause_frames_per_second", "PFC pause frames of a priority that the port receives per second, as the switch averages them: the switch does not count them.", "hh3cIfPfcDot1pInPps")
PFC_SENT_RATE = _HH3C_PRIORITY.gauge("railscope_switch_port_transmit_pfc_pause_frames_per_second", "PFC pause frames of a priority that the port sends per second, as the switch averages them: the switch does not count them.", "hh3cIfPfcDot1pOutPps")
QUEUE_USED = _HH3C_QUEUE.gauge("railscope_switch_queue_buffer_used_ratio", "Part of the buffer of a queue that is occupied.", "hh3cIfQueOutUcastUsedRatio", scale=declare.CENTI)
QUEUE_PEAK = _HH3C_QUEUE.gauge("railscope_switch_queue_buffer_peak_ratio", "Largest part of the buffer of a queue that was occupied since the switch last cleared the peak.", "hh3cIfQueOutUcastUsedPeak", scale=declare.CENTI)
GROUP_USED = _HH3C_GROUP.gauge("railscope_switch_priority_group_buffer_used_ratio", "Part of the buffer of a priority group that received packets occupy.", "hh3cIfQueInUsedRatio", scale=declare.CENTI)
GROUP_PEAK = _HH3C_GROUP.gauge("railscope_switch_priority_group_buffer_peak_ratio", "Largest part of the buffer of a priority group that received packets have occupied since the switch last cleared the peak.", "hh3cIfQueInUsedPeak", scale=declare.CENTI)
GROUP_HEADROOM_USED = _HH3C_GROUP.gauge("railscope_switch_priority_group_headroom_used_ratio", "Part of the headroom of a priority group that is occupied; above 0, the port pauses its sender.", "hh3cIfQueInHeadRoomUsedRatio", scale=declare.CENTI)
GROUP_HEADROOM_PEAK = _HH3C_GROUP.gauge("railscope_switch_priority_group_headroom_peak_ratio", "Largest part of the headroom of a priority group that was occupied since the switch last cleared the peak; above 0, the port had to pause its sender.", "hh3cIfQueInHeadRoomUsedPeak", scale=declare.CENTI)

# Transceivers ---------------------------------------------------------------------------------------
_TRANSCEIVER = declare.MetricTable(entities.SWITCH_PORT, "HH3C-TRANSCEIVER-INFO-MIB ", detail=declare.BASIC)
_LANE = declare.MetricTable(entities.SWITCH_LANE, "OpenConfig components/component/transceiver/physical-channels/channel/state/", detail=declare.BASIC)
TRANSCEIVER_TEMPERATURE = _TRANSCEIVER.gauge("railscope_switch_transceiver_temperature_celsius", "Temperature inside the transceiver of a switch port.", "hh3cTransceiverTemperature", scale=declare.MILLI)
TRANSCEIVER_SUPPLY = _TRANSCEIVER.gauge("railscope_switch_transceiver_supply_volts", "Supply voltage inside the transceiver of a switch port.", "hh3cTransceiverVoltage", scale=declare.MICRO)
TRANSCEIVER_RECEIVE_POWER = _LANE.gauge("railscope_switch_transceiver_receive_power_watts", "Optical power that the transceiver of a switch port receives on this lane; lane 0 is the whole transceiver, of which the switch reports no lanes.", "input-power; HH3C-TRANSCEIVER-INFO-MIB hh3cTransceiverChannelCurRXPower, hh3cTransceiverCurRXPower", scale=declare.NANO)
TRANSCEIVER_TRANSMIT_POWER = _LANE.gauge("railscope_switch_transceiver_transmit_power_watts", "Optical power that the transceiver of a switch port sends on this lane; lanes as for the received power.", "output-power; HH3C-TRANSCEIVER-INFO-MIB hh3cTransceiverChannelCurTXPower, hh3cTransceiverCurTXPower", scale=declare.NANO)
TRANSCEIVER_BIAS = _LANE.gauge("railscope_switch_transceiver_bias_amperes", "Bias current of the laser of this lane of a switch port's transceiver; lanes as for the received power.", "laser-bias-current; HH3C-TRANSCEIVER-INFO-MIB hh3cTransceiverChannelBiasCurrent, hh3cTransceiverBiasCurrent", scale=declare.MICRO)

# Readings of switches that push them by OTLP -------------------------------------------------------
PFC_RECEIVED_TIME = _CUMULUS_PRIORITY.counter("railscope_switch_port_receive_pfc_pause_seconds_total", "Time in which the server paused this priority of the switch port. Cumulus Linux does not document the unit: microseconds, as in ethtool of the same devices, are assumed.", "sp_rx_pause_duration", scale=declare.MICRO)
PFC_SENT_TIME = _CUMULUS_PRIORITY.counter("railscope_switch_port_transmit_pfc_pause_seconds_total", "Time in which the switch port paused this priority of the server; the unit is assumed as for the received pauses.", "sp_tx_pause_duration", scale=declare.MICRO)
PFC_RECEIVED_TRANSITIONS = _CUMULUS_PRIORITY.counter("railscope_switch_port_receive_pfc_pause_transitions_total", "Times the server paused this priority of the switch port and ended the pause.", "sp_rx_pause_transition")
PAUSE_RECEIVED = _CUMULUS_PORT.counter("railscope_switch_port_receive_pause_frames_total", "Pause frames of the whole link that the port received: those of 802.3x, not of PFC.", "dot3_in_pause_frames")
PAUSE_SENT = _CUMULUS_PORT.counter("railscope_switch_port_transmit_pause_frames_total", "Pause frames of the whole link that the port sent: those of 802.3x, not of PFC.", "dot3_out_pause_frames")
FCS_ERRORS = _CUMULUS_PORT.counter("railscope_switch_port_receive_fcs_errors_total", "Frames received with a wrong checksum.", "dot3_stats_fcs_errors")
SYMBOL_ERRORS = _CUMULUS_PORT.counter("railscope_switch_port_receive_symbol_errors_total", "Symbol errors on the link.", "dot3_stats_symbol_errors")
CORRECTED = _CUMULUS_PORT.counter("railscope_switch_port_receive_corrected_errors_total", "Bits received by the port that forward error correction corrected.", "phy_stats_phy_corrected_bits")
UNCORRECTED_SYMBOLS = _CUMULUS_PORT.counter("railscope_switch_port_receive_uncorrected_symbol_errors_total", "Symbols received by the port that forward error correction could not correct.", "phy_stats_phy_symbol_errors")
QUEUE_NO_BUFFER_DROPPED = _CUMULUS_QUEUE.counter("railscope_switch_queue_no_buffer_dropped_packets_total", "Unicast packets of a queue that were dropped for lack of a buffer.", "tc_tx_no_buffer_discard_uc")
GROUP_DROPPED = _CUMULUS_GROUP.counter("railscope_switch_priority_group_dropped_packets_total", "Packets received that a priority group dropped because its buffer was full: a lossless one must drop none.", "pg_rx_buffer_discard")
GROUP_SHARED_DROPPED = _CUMULUS_GROUP.counter("railscope_switch_priority_group_shared_buffer_dropped_packets_total", "Packets received that a priority group dropped because the shared buffer was full.", "pg_rx_shared_buffer_discard")
CLOCK_OFFSET = _SWITCH.gauge("railscope_switch_clock_offset_seconds", "Newest time in the last push of this switch, relative to the collector's clock when it arrived: its age appears as a negative offset.", "OTLP time_unix_nano", scale=declare.NANO)

# State of the OTLP receiver: of the collector, in no frame -----------------------------------------
CLOCK_OFF = _SWITCH.gauge("railscope_switch_clock_is_off", "1 if the times in the last push of this switch differ by more than a minute from the collector's clock, 0 otherwise.", "collector")
PUSHED_POINTS = _SWITCH.counter("railscope_switch_pushed_points_total", "Data points that this switch pushed, by result: stored; not stored because they have no use here (unmapped), have an invalid value or attribute (invalid), a counter beyond 2^53 as a floating-point number (inexact), a time not after that of the stored one (old), exceed a bound (limit), or are increments in place of totals (delta).", "collector", about=entities.SWITCH_POINTS, resets="Counts from the start of the collector.")
COUNTER_RESETS = _SWITCH.counter("railscope_switch_pushed_resets_total", "Pushes of this switch with a counter that fell: it was cleared, or the switch has restarted.", "collector", resets="Counts from the start of the collector.")
NAME_MISMATCHES = _SWITCH.counter("railscope_switch_pushed_name_mismatches_total", "Pushes of this switch that state another name in net.host.name than the configured one.", "collector", resets="Counts from the start of the collector.")
OTLP_REQUEST_RESULTS = ("stored", "unknown_sender", "rate", "path", "media_type", "size", "format", "timeout", "busy", "storage")
"""Exposed from the start: a counter that begins with 1 has no increase."""
OTLP_REQUESTS = _RECEIVER.counter("railscope_collector_otlp_requests_total", "Requests to the OTLP receiver, by result: stored, or rejected because of the sender (unknown_sender, rate), the request (path, media_type, size, format, timeout), or the collector (busy, storage).", "collector", about=entities.OTLP_RESULT)

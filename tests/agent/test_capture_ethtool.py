"""Driver statistics of real NICs, returned to the NIC source as by the live ioctl."""

from __future__ import annotations

import csv
import re
from itertools import pairwise
from typing import Any

import pytest
from support.machine import FakeHost
from support.reading import ORIGIN, Label, numbers, read_once
from support.shared import capture_path

from railscope_agent.sampling.probe_result import ProbeVerdict
from railscope_agent.sampling.source_reader import SourceReader
from railscope_agent.sources.nic_counters import NicSource
from railscope_agent.sources.rdma import RdmaSource

INTERFACE = "eth0"
MICROSECOND = 1e-6

# What each statistic must become: metric without prefix, and base units a step.
MLX5 = {
    "rx_bytes_phy": ("receive_bytes_total", 1),
    "tx_bytes_phy": ("transmit_bytes_total", 1),
    "rx_packets_phy": ("receive_packets_total", 1),
    "tx_packets_phy": ("transmit_packets_total", 1),
    "rx_discards_phy": ("receive_discarded_packets_total", 1),
    "tx_discards_phy": ("transmit_discarded_packets_total", 1),
    "rx_out_of_buffer": ("receive_out_of_buffer_packets_total", 1),
    "rx_pause_ctrl_phy": ("receive_pause_frames_total", 1),
    "tx_pause_ctrl_phy": ("transmit_pause_frames_total", 1),
    "rx_global_pause_duration": ("receive_global_pause_seconds_total", MICROSECOND),
    "tx_global_pause_duration": ("transmit_global_pause_seconds_total", MICROSECOND),
    "rx_vport_rdma_unicast_bytes": ("receive_rdma_bytes_total", 1),
    "tx_vport_rdma_unicast_bytes": ("transmit_rdma_bytes_total", 1),
    "rx_crc_errors_phy": ("receive_crc_errors_total", 1),
    "rx_symbol_err_phy": ("receive_symbol_errors_total", 1),
    "rx_pcs_symbol_err_phy": ("receive_uncorrected_symbol_errors_total", 1),
    "rx_corrected_bits_phy": ("receive_corrected_errors_total", 1),
    "rx_buffer_passed_thres_phy": ("receive_buffer_passed_threshold_total", 1),
    "link_down_events_phy": ("link_downs_total", 1),
    "rx_pci_signal_integrity": ("pcie_receive_signal_errors_total", 1),
    "tx_pci_signal_integrity": ("pcie_transmit_signal_errors_total", 1),
    "outbound_pci_stalled_rd": ("pcie_read_stall_ratio", 0.01),
    "outbound_pci_stalled_wr": ("pcie_write_stall_ratio", 0.01),
    "outbound_pci_stalled_rd_events": ("pcie_read_stalled_seconds_total", 1),
    "outbound_pci_stalled_wr_events": ("pcie_write_stalled_seconds_total", 1),
    "module_unplug": ("transceiver_unplugs_total", 1),
    "module_high_temp": ("transceiver_high_temperature_events_total", 1),
    "module_bus_stuck": ("transceiver_bus_stuck_events_total", 1),
    "module_bad_shorted": ("transceiver_shorted_events_total", 1),
    "rx_multicast_phy": ("receive_multicast_packets_total", 1),
    "tx_multicast_phy": ("transmit_multicast_packets_total", 1),
    "rx_broadcast_phy": ("receive_broadcast_packets_total", 1),
    "tx_broadcast_phy": ("transmit_broadcast_packets_total", 1),
    "rx_mac_control_phy": ("receive_control_frames_total", 1),
    "tx_mac_control_phy": ("transmit_control_frames_total", 1),
    "rx_unsupported_op_phy": ("receive_unsupported_control_frames_total", 1),
    "rx_vport_rdma_unicast_packets": ("receive_rdma_packets_total", 1),
    "tx_vport_rdma_unicast_packets": ("transmit_rdma_packets_total", 1),
    "rx_global_pause": ("receive_global_pause_frames_total", 1),
    "tx_global_pause": ("transmit_global_pause_frames_total", 1),
    "rx_global_pause_transition": ("receive_global_pause_transitions_total", 1),
    "rx_in_range_len_errors_phy": ("receive_length_errors_total", 1),
    "rx_out_of_range_len_phy": ("receive_out_of_range_frames_total", 1),
    "rx_oversize_pkts_phy": ("receive_oversize_frames_total", 1),
    "rx_undersize_pkts_phy": ("receive_undersize_frames_total", 1),
    "rx_fragments_phy": ("receive_fragments_total", 1),
    "rx_jabbers_phy": ("receive_jabbers_total", 1),
    "tx_errors_phy": ("transmit_errors_total", 1),
    "rx_steer_missed_packets": ("receive_unsteered_packets_total", 1),
    "rx_if_down_packets": ("receive_interface_down_packets_total", 1),
    "rx_oversize_pkts_buffer": ("receive_too_long_packets_total", 1),
    "rx_buff_alloc_err": ("receive_buffer_allocation_failures_total", 1),
    "tx_queue_dropped": ("transmit_queue_discarded_packets_total", 1),
    "tx_queue_stopped": ("transmit_queue_stops_total", 1),
    "tx_queue_wake": ("transmit_queue_wakes_total", 1),
    "rx_wqe_err": ("receive_request_errors_total", 1),
    "tx_cqe_err": ("transmit_completion_errors_total", 1),
} | {
    f"{way}_vport_{kind}_{what}": (f"function_{verb}_{kind}_{what}_total", 1)
    for way, verb in (("rx", "receive"), ("tx", "transmit"))
    for kind in ("unicast", "multicast", "broadcast", "rdma_multicast")
    for what in ("packets", "bytes")
}
I40E = {
    "port.rx_bytes": ("receive_bytes_total", 1),
    "port.tx_bytes": ("transmit_bytes_total", 1),
    "port.rx_dropped": ("receive_discarded_packets_total", 1),
    "port.tx_dropped_link_down": ("transmit_discarded_packets_total", 1),
    "port.rx_crc_errors": ("receive_crc_errors_total", 1),
    "port.link_xoff_rx": ("receive_global_pause_frames_total", 1),
    "port.link_xoff_tx": ("transmit_global_pause_frames_total", 1),
    "port.link_xon_rx": ("receive_resume_frames_total", 1),
    "port.link_xon_tx": ("transmit_resume_frames_total", 1),
    "port.rx_unicast": ("receive_unicast_packets_total", 1),
    "port.tx_unicast": ("transmit_unicast_packets_total", 1),
    "port.rx_multicast": ("receive_multicast_packets_total", 1),
    "port.tx_multicast": ("transmit_multicast_packets_total", 1),
    "port.rx_broadcast": ("receive_broadcast_packets_total", 1),
    "port.tx_broadcast": ("transmit_broadcast_packets_total", 1),
    "port.rx_length_errors": ("receive_length_errors_total", 1),
    "port.rx_oversize": ("receive_oversize_frames_total", 1),
    "port.rx_undersize": ("receive_undersize_frames_total", 1),
    "port.rx_fragments": ("receive_fragments_total", 1),
    "port.rx_jabber": ("receive_jabbers_total", 1),
    "port.tx_errors": ("transmit_errors_total", 1),
    "port.rx_csum_bad": ("receive_checksum_errors_total", 1),
    "port.illegal_bytes": ("receive_illegal_bytes_total", 1),
    "port.mac_local_faults": ("local_faults_total", 1),
    "port.mac_remote_faults": ("remote_faults_total", 1),
    "port.tx_timeout": ("transmit_timeouts_total", 1),
}
ENA = {
    "tx_timeout": ("transmit_timeouts_total", 1),
    "wd_expired": ("keep_alive_timeouts_total", 1),
    "interface_down": ("interface_downs_total", 1),
    "ena_admin_q_no_completion": ("admin_commands_unanswered_total", 1),
}
UNTYPED = {
    "mlx5_core": (
        r"(rx|tx|ch)\d+_\w+",  # of each queue
        r"(rx|tx)_(packets|bytes)|(rx|tx)_(tso|lro|csum|xdp|cache|page|cqe_compress|mpwqe)_?\w*",
        r"(rx_removed|tx_added)_vlan_packets|tx_xmit_more",
        r"rx_\d+_(to_\d+_)?bytes_phy",  # sizes of frames
    ),
    "i40e": (
        r"[rt]x-\d+\.[rt]x_(packets|bytes)",  # of each queue
        r"(rx|tx)_\w+|collisions|veb\.\w+",  # of one interface of several, and of its switch
        r"port\.(rx|tx)_size_\w+|port\.(rx|tx)_lpi_\w+|port\.fdir_\w+",
        r"port\.VF_admin_queue_requests|port\.(rx|tx)_hwtstamp_\w+",
    ),
    "ena": (
        r"queue_\d+_\w+",
        r"io_(suspend|resume)|interface_up|admin_q_pause",
        r"ena_admin_q_(aborted|submitted|completed)_cmd|ena_admin_q_out_of_space",
    ),
    "virtio_net": (r"(rx|tx)_queue_\d+_\w+",),
}
PRIORITIES = {
    "rx_prio{}_bytes": "priority_receive_bytes_total",
    "tx_prio{}_bytes": "priority_transmit_bytes_total",
    "rx_prio{}_packets": "priority_receive_packets_total",
    "tx_prio{}_packets": "priority_transmit_packets_total",
    "port.rx_priority_{}_xoff": "receive_pfc_pause_frames_total",
    "port.tx_priority_{}_xoff": "transmit_pfc_pause_frames_total",
    "port.rx_priority_{}_xon": "receive_pfc_resume_frames_total",
    "port.tx_priority_{}_xon": "transmit_pfc_resume_frames_total",
    "port.rx_priority_{}_xon_2_xoff": "receive_pfc_pause_transitions_total",
}


def dump(driver: str) -> dict[str, int]:
    """The statistics in a dump of `ethtool -S`."""
    lines = capture_path(f"ethtool/ethq-{driver}.txt").read_text().splitlines()
    pairs = (line.rsplit(":", 1) for line in lines if ":" in line)
    return {name.strip(): int(value) for name, value in pairs}


def host_with_nic(driver: str, statistics: dict[str, int]) -> FakeHost:
    """Return a host with one NIC of this driver."""
    host = FakeHost()
    place = "/sys/devices/pci0000:3a/0000:3b:00.0"
    host.links[f"/sys/class/net/{INTERFACE}/device"] = place
    host.files |= {f"/sys/class/net/{INTERFACE}/mtu": "9000", f"{place}/vendor": "0x15b3"}
    driver_info = {"driver": driver, "version": "", "firmware": "", "bus": "0000:3b:00.0"}
    host.calls[f"ethtool.driver({INTERFACE})"] = driver_info
    host.calls[f"ethtool.statistics({INTERFACE})"] = {
        "names": list(statistics),
        "values": list(statistics.values()),
    }
    return host


def expected(statistics: dict[str, int], table: dict[str, tuple[str, float]]) -> dict[Label, Any]:
    """Return the readings expected of statistics."""
    found: dict[Label, Any] = {
        (f"railscope_nic_{metric}", (INTERFACE,)): pytest.approx(
            statistics[name] * scale, rel=1e-12
        )
        for name, (metric, scale) in table.items()
        if name in statistics
    }
    for pattern, metric in PRIORITIES.items():
        for priority in map(str, range(8)):
            if (name := pattern.format(priority)) in statistics:
                found[f"railscope_nic_{metric}", (INTERFACE, priority)] = statistics[name]
    return found


TABLES = {"mlx5_core": MLX5, "i40e": I40E, "ena": ENA, "virtio_net": {}}


@pytest.mark.parametrize(("driver", "table"), TABLES.items())
def test_a_dump_becomes_metrics(driver: str, table: dict[str, tuple[str, float]]) -> None:
    statistics = dump(driver)
    found = numbers(read_once(NicSource(), host_with_nic(driver, statistics)).frame)
    assert found == expected(statistics, table)
    assert sum(value > 0 for value in found.values()) > 1 or driver in {"ena", "virtio_net"}


@pytest.mark.parametrize(("driver", "table"), TABLES.items())
def test_every_line_of_a_dump_is_typed_or_left_out_for_a_reason(
    driver: str, table: dict[str, tuple[str, float]]
) -> None:
    by_priority = {pattern.format(n) for pattern in PRIORITIES for n in range(8)}
    left = set(dump(driver)) - set(table) - by_priority
    untyped = re.compile("|".join(UNTYPED[driver]))
    assert {name for name in left if not untyped.fullmatch(name)} == set()
    assert {name for name in table if untyped.fullmatch(name)} == set(), "one or the other"


def test_a_dump_without_known_statistics_is_neither_a_reading_nor_a_failure() -> None:
    outcome = read_once(NicSource(), host_with_nic("virtio_net", dump("virtio_net")))
    assert (outcome.frame, outcome.problem, outcome.missing_count) == (None, "", 0)
    (finding,) = outcome.findings
    assert finding.verdict is ProbeVerdict.ABSENT
    assert "virtio_net" in finding.detail


# Two servers with ConnectX-5, back to back, while RDMA faults were injected -----------------------


def fault(trial: int, side: str, moment: str) -> dict[str, int]:
    """The counters of one side before or after one trial."""
    lines = capture_path("ethtool/rdma-fault/ethtool_RETRY_EXC_QP_ERR.csv").read_text().splitlines()
    rows = [row for row in csv.DictReader(lines) if row["side"] == side]
    return {row["counter"]: int(row[moment]) for row in rows if int(row["trial"]) == trial}


@pytest.mark.parametrize("trial", range(3))
def test_bytes_sent_by_one_side_are_received_by_the_other(trial: int) -> None:
    sides = ("client", "server")
    before, after = (
        {
            side: numbers(
                read_once(NicSource(), host_with_nic("mlx5_core", fault(trial, side, when))).frame
            )
            for side in sides
        }
        for when in ("before", "after")
    )
    for side in sides:
        assert after[side] == expected(fault(trial, side, "after"), MLX5)

    def moved(side: str, metric: str) -> float:
        key = f"railscope_nic_{metric}", (INTERFACE,)
        return after[side][key] - before[side][key]

    assert moved("client", "transmit_rdma_bytes_total") > 0
    for here, there in (sides, reversed(sides)):
        sent = moved(here, "transmit_rdma_bytes_total")
        assert sent == moved(there, "receive_rdma_bytes_total")
        paused = after[here]["railscope_nic_transmit_pause_frames_total", (INTERFACE,)]
        assert paused == after[there]["railscope_nic_receive_pause_frames_total", (INTERFACE,)]


PORT = "/sys/class/infiniband/mlx5_0/ports/1"
LINK_COUNTERS = {
    "port_rcv_errors",
    "local_link_integrity_errors",
    "link_error_recovery",
    "link_downed",
}


def rdma_host(counters: dict[str, str]) -> FakeHost:
    host = FakeHost()
    for name, value in counters.items():
        directory = "counters" if name in LINK_COUNTERS else "hw_counters"
        host.files[f"{PORT}/{directory}/{name}"] = value
    return host


def rdma_counters(files: dict[str, str]) -> dict[Label, float]:
    found = numbers(read_once(RdmaSource(), rdma_host(files)).frame)
    return {label: value for label, value in found.items() if label[0].endswith("_total")}


def test_rdma_counters_of_a_link_that_went_down() -> None:
    """Four of them identify a retry-exceeded fault."""
    lines = capture_path("ethtool/rdma-fault/RETRY_EXC_LINK_DOWN.csv").read_text().splitlines()
    rows = list(csv.DictReader(line for line in lines if not line.startswith("#")))
    client = {row["counter"]: row["after"] for row in rows if row["side"] == "client"}
    server = {row["counter"]: row["after"] for row in rows if row["side"] == "server"}
    found = rdma_counters(client)
    assert len(found) == len(client)
    for metric, file in {
        "railscope_rdma_ack_timeouts_total": "local_ack_timeout_err",
        "railscope_rdma_receiver_not_ready_naks_total": "rnr_nak_retry_err",
        "railscope_rdma_adaptive_retransmissions_total": "roce_adp_retrans",
        "railscope_rdma_transport_retries_exceeded_total": "req_transport_retries_exceeded",
        "railscope_rdma_requester_flushed_errors_total": "req_cqe_flush_error",
    }.items():
        assert found[metric, ("mlx5_0", "1")] == float(client[file]) > 0
    assert len(rdma_counters(server)) == len(server) - 1, "lifespan"


def test_a_fault_seen_as_it_unfolds() -> None:
    """Every change in the timeline appears in the next frame, in its own column only."""
    lines = capture_path("ethtool/rdma-fault/timeline_20260517_230941.csv").read_text().splitlines()
    rows = [line.split(",") for line in lines if not line.startswith("#")]
    steps = [row for row in rows if row[3].isdecimal() and int(row[5]) > 0]
    names = {row[1] for row in steps}
    assert {"roce_adp_retrans", "local_ack_timeout_err"} <= names
    first = {name: next(row[3] for row in steps if row[1] == name) for name in names}
    host = rdma_host(first)
    reader = SourceReader(RdmaSource(), host, ORIGIN)
    seen = [numbers(reader.run().frame)]
    for _, name, _, _, value, _ in steps:
        host.files[f"{PORT}/hw_counters/{name}"] = value
        seen.append(numbers(reader.run().frame))
    for (before, after), step in zip(pairwise(seen), steps, strict=True):
        assert [after[key] for key in after if before[key] != after[key]] == [float(step[4])]

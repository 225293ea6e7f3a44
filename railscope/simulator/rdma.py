"""What /sys/class/infiniband shows of the simulated ports."""

from __future__ import annotations

import errno

from railscope.capture import Moment, failure
from railscope.simulator.fabric import Cable
from railscope.simulator.machine import HCA_TYPE, NIC_BOARD, NIC_FIRMWARE
from railscope.simulator.model import NodeModel

RATES = {400: "400 Gb/sec (4X NDR)", 200: "200 Gb/sec (4X HDR)"}
DOWN_RATE = "40 Gb/sec (4X QDR)"
"""What mlx5 says of a port that is down (linux: drivers/infiniband/hw/mlx5/main.c)."""

# Widths of the counters: the hardware wraps at 32 bits, the narrow port counters stop at their end.
_WRAP, _MOST_8, _MOST_16 = 1 << 32, (1 << 8) - 1, (1 << 16) - 1

_SILENT_COUNTERS = (
    "VL15_dropped", "excessive_buffer_overrun_errors", "link_error_recovery",
    "local_link_integrity_errors", "multicast_rcv_packets", "multicast_xmit_packets",
    "port_rcv_constraint_errors", "port_rcv_errors", "port_rcv_remote_physical_errors",
    "port_rcv_switch_relay_errors", "port_xmit_constraint_errors", "port_xmit_discards",
    "port_xmit_wait", "symbol_error",
)  # fmt: skip
_SILENT_HW_COUNTERS = (
    "duplicate_request", "implied_nak_seq_err", "out_of_buffer", "req_cqe_error",
    "req_cqe_flush_error", "req_remote_access_errors", "req_remote_invalid_request",
    "req_rnr_retries_exceeded", "req_transport_retries_exceeded", "resp_cqe_error",
    "resp_cqe_flush_error", "resp_local_length_error", "resp_remote_access_errors",
    "rnr_nak_retry_err", "roce_slow_restart", "roce_slow_restart_cnps",
    "roce_slow_restart_trans", "rp_cnp_ignored", "rx_atomic_requests", "rx_dct_connect",
    "rx_icrc_encapsulated", "rx_read_requests",
)  # fmt: skip
_LIFESPAN_MILLISECONDS = 10


def show(model: NodeModel, into: Moment) -> None:
    """Put the RDMA devices into a moment."""
    root = "/sys/class/infiniband"
    into.names[root] = sorted(cable.port.rdma_device for cable in model.cables)
    paths = {device.address: device.path for device in model.machine.pci}
    for cable in model.cables:
        port = cable.port
        folder = f"{root}/{port.rdma_device}"
        into.links[f"{folder}/device"] = paths[port.pci_address]
        into.names[f"{folder}/device/net"] = [port.interface]
        into.names[f"{folder}/ports"] = ["1"]
        into.names[f"{folder}/hw_counters"] = failure(OSError(errno.ENOENT, ""))
        for name, text in _device_files(cable).items():
            into.files[f"{folder}/{name}"] = f"{text}\n"
        for group, values in (("counters", counters(cable)), ("hw_counters", hw_counters(cable))):
            into.names[f"{folder}/ports/1/{group}"] = sorted(values)
            for name, value in values.items():
                into.files[f"{folder}/ports/1/{group}/{name}"] = f"{value}\n"


def _device_files(cable: Cable) -> dict[str, str]:
    port = cable.port
    return {
        "fw_ver": NIC_FIRMWARE,
        "board_id": NIC_BOARD,
        "hca_type": HCA_TYPE,
        "node_guid": port.guid,
        "sys_image_guid": port.guid,
        "node_type": "1: CA",
        "node_desc": port.rdma_device,
        "ports/1/state": "4: ACTIVE" if cable.up else "1: DOWN",
        "ports/1/phys_state": "5: LinkUp" if cable.up else "3: Disabled",
        "ports/1/rate": RATES[port.gigabits] if cable.up else DOWN_RATE,
        "ports/1/link_layer": "Ethernet",
    }


def counters(cable: Cable) -> dict[str, int]:
    """Tell the files of `counters/`: data in words of four bytes."""
    seen = cable.counters
    return dict.fromkeys(_SILENT_COUNTERS, 0) | {
        "link_downed": min(seen.link_downs, _MOST_8),
        "port_rcv_data": seen.received_words,
        "port_rcv_packets": seen.received_packets,
        "port_xmit_data": seen.sent_words,
        "port_xmit_packets": seen.sent_packets,
        "unicast_rcv_packets": seen.received_packets,
        "unicast_xmit_packets": seen.sent_packets,
        "port_xmit_discards": min(seen.ack_timeouts, _MOST_16),
    }


def hw_counters(cable: Cable) -> dict[str, int]:
    """Tell the files of `hw_counters/` of mlx5."""
    seen = cable.counters
    narrow = {
        "rx_write_requests": seen.write_requests,
        "out_of_sequence": seen.out_of_sequence,
        "local_ack_timeout_err": seen.ack_timeouts,
        "packet_seq_err": seen.sequence_errors,
        "roce_adp_retrans": seen.sequence_errors,
        "roce_adp_retrans_to": seen.ack_timeouts,
    }
    return (
        dict.fromkeys(_SILENT_HW_COUNTERS, 0)
        | {name: value % _WRAP for name, value in narrow.items()}
        | {
            "lifespan": _LIFESPAN_MILLISECONDS,
            "np_cnp_sent": seen.notifications_sent,
            "np_ecn_marked_roce_packets": seen.marked_packets,
            "rp_cnp_handled": seen.notifications_handled,
        }
    )

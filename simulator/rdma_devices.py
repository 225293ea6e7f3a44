"""RDMA ports in /sys/class/infiniband and in the kernel's RDMA interface by name, with their counters.

Counter files by driver: `counters/` of the core and `hw_counters/` of each. Sources: linux,
drivers/infiniband/hw/mlx5/counters.c, bnxt_re/hw_counters.c, irdma/verbs.c. The core creates
`counters/` only for devices that support performance management queries, which irdma does not.
"""

from __future__ import annotations

import errno

from railscope.capture import CaptureMoment, Json, failure
from simulator.device_models import CONNECTX7, LANES
from simulator.fabric import Cable
from simulator.node_hardware import NvSwitchFunction
from simulator.node_model import NodeModel
from simulator.port import TrafficFlow

# Widths of the counters: the hardware wraps at 32 bits, the narrow port counters saturate.
_WRAP, _MAX_8, _MAX_16 = 1 << 32, (1 << 8) - 1, (1 << 16) - 1

_SILENT_COUNTERS = (
    "VL15_dropped", "excessive_buffer_overrun_errors", "link_error_recovery",
    "local_link_integrity_errors", "multicast_rcv_packets", "multicast_xmit_packets",
    "port_rcv_constraint_errors", "port_rcv_errors", "port_rcv_remote_physical_errors",
    "port_rcv_switch_relay_errors", "port_xmit_constraint_errors", "port_xmit_discards",
    "port_xmit_wait", "symbol_error",
)  # fmt: skip
_MLX5_SILENT = (
    "duplicate_request", "implied_nak_seq_err", "out_of_buffer", "req_cqe_error",
    "req_cqe_flush_error", "req_remote_access_errors", "req_remote_invalid_request",
    "req_rnr_retries_exceeded", "req_transport_retries_exceeded", "resp_cqe_error",
    "resp_cqe_flush_error", "resp_local_length_error", "resp_remote_access_errors",
    "rnr_nak_retry_err", "roce_slow_restart", "roce_slow_restart_cnps",
    "roce_slow_restart_trans", "rp_cnp_ignored", "rx_atomic_requests", "rx_dct_connect",
    "rx_icrc_encapsulated", "rx_read_requests",
)  # fmt: skip
_BNXT_SILENT = (
    "active_ahs", "active_mws", "bad_resp_err", "dup_req", "local_protection_err",
    "local_qp_op_err", "max_retry_exceeded", "mem_mgmt_op_err", "missing_resp",
    "recoverable_errors", "remote_access_err", "remote_invalid_req_err", "remote_op_err",
    "res_cmp_err", "res_cq_load_err", "res_exceed_max", "res_exceeds_wqe",
    "res_invalid_dup_rkey", "res_irrq_oflow", "res_length_mismatch", "res_mem_err",
    "res_opcode_err", "res_rem_inv_err", "res_rx_domain_err", "res_rx_invalid_rkey",
    "res_rx_no_perm", "res_rx_pci_err", "res_rx_range_err", "res_srq_err", "res_srq_load_err",
    "res_tx_domain_err", "res_tx_invalid_rkey", "res_tx_no_perm", "res_tx_pci_err",
    "res_tx_range_err", "res_unaligned_atomic", "res_unsup_opcode", "res_wqe_format_err",
    "rnr_naks_rcvd", "rx_atomic_req", "rx_out_of_buffer", "rx_read_req", "rx_read_resp",
    "rx_roce_discards", "rx_roce_errors", "rx_send_req", "tx_atomic_req", "tx_read_req",
    "tx_read_resp", "tx_send_req", "unrecoverable_err",
)  # fmt: skip
_BNXT_RESOURCES = {
    "active_pds": 9, "active_qps": 129, "active_srqs": 1, "active_cqs": 66, "active_mrs": 40,
}  # fmt: skip
_IRDMA_SILENT = (
    "cnpIgnored", "ip4InDiscards", "ip4InMcastOctets", "ip4InMcastPkts", "ip4InReasmRqd",
    "ip4InTruncatedPkts", "ip4OutMcastOctets", "ip4OutMcastPkts", "ip4OutNoRoutes",
    "ip4OutSegRqd", "ip6InDiscards", "ip6InMcastOctets", "ip6InMcastPkts", "ip6InOctets",
    "ip6InPkts", "ip6InReasmRqd", "ip6InTruncatedPkts", "ip6OutMcastOctets", "ip6OutMcastPkts",
    "ip6OutNoRoutes", "ip6OutOctets", "ip6OutPkts", "ip6OutSegRqd", "iwInRdmaReads",
    "iwInRdmaSends", "iwOutRdmaReads", "iwOutRdmaSends", "iwRdmaBnd", "iwRdmaInv", "rxVlanErrors",
    "tcpInOptErrors", "tcpInProtoErrors", "tcpInSegs", "tcpOutSegs", "tcpRetransSegs",
)  # fmt: skip
_ETHERNET_HEADER_BYTES = 14
_LIFESPAN_MILLISECONDS = 10


def counters(cable: Cable) -> dict[str, int] | None:
    """Return the files of `counters/`, data in words of four bytes; None if there is no directory."""
    if cable.port.nic.driver == "ice":
        return None
    seen = cable.counters
    return silent_counters() | {
        "link_downed": min(seen.link_downs, _MAX_8),
        "port_rcv_data": seen.received.words,
        "port_rcv_packets": seen.received.packets,
        "port_xmit_data": seen.sent.words,
        "port_xmit_packets": seen.sent.packets,
        "unicast_rcv_packets": seen.received.packets,
        "unicast_xmit_packets": seen.sent.packets,
        "port_xmit_discards": min(seen.ack_timeouts, _MAX_16),
    }


def silent_counters() -> dict[str, int]:
    """Return the files of `counters/` with all counters at zero."""
    moving = (
        "link_downed", "port_rcv_data", "port_rcv_packets", "port_xmit_data", "port_xmit_packets",
        "unicast_rcv_packets", "unicast_xmit_packets",
    )  # fmt: skip
    return dict.fromkeys((*_SILENT_COUNTERS, *moving), 0)


def hw_counters(cable: Cable) -> dict[str, int]:
    """Return the files of `hw_counters/`."""
    tell = {"mlx5_core": _mlx5, "bnxt_en": _bnxt, "ice": _irdma}[cable.port.nic.driver]
    return tell(cable) | {"lifespan": _LIFESPAN_MILLISECONDS}


def optional_counters(cable: Cable) -> dict[str, int]:
    """Return the enabled counters that never appear in sysfs; only mlx5 has some."""
    if cable.port.nic.driver != "mlx5_core":
        return {}
    seen = cable.counters
    return {
        "cc_rx_ce_pkts": seen.marked_packets,
        "cc_rx_cnp_pkts": seen.notifications_handled,
        "cc_tx_cnp_pkts": seen.notifications_sent,
        "rdma_tx_packets": seen.sent.packets,
        "rdma_tx_bytes": seen.sent.data_bytes,
        "rdma_rx_packets": seen.received.packets,
        "rdma_rx_bytes": seen.received.data_bytes,
    }


def _mlx5(cable: Cable) -> dict[str, int]:
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
        dict.fromkeys(_MLX5_SILENT, 0)
        | {name: value % _WRAP for name, value in narrow.items()}
        | {
            "np_cnp_sent": seen.notifications_sent,
            "np_ecn_marked_roce_packets": seen.marked_packets,
            "rp_cnp_handled": seen.notifications_handled,
        }
    )


def _bnxt(cable: Cable) -> dict[str, int]:
    seen = cable.counters
    return (
        dict.fromkeys(_BNXT_SILENT, 0)
        | _BNXT_RESOURCES
        | {
            "rx_pkts": seen.received.packets,
            "rx_bytes": seen.received.data_bytes,
            "tx_pkts": seen.sent.packets,
            "tx_bytes": seen.sent.data_bytes,
            "rx_roce_good_pkts": seen.received.packets,
            "rx_roce_good_bytes": seen.received.data_bytes,
            "rx_write_req": seen.write_requests,
            "tx_write_req": seen.write_requests,
            "oos_drop_count": seen.out_of_sequence,
            "to_retransmits": seen.ack_timeouts,
            "seq_err_naks_rcvd": seen.sequence_errors,
            "rx_ecn_marked_pkts": seen.marked_packets,
            "tx_cnp_pkts": seen.notifications_sent,
            "rx_cnp_pkts": seen.notifications_handled,
        }
    )


def _irdma(cable: Cable) -> dict[str, int]:
    seen = cable.counters
    return dict.fromkeys(_IRDMA_SILENT, 0) | {
        "ip4InOctets": _datagram_bytes(seen.received),
        "ip4InPkts": seen.received.packets,
        "ip4OutOctets": _datagram_bytes(seen.sent),
        "ip4OutPkts": seen.sent.packets,
        "RxUDP": seen.received.packets,
        "TxUDP": seen.sent.packets,
        "iwInRdmaWrites": seen.write_requests,
        "iwOutRdmaWrites": seen.write_requests,
        "RxECNMrkd": seen.marked_packets,
        "cnpSent": seen.notifications_sent,
        "cnpHandled": seen.notifications_handled,
    }


def _datagram_bytes(flow: TrafficFlow) -> int:
    return flow.data_bytes - flow.packets * _ETHERNET_HEADER_BYTES


ROOT = "/sys/class/infiniband"
_LANE_SPEEDS = {100: "NDR", 50: "HDR", 25: "EDR"}
DOWN_RATE = "40 Gb/sec (4X QDR)"
"""Rate that mlx5 reports for a port that is down (linux: drivers/infiniband/hw/mlx5/main.c)."""
_GIDS = ("IB/RoCE v1", "RoCE v2", "IB/RoCE v1", "RoCE v2")
"""Types of the first four: two of the link-local address, two of the IPv4 address."""


def show_rdma_devices(model: NodeModel, into: CaptureMoment) -> None:
    """Add the RDMA devices to a `CaptureMoment`."""
    cables, bridges = model.present_cables, model.machine.bridges
    into.names[ROOT] = sorted(
        [*(cable.port.rdma_device for cable in cables), *(b.rdma_device for b in bridges)]
    )
    paths = {device.address: device.path for device in model.machine.pci}
    for cable in cables:
        port = cable.port
        directory = f"{ROOT}/{port.rdma_device}"
        into.links[f"{directory}/device"] = paths[port.pci_address]
        into.names[f"{directory}/device/net"] = [port.interface]
        _show_files(into, directory, _device_files(cable))
        _show_gids(into, cable)
        told = hw_counters(cable)
        _show_counters(into, directory, "counters", counters(cable))
        _show_counters(into, directory, "hw_counters", told)
        told.pop("lifespan")
        call = f"netlink.rdma_statistics({port.rdma_device},1)"
        into.calls[call] = told | optional_counters(cable)
    for bridge in bridges:
        _show_bridge(into, bridge, paths[bridge.pci_address])


def _show_files(into: CaptureMoment, directory: str, files: dict[str, str]) -> None:
    into.names[f"{directory}/ports"] = ["1"]
    into.names[f"{directory}/hw_counters"] = failure(OSError(errno.ENOENT, ""))
    for name, text in files.items():
        into.files[f"{directory}/{name}"] = f"{text}\n"


def _show_counters(
    into: CaptureMoment, directory: str, group: str, values: dict[str, int] | None
) -> None:
    place = f"{directory}/ports/1/{group}"
    if values is None:
        into.names[place] = failure(OSError(errno.ENOENT, ""))
        return
    into.names[place] = sorted(values)
    for name, value in values.items():
        into.files[f"{place}/{name}"] = f"{value}\n"


def _device_files(cable: Cable) -> dict[str, str]:
    port, nic = cable.port, cable.port.nic
    lane = port.gigabits // LANES
    rate = f"{cable.gigabits} Gb/sec ({cable.lanes}X {_LANE_SPEEDS[lane]})"
    return {
        "fw_ver": nic.firmware,
        **({"board_id": nic.board} if nic.board else {}),
        "hca_type": nic.hca_type,
        "node_guid": port.guid,
        "sys_image_guid": port.guid,
        "node_type": "1: CA",
        "node_desc": port.rdma_device,
        "ports/1/state": "4: ACTIVE" if cable.up else "1: DOWN",
        "ports/1/phys_state": "5: LinkUp" if cable.up else "3: Disabled",
        "ports/1/rate": rate if cable.up else DOWN_RATE,
        "ports/1/link_layer": "Ethernet",
    }


def _show_gids(into: CaptureMoment, cable: Cable) -> None:
    """Add the GID table to a `CaptureMoment`: the addresses of the interface, by type."""
    port = cable.port
    place = f"{ROOT}/{port.rdma_device}/ports/1"
    octets = [int(octet, 16) for octet in port.mac.split(":")]
    own = bytes([octets[0] ^ 2, *octets[1:3], 0xFF, 0xFE, *octets[3:]]).hex(":", 2)
    local = f"fe80:0000:0000:0000:{own}"
    routed = f"0000:0000:0000:0000:0000:ffff:0a0a:{octets[-1]:04x}"
    numbers = [str(number) for number in range(len(_GIDS))]
    for directory in ("gids", "gid_attrs/types", "gid_attrs/ndevs"):
        into.names[f"{place}/{directory}"] = numbers
    for number, kind in zip(numbers, _GIDS, strict=True):
        into.files[f"{place}/gids/{number}"] = f"{local if number in '01' else routed}\n"
        into.files[f"{place}/gid_attrs/types/{number}"] = f"{kind}\n"
        into.files[f"{place}/gid_attrs/ndevs/{number}"] = f"{port.interface}\n"


def _show_bridge(into: CaptureMoment, bridge: NvSwitchFunction, path: Json) -> None:
    """Add a function that manages NVSwitches to a `CaptureMoment`: InfiniBand, and without traffic."""
    directory = f"{ROOT}/{bridge.rdma_device}"
    into.links[f"{directory}/device"] = path
    into.names[f"{directory}/device/net"] = failure(OSError(errno.ENOENT, ""))
    _show_files(
        into,
        directory,
        {
            "fw_ver": CONNECTX7.firmware,
            "board_id": "MT_0000001130",
            "hca_type": CONNECTX7.hca_type,
            "node_guid": bridge.guid,
            "sys_image_guid": bridge.guid,
            "node_type": "1: CA",
            "node_desc": bridge.rdma_device,
            "ports/1/state": "4: ACTIVE",
            "ports/1/phys_state": "5: LinkUp",
            "ports/1/rate": "400 Gb/sec (4X NDR)",
            "ports/1/link_layer": "InfiniBand",
        },
    )
    _show_counters(into, directory, "counters", silent_counters())
    _show_counters(into, directory, "hw_counters", {"lifespan": 10})
    into.calls[f"netlink.rdma_statistics({bridge.rdma_device},1)"] = {}

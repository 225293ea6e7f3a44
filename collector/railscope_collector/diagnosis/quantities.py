"""Quantities: the measured inputs of the diagnosis, each declared once with metric, entity and kind.

A quantity of a device is a pair of sums for each slot of time: a counter's increase and the seconds over which it
was read, or the sum of a gauge's values and their number. Every rate, share and mean is a quotient of two sums,
so that windows of any length and samples at any times combine exactly. A slot without a reading has a
denominator of zero: unknown, never zero.

Counter names and their meanings: docs/metrics; of mlx5, the kernel's
Documentation/networking/device_drivers/ethernet/mellanox/mlx5/counters.rst.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from enum import StrEnum
from fnmatch import fnmatchcase
from functools import lru_cache
from types import MappingProxyType

from railscope.catalog import METRICS


class DeviceKind(StrEnum):
    """Kinds of devices that have quantities."""

    NIC = "nic"
    GPU = "gpu"
    NODE = "node"
    MOUNT = "mount"
    PORT = "port"
    """Port of a switch."""
    QUEUE = "queue"
    """Priority, queue and priority group of a switch port that have the same number."""


class QuantityKind(StrEnum):
    """Combination of the readings of a slot."""

    COUNTER = "counter"
    """Increases, over seconds."""
    MEAN = "mean"
    """Values, over their number."""
    LAST = "last"
    """The last value alone, with a denominator of one."""
    ABSENCE = "absence"
    """The code of the last absence reason; nothing while there is a value."""


@dataclass(frozen=True, slots=True)
class Quantity:
    """A quantity: the columns of one metric, of a device or of its parts.

    `parts` are patterns (fnmatch) of the labels that distinguish parts of the device, such as a priority or a
    reason, joined by a slash. The columns of all parts that match are combined, without patterns those of all parts.
    """

    name: str
    device: DeviceKind
    kind: QuantityKind
    metric: str
    parts: tuple[str, ...] = ()

    def selects(self, part: Sequence[str]) -> bool:
        """True if the quantity includes the columns of a part of its device."""
        return not self.parts or _matches(self.parts, "/".join(part))


@lru_cache(maxsize=4096)
def _matches(patterns: tuple[str, ...], part: str) -> bool:
    return any(fnmatchcase(part, each) for each in patterns)


def _declare(device: DeviceKind, kind: QuantityKind, metrics: dict[str, str]) -> Iterator[Quantity]:
    """Yield quantities by name; a metric may select parts: `metric{part,part}`."""
    for name, text in metrics.items():
        metric, _, parts = text.rstrip("}").partition("{")
        patterns = tuple(filter(None, parts.split(",")))
        yield Quantity(name, device, kind, f"railscope_{metric}", patterns)


PRIORITIES = range(8)

_QUANTITIES = (
    *_declare(
        DeviceKind.NIC,
        QuantityKind.COUNTER,
        {
            "rdma_received_bytes": "nic_receive_rdma_bytes_total",
            "rdma_sent_bytes": "nic_transmit_rdma_bytes_total",
            "port_received_bytes": "rdma_receive_bytes_total",
            "port_sent_bytes": "rdma_transmit_bytes_total",
            "ipv4_received_bytes": "rdma_ipv4_receive_bytes_total",
            "ipv6_received_bytes": "rdma_ipv6_receive_bytes_total",
            "ipv4_sent_bytes": "rdma_ipv4_transmit_bytes_total",
            "ipv6_sent_bytes": "rdma_ipv6_transmit_bytes_total",
            "roce_received_packets": "nic_receive_rdma_packets_total",
            "port_received_packets": "rdma_receive_packets_total",
            "udp_received_packets": "rdma_udp_receive_packets_total",
            "pausing_seconds": "nic_transmit_pfc_pause_seconds_total",
            "paused_seconds": "nic_receive_pfc_pause_seconds_total",
            "global_pausing_seconds": "nic_transmit_global_pause_seconds_total",
            "global_paused_seconds": "nic_receive_global_pause_seconds_total",
            "pause_frames_sent": "nic_transmit_pfc_pause_frames_total",
            "pause_frames_received": "nic_receive_pfc_pause_frames_total",
            "global_pause_frames_sent": "nic_transmit_global_pause_frames_total",
            "global_pause_frames_received": "nic_receive_global_pause_frames_total",
            "storm_warnings": "nic_transmit_pause_storm_warnings_total",
            "storm_errors": "nic_transmit_pause_storm_errors_total",
            "marked_packets": "rdma_ecn_marked_packets_total",
            "notifications_sent": "rdma_congestion_notifications_sent_total",
            "notifications_handled": "rdma_congestion_notifications_handled_total",
            "notifications_received": "rdma_congestion_notifications_received_total",
            "notifications_ignored": "rdma_congestion_notifications_ignored_total",
            "slow_restart_notifications": "rdma_slow_restart_notifications_total",
            "out_of_sequence": "rdma_out_of_sequence_packets_total",
            "ack_timeouts": "rdma_ack_timeouts_total",
            "sequence_naks": "rdma_packet_sequence_errors_total",
            "adaptive_retransmissions": "rdma_adaptive_retransmissions_total",
            "discarded_in_buffer": "nic_all_priorities_receive_discarded_packets_total",
            "discarded_by_priority": "nic_priority_receive_discarded_packets_total",
            "discarded_in_congestion": "nic_priority_receive_congestion_discarded_packets_total",
            "discarded_at_port": "nic_receive_discarded_packets_total",
            "out_of_buffer": "rdma_out_of_buffer_drops_total",
            "write_stalled_seconds": "nic_pcie_write_stalled_seconds_total",
            "corrected_bits": "nic_receive_corrected_errors_total",
            "line_bytes": "nic_receive_line_bytes_total",
            "uncorrected_symbols": "nic_receive_uncorrected_symbol_errors_total",
            "uncorrected_blocks": "nic_receive_fec_uncorrectable_blocks_total",
            "link_downs": "nic_link_downs_total",
            "port_link_downs": "rdma_link_downs_total",
            "carrier_changes": "network_link_changes_total",
            **{
                f"priority_{number}_sent_bytes": f"nic_priority_transmit_bytes_total{{{number}}}"
                for number in PRIORITIES
            },
        },
    ),
    *_declare(
        DeviceKind.NIC,
        QuantityKind.MEAN,
        {"write_stall": "nic_pcie_write_stall_ratio"},
    ),
    *_declare(
        DeviceKind.NIC,
        QuantityKind.LAST,
        {
            "link_up": "network_link_up",
            "port_up": "rdma_port_up",
            "link_speed": "network_link_speed_bytes_per_second",
            "port_rate": "rdma_port_rate_bytes_per_second",
            "expected_speed": "nic_setting_expected_speed_bytes_per_second",
            "pcie_width": "pcie_link_width_lanes",
            "pcie_width_limit": "pcie_link_width_limit_lanes",
            "pcie_speed": "pcie_link_speed_transfers_per_second",
            "pcie_speed_limit": "pcie_link_speed_limit_transfers_per_second",
            "device_gone": "pcie_device_gone",
            **{
                f"priority_{number}_lossless": f"nic_setting_pfc_enabled{{{number}}}"
                for number in PRIORITIES
            },
        },
    ),
    *_declare(
        DeviceKind.GPU,
        QuantityKind.COUNTER,
        {
            "energy": "gpu_energy_joules_total",
            "thermal_seconds": "gpu_throttle_seconds_total{thermal}",
            "software_thermal_seconds": "gpu_throttle_seconds_total{software_thermal}",
            "hardware_thermal_seconds": "gpu_throttle_seconds_total{hardware_thermal}",
            "power_brake_seconds": "gpu_throttle_seconds_total{hardware_power_brake}",
            "nvlink_bytes": "gpu_nvlink_transmitted_bytes_total",
            "nvlink_errors": "gpu_nvlink_errors_total",
            "nvlink_recoveries": "nvlink_recoveries_total",
        },
    ),
    *_declare(
        DeviceKind.GPU,
        QuantityKind.MEAN,
        {
            "utilization": "gpu_utilization_ratio",
            "graphics_activity": "gpu_graphics_activity_ratio",
            "sm_activity": "gpu_sm_activity_ratio",
            "tensor_activity": "gpu_tensor_activity_ratio",
            "power": "gpu_power_watts",
            "clock": "gpu_clock_hertz{graphics}",
            "temperature": "gpu_temperature_celsius",
            "nvlink_rate": "gpu_nvlink_transmit_bytes_per_second",
            "thermal_active": "gpu_throttle_active{*thermal}",
            "hardware_slowdown_active": "gpu_throttle_active{hardware_slowdown}",
            "power_brake_active": "gpu_throttle_active{hardware_power_brake}",
        },
    ),
    *_declare(
        DeviceKind.GPU,
        QuantityKind.LAST,
        {
            "width": "gpu_pcie_link_width_lanes",
            "width_expected": "gpu_pcie_expected_width_lanes",
            "generation": "gpu_pcie_link_generation",
            "generation_expected": "gpu_pcie_expected_generation",
            "device_state": "gpu_device_state",
            "power_limit": "gpu_power_limit_watts",
        },
    ),
    *_declare(
        DeviceKind.GPU,
        QuantityKind.ABSENCE,
        {"utilization_absence": "gpu_utilization_ratio"},
    ),
    *_declare(
        DeviceKind.NODE,
        QuantityKind.COUNTER,
        {
            "cpu_idle_seconds": "cpu_seconds_total{idle,iowait}",
            "cpu_seconds": "cpu_seconds_total",
            "cpu_pressure_seconds": "pressure_stalled_seconds_total{cpu/some}",
            "io_pressure_seconds": "pressure_stalled_seconds_total{io/some}",
        },
    ),
    *_declare(
        DeviceKind.MOUNT,
        QuantityKind.COUNTER,
        {
            "read_operations": "nfs_operations_total{READ}",
            "read_seconds": "nfs_execution_seconds_total{READ}",
            "write_operations": "nfs_operations_total{WRITE}",
            "write_seconds": "nfs_execution_seconds_total{WRITE}",
            "target_requests": "lustre_target_requests_total",
            "target_wait_seconds": "lustre_target_wait_seconds_total",
        },
    ),
    *_declare(
        DeviceKind.PORT,
        QuantityKind.COUNTER,
        {
            "port_errors": "switch_port_receive_errors_total",
            "port_fcs_errors": "switch_port_receive_fcs_errors_total",
            "port_symbol_errors": "switch_port_receive_symbol_errors_total",
            "port_uncorrectable_frames": "switch_port_receive_fec_uncorrectable_frames_total",
            "port_uncorrectable_symbols": "switch_port_receive_uncorrected_symbol_errors_total",
            "switch_pauses_received": "switch_port_receive_pfc_pause_frames_total",
            "switch_pauses_sent": "switch_port_transmit_pfc_pause_frames_total",
            "all_pauses_received": "switch_port_all_priorities_receive_pfc_pause_frames_total",
            "all_pauses_sent": "switch_port_all_priorities_transmit_pfc_pause_frames_total",
        },
    ),
    *_declare(
        DeviceKind.PORT,
        QuantityKind.LAST,
        {
            "switch_port_up": "switch_port_up",
            "switch_port_enabled": "switch_port_enabled",
            "switch_port_speed": "switch_port_speed_bytes_per_second",
        },
    ),
    *_declare(
        DeviceKind.QUEUE,
        QuantityKind.COUNTER,
        {
            "queue_pauses_received": "switch_port_receive_pfc_pause_frames_total",
            "queue_pauses_sent": "switch_port_transmit_pfc_pause_frames_total",
            "queue_packets": "switch_queue_transmit_packets_total",
            "queue_marks": "switch_queue_ecn_marked_packets_total",
            "queue_drops": "switch_queue_dropped_packets_total",
            "queue_wred_drops": "switch_queue_wred_dropped_packets_total",
            "queue_buffer_drops": "switch_queue_no_buffer_dropped_packets_total",
            "group_drops": "switch_priority_group_dropped_packets_total",
            "watchdog_storms": "switch_queue_pfc_watchdog_detected_storms_total",
            "watchdog_restored": "switch_queue_pfc_watchdog_restored_storms_total",
        },
    ),
    *_declare(
        DeviceKind.QUEUE,
        QuantityKind.LAST,
        {
            "queue_occupancy": "switch_queue_occupancy_bytes",
            "headroom_used": "switch_priority_group_headroom_watermark_bytes",
            "headroom_size": "switch_priority_group_headroom_bytes",
            "headroom_share": "switch_priority_group_headroom_used_ratio",
            "headroom_peak": "switch_priority_group_headroom_peak_ratio",
        },
    ),
)


@dataclass(frozen=True, slots=True)
class Limit:
    """A NIC or a GPU is faulty while a quantity that it reports is above a value. One row is a whole detector.

    A counter is compared by its increase in the window. `title`, `text` and `action` declare the class of incidents;
    without them, `incident_classes` has it, as others report it too.
    """

    incident: str
    quantity: Quantity
    above: float
    unit: str
    meaning: str
    title: str = ""
    text: str = ""
    action: str = ""
    strength: float = 1.0
    up_to: float = math.inf
    """Largest value of this fault: above it, another row has a worse one."""

    def __post_init__(self) -> None:
        if self.quantity.device not in {DeviceKind.NIC, DeviceKind.GPU}:
            message = f"limit of {self.quantity.name}: {self.quantity.device}: expected nic or gpu"
            raise ValueError(message)
        if self.quantity.metric not in METRICS:
            near = get_close_matches(self.quantity.metric, METRICS, n=1)
            hint = f"; did you mean {near[0]}?" if near else ""
            message = f"limit of {self.quantity.name}: unknown metric {self.quantity.metric}: expected one of railscope/catalog{hint}"
            raise ValueError(message)


_DRIVER_REPORT = "railscope_pcie_driver_report"
_SEND_QUEUE_STUCK = 3.0
"""Worst report that is no failure of the whole device."""
REMAP_STRENGTH = 0.7
"""A row that waits for its remapping is often the effect of an uncorrectable error, which counts more."""

LIMITS = (
    Limit("gpu_memory_failed", Quantity("remap_failure", DeviceKind.GPU, QuantityKind.LAST, "railscope_gpu_row_remap_failure"), 0.0, "1 or 0", "1 if a memory row could not be remapped."),
    Limit("gpu_memory_failed", Quantity("sram_threshold", DeviceKind.GPU, QuantityKind.LAST, "railscope_gpu_sram_threshold_exceeded"), 0.0, "1 or 0", "1 if on-chip memory has had so many errors that field diagnostics would fail it."),
    Limit("gpu_memory_failed", Quantity("unrepairable_memory", DeviceKind.GPU, QuantityKind.LAST, "railscope_gpu_unrepairable_memory"), 0.0, "1 or 0", "1 if memory cannot be repaired."),
    Limit("row_remap", Quantity("remap_pending", DeviceKind.GPU, QuantityKind.LAST, "railscope_gpu_row_remap_pending"), 0.0, "1 or 0", "1 if a memory row waits for its remapping.", strength=REMAP_STRENGTH),
    Limit("ecc_uncorrectable", Quantity("uncorrected_errors", DeviceKind.GPU, QuantityKind.COUNTER, "railscope_gpu_ecc_errors_total", ("uncorrected/volatile",)), 0.0, "errors", "Uncorrectable memory errors."),
    Limit("nic_failed", Quantity("driver_failure", DeviceKind.NIC, QuantityKind.LAST, _DRIVER_REPORT), _SEND_QUEUE_STUCK, "state", "Report of the driver: 4 is a failure of the NIC."),
    Limit("nic_fault", Quantity("driver_report", DeviceKind.NIC, QuantityKind.LAST, _DRIVER_REPORT), 0.0, "state", "Report of the driver: 1 too hot, 2 cable or transceiver faulty, 3 send queue stuck.", "NIC fault reported", "The driver of a NIC reports a fault: a stuck send queue, a faulty cable, or heat.", "follow the remedy that railscope health states for the NIC", up_to=_SEND_QUEUE_STUCK),
)  # fmt: skip

QUANTITIES = MappingProxyType(
    {quantity.name: quantity for quantity in (*_QUANTITIES, *(limit.quantity for limit in LIMITS))}
)
"""All quantities by name; a name is that of one kind of device."""

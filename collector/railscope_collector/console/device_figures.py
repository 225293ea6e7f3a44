"""Figures with curves of devices: metrics of the catalog in order of preference."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Literal

from railscope.catalog import METRICS, MetricKind

CombinedBy = Literal["sum", "max", "mean", "min"]


@dataclass(frozen=True, slots=True)
class CurveSource:
    """Columns of one metric; `parts` are patterns (fnmatch) of what distinguishes parts of a device, such as a reason."""

    metric: str
    parts: tuple[str, ...] = ()

    @classmethod
    def parse(cls, text: str) -> CurveSource:
        """Parse `metric` or `metric{pattern,pattern}`, without the prefix of all metrics."""
        metric, _, parts = text.rstrip("}").partition("{")
        return cls(f"railscope_{metric}", tuple(filter(None, parts.split(","))))

    @property
    def is_counter(self) -> bool:
        """True if the rate is shown."""
        return METRICS[self.metric].kind is MetricKind.COUNTER

    def selects(self, part: str) -> bool:
        """True if the curve includes a part of the device."""
        return not self.parts or any(fnmatchcase(part, pattern) for pattern in self.parts)


@dataclass(frozen=True, slots=True)
class NamedCurve:
    """A curve of a device."""

    name: str
    label: str
    device: str
    """`gpu`, `nic`, `node`, or the NICs of a rail, such as `rail 0`."""
    sources: tuple[CurveSource, ...]
    combine: CombinedBy
    """Combination of the parts of a device: shares of time are not added."""
    takes_largest: bool = False
    """True if the largest source counts at each time rather than the first one with a value."""


@dataclass(frozen=True, slots=True)
class NamedFigure:
    """A figure with curves of one unit."""

    name: str
    title: str
    unit: str
    curves: tuple[NamedCurve, ...]


def make_figure(
    name: str,
    title: str,
    unit: str,
    device: str,
    curves: dict[str, tuple[str, str]],
    **combine: CombinedBy,
) -> NamedFigure:
    """Return a figure; each curve has a label, and its metrics in order of preference, or with `|` those of which the largest counts."""
    return NamedFigure(
        name,
        title,
        unit,
        tuple(
            NamedCurve(
                curve,
                label,
                device,
                tuple(map(CurveSource.parse, metrics.replace("|", " ").split())),
                combine.get(curve, "max" if unit == "ratio" else "sum"),
                "|" in metrics,
            )
            for curve, (label, metrics) in curves.items()
        ),
    )


_THROTTLE = "gpu_throttle_seconds_total{%s} gpu_throttle_active{%s}"
GPU_FIGURES = (
    make_figure("gpu_activity", "GPU activity", "ratio", "gpu", {
        "utilization": ("Utilization", "gpu_utilization_ratio"),
        "sm_activity": ("SM activity", "gpu_sm_activity_ratio"),
        "tensor_activity": ("Tensor activity", "gpu_tensor_activity_ratio"),
    }),
    make_figure("gpu_power", "GPU power", "watts", "gpu", {
        "power": ("Power", "gpu_power_watts gpu_power_average_watts"),
        "power_limit": ("Power limit", "gpu_power_limit_watts"),
    }),
    make_figure("gpu_temperature", "GPU temperature", "celsius", "gpu", {
        "temperature": ("GPU", "gpu_temperature_celsius"),
        "memory_temperature": ("Memory", "gpu_memory_temperature_celsius"),
    }),
    make_figure("gpu_clocks", "GPU clocks", "hertz", "gpu", {
        "sm_clock": ("Multiprocessors", "gpu_clock_hertz{sm} gpu_clock_hertz{graphics}"),
        "memory_clock": ("Memory", "gpu_clock_hertz{memory}"),
    }),
    make_figure("gpu_throttle", "Share of time in which the GPU's clocks are limited", "ratio", "gpu", {
        "thermal": ("Heat", _THROTTLE % ("*thermal", "*thermal")),
        "power_cap": ("Power limit", _THROTTLE % ("software_power_cap", "software_power_cap")),
        "power_brake": ("Power brake", _THROTTLE % ("hardware_power_brake", "hardware_power_brake")),
        "hardware_slowdown": ("Hardware slowdown", _THROTTLE % ("hardware_slowdown", "hardware_slowdown")),
    }),
    make_figure("gpu_pcie", "PCIe traffic of the GPU", "bytes per second", "gpu", {
        "pcie_sent": ("Sent", "gpu_pcie_transmitted_bytes_total gpu_pcie_transmit_bytes_per_second"),
        "pcie_received": ("Received", "gpu_pcie_received_bytes_total gpu_pcie_receive_bytes_per_second"),
    }),
)  # fmt: skip
_PAUSES = "nic_%s_pfc_pause_%s_total|nic_%s_global_pause_%s_total"
"""A port uses PFC or link-wide pause. Many drivers list the counters of both, and those of the other one are 0."""
NIC_FIGURES = (
    make_figure("nic_traffic", "NIC traffic", "bytes per second", "nic", {
        "nic_sent": ("Sent", "nic_transmit_rdma_bytes_total rdma_transmit_bytes_total"),
        "nic_received": ("Received", "nic_receive_rdma_bytes_total rdma_receive_bytes_total"),
    }),
    make_figure("nic_pauses", "Share of time in which a priority is paused", "ratio", "nic", {
        "paused": ("NIC paused by the switch", _PAUSES % ("receive", "seconds", "receive", "seconds")),
        "pausing": ("Switch paused by the NIC", _PAUSES % ("transmit", "seconds", "transmit", "seconds")),
    }),
    make_figure("nic_pause_frames", "Pause frames", "per second", "nic", {
        "pause_received": ("Received", _PAUSES % ("receive", "frames", "receive", "frames")),
        "pause_sent": ("Sent", _PAUSES % ("transmit", "frames", "transmit", "frames")),
    }),
    make_figure("nic_congestion", "Congestion marks and notifications", "per second", "nic", {
        "marked": ("Marked packets received (ECN)", "rdma_ecn_marked_packets_total"),
        "cnp_sent": ("Notifications sent (CNP)", "rdma_congestion_notifications_sent_total"),
        "cnp_handled": ("Notifications handled (CNP)", "rdma_congestion_notifications_handled_total"),
    }),
    make_figure("nic_retransmissions", "Lost and repeated packets", "per second", "nic", {
        "out_of_sequence": ("Out of sequence", "rdma_out_of_sequence_packets_total"),
        "sequence_errors": ("Reported missing by the receiver", "rdma_packet_sequence_errors_total"),
        "ack_timeouts": ("Acknowledgement timeouts", "rdma_ack_timeouts_total"),
        "adaptive_retransmissions": ("Adaptive retransmissions", "rdma_adaptive_retransmissions_total"),
    }),
    make_figure("nic_pcie", "Share of time in which PCIe stalls the NIC", "ratio", "nic", {
        "write_stall": ("Writes to memory", "nic_pcie_write_stalled_seconds_total nic_pcie_write_stall_ratio"),
        "read_stall": ("Reads from memory", "nic_pcie_read_stalled_seconds_total nic_pcie_read_stall_ratio"),
    }),
)  # fmt: skip
_NODE_FIGURES = (
    make_figure("node_cpu", "CPUs in use", "CPUs", "node", {
        "cpu_busy": ("Busy", "cpu_seconds_total{user,nice,system,irq,softirq,steal}"),
        "cpu_waiting": ("Waiting for disks", "cpu_seconds_total{iowait}"),
    }),
    make_figure("node_memory", "Memory of the node", "bytes", "node", {
        "memory_available": ("Available", "memory_available_bytes"),
        "memory_cached": ("Cached files", "memory_cached_bytes"),
    }),
    make_figure("node_gpus", "Utilization of the GPUs", "ratio", "gpu", {
        "gpu_mean": ("Mean", "gpu_utilization_ratio"),
        "gpu_min": ("Lowest", "gpu_utilization_ratio"),
        "gpu_max": ("Highest", "gpu_utilization_ratio"),
    }, gpu_mean="mean", gpu_min="min"),
    make_figure("node_gpu_power", "Power of all GPUs", "watts", "gpu", {
        "gpu_power": ("Power", "gpu_power_watts gpu_power_average_watts"),
    }),
    make_figure("node_gpu_temperature", "Temperature of the GPUs", "celsius", "gpu", {
        "gpu_temperature_max": ("Highest", "gpu_temperature_celsius"),
        "gpu_temperature_min": ("Lowest", "gpu_temperature_celsius"),
    }, gpu_temperature_max="max", gpu_temperature_min="min"),
)  # fmt: skip
MAX_RAIL_CURVES = 8
"""Rails of a node with curves of their own, in colors that differ."""


def node_figures(rails: Sequence[int]) -> Sequence[NamedFigure]:
    """Return the figures of a node whose NICs are on these rails."""
    sent, received = NIC_FIGURES[0].curves
    by_rail = [
        NamedFigure(
            f"node_{curve.name}",
            f"NIC traffic by rail: {curve.label.lower()}",
            "bytes per second",
            tuple(
                replace(
                    curve,
                    name=f"{curve.name}_{rail}",
                    label=f"Rail {rail}",
                    device=f"rail {rail}",
                )
                for rail in rails[:MAX_RAIL_CURVES]
            ),
        )
        for curve in (sent, received)
    ]
    return (*_NODE_FIGURES, *(by_rail if rails else ()), *(NIC_FIGURES[1:2] if rails else ()))

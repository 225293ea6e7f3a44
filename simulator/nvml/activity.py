"""GPM metrics of a GPU or of a MIG device: averages over the last span, and cycles."""

from __future__ import annotations

from simulator.activity import Activity, Cycles, activity
from simulator.gpu import GpuState
from simulator.nvml.answers import Answers
from simulator.sharing import MigDevice

_MEBIBYTE, _KIBIBYTES = 1 << 20, 1024
_DECODERS, _JPEG_DECODERS, _OPTICAL_FLOW = range(30, 37), range(40, 47), 50
_SILENT_PIPES = (6, 8, 9, 11)
"""Idle pipes: tensor pipes for double precision (two variants) and integers; double precision."""

_SILENT_CYCLES = (251, 253, 254, 258)
_CYCLES_SINCE = 590


def tell(gpu: GpuState, told: Answers) -> None:
    """Add the activity of the GPU's SMs and links; none before Hopper."""
    if not gpu.model.has_gpm:
        return
    _tell_pipes(gpu.activity, told)
    for engine in (*_DECODERS, *_JPEG_DECODERS, _OPTICAL_FLOW):
        told.metric(engine, 0.0)
    bus = gpu.bus
    rates = {20: bus.pcie_out.bytes_per_second, 21: bus.pcie_in.bytes_per_second}
    if bus.grace:
        rates |= {100: bus.c2c_out.bytes_per_second, 101: bus.c2c_in.bytes_per_second}
    for number, bytes_per_second in rates.items():
        told.metric(number, round(bytes_per_second / _MEBIBYTE, 3))
    if gpu.links:
        told.metric(60, round(gpu.links.receive_kibibytes_per_second / _KIBIBYTES, 3))
        told.metric(61, round(gpu.links.transmit_kibibytes_per_second / _KIBIBYTES, 3))
    if gpu.model.driver_branch >= _CYCLES_SINCE:
        _tell_cycles(gpu.cycles, told)


def tell_instance(gpu: GpuState, device: MigDevice, told: Answers) -> None:
    """Add the SM activity of a MIG device, which has only share metrics."""
    if not gpu.model.has_gpm:
        return
    _tell_pipes(activity(gpu.sharing.demand_on(device), gpu.silicon.ripple), told)


def _tell_pipes(seen: Activity, told: Answers) -> None:
    shares = {
        1: seen.graphics,
        2: seen.sm,
        3: seen.occupancy,
        4: seen.integer,
        5: seen.tensor,
        7: seen.tensor,
        10: seen.dram,
        12: seen.fp32,
        13: seen.fp16,
    } | dict.fromkeys(_SILENT_PIPES, 0.0)
    for number, share in sorted(shares.items()):
        told.metric(number, round(100 * share, 4))


def _tell_cycles(cycles: Cycles, told: Answers) -> None:
    counts = {
        248: cycles.elapsed,
        249: cycles.sm,
        250: cycles.tensor,
        252: cycles.tensor,
        257: cycles.integer,
        259: cycles.fp32,
        260: cycles.fp16,
    } | dict.fromkeys(_SILENT_CYCLES, 0)
    for number, count in sorted(counts.items()):
        told.metric(number, float(count))  # float, like all GPM metrics

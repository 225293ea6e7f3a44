"""Use of BAR1, the PCIe window to a GPU's memory.

As on real GPUs with a window as large as their memory: drivers from 590 on map all used memory; older
ones map the memory registered for the rail's NIC (NVIDIA, GPUDirect RDMA, "Displaying GPU BAR space").
MIG devices report no use.
"""

from __future__ import annotations

from railscope.capture import Json
from simulator.gpu import GpuState
from simulator.gpu_model import MEBIBYTE
from simulator.sharing import ALONE, MigDevice

_IDLE_BYTES = 2 * MEBIBYTE
_REGISTERED_BYTES = 4096 * MEBIBYTE
_SMALL_WINDOW_BYTES = 5 * MEBIBYTE
"""Mapped by processes if the window is too small for the memory and for registered buffers."""

_MAPS_ALL_SINCE = 590


def of_gpu(gpu: GpuState) -> Json:
    """BAR1 window of a GPU."""
    return _window(gpu.model.bar1_mebibytes, _mapped_bytes(gpu))


def of_instance(device: MigDevice) -> Json:
    """BAR1 window of a MIG device: part of the GPU's, with no use reported."""
    return _window(device.profile.bar1_mebibytes, 0)


def _mapped_bytes(gpu: GpuState) -> int:
    model, sharing = gpu.model, gpu.sharing
    if not sharing.present:
        return _IDLE_BYTES
    if model.bar1_mebibytes < model.memory_mebibytes:
        return _SMALL_WINDOW_BYTES
    if model.driver_branch >= _MAPS_ALL_SINCE:
        return sharing.used_bytes
    # The NIC of a Grace processor accesses the memory over C2C, not through BAR1.
    if sharing.mode not in ALONE or model.grace:
        return _IDLE_BYTES
    return min(_REGISTERED_BYTES, sharing.used_bytes, model.bar1_mebibytes * MEBIBYTE)


def _window(mebibytes: int, used_bytes: int) -> Json:
    total = mebibytes * MEBIBYTE
    return {"bar1Total": total, "bar1Free": total - used_bytes, "bar1Used": used_bytes}

"""What of a GPU's memory is mapped into BAR1, its window on PCIe.

As real GPUs with a window as large as their memory show it: drivers from 590 on map all that is used;
before, what is registered for the rail's NIC is mapped (NVIDIA, GPUDirect RDMA, "Displaying GPU BAR
space"). MIG devices show nothing.
"""

from __future__ import annotations

from railscope.capture import Json
from simulator.gpu import GpuState
from simulator.gpu_model import MEBIBYTE
from simulator.sharing import ALONE, MigDevice

_IDLE_BYTES = 2 * MEBIBYTE
_REGISTERED_BYTES = 4096 * MEBIBYTE
_SMALL_WINDOW_BYTES = 5 * MEBIBYTE
"""What processes map where the window is too small for the memory, and for such buffers."""

_MAPS_ALL_SINCE = 590


def of_gpu(gpu: GpuState) -> Json:
    """The window of a GPU."""
    return _window(gpu.model.bar1_mebibytes, _mapped_bytes(gpu))


def of_instance(device: MigDevice) -> Json:
    """The window of a MIG device: part of the GPU's, and nothing of it counted as used."""
    return _window(device.profile.bar1_mebibytes, 0)


def _mapped_bytes(gpu: GpuState) -> int:
    model, sharing = gpu.model, gpu.sharing
    if not sharing.present:
        return _IDLE_BYTES
    if model.bar1_mebibytes < model.memory_mebibytes:
        return _SMALL_WINDOW_BYTES
    if model.driver_branch >= _MAPS_ALL_SINCE:
        return sharing.used_bytes
    # The NIC of a Grace processor reaches the memory over C2C, past BAR1.
    if sharing.mode not in ALONE or model.grace:
        return _IDLE_BYTES
    return min(_REGISTERED_BYTES, sharing.used_bytes, model.bar1_mebibytes * MEBIBYTE)


def _window(mebibytes: int, used_bytes: int) -> Json:
    total = mebibytes * MEBIBYTE
    return {"bar1Total": total, "bar1Free": total - used_bytes, "bar1Used": used_bytes}

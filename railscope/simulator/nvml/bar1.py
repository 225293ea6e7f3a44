"""What of a GPU's memory is mapped into BAR1, its window on PCIe.

Beside what the driver keeps there, it is the job's communication buffers, which are registered so
that the rail's NIC reaches them (NVIDIA, GPUDirect RDMA, "Displaying GPU BAR space"). Drivers of
late (590, 595) have been seen to map all memory that is used; that is not simulated.
"""

from __future__ import annotations

from railscope.capture import Json
from railscope.simulator.gpu import GpuState
from railscope.simulator.gpu_model import MEBIBYTE
from railscope.simulator.sharing import ALONE, MigDevice

_IDLE_BYTES = 2 * MEBIBYTE
_REGISTERED_BYTES = 4096 * MEBIBYTE
_SMALL_WINDOW_BYTES = 5 * MEBIBYTE
"""What processes map where the window is too small for the memory, and for such buffers."""

_SLICE_BYTES = _IDLE_BYTES // 8
"""Of a memory slice of a MIG instance: there are eight in a GPU."""


def of_gpu(gpu: GpuState) -> Json:
    """The window of a GPU."""
    return _window(gpu.model.bar1_mebibytes, _mapped_bytes(gpu))


def of_instance(device: MigDevice) -> Json:
    """The window of a MIG device. It has a part of the driver's own; it takes part in no rail."""
    return _window(device.profile.bar1_mebibytes, device.profile.memory_slices * _SLICE_BYTES)


def _mapped_bytes(gpu: GpuState) -> int:
    model, sharing = gpu.model, gpu.sharing
    if not sharing.present:
        return _IDLE_BYTES
    if model.bar1_mebibytes < model.memory_mebibytes:
        return _SMALL_WINDOW_BYTES
    # The NIC of a Grace processor reaches the memory over C2C, past BAR1.
    if sharing.mode not in ALONE or model.grace:
        return _IDLE_BYTES
    return min(_REGISTERED_BYTES, sharing.used_bytes, model.bar1_mebibytes * MEBIBYTE)


def _window(mebibytes: int, used_bytes: int) -> Json:
    total = mebibytes * MEBIBYTE
    return {"bar1Total": total, "bar1Free": total - used_bytes, "bar1Used": used_bytes}

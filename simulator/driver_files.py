"""What /proc/driver/nvidia shows of the GPUs that NVIDIA's driver has.

In the form of open-gpu-kernel-modules, kernel-open/nvidia/nv-procfs.c, nv_procfs_read_gpu_info. The
driver knows the UUID from when it started the GPU, and goes on to tell it when the GPU is lost.
"""

from __future__ import annotations

from railscope.capture import Moment
from simulator.machine import Gpu
from simulator.model import NodeModel

_FIRST_INTERRUPT = 300


def show(model: NodeModel, into: Moment) -> None:
    """Put a file for each GPU into a moment."""
    for gpu in model.machine.gpus:
        path = f"/proc/driver/nvidia/gpus/{gpu.pci_address}/information"
        into.files[path] = _information(model.machine.model.name, gpu)


def _information(name: str, gpu: Gpu) -> str:
    return (
        f"Model: \t\t {name}\n"
        f"IRQ:   \t\t {_FIRST_INTERRUPT + gpu.index}\n"
        f"GPU UUID: \t {gpu.uuid}\n"
        f"Bus Location: \t {gpu.pci_address}\n"
        f"Device Minor: \t {gpu.index}\n"
    )

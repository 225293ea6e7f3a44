"""/proc/driver/nvidia for the GPUs bound to NVIDIA's driver.

In the form of open-gpu-kernel-modules, kernel-open/nvidia/nv-procfs.c, nv_procfs_read_gpu_info. The
driver reads the UUID when it starts the GPU, and still reports it when the GPU is lost.
"""

from __future__ import annotations

from railscope.capture import Moment
from simulator.machine import Gpu
from simulator.model import NodeModel

_FIRST_INTERRUPT = 300


def show(model: NodeModel, into: Moment) -> None:
    """Add a file for each GPU to a `Moment`."""
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

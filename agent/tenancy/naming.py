"""Resolution of device names: GPU index, UUID, PCI address or device file."""

from __future__ import annotations

import re

from agent.owners import FormatError
from agent.owners.device_ids import (
    DeviceFile,
    DeviceId,
    Gpu,
    GpuIndex,
    MigDevice,
    MigInstance,
    device_id,
)
from agent.tenancy.devices import Device, Devices
from agent.topology.pci import pci_address

_FILE = re.compile(r"/dev/nvidia(\d{1,4})")
_BUS = re.compile(r"[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7]")
KINDS = "an index, a UUID of a GPU or MIG device, a PCI address or /dev/nvidiaN"


def find(text: str, devices: Devices) -> Device | None:
    """Return the device of this node with a name; None if no device has it."""
    file = _FILE.fullmatch(text)
    if file:
        return devices.with_minor(int(file[1]))
    if _BUS.fullmatch(text):
        return devices.at(pci_address(text))
    try:
        found = of(device_id(text), devices)
    except FormatError:
        return None
    return found if found and found.gpu in devices.all else None


def of(name: DeviceId, devices: Devices) -> Device | None:
    """Return the device with an id, whatever its replica; a GPU's UUID need not be in the inventory."""
    found: Device | None
    match name:
        case Gpu(uuid=uuid):
            found = devices.gpu(uuid)
        case MigDevice(uuid=uuid):
            found = devices.mig(uuid)
        case MigInstance(gpu_uuid=uuid, gpu_instance=gi, compute_instance=ci):
            found = devices.instance(uuid, str(gi), str(ci))
        case GpuIndex(index=index, mig_index=place):
            found = devices.with_index(index)
            if found and place is not None:
                found = devices.mig_with_index(found.gpu, place)
        case DeviceFile(minor=minor, gpu_instance=gi):
            found = devices.with_minor(minor)
            if found and gi is not None:
                found = devices.instance(found.gpu, str(gi))
    return found

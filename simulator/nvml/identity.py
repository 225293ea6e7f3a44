"""Identity and location of a GPU."""

from __future__ import annotations

from railscope.capture import Json
from simulator.gpu import GpuState
from simulator.gpu_model import Generation, GpuModel
from simulator.nvml.answers import Answers, where
from simulator.spec import NodeSpec

_CUDA = {535: 12020, 550: 12040, 580: 13000, 590: 13010}
"""CUDA version of each driver branch (NVIDIA, CUDA release notes), in NVML's encoding."""

_NO_VIRTUALIZATION, _VGPU_HOST = 0, 3
_COMPLETED, _HEALTHY = 3, 1
_ALL_WELL = 2 << 0 | 2 << 2 | 2 << 4 | 2 << 6 | 1 << 8 | 1 << 12 | 1 << 14
"""No fault of bandwidth, routes or access; correct configuration, with partition and fabric manager
(nvml.h, NVML_GPU_FABRIC_HEALTH_MASK_*)."""

_FABRIC_V3, _PLATFORM_V2 = 0x0300_0028, 0x0200_002C
_CHASSIS, _TRAYS = "1821724190042", 18
_SWITCH_CONNECTED = 0


def cuda_version(model: GpuModel) -> int:
    """CUDA version of the model's driver, in NVML's encoding."""
    return _CUDA[model.driver_branch]


def tell(spec: NodeSpec, gpu: GpuState, told: Answers) -> None:
    """Add the identity of this GPU."""
    model, identity = gpu.model, gpu.identity
    domain, bus, slot = identity.pci_address.partition(".")[0].split(":")
    blackwell = model.generation >= Generation.BLACKWELL
    told.calls(
        UUID=identity.uuid,
        Name=model.name,
        Serial=identity.serial,
        MinorNumber=identity.index,
        Architecture=int(model.generation),
        CudaComputeCapability=list(model.compute_capability),
        VbiosVersion=model.vbios,
        InforomImageVersion=model.inforom,
        BoardPartNumber=model.part_number,
        GspFirmwareVersion=where(model.generation > Generation.VOLTA, model.driver),
        VirtualizationMode=_VGPU_HOST if spec.mode == "vgpu" else _NO_VIRTUALIZATION,
        ModuleId=where(model.nvlink, identity.index + 1),
        PlatformInfo=where(blackwell, _place(spec, gpu)),
        GpuFabricInfoV=where(model.joins_fabric, _fabric(spec, model)),
        GpuFabricInfo=where(model.joins_fabric, _older(_fabric(spec, model))),
        PciInfo={
            "busIdLegacy": identity.pci_address.upper(),
            "domain": int(domain, 16),
            "bus": int(bus, 16),
            "device": int(slot, 16),
            "pciDeviceId": model.pci_device,
            "pciSubSystemId": model.pci_subsystem,
            "busId": f"0000{identity.pci_address}".upper(),
        },
    )


def _place(spec: NodeSpec, gpu: GpuState) -> Json:
    """Return the position in a rack; one-byte members are characters. Other nodes report zeros."""
    tray = spec.stream("tray").randrange(_TRAYS) if gpu.model.grace else 0
    return {
        "version": _PLATFORM_V2,
        "ibGuid": "",
        "chassisSerialNumber": _CHASSIS if gpu.model.grace else "",
        "slotNumber": chr(tray + 1 if gpu.model.grace else 0),
        "trayIndex": chr(tray),
        "hostId": chr(1),
        "peerType": chr(_SWITCH_CONNECTED),
        "moduleId": chr(gpu.identity.index + 1),
    }


def _fabric(spec: NodeSpec, model: GpuModel) -> Json:
    """Return the NVLink domain: one rack for all Grace nodes of a seed; other nodes have their own."""
    cluster = [0] * 16
    if model.grace:
        cluster = list(spec.shared_stream("fabric").randbytes(16))
    watched = model.generation >= Generation.BLACKWELL
    return {
        "version": _FABRIC_V3,
        "clusterUuid": cluster,
        "status": 0,
        "cliqueId": int(model.grace),
        "state": _COMPLETED,
        "healthMask": _ALL_WELL if watched else 0,
        "healthSummary": _HEALTHY if watched else 0,
    }


def _older(fabric: Json) -> Json:
    """Return the structure in its form before versions and health."""
    return {name: fabric[name] for name in ("clusterUuid", "status", "cliqueId", "state")}

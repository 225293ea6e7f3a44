"""Identity, location and rarely changing values of a GPU.

Rarely changing are limits, thresholds, modes and the link to a Grace processor.

BAR1 usage follows real GPUs whose BAR1 window is as large as their memory: drivers from 590 on map
all used memory; older ones map the memory registered for the rail's NIC (NVIDIA, GPUDirect RDMA,
"Displaying GPU BAR space"). MIG devices report no use.
"""

from __future__ import annotations

from railscope.capture import Json
from railscope_simulator import device_models, gpu_tenants
from railscope_simulator.gpu import GpuState
from railscope_simulator.nvml.results import NvmlResults, supported_if
from railscope_simulator.spec import NodeSpec

CUDA_VERSIONS = {535: 12020, 550: 12040, 580: 13000, 590: 13010}
"""CUDA version of each driver branch (NVIDIA, CUDA release notes), in NVML's encoding."""

_NO_VIRTUALIZATION, _VGPU_HOST = 0, 3
_COMPLETED, _HEALTHY = 3, 1
_ALL_WELL = 2 << 0 | 2 << 2 | 2 << 4 | 2 << 6 | 1 << 8 | 1 << 12 | 1 << 14
"""No fault of bandwidth, routes or access; correct configuration, with partition and fabric manager
(nvml.h, NVML_GPU_FABRIC_HEALTH_MASK_*)."""

_FABRIC_V3, _PLATFORM_V2 = 0x0300_0028, 0x0200_002C
_CHASSIS, _TRAYS = "1821724190042", 18
_SWITCH_CONNECTED = 0


def add_identity(spec: NodeSpec, gpu: GpuState, into: NvmlResults) -> None:
    """Add the identity of this GPU."""
    model, identity = gpu.model, gpu.identity
    domain, bus, slot = identity.pci_address.partition(".")[0].split(":")
    blackwell = model.generation >= device_models.GpuGeneration.BLACKWELL
    fabric = _fabric(spec, model)
    # The structure in its form before versions and health.
    old_fabric = {name: fabric[name] for name in ("clusterUuid", "status", "cliqueId", "state")}
    into.calls(
        UUID=identity.uuid,
        Name=model.name,
        Serial=identity.serial,
        MinorNumber=identity.index,
        Architecture=int(model.generation),
        CudaComputeCapability=list(model.compute_capability),
        VbiosVersion=model.vbios,
        InforomImageVersion=model.inforom,
        BoardPartNumber=model.part_number,
        GspFirmwareVersion=supported_if(
            model.generation > device_models.GpuGeneration.VOLTA, model.driver
        ),
        VirtualizationMode=_VGPU_HOST if spec.mode == "vgpu" else _NO_VIRTUALIZATION,
        ModuleId=supported_if(model.nvlink, identity.index + 1),
        PlatformInfo=supported_if(blackwell, _rack_position(spec, gpu)),
        GpuFabricInfoV=supported_if(model.joins_fabric, fabric),
        GpuFabricInfo=supported_if(model.joins_fabric, old_fabric),
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


def _rack_position(spec: NodeSpec, gpu: GpuState) -> Json:
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


def _fabric(spec: NodeSpec, model: device_models.GpuModel) -> Json:
    """Return the NVLink domain: one rack for all Grace nodes of a seed; other nodes have their own."""
    cluster = [0] * 16
    if model.grace:
        cluster = list(spec.shared_stream("fabric").randbytes(16))
    watched = model.generation >= device_models.GpuGeneration.BLACKWELL
    return {
        "version": _FABRIC_V3,
        "clusterUuid": cluster,
        "status": 0,
        "cliqueId": int(model.grace),
        "state": _COMPLETED,
        "healthMask": _ALL_WELL if watched else 0,
        "healthSummary": _HEALTHY if watched else 0,
    }


_IDLE_BYTES = 2 * device_models.MEBIBYTE
_REGISTERED_BYTES = 4096 * device_models.MEBIBYTE
_SMALL_WINDOW_BYTES = 5 * device_models.MEBIBYTE
"""Mapped by processes if the window is too small for the memory and for registered buffers."""

_MAPS_ALL_SINCE = 590


def mapped_bytes(gpu: GpuState) -> int:
    """Return the used part of the BAR1 window."""
    model, sharing = gpu.model, gpu.sharing
    if not sharing.present:
        return _IDLE_BYTES
    if model.bar1_mebibytes < model.memory_mebibytes:
        return _SMALL_WINDOW_BYTES
    if model.driver_branch >= _MAPS_ALL_SINCE:
        return sharing.used_bytes
    # The NIC of a Grace processor accesses the memory over C2C, not through BAR1.
    if sharing.mode not in gpu_tenants.ALONE or model.grace:
        return _IDLE_BYTES
    return min(_REGISTERED_BYTES, sharing.used_bytes, model.bar1_mebibytes * device_models.MEBIBYTE)


def bar1_window(mebibytes: int, used_bytes: int) -> Json:
    """BAR1 window of a GPU, or the part of it of a MIG device, whose use is not reported."""
    total = mebibytes * device_models.MEBIBYTE
    return {"bar1Total": total, "bar1Free": total - used_bytes, "bar1Used": used_bytes}


_DEFAULT, _EXCLUSIVE_PROCESS = 0, 3
_C2C_LINKS, _C2C_MEGABYTES = 5, 44_712
"""A GPU's half of the bidirectional 900 GB/s, over links of 44.7 GB/s in one direction."""

_C2C_ERRORS = (231, 232, 233)
_PEAK_POWER, _ALL_OF_IT = 274, 100


def confidential_computing(model: device_models.GpuModel) -> Json:
    """State of the whole system."""
    off = {"environment": 0, "ccFeature": 0, "devToolsMode": 0}
    return supported_if(model.generation >= device_models.GpuGeneration.HOPPER, off)


def add_settings(gpu: GpuState, into: NvmlResults) -> None:
    """Add the settings of this GPU."""
    model = gpu.model
    limits = model.thresholds
    # In NVML's order: shutdown, slowdown, maximum of the memory, maximum of the GPU.
    absolute = (limits.shutdown, limits.slowdown, limits.memory, limits.operating)
    for number, celsius in enumerate(absolute):
        has = not model.has_temperature_margins and celsius is not None
        into.call("TemperatureThreshold", supported_if(has, celsius), number)
    if model.has_temperature_margins:
        # Relative to the maximum operating temperature; memory has its own.
        into.fields(
            {
                193: limits.operating - limits.shutdown,
                194: limits.operating - limits.slowdown,
                **({} if limits.memory is None else {195: 0}),
                196: 0,
            }
        )
    into.call("NumFans", supported_if(condition=False, answer=0))  # cooled by the chassis
    into.calls(
        BAR1MemoryInfo=bar1_window(model.bar1_mebibytes, mapped_bytes(gpu)),
        PersistenceMode=1,
        ComputeMode=_EXCLUSIVE_PROCESS if gpu.sharing.mode == "mps" else _DEFAULT,
        AccountingMode=0,
        GspFirmwareMode=supported_if(model.generation > device_models.GpuGeneration.VOLTA, [1, 1]),
        ConfComputeProtectedMemoryUsage={"total": 0, "free": 0, "used": 0},
        C2cModeInfoV=supported_if(
            model.generation >= device_models.GpuGeneration.HOPPER,
            {"isC2cEnabled": int(model.grace)},
        ),
    )
    min_milliwatts, max_milliwatts = 1000 * model.min_limit_watts, model.power_limit_milliwatts
    into.fields(
        {
            187: min_milliwatts,
            188: max_milliwatts,
            189: max_milliwatts,
            190: max_milliwatts,
            192: max_milliwatts,
        }
    )
    if model.generation >= device_models.GpuGeneration.HOPPER:
        into.field(_PEAK_POWER, _ALL_OF_IT)
    if model.grace:
        into.field(170, _C2C_LINKS)
        for link in range(_C2C_LINKS):
            into.fields({171: 1, 172: _C2C_MEGABYTES, **dict.fromkeys(_C2C_ERRORS, 0)}, link)

"""Users of a GPU: processes, MIG devices, virtual GPUs."""

from __future__ import annotations

import errno

from railscope.capture import CaptureMoment, Json, failure
from railscope_simulator import gpu_tenants
from railscope_simulator.gpu import GpuState
from railscope_simulator.nvml import load, settings
from railscope_simulator.nvml.results import NO_INSTANCE, NOT_FOUND, NOT_SUPPORTED, NvmlResults

_GONE = failure(OSError(errno.ENOENT, ""))
_MAX_DEVICES = 7
_UUID_OF_MACHINE = 1


def add_tenants(gpu: GpuState, now_us: int, into: NvmlResults) -> None:
    """Add the users of this GPU, at a time in microseconds since 1970."""
    sharing = gpu.sharing
    cut = bool(sharing.mig_devices)
    into.call(
        "MigDevices",
        [
            {
                "uuid": device.uuid,
                "index": device.index,
                "gpu": device.gpu_instance,
                "compute": device.compute_instance,
                "most": _MAX_DEVICES,
                "start": device.start,
                "size": device.profile.memory_slices,
            }
            for device in sharing.mig_devices
        ],
    )
    _add_processes(list(sharing.present), into, graphics=sharing.mode == "vgpu")
    busy = _utilization(gpu, now_us, "pid") or NOT_FOUND
    into.call("ProcessUtilization", NOT_SUPPORTED if cut else busy)
    vgpus = [tenant.vgpu.number for tenant in sharing.present if tenant.vgpu]
    host = sharing.mode == "vgpu"
    into.call("ActiveVgpus", vgpus if host else NOT_SUPPORTED)
    into.call(
        "VgpuUtilization", _utilization(gpu, now_us, "vgpuInstance") if host else NOT_SUPPORTED
    )
    for tenant in sharing.present:
        if tenant.vgpu:
            _add_vgpus(tenant.vgpu, into)


def _add_processes(
    tenants: list[gpu_tenants.GpuTenant], into: NvmlResults, *, graphics: bool
) -> None:
    listed = [_process(tenant) for tenant in tenants]
    clients = [_process(tenant) for tenant in tenants if tenant.mps_client]
    into.calls(
        ComputeRunningProcesses=listed,
        GraphicsRunningProcesses=listed if graphics else [],
        MPSComputeRunningProcesses=clients,
    )


def _process(tenant: gpu_tenants.GpuTenant) -> Json:
    return {
        "pid": tenant.pid,
        "usedGpuMemory": tenant.held_bytes,
        "gpuInstanceId": tenant.mig.gpu_instance if tenant.mig else NO_INSTANCE,
        "computeInstanceId": tenant.mig.compute_instance if tenant.mig else NO_INSTANCE,
    }


def _utilization(gpu: GpuState, now_us: int, key: str) -> list[Json]:
    """Return a sample of each tenant that was busy: its share of the GPU's time."""
    silicon = gpu.silicon
    samples = []
    for tenant in gpu.sharing.present:
        compute, memory = gpu.sharing.part_of(tenant)
        busy = round(silicon.occupied_percent * compute)
        if busy:
            samples.append(
                {
                    key: tenant.vgpu.number if tenant.vgpu and key != "pid" else tenant.pid,
                    "timeStamp": now_us,
                    "smUtil": busy,
                    "memUtil": round(silicon.memory_percent * memory),
                    "encUtil": 0,
                    "decUtil": 0,
                }
            )
    return samples


def _add_vgpus(vgpu: gpu_tenants.SimulatedVgpu, into: NvmlResults) -> None:
    instance = f"nvml.nvmlVgpuInstanceGet{{}}({vgpu.number})"
    into.found |= {
        instance.format("FbUsage"): vgpu.used_bytes,
        instance.format("VmID"): [vgpu.machine, _UUID_OF_MACHINE],
        instance.format("UUID"): vgpu.uuid,
        instance.format("Type"): vgpu.kind.number,
        f"nvml.nvmlVgpuTypeGetName({vgpu.kind.number})": vgpu.kind.name,
    }


def instance_results(gpu: GpuState, device: gpu_tenants.SimulatedMigDevice) -> NvmlResults:
    """Return the results of a MIG device: its resources, and its users."""
    into = NvmlResults(device.uuid)
    profile, tenants = device.profile, gpu.sharing.tenants_on(device)
    used = device.overhead_bytes + sum(tenant.held_bytes for tenant in tenants)
    into.calls(
        Name=f"{gpu.model.name} MIG {profile.name}",
        MemoryInfo=load.memory_info(device.memory_bytes, 0, used),
        BAR1MemoryInfo=settings.bar1_window(profile.bar1_mebibytes, 0),
        Attributes_v2={
            "multiprocessorCount": profile.multiprocessors,
            "sharedCopyEngineCount": profile.slices,
            "sharedDecoderCount": profile.slices,
            "sharedEncoderCount": 0,
            "sharedJpegCount": profile.slices,
            "sharedOfaCount": 0,
            "gpuInstanceSliceCount": profile.slices,
            "computeInstanceSliceCount": profile.slices,
            "memorySizeMB": profile.memory_mebibytes,
        },
    )
    into.call("TotalEccErrors", 0, 1, 0)
    _add_processes(tenants, into, graphics=False)
    load.add_instance_gpm_metrics(gpu, device, into)
    return into


def show_files(gpu: GpuState, into: CaptureMoment) -> None:
    """Add the names of the processes to a `CaptureMoment`."""
    present = set(gpu.sharing.present)
    for tenant in gpu.sharing.tenants:
        there = tenant in present
        into.files[f"/proc/{tenant.pid}/comm"] = f"{tenant.name}\n" if there else _GONE

"""Owners of the processes on the GPUs: Kubernetes pods, or a Slurm job.

In the forms of kubernetes/kubelet:pkg/apis/podresources/v1/api.proto, cgroup_manager_linux.go,
SchedMD/slurm:doc/html/cgroup_v2.shtml and proc(5). Each process is in a pod that has its GPU; on
partitioned GPUs each process is in its own pod, and a notebook holds the last MIG device of each GPU
without using it.
"""

from __future__ import annotations

import string
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field

from railscope.capture import CaptureMoment, Json
from railscope.timestamps import SECOND_NS
from railscope_simulator import gpu_tenants, node_model
from railscope_simulator.gpu import GpuState
from railscope_simulator.spec import NodeSpec

KUBELET = "/var/lib/kubelet/pod-resources/kubelet.sock"
_GROUPS = "/sys/fs/cgroup"
_PODS, _QUALITY = f"{_GROUPS}/kubepods.slice", "kubepods-burstable.slice"
_SLICE = f"{_GROUPS}/system.slice"
_SCOPE = f"{_SLICE}/slurmstepd.scope"
_LOGS = "/var/log/pods"
_SESSION = "/user.slice/user-1000.slice/session-7.scope"
_TEAMS = ("team-red", "team-blue")
_TICKS_PER_SECOND = 100
_JOB_AGE_SECONDS = 3600
_POD = "train-0"
"""Pod of a job that has whole GPUs and no name."""


@dataclass(slots=True)
class SimulatedPod:
    """A pod, the ids of the devices allocated to it, and its processes."""

    name: str
    namespace: str
    uid: str
    resource: str
    devices: list[str] = field(default_factory=list)
    pids: list[int] = field(default_factory=list)

    @property
    def group(self) -> str:
        """Control group of its container, below that of all pods."""
        name = f"kubepods-burstable-pod{self.uid.replace('-', '_')}.slice"
        container = f"{uuid.uuid5(uuid.NAMESPACE_OID, self.uid).hex * 2}"
        return f"/kubepods.slice/{_QUALITY}/{name}/cri-containerd-{container}.scope"


def show_owners(model: node_model.NodeModel, into: CaptureMoment) -> None:
    """Add the owners to a `CaptureMoment`; nothing without a scheduler."""
    scheduler = model.spec.scheduler
    if scheduler == "kubernetes":
        _show_pods(model, into)
    elif scheduler == "slurm":
        _show_job(model, into)


def _show_pods(model: node_model.NodeModel, into: CaptureMoment) -> None:
    pods = list(_pods(model))
    into.calls[f"kubelet.List({KUBELET})"] = [_pod_entry(pod) for pod in pods]
    into.calls[f"kubelet.GetAllocatableResources({KUBELET})"] = [_allocatable(model)]
    into.names[_LOGS] = sorted(f"{pod.namespace}_{pod.name}_{pod.uid}" for pod in pods)
    into.names[_PODS] = [_QUALITY]
    into.names[f"{_PODS}/{_QUALITY}"] = sorted(pod.group.split("/")[3] for pod in pods)
    groups = {pid: pod.group for pod in pods for pid in pod.pids}
    for gpu in model.gpus:
        for tenant in gpu.sharing.present:
            default = "/system.slice/nvidia-mps.service"
            group = groups.get(
                tenant.pid, default if tenant.name == gpu_tenants.MPS_SERVER else _SESSION
            )
            _show_process(model, into, tenant, group)


def _pods(model: node_model.NodeModel) -> Iterator[SimulatedPod]:
    """Yield the running pods; the unclaimed process is in none."""
    whole: SimulatedPod | None = None
    for gpu in model.gpus:
        sharing = gpu.sharing
        cut = {device.uuid: device for device in sharing.mig_devices}
        shared = sharing.mode in {"mps", "time_slicing"}
        place = 0
        for tenant in sharing.present:
            if tenant.name == gpu_tenants.MPS_SERVER or _is_unclaimed(model, gpu, tenant):
                continue
            if not cut and not shared:
                whole = whole or _pod(
                    model.spec, workload_name(model.spec), model.spec.tenant, "nvidia.com/gpu"
                )
                whole.devices.append(gpu.identity.uuid)
                whole.pids.append(tenant.pid)
                continue
            if tenant.mig:
                resource, device = f"nvidia.com/mig-{tenant.mig.profile.name}", tenant.mig.uuid
                place = tenant.mig.index
            else:
                resource, device = "nvidia.com/gpu.shared", f"{gpu.identity.uuid}::{place}"
            name = f"infer-{gpu.identity.index}-{place}"
            pod = _pod(model.spec, name, _TEAMS[place % len(_TEAMS)], resource)
            pod.devices.append(device)
            pod.pids.append(tenant.pid)
            place += 1
            yield pod
        if cut:
            last = sharing.mig_devices[-1]
            resource = f"nvidia.com/mig-{last.profile.name}"
            notebook = _pod(model.spec, f"notebook-{gpu.identity.index}", "research", resource)
            notebook.devices.append(last.uuid)
            yield notebook
    if whole:
        yield whole


def _pod(spec: NodeSpec, name: str, namespace: str, resource: str) -> SimulatedPod:
    number = spec.stream(f"pod/{namespace}/{name}").getrandbits(128)
    return SimulatedPod(name, namespace, str(uuid.UUID(int=number, version=4)), resource)


def workload_name(spec: NodeSpec) -> str:
    """Return the number of the job in Slurm, or the name of its pod on this node, as Kubeflow names pods."""
    if spec.scheduler != "kubernetes":
        return str(slurm_job_number(spec))
    number = spec.node[len(spec.node.rstrip(string.digits)) :] or "0"
    return f"{spec.job}-worker-{number}" if spec.job else _POD


def slurm_job_number(spec: NodeSpec) -> int:
    """Return the number of the node's job."""
    return spec.shared_stream(f"slurm{spec.job}").randrange(10_000, 90_000)


def _show_job(model: node_model.NodeModel, into: CaptureMoment) -> None:
    """Add one job that has all GPUs of the node, with one task per process."""
    number = slurm_job_number(model.spec)
    directory = f"job_{number}"
    node_tenants = [
        (gpu, tenant)
        for gpu in model.gpus
        for tenant in gpu.sharing.present
        if not _is_unclaimed(model, gpu, tenant)
    ]
    into.names[_SLICE] = ["cron.service", "slurmd.service", "slurmstepd.scope"]
    into.names[_SCOPE] = [directory, "system"] if node_tenants else ["system"]
    for gpu in model.gpus:
        for tenant in gpu.sharing.present:
            if _is_unclaimed(model, gpu, tenant):
                _show_process(model, into, tenant, _SESSION)
    if not node_tenants:
        return
    step = f"{_SCOPE}/{directory}/step_0"
    into.names[f"{_SCOPE}/{directory}"] = ["step_0"]
    into.names[step] = ["slurm", "user"]
    into.names[f"{step}/user"] = sorted(f"task_{task}" for task in range(len(node_tenants)))
    environment = {
        "SLURM_JOB_ID": str(number),
        "SLURM_JOB_ACCOUNT": model.spec.tenant,
        "SLURM_JOB_USER": "eva",
        "SLURM_JOB_GPUS": ",".join(str(gpu.identity.index) for gpu in model.gpus),
    }
    if devices := [device.uuid for gpu in model.gpus for device in gpu.sharing.mig_devices]:
        environment["CUDA_VISIBLE_DEVICES"] = ",".join(devices)
    for task, (_, tenant) in enumerate(node_tenants):
        group = f"/system.slice/slurmstepd.scope/{directory}/step_0/user/task_{task}"
        into.files[f"{_GROUPS}{group}/cgroup.procs"] = f"{tenant.pid}\n"
        into.calls[f"owner.environ({tenant.pid})"] = environment
        _show_process(model, into, tenant, group)


def _is_unclaimed(
    model: node_model.NodeModel, gpu: GpuState, tenant: gpu_tenants.GpuTenant
) -> bool:
    """True for the unclaimed process: the last one of its GPU."""
    return model.unclaimed_gpu == gpu.identity.index and tenant is gpu.sharing.present[-1]


def _show_process(
    model: node_model.NodeModel, into: CaptureMoment, tenant: gpu_tenants.GpuTenant, group: str
) -> None:
    """Add the kernel's files of a process that was started one hour ago."""
    ticks = process_started_seconds(model.spec) * _TICKS_PER_SECOND + tenant.pid % _TICKS_PER_SECOND
    behind = " ".join(["R", *["0"] * 18, str(ticks)])
    into.files[f"/proc/{tenant.pid}/stat"] = f"{tenant.pid} ({tenant.name}) {behind} 0\n"
    into.files[f"/proc/{tenant.pid}/cgroup"] = f"0::{group}\n"


def process_started_seconds(spec: NodeSpec) -> int:
    """Return the start of the processes of a job, on the boot clock."""
    return max(spec.started_boot_ns // SECOND_NS - _JOB_AGE_SECONDS, 1)


def _pod_entry(pod: SimulatedPod) -> Json:
    devices = [{"resource": pod.resource, "ids": pod.devices, "numa_nodes": []}]
    container = {"name": "main", "devices": devices, "claims": []}
    return {"name": pod.name, "namespace": pod.namespace, "containers": [container]}


def _allocatable(model: node_model.NodeModel) -> Json:
    """Return all allocatable devices, or all of their shares if GPUs are shared."""
    ids: list[str] = []
    for gpu in model.gpus:
        sharing = gpu.sharing
        clients = [tenant for tenant in sharing.tenants if tenant.name != gpu_tenants.MPS_SERVER]
        if sharing.mode in {"mps", "time_slicing"}:
            ids += [f"{gpu.identity.uuid}::{place}" for place in range(len(clients))]
        else:
            ids += [device.uuid for device in sharing.mig_devices] or [gpu.identity.uuid]
    shared = model.spec.mode in {"mps", "time_slicing"}
    resource = "nvidia.com/gpu.shared" if shared else "nvidia.com/gpu"
    return {"resource": resource, "ids": ids, "numa_nodes": []}

"""A node with held GPUs: processes, pods and jobs as the host exposes them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from support.clock import NS
from support.gpus import add_gpus
from support.machine import FakeHost

from railscope.frame import Event
from railscope_agent.config import TenancySettings
from railscope_agent.gpus.inventory import GpuInventory
from railscope_agent.gpus.process_lists import ProcessLists
from railscope_agent.sampling.row_builder import RowBuilder
from railscope_agent.sources.nvidia.gpu_sharing import GpuSharingSource
from railscope_agent.sources.tenancy import ClaimSource

SOCKET = "/var/lib/kubelet/pod-resources/kubelet.sock"
LISTED = f"kubelet.List({SOCKET})"
ALLOCATABLE = f"kubelet.GetAllocatableResources({SOCKET})"
NODE = "gpu-1"
_SIGNS = {
    "claim_start": "+",
    "claim_end": "-",
    "unclaimed_use_start": "? +",
    "unclaimed_use_end": "? -",
}


def uuid(number: int) -> str:
    """Return the UUID of a GPU, in NVIDIA's form."""
    return f"GPU-00000000-0000-4000-8000-{number:012d}"


def mig_uuid(gpu: int, number: int) -> str:
    """Return the UUID of a MIG device of a GPU."""
    return f"MIG-00000000-0000-4000-9000-{gpu:06d}{number:06d}"


def node(gpus: int = 2) -> FakeHost:
    """Return a host with GPUs that have proper UUIDs."""
    host = FakeHost()
    add_gpus(host, gpus)
    for number in range(gpus):
        host.calls[f"nvml.nvmlDeviceGetUUID({number})"] = uuid(number)
    host.files["/proc/sys/kernel/hostname"] = NODE
    return host


def cut(
    host: FakeHost,
    gpu: int,
    instances: Sequence[tuple[str, int | None, int | None]],
    most: int = 7,
) -> None:
    """Partition a GPU into MIG devices: profile, and first slice and number of slices of memory."""
    host.calls[f"nvml.nvmlDeviceGetMigMode({gpu})"] = [1, 1]
    host.calls[f"nvml.nvmlDeviceGetMigDevices({gpu})"] = [
        {
            "uuid": mig_uuid(gpu, place), "index": place, "gpu": place + 1, "compute": 0,
            "start": start, "size": size, "most": most,
        }
        for place, (_, start, size) in enumerate(instances)
    ]  # fmt: skip
    for place, (profile, _, _) in enumerate(instances):
        name = f"NVIDIA H100 80GB HBM3 MIG {profile}"
        host.calls[f"nvml.nvmlDeviceGetName({mig_uuid(gpu, place)})"] = name
        key = f"nvml.nvmlDeviceGetComputeRunningProcesses({mig_uuid(gpu, place)})"
        host.calls[key] = []


def pod(name: str, *ids: str, namespace: str = "research", **more: Any) -> dict[str, Any]:
    """Return a pod as the kubelet lists it, with devices in one container."""
    resource = more.pop("resource", "nvidia.com/gpu")
    devices = [{"resource": resource, "ids": list(ids), "numa_nodes": []}] if ids else []
    container = {"name": "main", "devices": devices, "claims": [], **more}
    return {"name": name, "namespace": namespace, "containers": [container]}


def start_process(host: FakeHost, gpu: int | str, pid: int, group: str, **more: Any) -> None:
    """Put a process on a GPU or MIG device, in a control group."""
    key = f"nvml.nvmlDeviceGetComputeRunningProcesses({gpu})"
    process = {"pid": pid, "usedGpuMemory": 1 << 30, **more.pop("listed", {})}
    host.calls[key] = [*host.calls.get(key, []), process]
    ticks = more.pop("ticks", 90_000)
    behind = " ".join(["S", *["1"] * 18, str(ticks), "0"])
    host.files[f"/proc/{pid}/stat"] = f"{pid} (python3 (a b)) {behind}\n"
    host.files[f"/proc/{pid}/cgroup"] = f"0::{group}\n"
    host.files[f"/proc/{pid}/comm"] = more.pop("comm", "python3") + "\n"


def end_process(host: FakeHost, gpu: int | str, pid: int) -> None:
    """Remove a process."""
    key = f"nvml.nvmlDeviceGetComputeRunningProcesses({gpu})"
    host.calls[key] = [process for process in host.calls[key] if process["pid"] != pid]
    for path in [path for path in host.files if path.startswith(f"/proc/{pid}/")]:
        del host.files[path]


def pod_group(number: int) -> tuple[str, str]:
    """Return the uid of a pod, and the control group of a container in it."""
    uid = f"{number:08d}-0000-4000-8000-000000000000"
    slice_ = f"kubepods-burstable-pod{uid.replace('-', '_')}.slice"
    directory = f"/kubepods.slice/kubepods-burstable.slice/{slice_}"
    return uid, f"{directory}/cri-containerd-{number:064x}.scope"


def keeps_pod(host: FakeHost, number: int, name: str, namespace: str = "research") -> str:
    """Create the kubelet's directories of a pod; return its control group."""
    uid, group = pod_group(number)
    host.files[f"/var/log/pods/{namespace}_{name}_{uid}/main/0.log"] = ""
    host.files[f"/sys/fs/cgroup{group}/cgroup.procs"] = ""
    return group


class PolledTenancy:
    """Tenancy as the agent has it: the driver's sources before it, five seconds between polls."""

    def __init__(self, host: FakeHost, settings: TenancySettings | None = None) -> None:
        self.host = host
        self.gpus, lists = GpuInventory(), ProcessLists()
        self.sharing = GpuSharingSource(self.gpus, lists)
        self.tenancy = ClaimSource(settings or TenancySettings(), NODE, self.gpus, lists)
        self.columns: list[tuple[str, tuple[str, ...]]] = []
        self.table = RowBuilder(0)

    def poll(self, seconds: float = 5.0) -> list[Event]:
        """Run the next poll, and return its events."""
        self.host.clock.advance(seconds)
        width = len(self.sharing.probe(self.host).columns)
        self.sharing.read(self.host, RowBuilder(width))
        inventory = self.tenancy.probe(self.host)
        self.columns = [(metric.name, entity.key) for metric, entity in inventory.columns]
        self.findings = inventory.findings
        self.table = RowBuilder(len(self.columns))
        self.tenancy.read(self.host, self.table)
        return self.table.events

    def value(self, metric: str, gpu: str) -> int | str:
        """Return a stored value of the last poll, or the name of the reason for its absence."""
        from railscope.reading import PRESENT, REASONS  # noqa: PLC0415 - only here

        place = self.columns.index((f"railscope_{metric}", (gpu,)))
        code = self.table.reasons[place]
        return self.table.values[place] if code == PRESENT else REASONS[code].label

    @property
    def finding_lines(self) -> list[str]:
        """Return the findings that are not in order, in short."""
        return [
            short(
                f"! {each.detail}"
                if each.verdict == "broken"
                else f"! {each.verdict}: {each.detail}"
            )
            for each in self.findings
            if each.verdict != "supported" and (each.remedy or each.verdict != "absent")
        ]


def device(text: str) -> str:
    """Replace `g1` and `m0.2` by UUIDs."""
    text = re.sub(r"\bm(\d)\.(\d)(?![\w.])", lambda at: mig_uuid(int(at[1]), int(at[2])), text)
    return re.sub(r"\bg(\d)(?![\w.])", lambda at: uuid(int(at[1])), text)


def short(text: str) -> str:
    """Replace UUIDs by `g1` and `m0.2`."""
    text = re.sub(r"MIG-00000000-0000-4000-9000-0{5}(\d)0{5}(\d)", r"m\1.\2", text)
    return re.sub(r"GPU-00000000-0000-4000-8000-0{11}(\d)", r"g\1", text)


def event_line(event: Event, shown: Sequence[str] = ()) -> str:
    """Return an event in short, with further facts; times are seconds since the event."""
    facts, sign = event.facts, _SIGNS[event.event_class.name]
    name = facts.get("device") or event.entity.key[0] or f"{facts.get('count', '')}x"
    words = [sign, facts.get("workload", ""), name]
    if sign.endswith("+"):
        words += [facts.get("owner") or facts.get("tenant") or "-"]
        words += ["shared"] * (facts["exclusive"] == "false") + [facts.get("share", "")]
        words += ["assumed"] * (facts.get("assumed") == "true")
        words += ["twice"] * (facts.get("allocated_twice") == "true")
    given = {**facts, "gpu": event.entity.key[0]}
    for key in facts.keys() & {"start_ns", "end_ns"}:
        given[key] = f"{(int(facts[key]) - event.wall_ns) / NS:g}"
    words += [f"{key}={given[key]}" for key in shown if key in given]
    return short(" ".join(filter(None, words)))

"""Claims on GPUs, MIG devices and shares of GPUs, as events.

A claim has one identity from start to end; an agent reports the active ones again after a restart.
Unclaimed use has an identity, a start and an end like a claim. Facts are texts:

  source          kubernetes, slurm, containerd, cri-o, docker, podman, libvirt, systemd, file,
                  command, process
  level           authority of the source: scheduler, node_plugin, process. A collector lowers any
                  authority above scheduler: only its own files have that of an administrator. The
                  API has it as `authority`; events keep this key, as in stored events
  workload        holder of the claim, as named by the source
  owner           owner of the workload, as named by the source: a namespace, an account, a user
  tenant          the tenant if the source specifies it; else the collector maps the owner to one
  node            empty, or the node of a GPU that it holds only while the GPU is in that node
  start_ns        start, in nanoseconds since the epoch; `end_ns` the end
  start_boot_ns   the same on CLOCK_BOOTTIME of the event's boot; `end_boot_ns`. Takes precedence if
                  present, so that a step of the wall clock changes nothing
  uncertainty_ns  maximum error of these: a poll detects changes since the previous poll
  compute, memory the slots [low, high) of 840 of the device, as `low-high`
  exclusive       `true`, or `false` if others may hold the same slots
  share           of a claim that is not exclusive, the fraction `n/d` of the device that it holds
  count           of a claim without a device or a GPU in its key: number of GPUs of the node
                  that it holds, or multiple of its `share` of one
  assumed         `true` if the provider reported a number of GPUs, and the agent chose the device
  system          `true` for health checks and the administrator's own use
  allocated_twice `true` if another claim was given the same device, or one of the two only monitors
                  it: both hold equal shares
  device          part of the GPU: the GPU's UUID, that of a MIG device, the id of a share
  profile         of a MIG device
  pids            processes, if the source reports them
"""

# fmt: off
from railscope.catalog.declare import BASIC, EventClass, MetricTable, Rollup, per
from railscope.catalog.entities import CLAIM, GPU

_GPU = MetricTable(GPU)

SOURCES = (
    "kubernetes", "slurm", "containerd", "cri-o", "docker", "podman", "libvirt", "systemd", "file",
    "command", "process",
)
"""Claim providers of agents."""
GPU_CLAIMS = _GPU.gauge("railscope_gpu_claims", "Claims on the GPU or parts of it that are in force.", "kubelet, Slurm, container runtimes, libvirt, systemd, claims file, railscope claim", rollups=(Rollup.SUM,), detail=BASIC)
GPU_CLAIMED = _GPU.gauge("railscope_gpu_claimed_ratio", "Share of the GPU's compute that claims in force hold.", "railscope_gpu_claims, in 840ths", scale=per(840), rollups=(Rollup.MEAN, Rollup.COUNT))
GPU_UNCLAIMED_PROCESSES = _GPU.gauge("railscope_gpu_unclaimed_processes", "Processes on the GPU that no claim covers.", "processes by NVML, /proc/PID/cgroup", rollups=(Rollup.SUM,), detail=BASIC)
_CLAIM_FACTS = (
    "source", "level", "workload", "owner", "tenant", "node", "start_ns", "start_boot_ns",
    "end_ns", "uncertainty_ns", "compute", "memory", "exclusive", "share", "count", "system",
    "assumed", "allocated_twice", "device", "profile", "pids",
)
_CLAIM_END_FACTS = (
    "source", "level", "workload", "owner", "tenant", "end_ns", "end_boot_ns", "uncertainty_ns",
    "why",
)
CLAIM_START_EVENT = EventClass("claim_start", CLAIM, "info", "A claim on a GPU, a MIG device or a share of a GPU started.", "kubelet, Slurm, container runtimes, libvirt, systemd, claims file, railscope claim", _CLAIM_FACTS, audited=True)
CLAIM_END_EVENT = EventClass("claim_end", CLAIM, "info", "A claim on a GPU, a MIG device or a share of a GPU ended.", "as of the start of the claim", _CLAIM_END_FACTS, audited=True)
UNCLAIMED_START_EVENT = EventClass("unclaimed_use_start", CLAIM, "warning", "Processes use a GPU without a claim that covers them.", "processes by NVML, /proc/PID/cgroup", _CLAIM_FACTS, audited=True)
UNCLAIMED_END_EVENT = EventClass("unclaimed_use_end", CLAIM, "info", "Use of a GPU without a claim has ended, or a claim covers it now.", "processes by NVML, /proc/PID/cgroup", _CLAIM_END_FACTS, audited=True)

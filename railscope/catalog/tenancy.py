"""Claims on GPUs, MIG devices and shares of GPUs, as events.

A claim has one identity from start to end; an agent reports the active ones again after a restart.
Unclaimed use has an identity, a start and an end like a claim. Facts are texts:

  source          kubernetes, slurm, containerd, cri-o, docker, podman, libvirt, systemd, file,
                  command, process
  level           authority of the source: scheduler, node_plugin, process. A collector lowers any
                  authority above scheduler: only its own files have that of an administrator
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
  system          `true` for health checks and the administrator's own use
  device          part of the GPU: the GPU's UUID, that of a MIG device, the id of a share
  profile         of a MIG device
  pids            processes, if the source reports them
"""

from __future__ import annotations

from railscope.catalog.declare import EventClass, Kind, Metric, Rollup, Unit, per
from railscope.catalog.entities import CLAIM, GPU

SOURCES = (
    "kubernetes", "slurm", "containerd", "cri-o", "docker", "podman", "libvirt", "systemd", "file",
    "command", "process",
)  # fmt: skip
"""Claim providers of agents."""

GPU_CLAIMS = Metric(
    "railscope_gpu_claims",
    Kind.GAUGE,
    GPU,
    rollups=(Rollup.SUM,),
    help="Claims on the GPU or parts of it that are in force.",
    origin="kubelet, Slurm, container runtimes, libvirt, systemd, claims file, railscope claim",
)
GPU_CLAIMED = Metric(
    "railscope_gpu_claimed_ratio",
    Kind.GAUGE,
    GPU,
    unit=Unit.RATIO,
    scale=per(840),
    rollups=(Rollup.MEAN,),
    help="Share of the GPU's compute that claims in force hold.",
    origin="railscope_gpu_claims, in 840ths",
)
GPU_UNCLAIMED_PROCESSES = Metric(
    "railscope_gpu_unclaimed_processes",
    Kind.GAUGE,
    GPU,
    rollups=(Rollup.SUM,),
    help="Processes on the GPU that no claim covers.",
    origin="processes by NVML, /proc/PID/cgroup",
)

_HELD = (
    "source", "level", "workload", "owner", "tenant", "node", "start_ns", "start_boot_ns",
    "end_ns", "uncertainty_ns", "compute", "memory", "exclusive", "share", "count", "system",
    "device", "profile", "pids",
)  # fmt: skip
_ENDED = (
    "source", "level", "workload", "owner", "tenant", "end_ns", "end_boot_ns", "uncertainty_ns",
    "why",
)  # fmt: skip

CLAIM_START_EVENT = EventClass(
    "claim_start",
    CLAIM,
    "info",
    help="Somebody was given a GPU, a MIG device or a share of a GPU.",
    origin="kubelet, Slurm, container runtimes, libvirt, systemd, claims file, railscope claim",
    facts=_HELD,
    audited=True,
)
CLAIM_END_EVENT = EventClass(
    "claim_end",
    CLAIM,
    "info",
    help="A GPU, a MIG device or a share of a GPU was given back.",
    origin="as of the start of the claim",
    facts=_ENDED,
    audited=True,
)
UNCLAIMED_START_EVENT = EventClass(
    "unclaimed_use_start",
    CLAIM,
    "warning",
    help="Processes use a GPU that nobody whose they could be has been given.",
    origin="processes by NVML, /proc/PID/cgroup",
    facts=_HELD,
    audited=True,
)
UNCLAIMED_END_EVENT = EventClass(
    "unclaimed_use_end",
    CLAIM,
    "info",
    help="Use of a GPU without a claim has ended, or a claim covers it now.",
    origin="processes by NVML, /proc/PID/cgroup",
    facts=_ENDED,
    audited=True,
)

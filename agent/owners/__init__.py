"""Parsers of the formats in which schedulers, runtimes and the kernel record owners of GPUs and processes.

Every module is a parser from text or bytes to frozen values. None reads files or keeps state. Input that is
not in the expected format raises `FormatError`; nothing is guessed.

    cgroup                      /proc/PID/cgroup: pod, container, job, machine or unit of a process
    sluid, slurmstepd           SLUIDs in the names of Slurm's job directories, and the job id of a SLUID
    gres_conf                   devices by Slurm index; jobs are parsed in railscope.slurm
    device_ids                  names that Kubernetes device plugins give to GPUs
    pod_resources, protobuf     the kubelet's answer about devices allocated to pods
    pod_list                    annotations and limits of pods that concern GPUs
    docker, environ, libvirt    containers of Docker, environments of Slurm jobs, virtual machines
"""

from __future__ import annotations

from railscope.slurm import FormatError

__all__ = ["FormatError"]

"""Who holds or uses a GPU, as schedulers, runtimes and the kernel write it down.

Every module here is a parser: text or bytes in, frozen values out. Nothing is read here and nothing
is remembered. What is not in the format that a parser knows is a `FormatError`, never a guess.

    cgroup                      /proc/PID/cgroup: which pod, container, job, machine or unit it is of
    sluid, slurmstepd           the names of Slurm's job directories, and which job such a name is
    gres_conf                   which device an index of Slurm's is; jobs are parsed in railscope.slurm
    device_ids                  the names that Kubernetes' device plugins give to GPUs
    pod_resources, protobuf     what the kubelet answers about the devices it gave to pods
"""

from __future__ import annotations

from railscope.slurm import FormatError

__all__ = ["FormatError"]

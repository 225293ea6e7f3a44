"""Who holds or uses a GPU, as schedulers, runtimes and the kernel write it down.

Every module here is a parser: text or bytes in, frozen values out. Nothing is read here and nothing
is remembered. What is not in the format that a parser knows is a `FormatError`, never a guess.

    cgroup                      /proc/PID/cgroup: which pod, container, job, machine or unit it is of
    sluid, slurmstepd           the names of Slurm's job folders, and which job such a name is
    slurm, sacct                jobs as scontrol, squeue and sacct print them
    hostlist, gres, gres_conf   Slurm's lists of nodes, what jobs hold, which device an index is
    device_ids                  the names that Kubernetes' device plugins give to GPUs
    pod_resources, protobuf     what the kubelet answers about the devices it gave to pods
"""

from __future__ import annotations


class FormatError(ValueError):
    """Something that is not in the format its parser knows; the message says what and where."""

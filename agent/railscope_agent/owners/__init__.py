"""Parsers of the formats in which schedulers, runtimes and the kernel record owners of GPUs and processes.

Every module is a parser from text or bytes to frozen values. None reads files or keeps state. Input that is
not in the expected format raises `OwnerFormatError`, that of Slurm `SlurmFormatError`; nothing is guessed.

    cgroup           /proc/PID/cgroup: pod, container, job, machine or unit of a process
    slurm            gres.conf, job environments, SLUIDs and process titles; jobs are parsed in railscope.slurm
    kubelet_answers  devices allocated to pods, names of GPUs, annotations and limits of pods that concern GPUs
    runtimes         containers of Docker, virtual machines
"""

from __future__ import annotations

from railscope import RailscopeError


class OwnerFormatError(RailscopeError, ValueError):
    """Input is not in the format of its source."""

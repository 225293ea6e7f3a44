"""Slurm variables in the environment of a job: /proc/PID/environ, entries terminated by a zero byte.

A process may change its environment before it executes another program: the values come from the job, not
from Slurm. Only the names below are read; all else is private to the user. Sources: proc(5);
SchedMD/slurm:doc/man/man1/sbatch.1, doc/html/prolog_epilog.shtml.
"""

from __future__ import annotations

NAMES = (
    "SLURM_JOB_ID",
    "SLURM_JOB_ACCOUNT",
    "SLURM_JOB_USER",
    "SLURM_JOB_GPUS",
    "SLURM_STEP_GPUS",
    "SLURM_SHARDS_ON_NODE",
    "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE",
    "CUDA_VISIBLE_DEVICES",
)


def chosen(content: bytes) -> dict[str, str]:
    """Return the variables of the names above that are set."""
    found: dict[str, str] = {}
    for entry in content.split(b"\0"):
        name, equals, value = entry.partition(b"=")
        word = name.decode("ascii", errors="replace")
        if equals and word in NAMES:
            found.setdefault(word, value.decode(errors="backslashreplace"))
    return found

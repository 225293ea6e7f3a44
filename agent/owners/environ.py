"""What Slurm says in the environment of a job: /proc/PID/environ, entries that end in a zero byte.

A process may change what it was started with before it starts anew: this is what a job says of
itself, not what Slurm says of it. Only the names below are looked at; all else is the user's own.
Sources: proc(5); SchedMD/slurm:doc/man/man1/sbatch.1, doc/html/prolog_epilog.shtml.
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
    """The variables of the names above that are there."""
    found: dict[str, str] = {}
    for entry in content.split(b"\0"):
        name, equals, value = entry.partition(b"=")
        word = name.decode("ascii", errors="replace")
        if equals and word in NAMES:
            found.setdefault(word, value.decode(errors="backslashreplace"))
    return found

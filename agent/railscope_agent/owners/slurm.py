"""Formats of Slurm on a node: job environments, SLUIDs and process titles of slurmstepd."""

from __future__ import annotations

import re
from collections.abc import Mapping

from railscope.slurm import SlurmFormatError

SLURM_VARIABLES = (
    "SLURM_JOB_ID",
    "SLURM_JOB_ACCOUNT",
    "SLURM_JOB_USER",
    "SLURM_JOB_GPUS",
    "SLURM_STEP_GPUS",
    "SLURM_SHARDS_ON_NODE",
    "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE",
    "CUDA_VISIBLE_DEVICES",
)


_HET_GROUP = "_HET_GROUP_"
_HET_VARIABLE = re.compile(rf"(?:SLURM_JOB_ID|SLURM_JOB_ACCOUNT){_HET_GROUP}[0-9]{{1,3}}")
"""Job and account of each component of a heterogeneous job (slurm.schedmd.com/heterogeneous_jobs.html)."""


def parse_slurm_variables(content: bytes) -> dict[str, str]:
    """Return the variables of `SLURM_VARIABLES` that are set, and those of the components of a heterogeneous job.

    The content is that of /proc/PID/environ: entries terminated by a zero byte. A process may change its
    environment before it executes another program: the values come from the job, not from Slurm. All other
    variables are private to the user. Sources: proc(5); SchedMD/slurm:doc/man/man1/sbatch.1,
    doc/html/prolog_epilog.shtml.
    """
    variables: dict[str, str] = {}
    for entry in content.split(b"\0"):
        name, equals, value = entry.decode(errors="backslashreplace").partition("=")
        if equals and (name in SLURM_VARIABLES or _HET_VARIABLE.fullmatch(name)):
            # getenv(3) returns the first of several entries with one name.
            variables.setdefault(name, value)
    return variables


def variables_of_job(variables: Mapping[str, str], job: int | None) -> Mapping[str, str] | None:
    """Return the variables with the job and account of the process; None if they are those of another job.

    All processes of a heterogeneous job have the id of its first component in SLURM_JOB_ID
    (SchedMD/slurm:src/slurmd/slurmstepd/task.c, het_job_id).
    """
    number = variables.get("SLURM_JOB_ID", "")
    if not number.isdecimal():
        return None
    if job is None or int(number) == job:
        return variables
    own = f"SLURM_JOB_ID{_HET_GROUP}"
    component = next((n for n, v in variables.items() if n.startswith(own) and v == str(job)), "")
    if not component:
        return None
    account = f"SLURM_JOB_ACCOUNT{_HET_GROUP}{component.removeprefix(own)}"
    named = variables.get(account) or variables.get("SLURM_JOB_ACCOUNT", "")
    return {**variables, "SLURM_JOB_ID": str(job), "SLURM_JOB_ACCOUNT": named}


def device_names(variables: Mapping[str, str], *, is_job_step: bool = True) -> tuple[str, ...]:
    """Return the names of a job's devices on this node: UUIDs if available, else device files.

    slurmstepd sets SLURM_JOB_GPUS for the batch and the interactive step, and for a step of an external launcher.
    The processes of other steps have SLURM_STEP_GPUS, and inherit the former from the script, which may run on
    another node (SchedMD/slurm:src/slurmd/slurmstepd/slurmstepd_job.c, gres_g_job_set_env, gres_g_step_set_env).

    CUDA_VISIBLE_DEVICES counts from 0 in each job with device confinement, so its numbers are not used.
    """
    visible = [name for name in variables.get("CUDA_VISIBLE_DEVICES", "").split(",") if name]
    if visible and all(name.startswith(("GPU-", "MIG-")) for name in visible):
        return tuple(dict.fromkeys(visible))
    order = ("JOB", "STEP") if is_job_step else ("STEP", "JOB")
    numbers = next(filter(None, (variables.get(f"SLURM_{part}_GPUS") for part in order)), "")
    files = [f"/dev/nvidia{number}" for number in numbers.split(",") if number.isdecimal()]
    return tuple(dict.fromkeys(files))


SLUID_PATTERN = "s[0-9A-F][0-9A-HJKMNP-TV-Z]{12}"
"""Name of a job, and of its control group, in Slurm 26.05 and later (SLUID), as Slurm writes it.

A letter `s` and 13 digits of Crockford's base 32, which encode 64 bits: the cluster (12), milliseconds (42), a sequence within
the millisecond (10). The first digit has the 4 bits that are left over from 12 digits. Source:
SchedMD/slurm:src/common/sluid.c.
"""

_TITLE = re.compile(r"slurmstepd: \[([0-9]{1,10})\.[^\s\]]+(?: stepmgr)?\]")


def parse_step_title(cmdline: bytes) -> int:
    """Return the job of a slurmstepd, from its /proc/PID/cmdline. Raises SlurmFormatError.

    The step in the title is a number, `batch`, `extern`, `interactive` or `0+1`.

    If Slurm names the control group of a job by its SLUID, the job id is in this title only
    (`slurmstepd: [3385.batch]`). The process
    is in `.../step_*/slurm`, beside the user's `.../step_*/user`. Any process can set such a title: use it
    only for one that `cgroup.parse_owner` identifies as a daemon. Source:
    SchedMD/slurm:src/slurmd/slurmstepd/slurmstepd.c, src/common/log.c.
    """
    title = cmdline.rstrip(b"\0 ").decode(errors="backslashreplace")
    match = _TITLE.fullmatch(title)
    if match is None:
        message = f"invalid process title of slurmstepd: {title[:200]!r}"
        raise SlurmFormatError(message)
    return int(match[1])

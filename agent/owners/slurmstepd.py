"""Which job a SLUID is: the title that the daemon of a step gives to itself.

Where Slurm names the cgroup of a job by its SLUID, the daemon is in `.../step_*/slurm` beside the user's
`.../step_*/user`, and its /proc/PID/cmdline is `slurmstepd: [3385.batch]`. Anyone may call a process
so: only one that `cgroup.owner` says is a daemon is to be believed.
Source: SchedMD/slurm:src/slurmd/slurmstepd/slurmstepd.c, src/common/log.c.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from agent.owners import FormatError

_TITLE = re.compile(r"slurmstepd: \[([0-9]{1,10})\.([^\s\]]+)(?: stepmgr)?\]")


@dataclass(frozen=True, slots=True)
class Step:
    """A step of a job by its name: a number, `batch`, `extern`, `interactive`, `0+1`."""

    job: int
    step: str


def step(cmdline: bytes) -> Step:
    """The step that a daemon is of, by its /proc/PID/cmdline. Raises FormatError."""
    title = cmdline.rstrip(b"\0 ").decode(errors="backslashreplace")
    found = _TITLE.fullmatch(title)
    if found is None:
        message = f"{title[:200]!r} is no title of slurmstepd"
        raise FormatError(message)
    return Step(int(found[1]), found[2])

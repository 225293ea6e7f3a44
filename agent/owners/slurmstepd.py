"""Job id of a SLUID, from the process title of a step's slurmstepd.

If Slurm names the control group of a job by its SLUID, slurmstepd is in `.../step_*/slurm` beside the
user's `.../step_*/user`, and its /proc/PID/cmdline is `slurmstepd: [3385.batch]`. Any process can set such
a title: use it only for one that `cgroup.owner` identifies as a daemon. Source:
SchedMD/slurm:src/slurmd/slurmstepd/slurmstepd.c, src/common/log.c.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from agent.owners import FormatError

_TITLE = re.compile(r"slurmstepd: \[([0-9]{1,10})\.([^\s\]]+)(?: stepmgr)?\]")


@dataclass(frozen=True, slots=True)
class Step:
    """A step of a job with its name: a number, `batch`, `extern`, `interactive`, `0+1`."""

    job: int
    step: str


def step(cmdline: bytes) -> Step:
    """Return the step of a slurmstepd, from its /proc/PID/cmdline. Raises FormatError."""
    title = cmdline.rstrip(b"\0 ").decode(errors="backslashreplace")
    found = _TITLE.fullmatch(title)
    if found is None:
        message = f"{title[:200]!r} is no title of slurmstepd"
        raise FormatError(message)
    return Step(int(found[1]), found[2])

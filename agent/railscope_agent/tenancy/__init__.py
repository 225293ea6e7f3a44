"""Claims on the GPUs of this node, and use of GPUs without a claim.

Modules named after a claim provider read its claims: `kubernetes`, `slurm` (with `slurm_files`),
`virtual_machines` and `command_claims`. `claims` contains their common type, `devices`
the GPUs and MIG devices by all their names, `gpu_processes` the processes on GPUs and the use without a
claim. `claim_placement` selects devices for claims on a number of GPUs, and `claim_tracker` detects
starts and ends. `railscope_agent.sources.tenancy` combines them as a source of the agent.

A claim provider that cannot be read ends no claim: a device of unknown state is not assumed free.
"""

from __future__ import annotations


class TenancyError(Exception):
    """Base of the errors of claims: an invalid file, a conflict, an unknown claim, a failed write."""

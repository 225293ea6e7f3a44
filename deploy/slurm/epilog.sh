#!/bin/sh
# Slurm epilog: reports the end of a job's claim on GPUs to the Railscope agent of this node.
#
# In slurm.conf: Epilog=/etc/slurm/epilog.d/railscope.sh. slurmd runs it as root. A failing
# epilog would drain the node, so this one never fails. To report a lost end by hand:
#
#     railscope claim list; railscope claim end slurm-123 --end 2026-01-01T12:00:00Z
#
# Of its environment it uses the number of the job, which slurmd sets.

PATH=/usr/sbin:/usr/bin:/sbin:/bin
railscope=/opt/railscope/bin/railscope
settings=/etc/railscope/agent.toml

set --
if [ -e "$settings" ]; then
    set -- --config "$settings"
fi

env -i PATH="$PATH" SLURM_JOB_ID="$SLURM_JOB_ID" \
    "$railscope" claim end --from-slurm --timeout-seconds 2 "$@" 2>&1 | logger -t railscope-epilog
exit 0

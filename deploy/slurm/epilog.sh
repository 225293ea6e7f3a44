#!/bin/sh
# Slurm epilog: reports the end of a job's claim on GPUs to the Railscope agent of this node.
#
# In slurm.conf: Epilog=/etc/slurm/epilog.d/railscope.sh. slurmd runs it as root. A failing
# epilog would drain the node, so this one never fails. To report a lost end by hand:
#
#     railscope claim list; railscope claim end slurm-123 --end 2026-01-01T12:00:00Z

railscope=${RAILSCOPE:-/opt/railscope/bin/railscope}
settings=/etc/railscope/agent.toml

set --
if [ -e "$settings" ]; then
    set -- --config "$settings"
fi

"$railscope" claim end --from-slurm --timeout-seconds 2 "$@" 2>&1 | logger -t railscope-epilog
exit 0

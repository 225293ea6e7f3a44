#!/bin/sh
# Slurm epilog: tells the Railscope agent of this node that a job has given its GPUs back.
#
# In slurm.conf: Epilog=/etc/slurm/epilog.d/railscope.sh. slurmd runs it as root. An epilog that fails
# would drain the node: this one never does. An end that could not be told can be told by hand:
#
#     railscope claim list; railscope claim end slurm-123 --end 2026-01-01T12:00:00Z

railscope=${RAILSCOPE:-/opt/railscope/bin/railscope}
settings=/etc/railscope/agent.toml

set --
if [ -e "$settings" ]; then
    set -- --config "$settings"
fi

"$railscope" claim end --from-slurm --timeout 2 "$@" 2>&1 | logger -t railscope-epilog
exit 0

#!/bin/sh
# Slurm prolog: tells the Railscope agent of this node which GPUs a job is given.
#
# In slurm.conf: Prolog=/etc/slurm/prolog.d/railscope.sh and PrologFlags=Alloc, so that it runs when the
# job is given the node and not only with its first step. slurmd runs it as root.
#
# A job must not wait for its bill: where the agent does not answer within two seconds, or refuses, the
# job starts all the same. The agent then finds the job by its control group, some seconds later.

railscope=${RAILSCOPE:-/opt/railscope/bin/railscope}
settings=/etc/railscope/agent.toml

set --
if [ -e "$settings" ]; then
    set -- --config "$settings"
fi

"$railscope" claim start --from-slurm --timeout 2 "$@" 2>&1 | logger -t railscope-prolog
exit 0

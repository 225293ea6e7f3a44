#!/bin/sh
# Slurm prolog: rejects a job if one of its GPUs, or a NIC of their rails, has failed.
#
# In slurm.conf: Prolog=/etc/slurm/prolog.d/*.sh, with this script after that of the claim, and
# PrologFlags=Alloc. slurmd runs it as root. Slurm then drains the node and requeues the job, without a limit
# for the cluster; therefore only the verdict `failed` has this effect. Degraded devices, a verdict that is
# unknown, an agent that does not answer within two seconds and every other error let the job start.
# Of its environment it uses the number of the job and those of its GPUs, which slurmd sets.

PATH=/usr/sbin:/usr/bin:/sbin:/bin
railscope=/opt/railscope/bin/railscope
settings=/etc/railscope/agent.toml

set --
if [ -e "$settings" ]; then
    set -- --config "$settings"
fi

verdict=$(env -i PATH="$PATH" SLURM_JOB_ID="$SLURM_JOB_ID" SLURM_JOB_GPUS="$SLURM_JOB_GPUS" \
    "$railscope" health --from-slurm --timeout-seconds 2 "$@" 2>/dev/null)
status=$?
case $status:$verdict in
2:failed:*)
    logger -t railscope-prolog -p daemon.err -- "job $SLURM_JOB_ID: $verdict"
    exit 1
    ;;
esac
exit 0

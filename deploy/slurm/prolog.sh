#!/bin/sh
# Slurm prolog: reports the GPUs of a job to the Railscope agent of this node.
#
# In slurm.conf: Prolog=/etc/slurm/prolog.d/railscope.sh and PrologFlags=Alloc, so that it runs when the
# node is allocated and not only with the first step. slurmd runs it as root.
#
# A job must not wait for its claim: if the agent does not answer within two seconds, or rejects the
# claim, the job starts nevertheless. The agent then detects the job by its control group, seconds later.
# Of its environment it uses the number, GPUs, account and user of the job, which slurmd sets.

PATH=/usr/sbin:/usr/bin:/sbin:/bin
railscope=/opt/railscope/bin/railscope
settings=/etc/railscope/agent.toml

set --
if [ -e "$settings" ]; then
    set -- --config "$settings"
fi

env -i PATH="$PATH" SLURM_JOB_ID="$SLURM_JOB_ID" SLURM_JOB_GPUS="$SLURM_JOB_GPUS" \
    CUDA_VISIBLE_DEVICES="$CUDA_VISIBLE_DEVICES" SLURM_JOB_ACCOUNT="$SLURM_JOB_ACCOUNT" SLURM_JOB_USER="$SLURM_JOB_USER" \
    "$railscope" claim start --from-slurm --timeout-seconds 2 "$@" 2>&1 | logger -t railscope-prolog
exit 0

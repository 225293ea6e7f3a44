#!/bin/sh
# Slurm HealthCheckProgram: writes failed GPUs and NICs of this node to the system log.
#
# In slurm.conf: HealthCheckProgram=/etc/slurm/railscope_health_check.sh, HealthCheckInterval=60 and
# HealthCheckNodeState=ANY. slurmd runs it as root.
#
# It always succeeds. With drain=yes below it also drains the node if it accepts jobs, and never resumes it. A node
# cannot count the nodes that others drain at the same time: a defect of the check could drain the whole cluster.
# Of its environment it uses the name of the node, which slurmd sets. slurmd does not pass SLURM_CONF on: if
# slurm.conf is not where Slurm's programs look for it, export the variable here.

drain=no

PATH=/usr/sbin:/usr/bin:/sbin:/bin
railscope=/opt/railscope/bin/railscope
settings=/etc/railscope/agent.toml

set --
if [ -e "$settings" ]; then
    set -- --config "$settings"
fi

verdict=$(env -i PATH="$PATH" "$railscope" health --format text "$@" 2>/dev/null)
case $verdict in
failed:*) logger -t railscope-health -p daemon.err -- "$verdict" ;;
*) exit 0 ;;
esac
[ "$drain" = yes ] || exit 0

# A node that is drained, down, powered off or in maintenance keeps its state and its reason.
node=${SLURMD_NODENAME:-$(hostname -s)}
case $(sinfo --all --noheader --Node --nodes="$node" --format=%T | head -n 1) in
*[~#!%$^*]) ;;
idle* | mixed* | allocated* | completing* | planned* | reserved*)
    reason=$(printf '%s' "${verdict#failed: }" | head -n 1 | tr -d "\"'|\\\\" | cut -c 1-200)
    scontrol update NodeName="$node" State=DRAIN Reason="railscope: $reason"
    ;;
esac
exit 0

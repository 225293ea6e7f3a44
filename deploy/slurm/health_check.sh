#!/bin/sh
# Slurm HealthCheckProgram: writes failed GPUs and NICs of this node to the system log.
#
# In slurm.conf: HealthCheckProgram=/etc/slurm/railscope_health_check.sh, HealthCheckInterval=60 and
# HealthCheckNodeState=ANY. slurmd runs it as root.
#
# It always succeeds and drains nothing: a node cannot count the nodes that others drain at the same time, so a
# defect of the check could drain the whole cluster. The collector drains, within a limit: see docs/integrations.md.
# It takes nothing from its environment.

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
esac
exit 0

#!/bin/sh
# Installs the Debian packages of the servers, and the browser, that the tests use, if permitted. Packages that cannot be
# installed are reported; the tests that need them are skipped. With an argument: only the package of this name.
set -eu

only="${1:-}"
missing=""
want() { # PROGRAM PACKAGE
    if [ -n "$only" ] && [ "$only" != "$2" ]; then
        return
    fi
    if ! command -v "$1" >/dev/null; then
        missing="$missing $2"
    fi
}
want promtool prometheus
want amtool prometheus-alertmanager
want prometheus-node-exporter prometheus-node-exporter
want systemd-analyze systemd
want cc gcc
want chromium chromium
want ip iproute2
want tmux tmux
want snmpd snmpd
want lldpd lldpd
want rpm rpm
want lintian lintian
want rpmlint rpmlint
want mmdebstrap mmdebstrap
want zsh zsh
want fish fish
# Debian keeps the programs of a PostgreSQL server out of PATH.
PATH="$PATH:/usr/sbin:$(echo /usr/lib/postgresql/*/bin | tr ' ' :)"
want initdb postgresql
want slurmctld slurmctld
want slurmd slurmd
want scontrol slurm-client
want munged munge
if [ -z "$only" ] && [ ! -e /usr/include/stdlib.h ]; then
    missing="$missing libc6-dev"
fi

if [ -z "$missing" ]; then
    exit 0
fi
leave_out() { # REASON
    echo "setup_servers.sh: left out:$missing ($1); tests that need them will be skipped"
    exit 0
}
if ! command -v apt-get >/dev/null; then
    leave_out "there is no apt-get"
fi
if [ "$(id -u)" -ne 0 ]; then
    leave_out "only root may install packages"
fi

# Installed services are not to be started: policy-rc.d says no while packages are installed.
policy=/usr/sbin/policy-rc.d
if [ ! -e "$policy" ]; then
    trap 'rm -f "$policy"' EXIT INT TERM
    printf '#!/bin/sh\nexit 101\n' >"$policy"
    chmod 755 "$policy"
fi
export DEBIAN_FRONTEND=noninteractive
echo "setup_servers.sh: installing$missing"
apt-get update -qq || leave_out "apt-get update failed"
for package in $missing; do
    if ! log=$(apt-get install -qq -y --no-install-recommends "$package" 2>&1); then
        echo "$log" | tail -n 3
        echo "setup_servers.sh: left out: $package (apt-get install failed)"
    fi
done

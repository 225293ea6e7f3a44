#!/bin/sh
# install_files.sh PREFIX CONFIGURATION UNITS BINARIES: installs everything but the program itself:
# units, sample settings, rules, dashboards, runbooks and scripts, with these directories in place of
# the defaults. Existing settings and rules are kept; a new version of the rules that differs is
# written beside them as NAME.new.
set -eu
umask 022

prefix=$1
configuration=$2
units=$3
binaries=$4
cd "$(dirname "$0")/.."
share=$prefix/share/railscope

# A commented setting shows its default. With another directory of settings, paths below the default
# directory are set explicitly.
defaults=
if [ "$configuration" != /etc/railscope ]; then
    defaults='s|^# \([a-z_]* = "/etc/railscope/\)|\1|'
fi

# Write a file with the directories of this installation.
adapt() {
    sed -e "$defaults" -e "s|/opt/railscope|$prefix|g" -e "s|/etc/railscope|$configuration|g" \
        -e "s|/var/lib/grafana/dashboards/railscope|$share/dashboards|g" \
        -e 's|\.\./\.\./alerts/rules|rules|g' "$1"
}

# Install a file of the program: a later version replaces it.
put() {
    mkdir -p "$(dirname "$2")"
    adapt "$1" >"$2"
    if [ -x "$1" ]; then chmod +x "$2"; fi
}

# Install a file of the administrator, unless it exists.
offer() {
    if [ ! -e "$2" ]; then
        put "$1" "$2"
    elif [ "${3-}" = new ] && ! adapt "$1" | cmp -s - "$2"; then
        put "$1" "$2.new"
        echo "kept $2; the new version is $2.new"
    fi
}

for unit in deploy/systemd/*.service; do
    put "$unit" "$units/$(basename "$unit")"
done
samples="agent.toml collector.toml tokens.toml seller.toml prices.toml claims.csv tenants.csv quotas.csv"
samples="$samples calendar.toml retired.csv inventory.csv alertmanager.yml"
for sample in $samples; do
    offer "deploy/$sample" "$configuration/$sample"
done
offer deploy/prometheus/prometheus.yml "$configuration/prometheus/prometheus.yml" new
for targets in deploy/prometheus/targets/*.yml; do
    offer "$targets" "$configuration/prometheus/targets/$(basename "$targets")"
done
for rules in alerts/rules/*.yml; do
    offer "$rules" "$configuration/prometheus/rules/$(basename "$rules")" new
done
for dashboard in dashboards/generated/*.json; do
    put "$dashboard" "$share/dashboards/$(basename "$dashboard")"
done
for provisioning in dashboards/provisioning/*/railscope.yml; do
    put "$provisioning" "$share/${provisioning#dashboards/}"
done
for runbook in alerts/runbooks/*.md; do
    put "$runbook" "$share/runbooks/$(basename "$runbook")"
done
for file in deploy/slurm/*.sh deploy/nagios/*.cfg deploy/node-problem-detector/*; do
    put "$file" "$share/${file#deploy/}"
done
for dropin in deploy/systemd/*.conf; do
    put "$dropin" "$share/systemd/$(basename "$dropin")"
done
# Beside the command, where shells find the files of commands in /usr/local/bin and /usr/bin.
data=$(dirname "$binaries")/share
put deploy/completions/railscope.bash "$data/bash-completion/completions/railscope"
put deploy/completions/_railscope "$data/zsh/site-functions/_railscope"
put deploy/completions/railscope.fish "$data/fish/vendor_completions.d/railscope.fish"
mkdir -p "$binaries"
ln -sfn "$prefix/bin/railscope" "$binaries/railscope"

#!/bin/sh
# install.sh PYTHON PREFIX CONFIGURATION UNITS: installs the program, its systemd units and sample
# settings. Settings that are there already stay as they are; no service is started or restarted.
set -eu
umask 022

python=$1
prefix=$2
configuration=$3
units=$4
source=$(cd "$(dirname "$0")/.." && pwd)

for folder in "$prefix" "$configuration" "$units"; do
    if ! mkdir -p "$folder" || [ ! -w "$folder" ]; then
        echo "install.sh: cannot write to $folder; run make install as root" >&2
        exit 1
    fi
done

# From a copy, so that nothing is built inside the checkout.
copy=$(mktemp -d)
trap 'rm -rf "$copy"' EXIT INT TERM
cd "$source"
cp -R pyproject.toml README.md LICENSE railscope agent collector dashboards "$copy"
deploy/venv.sh "$python" "$prefix"
# Exactly the files that were locked, by hash; EXTRAS=yes adds PostgreSQL and Parquet.
lock=deploy/requirements.lock
if [ "${EXTRAS:-}" = yes ]; then
    lock=deploy/requirements-extras.lock
fi
pip="$prefix/bin/python -m pip --disable-pip-version-check install --quiet"
$pip --require-hashes --requirement "$lock"
$pip --no-deps --no-build-isolation "$copy"

for unit in deploy/systemd/*.service; do
    sed "s|/opt/railscope/bin/|$prefix/bin/|; s|/etc/railscope/|$configuration/|g" "$unit" \
        >"$units/$(basename "$unit")"
done
samples="agent.toml collector.toml tokens.toml seller.toml prices.toml"
samples="$samples claims.csv tenants.csv quotas.csv calendar.toml retired.csv inventory.csv"
for sample in $samples; do
    if [ ! -e "$configuration/$sample" ]; then
        cp "deploy/$sample" "$configuration/$sample"
    fi
done
if [ -d /run/systemd/system ]; then
    systemctl daemon-reload
fi
echo "installed $("$prefix/bin/railscope" --version) in $prefix"
echo "settings: $configuration; units: $units; start with systemctl enable --now railscope-agent"

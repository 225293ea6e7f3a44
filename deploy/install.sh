#!/bin/sh
# install.sh PYTHON PREFIX CONFIGURATION UNITS BINARIES: installs the program, and everything else with
# install_files.sh. Existing settings are kept; no service is started or restarted.
set -eu
umask 022

python=$1
prefix=$2
configuration=$3
units=$4
binaries=$5
source=$(cd "$(dirname "$0")/.." && pwd)

for directory in "$prefix" "$configuration" "$units" "$binaries"; do
    if ! mkdir -p "$directory" || [ ! -w "$directory" ]; then
        echo "install.sh: cannot write to $directory; run make install as root" >&2
        exit 1
    fi
done

# Build from a copy, to keep the checkout clean.
copy=$(mktemp -d)
trap 'rm -rf "$copy"' EXIT INT TERM
cd "$source"
cp -R pyproject.toml README.md LICENSE railscope agent collector dashboards "$copy"
deploy/venv.sh "$python" "$prefix"
# Install exactly the locked files, by hash; EXTRAS=yes adds PostgreSQL, Parquet, S3, OTLP and switches.
lock=deploy/requirements.lock
if [ "${EXTRAS:-}" = yes ]; then
    lock=deploy/requirements-extras.lock
fi
pip="$prefix/bin/python -m pip --disable-pip-version-check install --quiet"
$pip --require-hashes --requirement "$lock"
$pip --no-deps --no-build-isolation "$copy"

deploy/install_files.sh "$prefix" "$configuration" "$units" "$binaries"
if [ -d /run/systemd/system ]; then
    systemctl daemon-reload
fi
echo "installed $("$prefix/bin/railscope" --version) in $prefix"
echo "settings: $configuration; units: $units; rules: $configuration/prometheus"
if [ "$configuration" != /etc/railscope ]; then
    echo "commands read these settings if RAILSCOPE_CONFIGURATION=$configuration is in the environment"
fi
echo "dashboards, runbooks, scripts: $prefix/share/railscope; command: $binaries/railscope"
echo "start with systemctl enable --now railscope-agent"

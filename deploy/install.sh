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

# Exactly the locked files are installed, by hash.
case "${EXTRAS:-}" in
    yes) lock=deploy/requirements-extras.lock ;; # also PostgreSQL, Parquet, S3, OTLP and switches
    no) lock=deploy/requirements-agent.lock ;; # agent and command line
    *) lock=deploy/requirements.lock ;; # also the collector
esac
build=$(mktemp -d)
trap 'rm -rf "$build"' EXIT INT TERM
cd "$source"
install_packages() { # DIRECTORY OPTIONS
    directory=$1
    shift
    "$directory/bin/python" -m pip --disable-pip-version-check install --quiet "$@"
}
deploy/venv.sh "$python" "$build"
install_packages "$build" --require-hashes --requirement deploy/requirements-build.lock
"$build/bin/python" -m hatchling build --target wheel --directory "$build/dist" >/dev/null
deploy/venv.sh "$python" "$prefix"
install_packages "$prefix" --require-hashes --requirement "$lock"
install_packages "$prefix" --no-deps --force-reinstall "$build"/dist/*.whl

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
echo "shell completion: $(dirname "$binaries")/share"
echo "start with systemctl enable --now railscope-agent"

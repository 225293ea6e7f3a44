#!/bin/sh
# venv.sh PYTHON DIRECTORY: creates a virtual environment unless there is a working one.
set -eu

python=$1
directory=$2

works() {
    "$directory/bin/python" -m pip --version >/dev/null 2>&1
}

if works; then
    exit 0
fi
if ! command -v "$python" >/dev/null; then
    echo "venv.sh: $python: not found; fix: install Python 3.11 or newer (Debian: python3)" >&2
    exit 1
fi
if ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
    echo "venv.sh: $("$python" --version): expected Python 3.11 or newer" >&2
    exit 1
fi
if ! "$python" -c 'import ensurepip, venv' >/dev/null 2>&1; then
    if [ "$(id -u)" -ne 0 ] || ! command -v apt-get >/dev/null; then
        echo "venv.sh: $python cannot create virtual environments;" \
            "fix: install its venv package (Debian: apt-get install python3-venv)" >&2
        exit 1
    fi
    echo "venv.sh: installing the Debian package python3-venv"
    export DEBIAN_FRONTEND=noninteractive
    apt-get update -qq
    apt-get install -qq -y --no-install-recommends python3-venv >/dev/null
fi
"$python" -m venv --clear "$directory"
if ! works; then
    echo "venv.sh: pip does not work in $directory; fix: remove it and try again" >&2
    exit 1
fi

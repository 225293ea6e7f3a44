#!/bin/sh
# setup_validator.sh PYTHON DIRECTORY: the official validator of FOCUS in a virtual environment of its
# own, because it needs other versions of libraries. Reports the reason if it is unavailable; the tests
# that need it are skipped then.
set -eu

python=$1
directory=$2
here=$(cd "$(dirname "$0")" && pwd)

# Created again when its contents change.
wanted=$(cat "$0" "$here"/validator/* | sha256sum)
if [ "$(cat "$directory/.ready" 2>/dev/null)" = "$wanted" ] && "$directory/bin/python" -c ''; then
    exit 0
fi
leave_out() { # REASON
    echo "setup_validator.sh: left out: focus-validator ($1); tests that need it will be skipped"
    exit 0
}
install() {
    "$directory/bin/python" -m pip --disable-pip-version-check install --quiet --quiet --no-deps "$@"
}

echo "setup_validator.sh: installing focus-validator into $directory"
rm -rf "$directory"
"$here/../deploy/venv.sh" "$python" "$directory" || leave_out "no virtual environment"
install --only-binary :all: --requirement "$here/validator/requirements.txt" ||
    leave_out "pip could not install what it needs"
# It says that it needs Python 3.12; respell.py tells why 3.11 will do.
install --no-build-isolation --ignore-requires-python focus-validator==2.2.1 ||
    leave_out "pip could not install it"
packages=$("$directory/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
if ! "$directory/bin/python" -c 'import sys; sys.exit(sys.version_info < (3, 12))'; then
    "$directory/bin/python" "$here/validator/respell.py" "$packages" ||
        leave_out "it needs Python 3.12"
fi
"$directory/bin/python" -m compileall -q "$packages/focus_validator" &&
    "$directory/bin/python" -c 'import focus_validator.main' || leave_out "it does not start"
echo "$wanted" >"$directory/.ready"

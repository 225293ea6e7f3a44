#!/bin/sh
# manifests.sh HELM [--check]: writes deploy/kubernetes from the chart; with --check, fails if that would change a file.
set -eu

helm=$1
check=${2:-}
cd "$(dirname "$0")/../kubernetes"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
trap 'exit 1' HUP INT TERM

stale=
for file in agent.yaml collector.yaml monitoring/monitors.yaml monitoring/rules.yaml; do
    # Helm logs each link that it follows.
    "$helm" template railscope ../helm/railscope --set monitoring.enabled=true --show-only "templates/${file##*/}" \
        >"$work/rendered" 2>"$work/log" || { cat "$work/log" >&2 && exit 1; }
    {
        echo '# Rendered from deploy/helm/railscope by `make manifests`; change the chart instead.'
        sed '/^# Source: /d' "$work/rendered"
    } >"$work/manifest"
    cmp -s "$work/manifest" "$file" && continue
    stale="$stale deploy/kubernetes/$file"
    [ "$check" ] || cat "$work/manifest" >"$file"
done
[ "$stale" ] || exit 0
if [ "$check" ]; then
    echo "stale manifests:$stale; fix: make manifests" >&2
    exit 1
fi
echo "written$stale"

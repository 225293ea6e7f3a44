#!/bin/sh
# add_nodes.sh DIRECTORY [OPTION]...: creates tokens for nodes that have none: DIRECTORY/NODE.token for each node, and their
# digests in tokens.toml of the Secret railscope-collector. No Secret contains the token of a node.
#
# Standard input has all nodes, as `kubectl get nodes --output name` prints them. Options are those of `railscope collector
# token --nodes`, such as --revoke-unlisted and --renew. The first call also creates the tokens of the metrics endpoints, in
# the Secrets railscope-agent-metrics and railscope-collector-metrics. KUBECTL replaces `kubectl --namespace railscope`.
set -eu
umask 077

kubectl=${KUBECTL:-kubectl --namespace railscope}
directory=${1:?expected a directory}
shift
mkdir -p "$directory"
work=$(mktemp -d "$directory/.add_nodes.XXXXXX")
trap 'rm -rf "$work"' EXIT
trap 'exit 1' HUP INT TERM
mkdir "$work/tokens"
sed 's|^node/||' >"$work/nodes"

# Write a Secret, or a change of one, with one key to $work/object.
describe() { # METADATA KEY FILE
    printf '{"apiVersion": "v1", "kind": "Secret", "metadata": {%s}, "data": {"%s": "%s"}}' \
        "$1" "$2" "$(base64 <"$3" | tr -d '\n')" >"$work/object"
}

create() { # SECRET KEY FILE
    describe "\"name\": \"$1\"" "$2" "$3"
    $kubectl create --validate=false --filename "$work/object"
}

# Print the name of a Secret that exists. Call it in an assignment: in a condition, a failed request would not end the script.
find_secret() { # SECRET
    $kubectl get secret "$1" --ignore-not-found --output name
}

found=$(find_secret railscope-agent-metrics)
if [ -z "$found" ]; then
    head -c 32 /dev/urandom | base64 | tr -d '=\n' >"$work/token"
    create railscope-agent-metrics token "$work/token"
fi

$kubectl get secret railscope-collector --ignore-not-found \
    --output 'jsonpath={.metadata.resourceVersion}{"\n"}{.data.tokens\.toml}{"\n"}' >"$work/secret"
version=$(sed -n 1p "$work/secret")
sed -n 2p "$work/secret" | base64 -d >"$work/before"
cp "$work/before" "$work/tokens.toml"

# Without its Secret, a new token of Prometheus replaces the entry of the former one.
collector_metrics=
found=$(find_secret railscope-collector-metrics)
if [ -z "$found" ]; then
    collector_metrics=railscope-collector-metrics
    railscope collector token --role operator $collector_metrics >"$work/created"
    sed -n 's/^token (.*): //p' "$work/created" | tr -d '\n' >"$work/token"
    {
        grep -q '^\[operators\]' "$work/before" || echo '[operators]'
        cat "$work/before"
    } | awk -v name="\"$collector_metrics\"" -v line="$(tail -n 1 "$work/created")" '
        /^\[/ { is_operator = $1 == "[operators]" }
        !(is_operator && $1 == name)
        /^\[operators\]/ { print line }' >"$work/tokens.toml"
fi

# Tokens are published after their digests: NODE.new is a token of an interrupted run. With an entry it is published here,
# without one it is replaced.
for file in "$directory"/*.new; do
    if [ -e "$file" ] && grep -q "$(tr -d '[:space:]' <"$file" | sha256sum | cut -c 1-64)" "$work/before"; then
        mv "$file" "${file%.new}.token"
    fi
done
for file in "$directory"/*.token; do
    if [ -e "$file" ]; then cp -p "$file" "$work/tokens"; fi
done
status=0
railscope collector token --nodes "$work/nodes" --output "$work/tokens" --tokens-file "$work/tokens.toml" "$@" \
    >"$work/report" 2>&1 || status=$?
report() {
    sed "s|$work/tokens.toml|tokens.toml of railscope-collector|g; s|$work/nodes|standard input|g; s|$work/tokens|$directory|g" \
        "$work/report" >&2
}
if ! grep -q '^created: ' "$work/report"; then
    report
    exit "$status"
fi

# Until the Secret is changed, token files are neither deleted nor replaced: their entries may remain.
rm -f "$directory"/*.new
for file in "$work"/tokens/*.token; do
    name=${file##*/}
    if [ -e "$file" ] && ! cmp -s "$file" "$directory/$name"; then cp -p "$file" "$directory/${name%.token}.new"; fi
done
if [ -z "$version" ]; then
    create railscope-collector tokens.toml "$work/tokens.toml"
elif ! cmp -s "$work/before" "$work/tokens.toml"; then
    # With the version, the change is rejected if another one was made since.
    describe "\"resourceVersion\": \"$version\"" tokens.toml "$work/tokens.toml"
    $kubectl patch secret railscope-collector --type merge --patch-file "$work/object"
fi
for file in "$directory"/*.new; do
    if [ -e "$file" ]; then mv "$file" "${file%.new}.token"; fi
done
for file in "$directory"/*.token; do
    if [ ! -e "$work/tokens/${file##*/}" ]; then rm -f "$file"; fi
done
report
if [ -n "$collector_metrics" ]; then
    create $collector_metrics token "$work/token"
fi
exit "$status"

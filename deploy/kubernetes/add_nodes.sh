#!/bin/sh
# add_nodes.sh NODE...: creates tokens for nodes that have none, in the Secrets railscope-nodes (the tokens) and
# railscope-collector (their digests, tokens.toml) of the namespace railscope.
#
# The first call also creates the tokens of the metrics endpoints, in railscope-metrics. Other keys of the Secrets are
# kept. KUBECTL replaces `kubectl --namespace railscope`.
set -eu
umask 077

kubectl=${KUBECTL:-kubectl --namespace railscope}
directory=$(mktemp -d)
trap 'rm -rf "$directory"' EXIT

# Write each key of a Secret to a file of a directory.
fetch() { # SECRET
    mkdir "$directory/$1"
    template='{{range $key, $value := .data}}{{$key}} {{$value}}{{"\n"}}{{end}}'
    $kubectl get secret "$1" --ignore-not-found --output "go-template=$template" >"$directory/keys"
    while read -r key value; do
        echo "$value" | base64 -d >"$directory/$1/$key"
    done <"$directory/keys"
}

# Server-side, so that no annotation has a copy of the Secret.
store() { # SECRET
    $kubectl create secret generic "$1" --from-file="$directory/$1" --dry-run=client --output yaml |
        $kubectl apply --server-side --force-conflicts --filename -
}

new_token() { # FILE
    head -c 32 /dev/urandom | base64 | tr '+/' '-_' | tr -d '=\n' >"$1"
}

entry() { # NAME FILE
    echo "\"$1\" = \"sha256:$(sha256sum <"$2" | cut -d ' ' -f 1)\""
}

for secret in railscope-nodes railscope-collector railscope-metrics; do
    fetch "$secret"
done
nodes=$directory/railscope-nodes
tokens=$directory/railscope-collector/tokens.toml
metrics=$directory/railscope-metrics
if [ ! -e "$metrics/agent.token" ]; then
    new_token "$metrics/agent.token"
fi
if [ ! -e "$tokens" ]; then
    new_token "$metrics/collector.token"
    { echo '[operators]' && entry prometheus "$metrics/collector.token" && echo && echo '[nodes]'; } >"$tokens"
fi
if [ "$(grep '^\[' "$tokens" | tail -n 1)" != '[nodes]' ]; then
    echo "add_nodes.sh: tokens.toml: expected [nodes] as the last section; fix: move it to the end" >&2
    exit 1
fi
for node in "$@"; do
    node=${node#node/}
    if [ ! -e "$nodes/$node" ]; then
        new_token "$nodes/$node"
        pattern=$(echo "$node" | sed 's/\./\\./g')
        sed -i "/^\"\{0,1\}$pattern\"\{0,1\} = /d" "$tokens" # of a token that was deleted
        entry "$node" "$nodes/$node" >>"$tokens"
    fi
done
# First the digests: a token that the collector does not have is rejected.
for secret in railscope-collector railscope-metrics railscope-nodes; do
    store "$secret"
done

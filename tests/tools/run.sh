#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# tests/tools/run.sh MHAD [FLAG...] - what `make run` does: the server in the foreground, and as soon as it is ready, on standard
# output, a curl line with the worked example that can be copied as it stands. Ctrl-C stops the server.
set -euo pipefail

mhad=$1
shift
host=${MHAD_HOST:-127.0.0.1} port=${MHAD_PORT:-8080} unix=${MHAD_UNIX:-}
words=("$@")
for ((i = 0; i < ${#words[@]}; i++)); do
    case ${words[i]} in
    --host) host=${words[i + 1]:-} ;;
    --host=*) host=${words[i]#*=} ;;
    --port) port=${words[i + 1]:-} ;;
    --port=*) port=${words[i]#*=} ;;
    --unix) unix=${words[i + 1]:-} ;;
    --unix=*) unix=${words[i]#*=} ;;
    esac
done
case $host in 0.0.0.0 | :: | "") host=127.0.0.1 ;; esac
case $host in *:*) host="[$host]" ;; esac
where="http://$host:$port"
through=()
if [ -n "$unix" ]; then
    where=http://localhost
    through=(--unix-socket "$unix")
fi

announce() {
    local server=$1
    for ((i = 0; i < 400; i++)); do
        kill -0 "$server" 2>/dev/null || return 0
        if curl -sf --noproxy '*' -o /dev/null "${through[@]}" "$where/readyz" 2>/dev/null; then
            local w='[[0.1,0.2,0.3,0.4],[0.5,0.6,0.7,0.8],[0.2,0.1,0.4,0.3],[0.6,0.5,0.8,0.7]]'
            printf '\nmhad is ready. Copy this line into another terminal:\n\n'
            printf "curl -s%s %s/v1/mha -H 'Content-Type: application/json' -d '%s'\n\n" \
                "${through:+ ${through[*]}}" "$where" \
                "{\"Q\":[[1,0,1,0],[0,1,0,1]],\"W_q\":$w,\"W_k\":$w,\"W_v\":$w,\"W_o\":[[1,0,0,0],[0,1,0,0],[0,0,1,0],[0,0,0,1]],\"num_heads\":2,\"return\":[\"output\",\"attention\"]}"
            return 0
        fi
        sleep 0.05
    done
    echo "the server did not answer at $where within 20 s" >&2
}

announce $$ &
exec "$mhad" "$@"

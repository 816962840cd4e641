#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# tests/tools/readme_test.sh - runs every command of README.md and holds it to what it says.
#
# A block opened by ```sh is run with bash, in order, from the top of the repository; a word behind says how: `background` (started,
# stopped at the end; the next block waits for /readyz), `container` (the same, through whatever engine there is: `docker run` becomes
# docker/image.sh run where there is no docker), `skip` (another test's business: the suite itself). A block ```json answer or
# ```text answer is what the block before it must have printed, white space aside. Port 8080 is replaced by a free one, so that the
# test can run beside a server. Then the tables: every flag of `mhad --help` and every problem code of api/problem.c must be in the
# README, and no flag that does not exist. README_TEST_CONTAINER=0 leaves the container blocks out.
# The last line is "N passed, N failed".
set -uo pipefail
cd "$(dirname "$0")/../.." || exit 1

work=$(mktemp -d)
jobs_started=()
finish() {
    local job
    for job in "${jobs_started[@]}"; do kill -TERM -- "-$job" 2>/dev/null; done
    wait 2>/dev/null
    rm -rf "$work"
}
trap finish EXIT
passed=0 failed=0
verdict() { # STATUS WHAT
    if [ "$1" -eq 0 ]; then
        echo "ok   $2"
        passed=$((passed + 1))
    else
        echo "FAIL $2"
        failed=$((failed + 1))
    fi
}

port=8080
while (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null || [ $port = 8080 ]; do port=$((21000 + RANDOM % 10000)); done
export MHAD_PORT=$port
ready() { # [TENTHS OF A SECOND [JOB]]; no longer than the job lives
    local i
    for ((i = 0; i < ${1:-600}; i++)); do
        curl -sf --noproxy '*' -o /dev/null "http://127.0.0.1:$port/readyz" && return 0
        [ -z "${2:-}" ] || kill -0 "$2" 2>/dev/null || return 1
        sleep 0.1
    done
    return 1
}
gone() {
    local i
    for ((i = 0; i < 200; i++)); do
        curl -sf --noproxy '*' -o /dev/null "http://127.0.0.1:$port/readyz" || return 0
        sleep 0.1
    done
    return 1
}

# Stands in for `docker run` where only another engine works. With the PATH of before, since image.sh looks for docker itself and must
# not find this; and it knows `run` alone: make and image.sh, called from a block, ask `docker info`, and must hear that there is none.
mkdir -p "$work/bin"
if ! docker info >/dev/null 2>&1; then
    # shellcheck disable=SC2016  # $1 and $@ are of the script that is written
    printf '#!/bin/sh\n[ "$1" = run ] || exit 1\nshift\nPATH="%s" exec docker/image.sh run "$@"\n' "$PATH" >"$work/bin/docker"
    chmod +x "$work/bin/docker"
fi
export PATH="$work/bin:$PATH"

# build blocks: N.kind and N.text
awk -v out="$work" '
    /^```(sh|json|text)/ && !open { open = 1; n++; kind = substr($0, 4); print kind > (out "/" n ".kind"); printf "" > (out "/" n ".text"); next }
    /^```/ { if (open) { open = 0; close(out "/" n ".text") } next }
    open { print > (out "/" n ".text") }' README.md

printed="$work/printed"
: >"$printed"
stop_background() {
    local job
    for job in "${jobs_started[@]}"; do kill -TERM -- "-$job" 2>/dev/null; done
    jobs_started=()
    gone
}
start_background() { # N [TENTHS OF A SECOND TO WAIT]
    setsid bash -e "$work/$1.run" >"$work/$1.log" 2>&1 </dev/null &
    jobs_started+=($!)
    ready "${2:-600}" "${jobs_started[-1]}"
    verdict $? "block $1 gets ready: $(grep -v '^#' "$work/$1.text" | tail -n 1)"
    ready 1 || cat "$work/$1.log"
}

for ((n = 1; ; n++)); do
    [ -f "$work/$n.kind" ] || break
    sed "s/\b8080:8080/$port:8080/g; t; s/\b8080\b/$port/g" "$work/$n.text" >"$work/$n.run"
    case $(cat "$work/$n.kind") in
    sh)
        bash -e "$work/$n.run" >"$printed" 2>"$work/$n.err" </dev/null
        status=$?
        verdict $status "block $n: $(grep -v '^#' "$work/$n.text" | head -n 1)"
        [ $status -eq 0 ] || cat "$printed" "$work/$n.err"
        ;;
    "sh background")
        stop_background
        start_background "$n"
        ;;
    "sh container")
        if [ "${README_TEST_CONTAINER:-1}" != 0 ]; then
            stop_background
            start_background "$n" 12000 # the image is built first
            curl -sf --noproxy '*' -o /dev/null "http://127.0.0.1:$port/healthz"
            verdict $? "block $n: the container answers"
            stop_background
            verdict $? "block $n: the container stops"
        fi
        ;;
    "sh skip") ;;
    *" answer")
        # Beyond 13 decimals the last digit is the instruction set's (with and without FMA).
        plain() { tr -d ' \n\t' | sed -E 's/([0-9]\.[0-9]{13})[0-9]+/\1/g'; }
        sed "s/\b8080\b/$port/g" "$work/$n.text" | plain >"$work/want"
        plain <"$printed" >"$work/got"
        # What make says on the way is not the answer.
        grep -qF -- "$(cat "$work/want")" "$work/got"
        status=$?
        verdict $status "block $n is what the one before it printed"
        [ $status -eq 0 ] || { echo "printed:"; cat "$printed"; }
        ;;
    esac
done

build/mhad --help 2>&1 | sed -nE 's/^  (--[a-z][a-z-]+).*/\1/p' | sort -u >"$work/flags"
missing=$(while read -r flag; do grep -qF -- "\`$flag" README.md || echo "$flag"; done <"$work/flags")
[ -s "$work/flags" ] && [ -z "$missing" ]
verdict $? "every flag of mhad --help is in the README${missing:+; missing: $missing}"
unknown=$(grep -oE '^\| `--[a-z-]+' README.md | grep -oE -- '--[a-z-]+' | sort -u | while read -r flag; do grep -qxF -- "$flag" "$work/flags" || echo "$flag"; done)
[ -z "$unknown" ]
verdict $? "no flag of the README is unknown to mhad${unknown:+; unknown: $unknown}"
missing=$(sed -nE 's/.*\[PROBLEM_[A-Z_]+\] = \{[0-9]+, "([a-z_]+)".*/\1/p' api/problem.c | grep -vx none | while read -r code; do
    grep -qF "\`$code\`" README.md || echo "$code"
done)
[ -z "$missing" ]
verdict $? "every problem code is in the README${missing:+; missing: $missing}"
missing=$(grep -oE '\]\((docker|tests|core|api|server)[^)#]*\)' README.md | sed 's/](\(.*\))/\1/' | while read -r file; do [ -e "$file" ] || echo "$file"; done)
[ -z "$missing" ]
verdict $? "every linked file is there${missing:+; missing: $missing}"

echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]

#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# tests/tools/run_tests.sh PROGRAM... - runs test programs, TEST_JOBS (as many as there are cores) at once, and adds them up.
#
# A program is a cmocka binary, or a script whose last line is "N passed, N failed". One line is printed for each as it ends; the
# whole output only of those that fail (V=1: of all). A program that crashes, runs out of time (TEST_TIMEOUT seconds, 300) or runs
# no test at all counts as one failure. The last line is "N passed, N failed[, N skipped]"; exit 1 if anything failed.
#
# Programs are started in the order given, but those that time a real process (tests/integration) never two at once: while one
# of them runs, unit tests, which time nothing, take the other cores, at a lower priority. TEST_JOBS=1 for one by one.
#
# The sanitizers' options are set here, so that every way of running the suite has the same.
set -uo pipefail

here=$(cd "$(dirname "$0")" && pwd)
export ASAN_OPTIONS=${ASAN_OPTIONS:-detect_leaks=1:strict_string_checks=1:detect_stack_use_after_return=1:allocator_may_return_null=1}
export UBSAN_OPTIONS=${UBSAN_OPTIONS:-print_stacktrace=1}
export TSAN_OPTIONS=${TSAN_OPTIONS:-halt_on_error=1:second_deadlock_stack=1:suppressions=$here/tsan.supp}

jobs=${TEST_JOBS:-$(nproc)}
work=$(mktemp -d)
# shellcheck disable=SC2046  # one process a word
trap 'kill $(jobs -p) 2>/dev/null; rm -rf "$work"' EXIT
trap 'exit 130' INT TERM
passed=0 failed=0 skipped=0

run() { # NUMBER PROGRAM: its output in NUMBER.log, then status and milliseconds in NUMBER.end
    local started status child='' priority=0
    case $2 in */unit/*) priority=10 ;; esac
    trap 'kill $child; exit 143' TERM
    started=$(date +%s%N)
    nice -n $priority timeout -k 10 "${TEST_TIMEOUT:-300}" "$2" >"$work/$1.log" 2>&1 </dev/null &
    child=$!
    wait "$child"
    status=$?
    echo "$status $((($(date +%s%N) - started) / 1000000))" >"$work/$1.part"
    mv "$work/$1.part" "$work/$1.end"
}

judge() { # NUMBER PROGRAM: prints its line, adds it up
    local log=$work/$1.log program=$2 status took planned ok bad skip last why note
    read -r status took <"$work/$1.end" || status=1 took=0

    # cmocka 1.1.7 and later put the group's name before "Running".
    if grep -qE '^\[==========\] (.+: )?Running' "$log"; then
        planned=$(sed -nE 's/^\[==========\] (.+: )?Running ([0-9]*) test.*/\2/p' "$log" | awk '{ n += $1 } END { print n + 0 }')
        ok=$(grep -c '^\[       OK \]' "$log")
        skip=$(grep -c '^\[  SKIPPED \] [A-Za-z_0-9]*$' "$log")
        # cmocka lists skipped tests once more in its summary.
        [ "$skip" -eq 0 ] || skip=$(sed -n 's/^\[  SKIPPED \] \([0-9]*\) test(s).*/\1/p' "$log" | awk '{ n += $1 } END { print n + 0 }')
        bad=$((planned - ok - skip))
    else
        last=$(grep -E '^[0-9]+ passed, [0-9]+ failed' "$log" | tail -n 1)
        ok=$(sed -n 's/^\([0-9]*\) passed.*/\1/p' <<<"$last")
        bad=$(sed -n 's/.* \([0-9]*\) failed.*/\1/p' <<<"$last")
        skip=$(sed -n 's/.* \([0-9]*\) skipped.*/\1/p' <<<"$last")
        ok=${ok:-0} bad=${bad:-0} skip=${skip:-0}
    fi
    why=
    if [ "$status" -eq 124 ] || [ "$status" -eq 137 ]; then
        why="out of time"
    elif [ "$status" -gt 128 ]; then
        why="killed by signal $((status - 128))"
    elif [ "$status" -ne 0 ] && [ "$bad" -eq 0 ]; then
        why="exit status $status"
    elif [ $((ok + bad + skip)) -eq 0 ]; then
        why="ran no test"
    fi
    [ -z "$why" ] || [ "$bad" -gt 0 ] || bad=1

    passed=$((passed + ok)) failed=$((failed + bad)) skipped=$((skipped + skip))
    if [ "$bad" -gt 0 ]; then
        cat "$log"
        printf 'FAIL %-58s %4d passed, %d failed %s\n' "$program" "$ok" "$bad" "$why"
    else
        [ -z "${V:-}" ] || cat "$log"
        note=
        [ "$skip" -eq 0 ] || note=", $skip skipped"
        printf 'ok   %-58s %4d passed%s  %d.%03d s\n' "$program" "$ok" "$note" $((took / 1000)) $((took % 1000))
    fi
}

# Programs by number: those that wait, processes' and the rest, and those that run.
programs=("$@") processes=() others=() running=()
for i in "${!programs[@]}"; do
    case ${programs[i]} in */integration/*) processes+=("$i") ;; *) others+=("$i") ;; esac
done
process= # the one of `processes` that runs

# Starts the next program that may start; 1 if there is none.
start_next() {
    local i
    if [ -z "$process" ] && [ ${#processes[@]} -gt 0 ]; then
        i=${processes[0]} process=$i processes=("${processes[@]:1}")
    elif [ ${#others[@]} -gt 0 ]; then
        i=${others[0]} others=("${others[@]:1}")
    else
        return 1
    fi
    run "$i" "${programs[i]}" &
    running+=("$i")
}

while :; do
    while [ ${#running[@]} -lt "$jobs" ] && start_next; do :; done
    [ ${#running[@]} -gt 0 ] || break
    wait -n
    children=$? still=()
    for i in "${running[@]}"; do
        if [ ! -f "$work/$i.end" ] && [ $children -ne 127 ]; then # 127: none left, so nothing will write it any more
            still+=("$i")
            continue
        fi
        judge "$i" "${programs[i]}"
        [ "$i" != "$process" ] || process=
    done
    running=("${still[@]}")
done

if [ $((passed + failed)) -eq 0 ]; then
    echo "no test was run"
    failed=1
fi
tail=
[ "$skipped" -eq 0 ] || tail=", $skipped skipped"
echo "$passed passed, $failed failed$tail"
[ "$failed" -eq 0 ]

#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# tests/tools/run_tests.sh PROGRAM... - runs test programs one after the other and adds them up.
#
# A program is a cmocka binary, or a script whose last line is "N passed, N failed". One line is printed for each; the whole
# output only of those that fail (V=1: of all). A program that crashes, runs out of time (TEST_TIMEOUT seconds, 300) or runs
# no test at all counts as one failure. The last line is "N passed, N failed[, N skipped]"; exit 1 if anything failed.
#
# The sanitizers' options are set here, so that every way of running the suite has the same.
set -uo pipefail

here=$(cd "$(dirname "$0")" && pwd)
export ASAN_OPTIONS=${ASAN_OPTIONS:-detect_leaks=1:strict_string_checks=1:detect_stack_use_after_return=1:allocator_may_return_null=1}
export UBSAN_OPTIONS=${UBSAN_OPTIONS:-print_stacktrace=1}
export TSAN_OPTIONS=${TSAN_OPTIONS:-halt_on_error=1:second_deadlock_stack=1:suppressions=$here/tsan.supp}

log=$(mktemp)
trap 'rm -f "$log"' EXIT
passed=0 failed=0 skipped=0

for program in "$@"; do
    started=$(date +%s%N)
    timeout -k 10 "${TEST_TIMEOUT:-300}" "$program" >"$log" 2>&1 </dev/null
    status=$?
    took=$((($(date +%s%N) - started) / 1000000))

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
done

if [ $((passed + failed)) -eq 0 ]; then
    echo "no test was run"
    failed=1
fi
tail=
[ "$skipped" -eq 0 ] || tail=", $skipped skipped"
echo "$passed passed, $failed failed$tail"
[ "$failed" -eq 0 ]

#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# tests/tools/fuzz.sh FOLDER - runs every fuzz_* program in FOLDER for FUZZ_SECONDS (60) of a core: all at once, and where there are
# fewer cores than programs that much longer, so that no core is idle.
#
# The corpus of fuzz_NAME is tests/fuzz/corpus/NAME; new inputs are kept apart (build/fuzz/corpus/NAME) unless FUZZ_KEEP=1, which
# merges them, minimized, into the committed corpus. A dictionary tests/fuzz/NAME.dict is used if there is one. A crash, a leak,
# a hang of 20 s or more than 2 GB is a finding: its input is printed in base64 and kept, the exit status is 1.
# The last line is "N passed, N failed", counting programs.
set -uo pipefail

folder=$1
seconds=${FUZZ_SECONDS:-60}
jobs=$(nproc)
work=build/fuzz
mkdir -p "$work"
export ASAN_OPTIONS=${ASAN_OPTIONS:-allocator_may_return_null=1:detect_leaks=1}
export UBSAN_OPTIONS=${UBSAN_OPTIONS:-print_stacktrace=1:halt_on_error=1}

one() {
    local program=$1 name corpus fresh status
    name=$(basename "$program") name=${name#fuzz_}
    corpus=tests/fuzz/corpus/$name fresh=$work/corpus/$name
    mkdir -p "$corpus" "$fresh" "$work/findings"
    local flags=(-max_total_time="$wall" -timeout=20 -rss_limit_mb=2048 -print_final_stats=1 -verbosity=1
        -artifact_prefix="$work/findings/$name-")
    [ ! -f "tests/fuzz/$name.dict" ] || flags+=(-dict="tests/fuzz/$name.dict")
    "$program" "${flags[@]}" "$fresh" "$corpus" >"$work/$name.log" 2>&1 </dev/null
    status=$?
    if [ $status -eq 0 ]; then
        local runs
        runs=$(sed -n 's/^stat::number_of_executed_units: *//p' "$work/$name.log")
        printf 'ok   %-28s %s inputs in %s s of a core, none went wrong\n' "$(basename "$program")" "${runs:-?}" "$seconds"
        [ -z "${FUZZ_KEEP:-}" ] || "$program" -merge=1 "$corpus" "$fresh" >/dev/null 2>&1
    else
        tail -n 60 "$work/$name.log"
        printf 'FAIL %s (exit %d), inputs in %s/findings\n' "$(basename "$program")" $status "$work"
    fi
    return $status
}

programs=()
for program in "$folder"/fuzz_*; do
    case $program in *.o | *.d) continue ;; esac
    [ -x "$program" ] && programs+=("$program")
done
count=${#programs[@]} wall=$seconds
[ "$count" -le "$jobs" ] || wall=$(((seconds * count + jobs - 1) / jobs))
passed=0 failed=0 running=()
for program in "${programs[@]}"; do
    one "$program" &
    running+=($!)
done
for job in "${running[@]}"; do
    if wait "$job"; then passed=$((passed + 1)); else failed=$((failed + 1)); fi
done
if [ "$count" -eq 0 ]; then
    echo "no fuzz program in $folder"
    failed=1
fi
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]

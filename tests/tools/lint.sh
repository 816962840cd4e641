#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# tests/tools/lint.sh - the static checks, all of them before the verdict: layout (clang-format), layers (no include that points
# back), cppcheck, clang-tidy (.clang-tidy has the list and the reasons), shellcheck. Exit 1 if any of them found something.
# shellcheck disable=SC2317,SC2016  # functions are called through `step`; the quoted script is for the inner shell
set -uo pipefail
cd "$(dirname "$0")/../.." || exit 1

mapfile -t sources < <(git ls-files -co --exclude-standard '*.c' '*.h' | grep -v '^api/number_table\.h$')
mapfile -t product < <(printf '%s\n' "${sources[@]}" | grep -E '^(core|api|server)/.*\.c$')
mapfile -t scripts < <(git ls-files -co --exclude-standard '*.sh' .ci/run)
found=0

step() { # NAME COMMAND...
    local name=$1 started=$SECONDS
    shift
    if "$@"; then
        printf 'ok   %-14s %d s\n' "$name" $((SECONDS - started))
    else
        printf 'FAIL %s\n' "$name"
        found=1
    fi
}

format() {
    local bad
    bad=$(clang-format --dry-run -Werror "${sources[@]}" 2>&1 | grep -oE '^[^:]+:[0-9]+' | sort -u -t: -k1,1 -k2,2n)
    [ -z "$bad" ] || { printf '%s\n(clang-format -i FILE mends them)\n' "$bad"; return 1; }
}

layers() {
    local bad
    bad=$(grep -nE '#include "(\.\./)*(api|server)/' core/*.[ch] core/kernels/*.[ch] 2>/dev/null
        grep -nE '#include "(\.\./)*server/|#include <(sys/socket|netinet|microhttpd)' api/*.[ch] 2>/dev/null
        grep -nE '#include <cjson' core/*.[ch] core/kernels/*.[ch] server/*.[ch] 2>/dev/null)
    [ -z "$bad" ] || { printf 'a layer that looks back or knows too much:\n%s\n' "$bad"; return 1; }
}

spdx() {
    local bad
    bad=$(for f in "${sources[@]}"; do head -n 3 "$f" | grep -q SPDX-License-Identifier || echo "$f"; done)
    [ -z "$bad" ] || { printf 'no SPDX line: %s\n' "$bad"; return 1; }
}

# KERNEL_ISA: kernels are checked once, as for the baseline. Suppressions, each with its reason:
#   missingIncludeSystem  system headers are not parsed, on purpose: too slow, and not ours
#   unusedFunction is not enabled: it sees one file at a time here
#   normalCheckLevelMaxBranches, checkersReport  notes about cppcheck itself
#   uninitvar in core/kernels  arrays filled by loops over the width of a vector, which it does not follow
#   memleak in api/layers.c    a copy that a compound literal hands to its owner
check_cpp() {
    cppcheck --quiet --std=c11 --language=c --enable=warning,performance,portability --error-exitcode=1 --inline-suppr -j "$(nproc)" \
        -D__x86_64__ -D_GNU_SOURCE -DMHA_VERSION='"x"' -DKERNEL_ISA=base -D__GNUC__=12 \
        --suppress=missingIncludeSystem --suppress=checkersReport --suppress=normalCheckLevelMaxBranches \
        --suppress='uninitvar:core/kernels/*' --suppress=memleak:api/layers.c \
        --template='{file}:{line}: {severity}: {message} [{id}]' "${product[@]}"
}

# The largest files first, so that no core waits for the last one.
tidy() {
    stat --printf '%s %n\0' "${product[@]}" | sort -z -rn | cut -z -d' ' -f2 | xargs -0 -n 1 -P "$(nproc)" sh -c \
        'out=$(clang-tidy --quiet "$1" -- -std=gnu11 -D_GNU_SOURCE -DMHA_VERSION="\"x\"" -DKERNEL_ISA=base 2>/dev/null) || { printf "%s\n" "$out"; exit 1; }
         case $out in *warning:*) printf "%s\n" "$out"; exit 1 ;; esac' sh
}

step format format
step layers layers
step licence spdx
step cppcheck check_cpp
step clang-tidy tidy
step shellcheck shellcheck -x "${scripts[@]}"
exit $found

#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# tests/tools/bench.sh [--peers] BUILD PROGRAM... - runs the benchmark programs in order, each printing rows of one table; with
# --peers also those of tests/bench/peers.py in a private virtual environment (build/peers) when a package index is reachable.
set -euo pipefail

peers=
if [ "$1" = --peers ]; then
    peers=1
    shift
fi
build=$1
shift
for program in "$@"; do "$program"; done
[ -n "$peers" ] || exit 0
if [ ! -x "$build/peers/bin/python" ]; then
    python3 -m venv "$build/peers"
    "$build/peers/bin/pip" install --quiet -r tests/bench/peers.txt
fi
"$build/peers/bin/python" tests/bench/peers.py "$build"

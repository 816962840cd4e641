#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# tests/tools/bench.sh [--peers] BUILD - runs the benchmark programs, prints one table, and puts it into tests/bench/RESULTS.md.
#
# Model. Every program of tests/bench prints rows (tests/bench/support/rows.h); table.awk makes the table. `make bench` measures
# against the machine's own peaks, the bare HTTP handler, the C++ library and, where a package index is reachable, NumPy.
# `make bench-peers` runs the same layers against NumPy, PyTorch and ONNX Runtime, each in its own process, with the same number of
# threads, in turn with ours. BENCH_QUICK=1 takes the smallest layer only and leaves RESULTS.md alone: to see that all works.
# Installing PyTorch may take long: it gets TORCH_SECONDS (1500), once.
set -euo pipefail
cd "$(dirname "$0")/../.."

peers=
if [ "$1" = --peers ]; then
    peers=1
    shift
fi
build=$1
programs=$build/tests/bench
rows=$build/bench
mkdir -p "$rows"
export TEST_MHAD=$build/mhad

# Runs a program with a time limit; its rows go to a file. One that fails is named, and the others still run.
failed=()
measure() { # NAME PROGRAM [ARGUMENT...]
    local name=$1 begun=$SECONDS
    shift
    echo "bench: $name ..." >&2
    timeout 900 "$@" >"$rows/$name" || failed+=("$name")
    echo "bench: $name took $((SECONDS - begun)) s" >&2
}

image_row() {
    local bytes='' container root
    if command -v buildah >/dev/null && buildah inspect --type image localhost/mhad:latest >/dev/null 2>&1; then
        container=$(buildah from localhost/mhad:latest) && root=$(buildah mount "$container") && bytes=$(du -sb "$root" | cut -f1)
        buildah rm "$container" >/dev/null
    else
        for engine in docker podman; do
            [ -n "$bytes" ] || bytes=$($engine image inspect --format '{{.Size}}' localhost/mhad:latest 2>/dev/null) || bytes=
        done
    fi
    if [ -z "$bytes" ]; then
        printf 'row\timage\timage size\tnot built\t\t\t<= 30 MB\t\tmake image, then again\n'
    else
        awk -v b="$bytes" 'BEGIN { printf "row\timage\timage size, unpacked\t%.1f MB\t\t\t<= 30 MB\t%s\t\n", b / 1e6, b <= 30e6 ? "met" : "NOT met" }'
    fi
}

machine() {
    echo "Measured on $(date -u +%Y-%m-%d), commit $(git rev-parse --short HEAD 2>/dev/null || echo unknown), with $(${CC:-cc} --version | head -n 1)."
    echo
    echo "Machine: $(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -n 1) ($(sed -n 's/^cpu family[^:]*: //p' /proc/cpuinfo | head -n 1)/$(sed -n 's/^model\t[^:]*: //p' /proc/cpuinfo | head -n 1)), $(nproc) CPUs, $(awk '/MemTotal/ { printf "%.0f GiB", $2 / 1048576 }' /proc/meminfo), Linux $(uname -r | cut -d- -f1)$(grep -q hypervisor /proc/cpuinfo && echo ', a virtual machine')."
    echo "Load when the run began: $1, when it ended: $(cut -d' ' -f1 /proc/loadavg)."
    echo
}

options=()
[ -z "${BENCH_QUICK:-}" ] || options=(--quick)
load=$(cut -d' ' -f1 /proc/loadavg)
if [ -n "$peers" ]; then
    python=$(tests/tools/venv.sh "$build/peers" numpy threadpoolctl onnx onnxruntime) || python=
    if [ -n "$python" ] && ! "$python" -c 'import torch' 2>/dev/null; then
        echo "bench: installing PyTorch, at most ${TORCH_SECONDS:-1500} s ..." >&2
        timeout "${TORCH_SECONDS:-1500}" "$python" -m pip install -q --disable-pip-version-check torch >&2 ||
            echo "bench: PyTorch cannot be had here" >&2
    fi
    if [ -z "$python" ]; then
        echo "bench-peers needs a package index" >&2
        exit 1
    fi
    load=$(cut -d' ' -f1 /proc/loadavg)
    measure peers "$programs/bench_layer" "${options[@]}" --only-peers --peers "$python" numpy,torch,onnxruntime
    table=$(awk -f tests/bench/table.awk "$rows/peers")
    section=peers
else
    python=$(tests/tools/venv.sh "$build/numpy" numpy threadpoolctl) || python=
    if [ -n "$python" ]; then
        measure layer "$programs/bench_layer" "${options[@]}" --peers "$python" numpy
    else
        measure layer "$programs/bench_layer" "${options[@]}"
    fi
    measure number "$programs/bench_number"
    measure http "$programs/bench_http" "$programs/http_yardstick"
    measure memory "$programs/bench_memory"
    measure start "$programs/start"
    image_row >"$rows/image"
    table=$(awk -f tests/bench/table.awk "$rows"/{layer,number,http,memory,start,image})
    section=bench
fi
printf '%s\n' "$table"
if [ -z "${BENCH_QUICK:-}" ]; then
    {
        machine "$load"
        printf '%s\n' "$table"
    } | tests/tools/results.sh $section
fi
if [ ${#failed[@]} -gt 0 ]; then
    echo "bench: could not measure: ${failed[*]}" >&2
    exit 1
fi

#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# tests/tools/check_fma.sh ARCH OBJECT... - counts fused multiply-adds in the kernels' objects.
#
# -std=c11 instead of gnu11, or a lost -ffp-contract=fast, silently turns every FMA into a multiplication and an addition: half
# the speed and other bytes. So each object that was compiled for an instruction set with FMA and multiplies and adds vectors
# must have fused ones, all of them together at least FMA_MIN (600), and beside them hardly any separate vector addition of
# products: the last is judged by the share of fused among fused + separate multiplications.
set -euo pipefail

arch=$1
shift
objdump=objdump
case $arch in
x86_64) fused='vf[n]?m(add|sub)[0-9]+[ps][sd]' plain='vmul[p][sd]' sets='v3 v4' ;;
aarch64) fused='fml[as]|fn?m(add|sub)' plain='fmul' sets='neon'
    ! command -v aarch64-linux-gnu-objdump >/dev/null || objdump=aarch64-linux-gnu-objdump ;;
*)
    echo "no FMA is expected on $arch"
    exit 0
    ;;
esac

bad=0
for set in $sets; do
    n_fused=0 n_plain=0
    for object in "$@"; do
        case $object in *".$set.o") ;; *) continue ;; esac
        text=$("$objdump" -d --no-show-raw-insn "$object")
        f=$(grep -cE "\s($fused)\s" <<<"$text" || true)
        p=$(grep -cE "\s($plain)\s" <<<"$text" || true)
        printf '%-44s %6d fused %6d plain vector multiplications\n' "$object" "$f" "$p"
        n_fused=$((n_fused + f)) n_plain=$((n_plain + p))
    done
    if [ "$n_fused" -lt "${FMA_MIN:-600}" ] || [ $((n_plain * 2)) -gt $((n_fused * 3)) ]; then
        echo "FAIL $set: $n_fused fused multiply-adds beside $n_plain plain multiplications"
        bad=1
    else
        echo "ok   $set: $n_fused fused multiply-adds beside $n_plain plain multiplications"
    fi
done
exit $bad

/* SPDX-License-Identifier: Apache-2.0
 *
 * tests/tools/vmath_hash.c - prints the hash of vmath's results for every probe this CPU can run, one line each. Exit
 * status 1 if two targets with FMA disagree. `make check-neon` runs it under qemu next to the native one.
 */
#include <inttypes.h>
#include <stdio.h>

#include "../unit/support/vmath_hash.h"

int main(void) {
    const struct vmath_probe *probes[16];
    const size_t n = vmath_probes(probes);
    uint64_t f64 = 0, f32 = 0;
    int differ = 0;
    for (size_t i = 0; i < n; i++) {
        const uint64_t h64 = vmath_hash(&probes[i]->f64), h32 = vmath_hash(&probes[i]->f32);
        printf("f64 %016" PRIx64 "  f32 %016" PRIx64 "  %s\n", h64, h32, probes[i]->name);
        if (!probes[i]->fma) continue;
        if (f64 && (h64 != f64 || h32 != f32)) differ = 1;
        f64 = h64, f32 = h32;
    }
    return differ;
}

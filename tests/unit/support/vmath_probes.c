/* SPDX-License-Identifier: Apache-2.0
 *
 * tests/unit/support/vmath_probes.c - which probes of tests/unit/isa this CPU can run.
 */
#include "../isa/vmath_probe.h"

#define WIDTHS(isa)                                                                                                    \
    extern const struct vmath_probe vmath_probe_##isa##_16, vmath_probe_##isa##_32, vmath_probe_##isa##_64;            \
    static const struct vmath_probe *const isa[] = {&vmath_probe_##isa##_16, &vmath_probe_##isa##_32,                  \
                                                    &vmath_probe_##isa##_64};

#if defined(__x86_64__)
WIDTHS(base)
WIDTHS(v3)
WIDTHS(v4)
#elif defined(__aarch64__)
WIDTHS(neon)
#else
WIDTHS(base)
#endif

static size_t add(const struct vmath_probe **list, size_t n, const struct vmath_probe *const isa[3]) {
    for (size_t i = 0; i < 3; i++) list[n++] = isa[i];
    return n;
}

size_t vmath_probes(const struct vmath_probe *list[16]) {
    size_t n = 0;
#if defined(__x86_64__)
    n = add(list, n, base);
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) n = add(list, n, v3);
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
        __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512cd"))
        n = add(list, n, v4);
#elif defined(__aarch64__)
    n = add(list, n, neon);
#else
    n = add(list, n, base);
#endif
    return n;
}

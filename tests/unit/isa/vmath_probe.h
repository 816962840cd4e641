/* SPDX-License-Identifier: Apache-2.0
 *
 * tests/unit/isa/vmath_probe.h - core/kernels/vmath.h as functions on arrays, so that tests can call it.
 *
 * vmath.h is inlined into kernels that are compiled once per instruction set; the files of this folder are compiled the
 * same way and export one table per instruction set and vector width. The widths a target does not have (64 bytes on
 * AVX2, 16 on any) are there because they run the same arithmetic in other groups of lanes: the bytes must not change.
 */
#ifndef MHA_TESTS_VMATH_PROBE_H
#define MHA_TESTS_VMATH_PROBE_H

#include <stdbool.h>
#include <stddef.h>

/* Arrays are of the element type, n elements, n a multiple of 16; no alignment needed. */
struct vmath_ops {
    size_t size;  /* bytes of an element */
    int mantissa; /* stored bits: 52 or 23 */
    void (*ref)(void *base, void *shift, const void *max, size_t n);
    void (*exp)(void *p, const void *S, const void *max, size_t n); /* as a row of that maximum sees it */
    void (*alpha)(void *alpha, const void *max_from, const void *max_to, size_t n);
    void (*tanh)(void *y, const void *x, size_t n);
    void (*lse)(void *lse, const void *max, const void *l, size_t n);
    void (*max)(void *y, const void *a, const void *b, size_t n);
    size_t columns; /* of max_rows */
    void (*max_rows)(void *max, const void *S, size_t rows);
};

struct vmath_probe {
    const char *name; /* "v3, 32 bytes" */
    const char *isa;  /* "base", "v3", "v4", "neon" */
    bool fma;
    struct vmath_ops f64, f32;
};

/* Those this CPU can run; returns how many. The first is the narrowest of its instruction set. */
size_t vmath_probes(const struct vmath_probe *list[16]);

#endif

/* SPDX-License-Identifier: Apache-2.0
 *
 * tests/unit/support/vmath_hash.c - see vmath_hash.h.
 */
#include "vmath_hash.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* splitmix64 (Steele, Lea, Flood 2014): the state is a counter, so a series is a function of its number. */
static uint64_t next(uint64_t *state) {
    uint64_t z = (*state += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

static void put(const struct vmath_ops *ops, void *x, size_t i, double value) {
    if (ops->size == sizeof(double)) {
        ((double *)x)[i] = value;
    } else {
        ((float *)x)[i] = (float)value;
    }
}

void vmath_points(const struct vmath_ops *ops, void *x, uint64_t series) {
    uint64_t state = series << 32;
    for (size_t i = 0; i < VMATH_POINTS; i++) {
        const uint64_t bits = next(&state);
        if (ops->size == sizeof(double)) {
            memcpy((double *)x + i, &bits, sizeof bits);
        } else {
            const uint32_t low = (uint32_t)bits;
            memcpy((float *)x + i, &low, sizeof low);
        }
    }
    const double special[] = {0.0, -0.0, 1.0, -1.0, INFINITY, -INFINITY, NAN};
    for (size_t i = 0; i < sizeof special / sizeof special[0]; i++) put(ops, x, i * 97, special[i]);
}

void vmath_moderate_points(const struct vmath_ops *ops, void *x, uint64_t series, int limit_log2, int negative) {
    uint64_t state = series << 32;
    for (size_t i = 0; i < VMATH_POINTS; i++) {
        const uint64_t bits = next(&state);
        const double unit = ldexp((double)(bits >> 11), -53);
        const int minus = negative < 0 ? (int)(bits & 1) : negative;
        put(ops, x, i, ldexp(minus ? -unit : unit, limit_log2));
    }
}

static uint64_t fnv(uint64_t h, const struct vmath_ops *ops, const void *x) {
    const unsigned char *byte = x;
    for (size_t i = 0; i < VMATH_POINTS * ops->size; i++) h = (h ^ byte[i]) * 0x100000001b3u;
    return h;
}

/* The payload and sign of a NaN are the processor's business, not ours. */
static void canonical_nan(const struct vmath_ops *ops, void *x) {
    for (size_t i = 0; i < VMATH_POINTS; i++) {
        const double value = ops->size == sizeof(double) ? ((double *)x)[i] : (double)((float *)x)[i];
        if (isnan(value)) put(ops, x, i, (double)NAN);
    }
}

uint64_t vmath_hash(const struct vmath_ops *ops) {
    const size_t bytes = VMATH_POINTS * ops->size;
    char *a = malloc(bytes), *b = malloc(bytes), *y = malloc(bytes), *z = malloc(bytes);
    uint64_t h = 0xcbf29ce484222325u;
    if (!a || !b || !y || !z) abort();
#define ADD(call, out) (call, canonical_nan(ops, out), h = fnv(h, ops, out))
    for (int scale = 0; scale < 20; scale++) {
        const uint64_t series = 2 * (uint64_t)scale;
        if (scale == 19) {
            vmath_points(ops, a, series);
            vmath_points(ops, b, series + 1);
        } else {
            vmath_moderate_points(ops, a, series, scale - 2, -1);
            vmath_moderate_points(ops, b, series + 1, scale - 2, -1);
        }
        ADD(ops->exp(y, a, b, VMATH_POINTS), y);
        ADD(ops->exp(y, a, a, VMATH_POINTS), y);
        ADD(ops->alpha(y, a, b, VMATH_POINTS), y);
        ADD(ops->tanh(y, a, VMATH_POINTS), y);
        ADD(ops->max(y, a, b, VMATH_POINTS), y);
        ADD(ops->ref(y, z, a, VMATH_POINTS), y);
        ADD((void)0, z);
        vmath_moderate_points(ops, b, series + 1, scale, 0);
        ADD(ops->lse(y, a, b, VMATH_POINTS), y);
    }
#undef ADD
    free(a), free(b), free(y), free(z);
    return h;
}

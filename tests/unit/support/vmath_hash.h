/* SPDX-License-Identifier: Apache-2.0
 *
 * tests/unit/support/vmath_hash.h - a fixed set of inputs for vmath and one number for all the bytes it makes of them.
 *
 * Inputs come from integer arithmetic and exact scaling alone, so they are the same everywhere; the hash (FNV-1a, 64
 * bits) covers every operation. Equal hashes on two instruction sets mean equal bytes: the value for targets with FMA
 * is written in test_vmath.c, and tests/tools/vmath_hash.c prints it where cmocka is not at hand (NEON under qemu).
 */
#ifndef MHA_TESTS_VMATH_HASH_H
#define MHA_TESTS_VMATH_HASH_H

#include <stdint.h>

#include "../isa/vmath_probe.h"

enum { VMATH_POINTS = 1 << 16 };

/* Fills x (VMATH_POINTS elements of ops->size bytes): magnitudes from subnormal to the largest, both signs, infinities
 * and NaN among them. `series` picks another sequence. */
void vmath_points(const struct vmath_ops *ops, void *x, uint64_t series);

/* Moderate numbers, |x| < 2^limit_log2, sign as `negative` wants (-1: both, 0: positive, 1: negative). */
void vmath_moderate_points(const struct vmath_ops *ops, void *x, uint64_t series, int limit_log2, int negative);

/* Hash over everything ops computes from these. */
uint64_t vmath_hash(const struct vmath_ops *ops);

#endif

/* SPDX-License-Identifier: Apache-2.0
 *
 * tests/unit/support/half.h - float16 for tests that write it, without _Float16, which clang 14 lacks on x86-64.
 */
#ifndef MHA_TESTS_SUPPORT_HALF_H
#define MHA_TESTS_SUPPORT_HALF_H

#include <math.h>
#include <stdint.h>
#include <string.h>

/* The float16 bits of a float of at most 65504 in size, rounded to nearest even. */
static inline uint16_t half_bits(float value) {
    uint32_t bits;
    memcpy(&bits, &value, 4);
    uint32_t sign = bits >> 16 & 0x8000u, rest = bits & 0x7FFFFFFFu;
    if (fabsf(value) < 0x1p-14f) return (uint16_t)(sign | (uint32_t)nearbyintf(fabsf(value) * 0x1p24f)); /* subnormal */
    return (uint16_t)(sign | ((rest - (112u << 23) + 0xFFFu + (rest >> 13 & 1u)) >> 13));
}

/* The value of finite float16 bits. */
static inline double half_value(uint16_t bits) {
    int exponent = bits >> 10 & 31, fraction = bits & 1023;
    double size = exponent ? ldexp(1024 + fraction, exponent - 25) : ldexp(fraction, -24);
    return bits & 0x8000 ? -size : size;
}

#endif

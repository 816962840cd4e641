/* SPDX-License-Identifier: Apache-2.0
 *
 * api/number_scan.h - the inner loop of reading a number, inline, shared by number_read.c (its public face) and
 * tensor_text.c (which reads them by the million). Private to api.
 *
 * Model. Text becomes +-w * 10^q with a 64-bit w, eight digits at a time: load 8 bytes, find the first that is no digit by a
 * mask and a count of trailing zeros, shift the digits up, combine them in three multiplications. There is no loop over
 * digits and so no misprediction on their number. Where a fraction has sixteen digits they are taken at once, in a vector.
 * Then w * 10^q is rounded once:
 *   - by one exact multiplication or division where both are exact in the target type
 *     (W. D. Clinger, "How to read floating point numbers accurately", 1990);
 *   - else by the product with a 128-bit power of ten (D. Lemire, "Number parsing at a gigabyte per second", 2021; that it
 *     never needs a fallback for a 64-bit w: N. Mushtak, D. Lemire, "Fast number parsing without fallback", 2022);
 *   - more than 19 digits: if w and w+1 round alike that is it, else an exact comparison (number_read.c, out of line).
 */
#ifndef MHA_API_NUMBER_SCAN_H
#define MHA_API_NUMBER_SCAN_H

#include <string.h>

#include "number.h"

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "eight digits in a register are taken lowest byte first");

#define NUMBER_INLINE static inline __attribute__((always_inline))

/* {high, low} of the 128 leading bits of 10^e at row e - NUMBER_POWER_FIRST: cut off, plus one for e < 0. */
#define NUMBER_POWER_FIRST (-342)
#define NUMBER_POWER_LAST  324
extern const uint64_t number_powers[NUMBER_POWER_LAST - NUMBER_POWER_FIRST + 1][2];

/* A binary interchange format of IEEE 754, as far as rounding needs it. */
struct number_format {
    int mantissa_bits;    /* stored ones */
    int bias;             /* of the exponent field */
    int infinity;         /* exponent field of infinity */
    int q_min, q_max;     /* below: zero, above: infinity, for every 64-bit w */
    int tie_min, tie_max; /* q for which w * 10^q can be exactly halfway */
    uint64_t exact_w;     /* largest w, and largest |q|, for which float(w) and 10^|q| are exact */
    int exact_q;
};

static const struct number_format number_f64 = {52, 1023, 2047, -342, 308, -4, 23, 1ull << 53, 22};
static const struct number_format number_f32 = {23, 127, 255, -64, 38, -17, 10, 1ull << 24, 10};

static const double number_exact_f64[] = {1e0,  1e1,  1e2,  1e3,  1e4,  1e5,  1e6,  1e7,  1e8,  1e9,  1e10, 1e11,
                                          1e12, 1e13, 1e14, 1e15, 1e16, 1e17, 1e18, 1e19, 1e20, 1e21, 1e22};
static const float number_exact_f32[] = {1e0f, 1e1f, 1e2f, 1e3f, 1e4f, 1e5f, 1e6f, 1e7f, 1e8f, 1e9f, 1e10f};
static const uint32_t number_scale[] = {1, 10, 100, 1000, 10000, 100000, 1000000, 10000000, 100000000};

/* A number as it stands in the text: w * 10^q if digits <= 19; else w has wrapped and the text must be looked at again. */
struct number_parts {
    uint64_t w;
    int64_t q;
    const char *first; /* first digit */
    const char *last;  /* behind the last digit of the mantissa */
    size_t digits;     /* of the mantissa; a zero before the point does not count, those behind it do */
    bool negative;
};

/* The exponent behind 'e', saturated; NULL if there is none. *p is 'e' or 'E'. */
const char *number_scan_exponent(const char *p, int64_t *exponent);

/* Out of line, for more than 19 digits: the bits of the magnitude, rounded right. By value, so that the caller's copy can
 * stay in registers. */
uint64_t number_round_long(struct number_parts parts, const struct number_format *format);

/* Out of line: -1, 0, +1 as the text lies below, on or above `magnitude`, up to sign. */
int number_compare(const struct number_parts *parts, double magnitude);

/* Eight bytes, the first one lowest; zeros behind the end. */
NUMBER_INLINE uint64_t number_load(const char *p, const char *end) {
    uint64_t bytes = 0;
    if (__builtin_expect((uintptr_t)p <= (uintptr_t)end - 8, 1)) {
        memcpy(&bytes, p, 8);
    } else {
        for (int i = 0; p + i < end; i++) bytes |= (uint64_t)(unsigned char)p[i] << (8 * i);
        return bytes;
    }
    return bytes;
}

/* Eight digit values, most significant in the lowest byte, as one number. */
NUMBER_INLINE uint64_t number_join(uint64_t digits) {
    digits = (digits * (10 << 8 | 1) >> 8) & 0x00FF00FF00FF00FF;
    digits = (digits * (100 << 16 | 1) >> 16) & 0x0000FFFF0000FFFF;
    return digits * (10000ull << 32 | 1) >> 32;
}

typedef uint8_t number_bytes __attribute__((vector_size(16)));
typedef uint16_t number_words __attribute__((vector_size(16)));
typedef uint32_t number_longs __attribute__((vector_size(16)));
typedef uint64_t number_quads __attribute__((vector_size(16)));

/* Appends the 16 bytes at p to *w if all are digits: what most full float64 have behind the point. */
NUMBER_INLINE bool number_scan_16(const char *p, const char *end, uint64_t *w) {
    if (__builtin_expect((uintptr_t)p > (uintptr_t)end - 16, 0)) return false;
    number_bytes bytes;
    memcpy(&bytes, p, 16);
    bytes -= '0';
    number_quads others = (number_quads)(bytes > 9);
    if ((others[0] | others[1]) != 0) return false;
    number_words pairs = (number_words)bytes;
    pairs = (pairs & 0xFF) * 10 + (pairs >> 8);
    number_longs fours = (number_longs)(pairs * (number_words){100, 1, 100, 1, 100, 1, 100, 1});
    number_quads eights = (number_quads)((fours & 0xFFFF) + (fours >> 16));
    uint64_t high = eights[0] * (10000ull << 32 | 1) >> 32, low = eights[1] * (10000ull << 32 | 1) >> 32;
    *w = *w * 10000000000000000 + high * 100000000 + low;
    return true;
}

/* Appends the digits at p to *w. */
NUMBER_INLINE const char *number_scan_digits(const char *p, const char *end, uint64_t *w) {
    for (;;) {
        uint64_t digits = number_load(p, end) ^ 0x3030303030303030;
        uint64_t others = (digits | (digits + 0x7676767676767676)) & 0x8080808080808080;
        if (others == 0) {
            *w = *w * 100000000 + number_join(digits);
            p += 8;
            continue;
        }
        int bits = __builtin_ctzll(others) & ~7; /* of the digits, 0 to 56 */
        *w = *w * number_scale[bits / 8] + number_join(digits << 8 << (56 - bits));
        return p + bits / 8;
    }
}

/* The digits at p, from none. Behind eight there is mostly one more or none, for which another step of eight costs too much. */
NUMBER_INLINE const char *number_scan_whole(const char *p, const char *end, uint64_t *w) {
    uint64_t digits = number_load(p, end) ^ 0x3030303030303030;
    uint64_t others = (digits | (digits + 0x7676767676767676)) & 0x8080808080808080;
    if (others != 0) {
        int bits = __builtin_ctzll(others) & ~7;
        *w = number_join(digits << 8 << (56 - bits));
        return p + bits / 8;
    }
    *w = number_join(digits);
    p += 8;
    uint64_t next = (uint64_t)(unsigned char)*p - '0';
    if (next > 9) return p;
    *w = *w * 10 + next;
    p++;
    return (uint64_t)(unsigned char)*p - '0' > 9 ? p : number_scan_digits(p, end, w);
}

/* Splits the number at p; NULL if it breaks the grammar, else the byte behind it. A byte that belongs to no number must lie
 * in [p, end). What follows the number is not looked at. */
NUMBER_INLINE const char *number_scan(const char *p, const char *end, struct number_parts *parts) {
    parts->negative = *p == '-';
    p += parts->negative;
    parts->first = p;
    parts->w = 0;
    parts->q = 0;
    /* One digit and a point: most of what there is. The branch lets the processor run ahead with the fraction. */
    uint64_t first = (uint64_t)(unsigned char)*p - '0';
    size_t ahead = 0;
    if (first <= 9 && p[1] == '.') {
        parts->w = first;
        p++;
        parts->digits = first != 0;
        ahead = number_scan_16(p + 1, end, &parts->w) ? 16 : 0;
    } else {
        p = number_scan_whole(p, end, &parts->w);
        parts->digits = (size_t)(p - parts->first);
        if (parts->digits == 0 || (first == 0 && parts->digits > 1)) return NULL;
    }
    if (*p == '.') {
        const char *fraction = p + 1;
        p = number_scan_digits(fraction + ahead, end, &parts->w);
        if (p == fraction) return NULL;
        parts->q = fraction - p;
        parts->digits += (size_t)(p - fraction);
    }
    parts->last = p;
    if (__builtin_expect((*p | 0x20) == 'e', 0)) {
        int64_t exponent;
        p = number_scan_exponent(p, &exponent);
        parts->q += exponent;
    }
    return p;
}

/* w * 10^q rounded to the nearest value of the format, ties to even: its bits without the sign. Too large: the bits of
 * infinity or more. */
NUMBER_INLINE uint64_t number_round(uint64_t w, int64_t q, const struct number_format *format) {
    if (__builtin_expect(w == 0 || (uint64_t)(q - format->q_min) > (uint64_t)(format->q_max - format->q_min), 0))
        return w == 0 || q < 0 ? 0 : (uint64_t)format->infinity << format->mantissa_bits;
    int shift = __builtin_clzll(w);
    w <<= shift;
    const uint64_t *power = number_powers[q - NUMBER_POWER_FIRST];
    unsigned __int128 product = (unsigned __int128)w * power[0];
    uint64_t high = (uint64_t)(product >> 64), low = (uint64_t)product;
    /* The cut-off part of the power can only matter where the bits below the rounding bit are all ones. */
    uint64_t below = UINT64_MAX >> (format->mantissa_bits + 3);
    if (__builtin_expect((high & below) == below, 0)) {
        uint64_t more = (uint64_t)(((unsigned __int128)w * power[1]) >> 64);
        low += more;
        high += low < more;
    }
    int top = (int)(high >> 63); /* the product of two 64-bit numbers with the top bit set has 127 or 128 bits */
    int drop = top + 64 - format->mantissa_bits - 3;
    uint64_t mantissa = high >> drop; /* with one bit for rounding */
    /* floor(q log2(10)): 217706 / 2^16 is log2(10), good for |q| <= 342 */
    int exponent = (int)((217706 * q) >> 16) + 63 + top - shift + format->bias;
    if (__builtin_expect(exponent <= 0, 0)) { /* subnormal, or rounds up to the smallest normal value */
        if (exponent <= -63) return 0;
        mantissa >>= 1 - exponent;
        return (mantissa + (mantissa & 1)) >> 1;
    }
    if (low <= 1 && q >= format->tie_min && q <= format->tie_max && (mantissa & 3) == 1 && mantissa << drop == high)
        mantissa &= ~1ull; /* exactly halfway, and even lies below */
    mantissa = (mantissa + (mantissa & 1)) >> 1;
    /* Adding (not or-ing) the mantissa carries into the exponent when it rounds up to a power of two. */
    return ((uint64_t)(exponent - 1) << format->mantissa_bits) + mantissa;
}

NUMBER_INLINE double number_double(uint64_t bits) {
    double value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

NUMBER_INLINE uint64_t number_bits(double value) {
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

NUMBER_INLINE float number_float(uint32_t bits) {
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

NUMBER_INLINE enum number_status number_finish_f64(const struct number_parts *parts, double *value) {
    double magnitude;
    bool exact =
        parts->w <= number_f64.exact_w && (uint64_t)(parts->q + number_f64.exact_q) <= 2 * (uint64_t)number_f64.exact_q;
    if (exact && __builtin_expect(parts->digits <= 19, 1)) {
        magnitude = (double)parts->w;
        if (parts->q < 0)
            magnitude /= number_exact_f64[-parts->q];
        else
            magnitude *= number_exact_f64[parts->q];
        *value = number_double(number_bits(magnitude) | (uint64_t)parts->negative << 63); /* no branch on the sign */
        return NUMBER_OK;
    }
    uint64_t bits = __builtin_expect(parts->digits <= 19, 1) ? number_round(parts->w, parts->q, &number_f64)
                                                             : number_round_long(*parts, &number_f64);
    *value = number_double(bits | (uint64_t)parts->negative << 63);
    return __builtin_expect(bits < 0x7FF0000000000000, 1) ? NUMBER_OK : NUMBER_OVERFLOW;
}

NUMBER_INLINE enum number_status number_finish_f32(const struct number_parts *parts, float *value) {
    float magnitude;
    bool exact =
        parts->w <= number_f32.exact_w && (uint64_t)(parts->q + number_f32.exact_q) <= 2 * (uint64_t)number_f32.exact_q;
    if (exact && __builtin_expect(parts->digits <= 19, 1)) {
        magnitude = (float)parts->w;
        if (parts->q < 0)
            magnitude /= number_exact_f32[-parts->q];
        else
            magnitude *= number_exact_f32[parts->q];
        uint32_t positive;
        memcpy(&positive, &magnitude, sizeof positive);
        *value = number_float(positive | (uint32_t)parts->negative << 31);
        return NUMBER_OK;
    }
    uint32_t bits = (uint32_t)(__builtin_expect(parts->digits <= 19, 1) ? number_round(parts->w, parts->q, &number_f32)
                                                                        : number_round_long(*parts, &number_f32));
    *value = number_float(bits | (uint32_t)parts->negative << 31);
    return __builtin_expect(bits < 0x7F800000, 1) ? NUMBER_OK : NUMBER_OVERFLOW;
}

/* True if value may lie exactly halfway between two float32 (it is an odd multiple of half a unit in their last place). */
NUMBER_INLINE bool number_beside_f32(double value) {
    uint64_t bits = number_bits(value);
    unsigned exponent = (unsigned)(bits >> 52) & 2047;
    /* 897 is the exponent field of the smallest normal float32, 2^-126; 873 of 2^-150, half the smallest subnormal one */
    return (bits & 0x1FFFFFFF) == 0x10000000 || exponent - 873 < 897 - 873;
}

/* What number_read_f64_tie says about a number for which number_beside_f32 holds. */
int number_tie(const struct number_parts *parts, double value);

#endif

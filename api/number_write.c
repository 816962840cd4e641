/* SPDX-License-Identifier: Apache-2.0
 *
 * api/number_write.c - numbers to the shortest text that reads back to the same value.
 *
 * Model. First the decimal digits, as an integer and a power of ten; of three ways the cheapest that applies:
 *   - an integer below 2^53 is its own digits;
 *   - "fixed six": with m = round(x * 10^6), if m / 10^6 == x and m has at most 15 digits, then m is it, because two
 *     different decimals of 15 digits never round to the same float64. Catches prices, percentages, rounded data;
 *   - else Schubfach (R. Giulietti, "The Schubfach way to render doubles", 2020): the rounding interval of x scaled by one
 *     power of ten, its ends and x rounded to odd so that comparisons stay exact; among the shortest the closest.
 * Then the text: 17 digits at once, eight per step in one register, cut behind the last that is not 0, and laid out in fixed
 * or exponent notation, whichever is shorter, fixed if equal.
 *
 * What it does not do: NaN and infinities (the caller's policy), rounding to a number of digits.
 */
#include "number_scan.h"

#include <math.h>

struct decimal {
    uint64_t digits;
    int exponent; /* the value is digits * 10^exponent */
};

/* ---- Schubfach ---------------------------------------------------------------------------------------------------- */

/* floor(q log10(2)), floor(log10(3/4 2^q)), floor(e log2(10)): exact for every q and e that occur */
static int log10_of_power_of_2(int q) { return (q * 1262611) >> 22; }
static int log10_of_three_quarters(int q) { return (q * 1262611 - 524031) >> 22; }
static int log2_of_power_of_10(int e) { return (e * 217706) >> 16; }

/* A finite, nonzero value c * 2^q with its rounding interval ends, all times four. */
struct interval {
    uint64_t below, value, above;
    bool even;
    int q, k; /* 10^k is the unit of the candidates */
};

NUMBER_INLINE struct interval rounding_interval(uint64_t fraction, int field, const struct number_format *format) {
    uint64_t c = field > 0 ? fraction | 1ull << format->mantissa_bits : fraction;
    int q = (field > 0 ? field : 1) - format->bias - format->mantissa_bits;
    bool closer_below = fraction == 0 && field > 1; /* a power of two: its lower neighbour is half as far */
    return (struct interval){.below = 4 * c - 2 + closer_below,
                             .value = 4 * c,
                             .above = 4 * c + 2,
                             .even = (c & 1) == 0,
                             .q = q,
                             .k = closer_below ? log10_of_three_quarters(q) : log10_of_power_of_2(q)};
}

/* Picks the shortest, then closest, from the scaled and rounded to odd interval. Written without branches where data decides
 * by chance. */
NUMBER_INLINE struct decimal pick(uint64_t below, uint64_t value, uint64_t above, bool even, int k) {
    uint64_t lower = below + !even, upper = above - !even; /* the ends belong to even values only */
    uint64_t s = value / 4, tens = s - s % 10;
    bool tens_down = lower <= 4 * tens, tens_up = 4 * tens + 40 <= upper;
    bool down = lower <= 4 * s, up = 4 * s + 4 <= upper;
    bool closer_up = value + (s & 1) > 4 * s + 2; /* of two as close the even one */
    uint64_t one_less = tens + (tens_up ? 10 : 0);
    uint64_t full = s + (down != up ? up : closer_up);
    bool shorter = s >= 10 && tens_down != tens_up;
    return (struct decimal){shorter ? one_less : full, k};
}

/* floor(g * c / 2^128), its last bit set if anything was cut off. g a little above the exact power. */
NUMBER_INLINE uint64_t round_to_odd_128(uint64_t high, uint64_t low, uint64_t c) {
    uint64_t carried = (uint64_t)(((unsigned __int128)low * c) >> 64);
    unsigned __int128 product = (unsigned __int128)high * c + carried;
    return (uint64_t)(product >> 64) | ((uint64_t)product > 1);
}

NUMBER_INLINE uint64_t round_to_odd_64(uint64_t g, uint64_t c) {
    unsigned __int128 product = (unsigned __int128)g * c;
    return (uint64_t)(product >> 64) | ((uint32_t)(product >> 32) > 1);
}

NUMBER_INLINE struct decimal shortest_f64(uint64_t fraction, int field) {
    struct interval v = rounding_interval(fraction, field, &number_f64);
    int h = v.q + log2_of_power_of_10(-v.k) + 1;
    const uint64_t *power = number_powers[-v.k - NUMBER_POWER_FIRST];
    uint64_t high = power[0], low = power[1] + (v.k <= 0); /* rows of 10^e, e >= 0, are cut off; never all ones */
    return pick(round_to_odd_128(high, low, v.below << h), round_to_odd_128(high, low, v.value << h),
                round_to_odd_128(high, low, v.above << h), v.even, v.k);
}

NUMBER_INLINE struct decimal shortest_f32(uint32_t fraction, int field) {
    struct interval v = rounding_interval(fraction, field, &number_f32);
    int h = v.q + log2_of_power_of_10(-v.k) + 1;
    uint64_t g = number_powers[-v.k - NUMBER_POWER_FIRST][0] + 1;
    return pick(round_to_odd_64(g, v.below << h), round_to_odd_64(g, v.value << h), round_to_odd_64(g, v.above << h),
                v.even, v.k);
}

/* ---- text --------------------------------------------------------------------------------------------------------- */

#define DIGITS_F64 17
#define DIGITS_F32 9

static const uint64_t power_of_10[DIGITS_F64 + 1] = {
    1ull,
    10ull,
    100ull,
    1000ull,
    10000ull,
    100000ull,
    1000000ull,
    10000000ull,
    100000000ull,
    1000000000ull,
    10000000000ull,
    100000000000ull,
    1000000000000ull,
    10000000000000ull,
    100000000000000ull,
    1000000000000000ull,
    10000000000000000ull,
    100000000000000000ull,
};

/* Decimal digits of n, 1 <= n < 10^17 */
NUMBER_INLINE int digit_count(uint64_t n) {
    int guess = (64 - __builtin_clzll(n)) * 1233 >> 12; /* floor(bits * log10(2)) */
    return guess + (n >= power_of_10[guess]);
}

/* n < 10^8 as eight digit values, the most significant in the lowest byte: halves, quarters, digits. */
NUMBER_INLINE uint64_t split8(uint32_t n) {
    uint64_t x = n / 10000 | (uint64_t)(n % 10000) << 32;
    uint64_t hundreds = (x * 5243 >> 19) & 0x0000007F0000007F;
    x = hundreds | (x - 100 * hundreds) << 16;
    uint64_t tens = (x * 103 >> 10) & 0x000F000F000F000F;
    return tens | (x - 10 * tens) << 8;
}

#define ASCII_ZEROS 0x3030303030303030

/* A number spelled out: the first digit, then the others as characters, lowest byte first; `length` digits up to the last
 * that is not 0. */
struct spelled {
    char first;
    unsigned __int128 rest;
    int length;
};

/* n of `count` digits, as `width` (17 or 9) digits. */
NUMBER_INLINE struct spelled spell(uint64_t n, int count, int width) {
    n *= power_of_10[width - count];
    uint64_t first, high, low = 0;
    if (width == DIGITS_F64) {
        first = n / 10000000000000000;
        n -= first * 10000000000000000;
        high = split8((uint32_t)(n / 100000000));
        low = split8((uint32_t)(n % 100000000));
    } else {
        first = n / 100000000;
        high = split8((uint32_t)(n - first * 100000000));
    }
    int zeros = low != 0 ? __builtin_clzll(low) / 8 : high != 0 ? 8 + __builtin_clzll(high) / 8 : 16;
    return (struct spelled){.first = (char)('0' + first),
                            .rest = (unsigned __int128)(low | ASCII_ZEROS) << 64 | (high | ASCII_ZEROS),
                            .length = DIGITS_F64 - zeros};
}

NUMBER_INLINE void store(char *out, const void *bytes, size_t size) { memcpy(out, bytes, size); }

static size_t put_exponent(char *out, int exponent) {
    char *p = out;
    *p++ = 'e';
    if (exponent < 0) *p++ = '-';
    unsigned n = (unsigned)(exponent < 0 ? -exponent : exponent);
    if (n >= 100) *p++ = (char)('0' + n / 100);
    if (n >= 10) *p++ = (char)('0' + n / 10 % 10);
    *p++ = (char)('0' + n % 10);
    return (size_t)(p - out);
}

static int scientific_length(int n, int exponent) {
    int magnitude = exponent < 0 ? -exponent : exponent;
    return n + (n > 1) + 1 + (exponent < 0) + 1 + (magnitude >= 10) + (magnitude >= 100);
}

/* digits > 0, `count` of them, at most `width`. Whole registers are stored and never read back; what is too much is overwritten or
 * lies in the NUMBER_ROOM. */
NUMBER_INLINE size_t put_decimal(char *out, struct decimal decimal, int count, int width) {
    struct spelled text = spell(decimal.digits, count, width);
    int n = text.length;
    int point = count + decimal.exponent; /* digits before the point, if it stands inside */
    if (point > 0 && point < n) {
        unsigned __int128 fraction = text.rest >> 8 * (point - 1);
        out[0] = text.first;
        store(out + 1, &text.rest, 16);
        out[point] = '.';
        store(out + point + 1, &fraction, 16);
        return (size_t)n + 1;
    }
    int fixed_length = point > 0 ? point : 2 - point + n;
    /* Two zeros before or behind the digits are never longer than an exponent. */
    bool far = point < -1 || point > n + 2;
    if (__builtin_expect(far && fixed_length > scientific_length(n, point - 1), 0)) {
        out[0] = text.first;
        out[1] = '.';
        store(out + 2, &text.rest, 16);
        n += n > 1;
        return (size_t)n + put_exponent(out + n, point - 1);
    }
    if (point > 0) {
        store(out + 17, "0000", 4); /* longer ones are shorter in scientific notation */
        out[0] = text.first;
        store(out + 1, &text.rest, 16);
    } else {
        store(out, "0.000000", 8);
        out[2 - point] = text.first;
        store(out + 3 - point, &text.rest, 16);
    }
    return (size_t)fixed_length;
}

/* 0 < n < 10^8. 0: scientific notation may be shorter. */
NUMBER_INLINE size_t put_small_integer(char *out, uint32_t n) {
    uint64_t digits = split8(n);
    if (__builtin_clzll(digits) >= 3 * 8) return 0; /* ends in 000 */
    int zeros = __builtin_ctzll(digits) / 8;
    digits = (digits | ASCII_ZEROS) >> 8 * zeros;
    store(out, &digits, 8);
    return (size_t)(8 - zeros);
}

/* ---- public ------------------------------------------------------------------------------------------------------- */

/* True if x has at most six decimals and 15 digits in all; x >= 0.01, where fixed notation is never the longer one. */
NUMBER_INLINE bool fixed_six(double x, uint64_t *millionths) {
    if (!(x >= 0.01 && x < 1e9)) return false;
    double scaled = x * 1e6;
    *millionths = (uint64_t)(int64_t)(scaled + 0.5);
    double rounded = (double)(int64_t)*millionths;
    /* A cheap, tight test first: a loose one lets random data through to the division and its mispredicted branch. */
    return fabs(scaled - rounded) <= scaled * 4.5e-16 && rounded / 1e6 == x;
}

size_t number_write_f64(char *out, double value) {
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    size_t sign = bits >> 63;
    *out = '-';
    out += sign;
    bits &= INT64_MAX;
    if (bits == 0) {
        *out = '0';
        return sign + 1;
    }
    double magnitude = number_double(bits);
    uint64_t n;
    if (magnitude < 9007199254740992.0 && (double)(int64_t)(n = (uint64_t)(int64_t)magnitude) == magnitude) {
        size_t length = n < 100000000 ? put_small_integer(out, (uint32_t)n) : 0;
        return sign + (length > 0 ? length : put_decimal(out, (struct decimal){n, 0}, digit_count(n), DIGITS_F64));
    }
    if (fixed_six(magnitude, &n)) return sign + put_decimal(out, (struct decimal){n, -6}, digit_count(n), DIGITS_F64);
    int field = (int)(bits >> 52);
    struct decimal shortest = shortest_f64(bits & (UINT64_MAX >> 12), field);
    /* The digits of a normal value are at least 2^52 and less than 20 * 2^52: 16 or 17. */
    int count = field > 0 ? 16 + (shortest.digits >= 10000000000000000) : digit_count(shortest.digits);
    return sign + put_decimal(out, shortest, count, DIGITS_F64);
}

size_t number_write_f32(char *out, float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    size_t sign = bits >> 31;
    *out = '-';
    out += sign;
    bits &= INT32_MAX;
    if (bits == 0) {
        *out = '0';
        return sign + 1;
    }
    float magnitude = number_float(bits);
    uint32_t n;
    if (magnitude < 16777216.0f && (float)(n = (uint32_t)magnitude) == magnitude) {
        size_t length = put_small_integer(out, n);
        if (length > 0) return sign + length;
    }
    int field = (int)(bits >> 23);
    struct decimal shortest = shortest_f32(bits & (UINT32_MAX >> 9), field);
    /* at least 2^23, less than 20 * 2^23: 7 to 9 */
    int count =
        field > 0 ? 7 + (shortest.digits >= 10000000) + (shortest.digits >= 100000000) : digit_count(shortest.digits);
    return sign + put_decimal(out, shortest, count, DIGITS_F32);
}

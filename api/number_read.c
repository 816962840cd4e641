/* SPDX-License-Identifier: Apache-2.0
 *
 * api/number_read.c - text to numbers: the public functions, and what the fast path in number_scan.h leaves over: exponents,
 * more than 19 digits, and the exact comparison of a decimal text with a binary value.
 *
 * The exact comparison. D * 10^E against m * 2^k, D of up to 781 digits: 10^E is split in 5^E and 2^E, negative powers go to
 * the other side, so that two natural numbers of at most about 2,700 bits are compared. The longest value halfway between
 * two float64 has 767 significant digits, so of a longer text only "is anything behind" counts, which one digit 1 says.
 */
#include "number_scan.h"

#include <math.h>

const uint64_t number_powers[NUMBER_POWER_LAST - NUMBER_POWER_FIRST + 1][2] = {
#include "number_table.h"
};

#define EXACT_DIGITS 780
#define LIMBS        64 /* of 64 bits; the largest numbers that meet here need 43 */

/* ---- natural numbers ---------------------------------------------------------------------------------------------- */

struct natural {
    size_t used;
    uint64_t limb[LIMBS]; /* least significant first; the top one is not 0 */
};

/* n = n * factor + term */
static void natural_multiply_add(struct natural *n, uint64_t factor, uint64_t term) {
    uint64_t carry = term;
    for (size_t i = 0; i < n->used; i++) {
        unsigned __int128 sum = (unsigned __int128)n->limb[i] * factor + carry;
        n->limb[i] = (uint64_t)sum;
        carry = (uint64_t)(sum >> 64);
    }
    if (carry != 0 && n->used < LIMBS) n->limb[n->used++] = carry;
}

static void natural_multiply_power_of_five(struct natural *n, int64_t exponent) {
    const uint64_t five_27 = 7450580596923828125; /* the largest in 64 bits */
    for (; exponent >= 27; exponent -= 27) natural_multiply_add(n, five_27, 0);
    for (; exponent > 0; exponent--) natural_multiply_add(n, 5, 0);
}

static void natural_shift_left(struct natural *n, int64_t bits) {
    size_t limbs = (size_t)(bits / 64);
    natural_multiply_add(n, 1ull << (bits % 64), 0);
    if (limbs == 0 || n->used == 0) return;
    if (limbs > LIMBS - n->used) limbs = LIMBS - n->used;
    memmove(n->limb + limbs, n->limb, n->used * sizeof n->limb[0]);
    memset(n->limb, 0, limbs * sizeof n->limb[0]);
    n->used += limbs;
}

static int natural_compare(const struct natural *a, const struct natural *b) {
    if (a->used != b->used) return a->used < b->used ? -1 : 1;
    for (size_t i = a->used; i-- > 0;) {
        if (a->limb[i] != b->limb[i]) return a->limb[i] < b->limb[i] ? -1 : 1;
    }
    return 0;
}

/* ---- long decimals ------------------------------------------------------------------------------------------------ */

const char *number_scan_exponent(const char *p, int64_t *exponent) {
    const int64_t limit = 1000000000000; /* longer than any text, so that "0.00...1e1000000" still comes out right */
    p++;
    bool negative = *p == '-';
    p += negative || *p == '+';
    if (*p < '0' || *p > '9') return NULL;
    int64_t value = 0;
    for (; *p >= '0' && *p <= '9'; p++) {
        if (value < limit) value = value * 10 + (*p - '0');
    }
    *exponent = negative ? -value : value;
    return p;
}

/* The mantissa without leading zeros: *first its first digit that is not 0 (parts->last if all are), and how many follow. */
static size_t significant_digits(const struct number_parts *parts, const char **first) {
    const char *p = parts->first;
    size_t zeros = 0;
    if (*p == '0') p++;
    for (; p < parts->last && (*p == '0' || *p == '.'); p++) zeros += *p == '0';
    *first = p;
    return parts->digits - zeros;
}

/* The first `digits` digits at p (a point may stand between them). */
static uint64_t leading_digits(const char *p, size_t digits) {
    uint64_t w = 0;
    for (; digits > 0; p++) {
        if (*p == '.') continue;
        w = w * 10 + (uint64_t)(*p - '0');
        digits--;
    }
    return w;
}

static bool anything_behind(const char *p, const char *last) {
    for (; p < last; p++) {
        if (*p >= '1' && *p <= '9') return true;
    }
    return false;
}

/* The mantissa of the text as D * 10^*exponent. */
static void natural_from_text(struct natural *n, const struct number_parts *parts, int64_t *exponent) {
    const char *p;
    size_t digits = significant_digits(parts, &p);
    size_t kept = digits < EXACT_DIGITS ? digits : EXACT_DIGITS;
    n->used = 0;
    for (size_t i = 0; i < kept; p++) {
        if (*p == '.') continue;
        natural_multiply_add(n, 10, (uint64_t)(*p - '0'));
        i++;
    }
    *exponent = parts->q + (int64_t)(digits - kept);
    if (anything_behind(p, parts->last)) {
        natural_multiply_add(n, 10, 1);
        *exponent -= 1;
    }
}

/* The sign of (text - m * 2^k); both must be of about the same size. */
static int compare_with(const struct number_parts *parts, uint64_t m, int k) {
    struct natural text, value = {.used = 1, .limb = {m}};
    int64_t exponent;
    natural_from_text(&text, parts, &exponent);
    if (exponent >= 0)
        natural_multiply_power_of_five(&text, exponent);
    else
        natural_multiply_power_of_five(&value, -exponent);
    if (k >= exponent)
        natural_shift_left(&value, k - exponent);
    else
        natural_shift_left(&text, exponent - k);
    return natural_compare(&text, &value);
}

uint64_t number_round_long(struct number_parts parts, const struct number_format *format) {
    const char *first;
    size_t digits = significant_digits(&parts, &first);
    if (digits <= 19) return number_round(parts.w, parts.q, format); /* leading zeros only: w has not wrapped */
    uint64_t w = leading_digits(first, 19);
    int64_t q = parts.q + (int64_t)(digits - 19);
    uint64_t below = number_round(w, q, format), above = number_round(w + 1, q, format);
    if (below == above || below >= (uint64_t)format->infinity << format->mantissa_bits) return below;
    /* Neighbours: the point halfway between them decides. A field of 0 has the exponent of a field of 1. */
    uint64_t hidden = 1ull << format->mantissa_bits;
    int field = (int)(below >> format->mantissa_bits);
    uint64_t mantissa = (below & (hidden - 1)) | (field > 0 ? hidden : 0);
    int exponent = (field > 0 ? field : 1) - format->bias - format->mantissa_bits;
    int side = compare_with(&parts, 2 * mantissa + 1, exponent - 1);
    if (side != 0) return side < 0 ? below : above;
    return (below & 1) == 0 ? below : above;
}

int number_compare(const struct number_parts *parts, double magnitude) {
    uint64_t bits, hidden = 1ull << 52;
    memcpy(&bits, &magnitude, sizeof bits);
    int field = (int)(bits >> 52);
    return compare_with(parts, (bits & (hidden - 1)) | (field > 0 ? hidden : 0), (field > 0 ? field : 1) - 1075);
}

int number_tie(const struct number_parts *parts, double value) {
    if (parts->digits <= 19 && parts->q == 0 && parts->w <= number_f64.exact_w) return 0; /* an exact integer */
    double magnitude = fabs(value);
    /* half a unit in the last place of float32 is 2^(exponent - 24), 2^-150 for subnormal ones */
    int exponent;
    frexp(magnitude, &exponent); /* magnitude is in [2^(exponent-1), 2^exponent) */
    int half = exponent - 1 < -126 ? -150 : exponent - 25;
    double halves = ldexp(magnitude, -half);
    bool halfway = halves == floor(halves) && fmod(halves, 2) == 1;
    if (!halfway || exponent > 128) return 0; /* from 2^128 on everything is infinite in float32 */
    int side = number_compare(parts, magnitude);
    return parts->negative ? -side : side;
}

/* ---- public ------------------------------------------------------------------------------------------------------- */

static bool starts_number(const char *text, size_t length) {
    return length > 0 && (*text == '-' || (*text >= '0' && *text <= '9'));
}

/* A number that goes on with a byte of numbers has been a wrong one: "1.2.3", "1-2". */
static bool ends_number(const char *p) {
    return !((*p >= '0' && *p <= '9') || *p == '+' || *p == '-' || *p == '.' || *p == 'e' || *p == 'E');
}

static enum number_status scan(const char *text, size_t length, struct number_parts *parts, size_t *used) {
    if (!starts_number(text, length)) return NUMBER_SYNTAX;
    const char *after = number_scan(text, text + length, parts);
    if (after == NULL || !ends_number(after)) return NUMBER_SYNTAX;
    *used = (size_t)(after - text);
    return NUMBER_OK;
}

enum number_status number_read_f64(const char *text, size_t length, double *value, size_t *used) {
    struct number_parts parts;
    enum number_status status = scan(text, length, &parts, used);
    return status == NUMBER_OK ? number_finish_f64(&parts, value) : status;
}

enum number_status number_read_f32(const char *text, size_t length, float *value, size_t *used) {
    struct number_parts parts;
    enum number_status status = scan(text, length, &parts, used);
    return status == NUMBER_OK ? number_finish_f32(&parts, value) : status;
}

enum number_status number_read_f64_tie(const char *text, size_t length, double *value, size_t *used, int *inexact_tie) {
    struct number_parts parts;
    *inexact_tie = 0;
    enum number_status status = scan(text, length, &parts, used);
    if (status == NUMBER_OK) status = number_finish_f64(&parts, value);
    if (status == NUMBER_OK && number_beside_f32(*value)) *inexact_tie = number_tie(&parts, *value);
    return status;
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * core/kernels/vmath_type.h - the functions of vmath.h for one element type; what each promises is written there.
 *
 * Included by vmath.h only, once per type, with VM(name) = name_f64 or name_f32; VM_T, VM_V the element and its vector;
 * VM_INT, VM_I the integer of the same width and its vector; and the constants that differ. Undefines them at the end.
 */

/* A softmax reference per lane: the row's weights are exp(S - base) * 2^-shift. */
struct VM(vm_ref) {
    VM_V base;  /* 0, or the maximum itself where it is too large for `shift` */
    VM_V magic; /* 1.5*2^mantissa + bias - shift: what vm_exp adds to round to an integer and build an exponent */
};

/* mask (all ones or all zeros per lane) ? a : b */
VM_INLINE VM_V VM(vm_select)(VM_I mask, VM_V a, VM_V b) { return (VM_V)((mask & (VM_I)a) | (~mask & (VM_I)b)); }

VM_INLINE VM_V VM(vm_splat)(VM_T x) { return x - (VM_V){0}; }

/* 1.5 * 2^mantissa: adding and subtracting it rounds to an integer, ties to even. */
#define VM_ROUND ((VM_T)((VM_INT)3 << (VM_MANTISSA - 1)))

VM_INLINE VM_V VM(vm_abs)(VM_V x) { return (VM_V)((VM_I)x & ~VM_SIGN); }

/* The larger of the two; `a` where either is NaN. */
VM_INLINE VM_V VM(vm_max)(VM_V a, VM_V b) { return VM(vm_select)(b > a, b, a); }

/* max[c] = the largest of max[c] and S[row][c], for S [rows, columns] of VM_COLUMN_VECTORS vectors a row. Ignores NaN
 * in S. */
static VM_VECTORIZED void VM(vm_max_rows)(VM_T *restrict max, const VM_T *restrict S, size_t rows) {
    enum { columns = VM_COLUMN_VECTORS * sizeof(VM_V) / sizeof(VM_T), step = 8 };
    size_t row = 0;
    for (; row + step <= rows; row += step)
        for (size_t c = 0; c < columns; c++) {
            VM_T m = max[c];
            for (size_t i = 0; i < step; i++) {
                const VM_T s = S[(row + i) * columns + c];
                m = s > m ? s : m;
            }
            max[c] = m;
        }
    for (; row < rows; row++)
        for (size_t c = 0; c < columns; c++) {
            const VM_T s = S[row * columns + c];
            max[c] = s > max[c] ? s : max[c];
        }
}

/* The reference for rows whose largest score so far is `max`; -(largest finite) stands for "no visible key yet". A
 * +infinite or NaN maximum gives a reference with which every weight is NaN. */
VM_INLINE struct VM(vm_ref) VM(vm_ref)(VM_V max) {
    const VM_I narrow = VM(vm_abs)(max) <= VM_SHIFT_MAX;
    const VM_V rounded = max * VM_LOG2E + VM_ROUND;
    const VM_V shift = (VM_V)((VM_I)(rounded - VM_ROUND) & narrow);
    struct VM(vm_ref) ref;
    ref.base = (VM_V)((VM_I)max & ~narrow);
    ref.magic = (VM_ROUND + (VM_T)VM_BIAS) - shift;
    return ref;
}

/* Whether some lane has a base, so that vm_exp must be given S - base. For the other lanes S - 0 = S, so what one lane
 * needs never changes a bit of another. */
VM_INLINE int VM(vm_ref_is_wide)(struct VM(vm_ref) ref) {
    const VM_I wide = ref.base != (VM_V){0};
    VM_INT any = 0;
    for (unsigned i = 0; i < sizeof(VM_V) / sizeof(VM_T); i++) any |= wide[i];
    return any != 0;
}

/* x[u] becomes exp(x[u]) * 2^-shift, for x = S - base (S itself where the base is 0) and u < n, a constant. x*log2e - shift must
 * stay below 2 (it is at most 1/2 for S <= max). The integer N = round(x*log2e) comes out of the addition of `magic` together with
 * the biased exponent N - shift + bias in the low bits; with FMA x - N*ln2_hi is exact.
 *
 * In lock-step: each polynomial is one long chain, and a core that looks ahead for 128 operations sees too few chains at once. */
VM_INLINE void VM(vm_exp_n)(const int n, VM_V *x, VM_V magic) {
    enum { terms = sizeof VM(vm_exp_poly) / sizeof VM(vm_exp_poly)[0] };
    VM_V t[VM_EXP_MAX], r[VM_EXP_MAX];
    VM_UNROLL
    for (int u = 0; u < n; u++) {
        t[u] = x[u] * VM_LOG2E + magic;
        const VM_V N = t[u] - magic;
        r[u] = x[u] - N * VM_LN2_HI;
        r[u] = r[u] - N * VM_LN2_LO;
    }
    VM_UNROLL
    for (int u = 0; u < n; u++) x[u] = r[u] * VM(vm_exp_poly)[0] + VM(vm_exp_poly)[1];
    VM_UNROLL
    for (int k = 2; k < terms; k++) {
        VM_UNROLL
        for (int u = 0; u < n; u++) x[u] = x[u] * r[u] + VM(vm_exp_poly)[k];
    }
    VM_UNROLL
    for (int u = 0; u < n; u++) {
        const VM_V scale = (VM_V)((VM_I)t[u] << VM_MANTISSA);
        const VM_I flush = t[u] < VM_ROUND + 2; /* biased exponent below 2 */
        x[u] = (VM_V)((VM_I)(x[u] * scale) & ~flush);
    }
}

VM_INLINE VM_V VM(vm_exp)(VM_V x, VM_V magic) {
    VM(vm_exp_n)(1, &x, magic);
    return x;
}

/* What sums and contexts relative to `from` are multiplied by to become relative to `to`, a later reference of the same
 * row: an exact power of two where both bases are 0, exactly 0 below the flush limit. */
VM_INLINE VM_V VM(vm_alpha)(struct VM(vm_ref) from, struct VM(vm_ref) to) {
    const VM_V magic = (VM_ROUND + (VM_T)VM_BIAS) + (to.magic - from.magic);
    return VM(vm_exp)(from.base - to.base, magic);
}

/* num - q*den, exact when q is num/den rounded. Without FMA by splitting the factors (Dekker 1971). */
VM_INLINE VM_V VM(vm_remainder)(VM_V num, VM_V q, VM_V den) {
#if VM_HAS_FMA
    return num - q * den;
#else
    const VM_V sq = q * VM_SPLITTER, sd = den * VM_SPLITTER;
    const VM_V qh = sq - (sq - q), dh = sd - (sd - den);
    const VM_V ql = q - qh, dl = den - dh;
    return (((num - qh * dh) - qh * dl) - ql * dh) - ql * dl;
#endif
}

/* tanh(x). Near 0 an odd polynomial; elsewhere (1-E)/(1+E), E = exp(-2|x|) <= 1/4, with the rounding errors of both
 * sums and of the quotient put back, which leaves the half ulp of the last addition and E's own error. */
VM_INLINE VM_V VM(vm_tanh)(VM_V x) {
    const VM_V a = VM(vm_abs)(x);
    const VM_V small = a + a * VM(vm_tanh_poly)(a * a);

    const VM_T one = 1;
    const VM_V E = VM(vm_exp)(a * (VM_T)-2, VM(vm_splat)(VM_ROUND + (VM_T)VM_BIAS));
    const VM_V num = one - E, den = one + E;
    const VM_V num_err = (one - num) - E, den_err = E - (den - one);
    const VM_V q = num / den;
    const VM_V left = VM(vm_remainder)(num, q, den) + (num_err - q * den_err);
    const VM_V large = q + left * num; /* num is 1/den within 6 % */

    const VM_V y = VM(vm_select)(a < VM_TANH_SMALL, small, large);
    return (VM_V)((VM_I)y | ((VM_I)x & VM_SIGN));
}

/* base + log(l * 2^shift), the logsumexp of a row whose weights sum to l; l is 0, NaN or a normal positive number. */
VM_INLINE VM_V VM(vm_lse)(struct VM(vm_ref) ref, VM_V l) {
    /* l = 2^k f, f in [sqrt(1/2), sqrt(2)); bits of l above those of sqrt(1/2) count binades */
    const VM_T sqrt_half = VM_SQRT_HALF;
    VM_INT half_bits;
    __builtin_memcpy(&half_bits, &sqrt_half, sizeof half_bits);
    const VM_I k = ((VM_I)l - half_bits) >> VM_MANTISSA;
    const VM_V f = (VM_V)((VM_I)l - (k << VM_MANTISSA));
    const VM_V powers = ((VM_ROUND + (VM_T)VM_BIAS) - ref.magic) + __builtin_convertvector(k, VM_V);

    /* log f = x - x^2/2 + s*(x^2/2 + R), s = x/(2+x): the large terms are exact or small */
    const VM_V x = f - (VM_T)1;
    const VM_V s = x / (x + (VM_T)2);
    VM_V half_square = x * x * (VM_T)0.5;
    VM_PIN(half_square);
    VM_V tail = s * (half_square + VM(vm_log_poly)(s * s));
    VM_PIN(tail);
    const VM_V low = powers * VM_LN2_LO + tail;
    const VM_V log_f = x - (half_square - low);
    const VM_V log_l = powers * VM_LN2_HI + log_f;
    const VM_V lse = ref.base + log_l;

    const VM_I empty = l == (VM_V){0};
    const VM_V minus_infinity = VM(vm_splat)(-(VM_T)__builtin_inf());
    return VM(vm_select)(l != l, l, VM(vm_select)(empty, minus_infinity, lse));
}

#undef VM_ROUND
#undef VM_SIGN
#undef VM_T
#undef VM_V
#undef VM_I
#undef VM_INT
#undef VM_SIGN
#undef VM
#undef VM_MANTISSA
#undef VM_BIAS
#undef VM_LOG2E
#undef VM_LN2_HI
#undef VM_LN2_LO
#undef VM_SHIFT_MAX
#undef VM_SQRT_HALF
#undef VM_TANH_SMALL
#undef VM_SPLITTER

/* SPDX-License-Identifier: Apache-2.0
 *
 * tests/unit/support/oracle.h - struct mha_problem evaluated with 113 bits, and how far a float64 or float32 result may
 * be off.
 *
 * Model. Written apart from core (its own idea of layouts, offsets and visibility), in the plainest form. Beside every
 * value it carries a bound on the rounding error of an ordinary evaluation in the problem's type, in units of the unit
 * roundoff u (2^-53 or 2^-24), by running error analysis to first order: a sum of n products may be off by (n + 6) u
 * times the sum of their magnitudes, a weight by the error of its score, and so on down to the output. So tests need no
 * hand-made tolerances: a result is right if |got - want| <= u * bound + floor, floor covering underflow. The bounds
 * hold for any order of summation, with or without FMA, for exp, log and tanh within 2 ulp, and for a softmax in
 * base 2.
 *
 * What this does not do: judge accuracy beyond that (bounds are worst cases, typically 10 to 100 times the real error).
 */
#ifndef MHA_TESTS_UNIT_SUPPORT_ORACLE_H
#define MHA_TESTS_UNIT_SUPPORT_ORACLE_H

#include "../../../core/mha.h"

#if defined(__x86_64__)
typedef __float128 quad;
#else
typedef long double quad; /* 113 bits on aarch64 */
#endif

/* n values in order, and their bounds in units of u. */
struct oracle_tensor {
    size_t n;
    quad *value;
    double *bound;
};

/* Everything that struct mha_result can hold, for all heads. Shapes as there. */
struct oracle {
    struct oracle_tensor output, attention, heads, proj_Q, proj_K, proj_V, scores, logsumexp, concat, present_K,
        present_V;
    unsigned char *visible; /* [B, h, n_q, n_kv] */
    uint64_t masked_rows;
    size_t masked_first[3];
};

/* May query i of a head of sample b see key j? The contract's words, one by one. */
bool oracle_visible(const struct mha_problem *p, size_t b, size_t head, size_t i, size_t j);

/* The whole problem; without a layer. Never NULL (aborts without memory). */
struct oracle *oracle_new(const struct mha_problem *p);
void oracle_free(struct oracle *o);

/* Compares every result that is not NULL, and the count of masked rows. `text` (may be NULL) gets the first
 * disagreement. Returns the largest |got - want| / (u * bound + floor) met; the result is right if that is <= 1. Where
 * something of a hidden key is not finite, got need not be finite either. INFINITY: something is NaN, or a count
 * differs. */
double oracle_compare(const struct oracle *o, const struct mha_problem *p, const struct mha_result *r, char *text,
                      size_t text_size);

/* Largest |got - want|, for measuring. NaN counts as INFINITY. */
double oracle_max_error(const struct oracle_tensor *want, enum mha_dtype dtype, const void *got);

#endif

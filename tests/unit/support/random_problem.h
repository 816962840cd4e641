/* SPDX-License-Identifier: Apache-2.0
 *
 * tests/unit/support/random_problem.h - problems of every kind out of a seed, and results to compute them into.
 *
 * Model. The same seed and limits give the same problem on every machine. A problem draws every option of struct
 * mha_problem: both types, batches, empty dimensions, grouped heads, identities, all layouts, biases, cache, scale,
 * softcap, causal and windows in both alignments, masks of every kind and broadcast, key masks, lengths, sinks, K and V
 * that are Q itself. Keys that no query may see are poisoned with NaN, infinity and huge numbers (limits.poison). All
 * memory is allocated to the byte, so that a sanitizer sees one element too far.
 *
 * What this does not do: resident layers (make one of the problem's weights), extreme scores, or sizes above the
 * limits.
 */
#ifndef MHA_TESTS_UNIT_SUPPORT_RANDOM_PROBLEM_H
#define MHA_TESTS_UNIT_SUPPORT_RANDOM_PROBLEM_H

#include "../../../core/mha.h"

/* Upper limits, inclusive; 0 means the default in brackets. */
struct random_limits {
    size_t B;        /* [3]  */
    size_t n_q, n_k; /* [9], [12] */
    size_t n_past;   /* [7]  */
    size_t h_kv;     /* [3]  */
    size_t group;    /* [3]  h / h_kv */
    size_t d;        /* [9]  d_k and d_v */
    size_t d_in;     /* [11] widths of inputs and of the output, where a projection leaves them free */
    bool no_poison;  /* leave hidden keys alone */
    bool no_empty;   /* B, n_q, n_k, d_in and d_out >= 1 */
    int dtype;       /* 0 [either], 1 float64 only, 2 float32 only */
};

struct random_problem {
    struct mha_problem problem;
    uint64_t seed, state; /* the seed, and where random_numbers goes on */
    void *owned[48];      /* what free has to free */
    size_t n_owned;
};

/* splitmix64: the next number, and uniform ones made of it. */
uint64_t random_next(uint64_t *state);
double random_unit(uint64_t *state);            /* in [0, 1) */
size_t random_below(uint64_t *state, size_t n); /* in [0, n), n >= 1 */

/* limits may be NULL. Never NULL. */
struct random_problem *random_problem_new(uint64_t seed, const struct random_limits *limits);
void random_problem_free(struct random_problem *r);

/* n more numbers in [-amplitude, amplitude], of the problem's type and lifetime: for problems made by hand. */
void *random_numbers(struct random_problem *r, size_t n, double amplitude);

/* One line: seed, dimensions and options, for the message of a failing test. */
void random_problem_describe(const struct random_problem *r, char *text, size_t size);

/* Which results to allocate. */
enum random_wanted {
    WANT_OUTPUT = 1 << 0,
    WANT_ATTENTION = 1 << 1,
    WANT_HEADS = 1 << 2,
    WANT_PROJECTIONS = 1 << 3,
    WANT_SCORES = 1 << 4,
    WANT_LOGSUMEXP = 1 << 5,
    WANT_CONCAT = 1 << 6,
    WANT_PRESENT = 1 << 7,
    WANT_ALL = (1 << 8) - 1,
    WANT_MEAN = 1 << 8, /* attention_mean */
};

/* Allocates the wanted results of a problem, filled with NaN so that what a run forgets shows; heads_listed NULL lists
 * all. The list is borrowed. */
struct mha_result random_result_new(const struct mha_problem *p, unsigned wanted, const size_t *heads_listed,
                                    size_t n_heads_listed);
void random_result_free(struct mha_result *r);

#endif

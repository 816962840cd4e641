/* SPDX-License-Identifier: Apache-2.0
 *
 * tests/tools/core_hash.c - one hash of the bytes of every result of many random problems: `make check-neon` compares that of
 * this CPU with that of NEON, cross-compiled and run under qemu.
 *
 * Model. FNV-1a over the results of each seed, NaN replaced by zero (its bits are the processor's business); a line per block
 * of seeds, so that a difference can be found. Usage: core_hash [ISA]
 */
#include "../unit/support/evaluate.h"
#include "../unit/support/random_problem.h"

#include <inttypes.h>
#include <stdio.h>

static uint64_t hash_numbers(uint64_t h, enum mha_dtype dtype, const void *x, size_t n) {
    const size_t element = mha_dtype_size(dtype);
    for (size_t k = 0; k < n; k++) {
        const unsigned char *byte = (const unsigned char *)x + k * element;
        const double value = dtype == MHA_F32 ? (double)((const float *)x)[k] : ((const double *)x)[k];
        for (size_t b = 0; b < element; b++) h = (h ^ (value != value ? 0u : byte[b])) * 0x100000001b3u;
    }
    return h;
}

static uint64_t hash_problem(uint64_t h, const struct mha_problem *p) {
    struct mha_result r = random_result_new(p, WANT_ALL, NULL, 0);
    if (evaluate(p, &r, NULL) != MHA_OK) h ^= 1;
    const size_t n_kv = p->n_past + p->n_k, rows = p->B * p->h * p->n_q, keys = p->B * p->h_kv;
    h = hash_numbers(h, p->dtype, r.output, p->B * p->n_q * p->d_out);
    h = hash_numbers(h, p->dtype, r.attention, rows * n_kv);
    h = hash_numbers(h, p->dtype, r.heads, rows * p->d_v);
    h = hash_numbers(h, p->dtype, r.scores, rows * n_kv);
    h = hash_numbers(h, p->dtype, r.logsumexp, rows);
    h = hash_numbers(h, p->dtype, r.present_K, keys * n_kv * p->d_k);
    h = hash_numbers(h, p->dtype, r.present_V, keys * n_kv * p->d_v);
    random_result_free(&r);
    return h;
}

int main(int argc, char **argv) {
    static const struct random_limits limits[] = {
        {0},
        {.B = 2, .n_q = 70, .n_k = 150, .n_past = 140, .d = 20, .d_in = 40, .h_kv = 2},
        {.B = 2, .n_q = 5, .n_k = 20, .n_past = 300, .d = 70, .d_in = 300, .h_kv = 2},
    };
    static const uint64_t seeds[] = {1000, 60, 60};
    if (argc > 1 && !mha_isa_force(argv[1])) {
        fprintf(stderr, "core_hash: this machine has no %s\n", argv[1]);
        return 2;
    }
    fprintf(stderr, "core_hash: %s\n", mha_isa_name());
    for (size_t s = 0; s < 3; s++)
        for (uint64_t first = 1; first <= seeds[s]; first += 20) {
            uint64_t h = 0xcbf29ce484222325u;
            for (uint64_t seed = first; seed < first + 20; seed++) {
                struct random_problem *x = random_problem_new(seed, &limits[s]);
                h = hash_problem(h, &x->problem);
                random_problem_free(x);
            }
            printf("limits %zu seeds %" PRIu64 "..: %016" PRIx64 "\n", s, first, h);
        }
    return 0;
}

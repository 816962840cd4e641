/* SPDX-License-Identifier: Apache-2.0
 *
 * core/reference.c - the obviously right evaluation of struct mha_problem, in float64 and in float32.
 *
 * Model. One body, core/reference_body.h, compiled for each type: long loops in the order of the paper, one pass per
 * step, one query row at a time, nothing blocked, nothing fused. It is what the fast path is tested against, and stays
 * for good.
 *
 * Guarantees: every option of core/mha.h, also together. What is hidden is skipped, never multiplied by zero.
 * What this does not do: check the problem (mha_plan does), run in parallel, or be fast: O(B h n_q n_kv (d_k + d_v)).
 */
#include "mha.h"

#include "failure.h"
#include "layer.h"
#include "layout.h"
#include "visible.h"

#include <math.h>
#include <string.h>

static const char *const stage_names[] = {
    [MHA_STAGE_Q] = "projections.Q", [MHA_STAGE_K] = "projections.K", [MHA_STAGE_V] = "projections.V",
    [MHA_STAGE_SCORES] = "scores",   [MHA_STAGE_HEADS] = "heads",     [MHA_STAGE_OUTPUT] = "output",
};

enum mha_error mha_failure_verdict(const struct mha_failure *failure, struct mha_detail *detail) {
    *detail = (struct mha_detail){.code = MHA_OK};
    if (failure->stage == MHA_STAGE_NONE) return MHA_OK;
    detail->code = MHA_ERR_NON_FINITE;
    detail->field = stage_names[failure->stage];
    detail->rank = failure->rank;
    memcpy(detail->index, failure->index, sizeof detail->index);
    return MHA_ERR_NON_FINITE;
}

void mha_count_masked_rows(const struct mha_problem *p, struct mha_result *r) {
    r->masked_rows = 0;
    memset(r->masked_first, 0, sizeof r->masked_first);
    for (size_t b = 0; b < p->B; b++)
        for (size_t head = 0; head < p->h; head++)
            for (size_t i = 0; i < p->n_q; i++) {
                if (mha_row_sees(p, b, head, i)) continue;
                if (r->masked_rows++ > 0) continue;
                r->masked_first[0] = b;
                r->masked_first[1] = head;
                r->masked_first[2] = i;
            }
}

/* The next `count` elements of the workspace, so that what follows stays aligned. */
static void *carve(char **at, size_t count, size_t element) {
    void *here = *at;
    *at += (count * element + (MHA_ALIGN - 1)) / MHA_ALIGN * MHA_ALIGN;
    return here;
}

#define REAL    double
#define EXP     exp
#define LOG     log
#define TANH    tanh
#define NAME(x) x##_f64
#include "reference_body.h"
#undef REAL
#undef EXP
#undef LOG
#undef TANH
#undef NAME

#define REAL    float
#define EXP     expf
#define LOG     logf
#define TANH    tanhf
#define NAME(x) x##_f32
#include "reference_body.h"
#undef REAL
#undef EXP
#undef LOG
#undef TANH
#undef NAME

/* total += dims' product * element, rounded up to MHA_ALIGN. False: does not fit. */
static bool add_bytes(size_t *total, size_t a, size_t b, size_t c, size_t d, size_t element) {
    const size_t factor[] = {b, c, d, element};
    size_t bytes = a;
    for (size_t f = 0; f < sizeof factor / sizeof factor[0]; f++)
        if (__builtin_mul_overflow(bytes, factor[f], &bytes)) return false;
    if (__builtin_add_overflow(bytes, (size_t)MHA_ALIGN - 1, &bytes)) return false;
    bytes -= bytes % MHA_ALIGN;
    return !__builtin_add_overflow(*total, bytes, total) && *total <= PTRDIFF_MAX;
}

size_t mha_reference_need(const struct mha_problem *p) {
    size_t n_kv, total = 0, element = mha_dtype_size(p->dtype);
    bool fits = !__builtin_add_overflow(p->n_past, p->n_k, &n_kv);
    fits = fits && add_bytes(&total, p->B, p->h, p->n_q, p->d_k, element);  /* Q'          */
    fits = fits && add_bytes(&total, p->B, p->h_kv, n_kv, p->d_k, element); /* K'          */
    fits = fits && add_bytes(&total, p->B, p->h_kv, n_kv, p->d_v, element); /* V'          */
    fits = fits && add_bytes(&total, p->B, p->n_q, p->h, p->d_v, element);  /* context     */
    fits = fits && add_bytes(&total, n_kv, 1, 1, 1, element);               /* one row     */
    fits = fits && add_bytes(&total, n_kv, 1, 1, 1, 1);                     /* its visible */
    fits = fits && (p->layer == NULL || !__builtin_add_overflow(total, mha_layer_plain_bytes(p->layer), &total));
    return fits ? total : SIZE_MAX;
}

enum mha_error mha_reference(const struct mha_problem *problem, struct mha_result *result, void *workspace) {
    /* Without rows of any kind no memory bounds B, so it must not be counted through: there is nothing to compute. */
    if (problem->n_q == 0 && mha_n_kv(problem) == 0) {
        result->masked_rows = 0;
        memset(result->masked_first, 0, sizeof result->masked_first);
        return mha_failure_verdict(&MHA_NO_FAILURE, &result->detail);
    }
    return problem->dtype == MHA_F32 ? evaluate_f32(problem, result, workspace)
                                     : evaluate_f64(problem, result, workspace);
}

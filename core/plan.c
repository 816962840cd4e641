/* SPDX-License-Identifier: Apache-2.0
 *
 * core/plan.c - mha_plan: checks a problem (core/check.c), asks core/run.c for the workspace, and counts work and
 * traffic.
 *
 * Model. Work is counted from shapes alone, in doubles, because they only choose between paths and make percentages of
 * peak: 2 flops a multiply-add, visible keys only for causal, windows and key_lengths (masks are data, and are not read
 * here). The number of visible (query, key) pairs has a closed form, so that a hostile n_q cannot make planning slow.
 */
#include "mha.h"

#include "check.h"
#include "visible.h"
#include "workspace.h"

const char *mha_error_text(enum mha_error code) {
    static const char *const texts[] = {
        [MHA_OK] = "no error",
        [MHA_ERR_DIMENSION] = "a dimension is impossible",
        [MHA_ERR_POINTER] = "a tensor that the problem needs is missing",
        [MHA_ERR_OPTION] = "an option is out of range",
        [MHA_ERR_OVERFLOW] = "the tensors are too large to address",
        [MHA_ERR_MEMORY] = "memory is short",
        [MHA_ERR_CANCELLED] = "the computation was cancelled",
        [MHA_ERR_NON_FINITE] = "the result is NaN or infinite",
    };
    size_t index = (size_t)code;
    return index < sizeof texts / sizeof texts[0] ? texts[index] : "unknown error";
}

/* Sum over i = 0 .. n-1 of clamp(i + a, 0, top): nothing before `first`, a ramp up to `last`, top from there on. */
static double ramp_sum(double n, double a, double top) {
    double first = a < 0 ? -a : 0, last = top - a;
    if (first > n) first = n;
    if (last < first) last = first;
    if (last > n) last = n;
    double ramp = (last - first) * a + (last * (last - 1) - first * (first - 1)) / 2;
    return ramp + (n - last) * top;
}

/* Visible (query, key) pairs of sample b in one head, by causal, window and length. */
static double visible_pairs(const struct mha_problem *p, size_t b) {
    double n = (double)p->n_q, keys = (double)mha_keys_of(p, b), offset = (double)mha_offset_of(p, b);
    double end = keys, begin = -n;
    if (p->causal) end = offset + 1;
    if (p->window) {
        double right = offset + (double)mha_reach(p->window_right) + 1;
        if (!p->causal || right < end) end = right;
        begin = offset - (double)mha_reach(p->window_left);
    }
    double below_end = p->causal || p->window ? ramp_sum(n, end, keys) : n * keys;
    return below_end - ramp_sum(n, begin, keys);
}

static double all_visible_pairs(const struct mha_problem *p) {
    double pairs = 0;
    if (p->B == 0) return 0;
    if (p->key_lengths == NULL) return (double)p->B * visible_pairs(p, 0);
    for (size_t b = 0; b < p->B; b++) pairs += visible_pairs(p, b);
    return pairs;
}

/* Multiply-adds of x W for rows of a width. 0 without W. */
static double projection_work(bool there, size_t B, size_t n, size_t in, size_t heads, size_t d) {
    return there ? (double)B * (double)n * (double)in * (double)heads * (double)d : 0;
}

static double count_flops(const struct mha_problem *p) {
    const struct mha_weights *w = &p->weights;
    bool all = p->layer != NULL;
    double work = projection_work(all || w->W_q != NULL, p->B, p->n_q, p->d_q, p->h, p->d_k) +
                  projection_work(all || w->W_k != NULL, p->B, p->n_k, p->d_kin, p->h_kv, p->d_k) +
                  projection_work(all || w->W_v != NULL, p->B, p->n_k, p->d_vin, p->h_kv, p->d_v) +
                  projection_work(all || w->W_o != NULL, p->B, p->n_q, p->d_out, p->h, p->d_v);
    return 2 * (work + (double)p->h * (double)(p->d_k + p->d_v) * all_visible_pairs(p));
}

/* Inputs, weights and cache once, the output once. */
static double count_bytes(const struct mha_problem *p) {
    double B = (double)p->B, n_q = (double)p->n_q, n_k = (double)p->n_k, d_k = (double)p->d_k, d_v = (double)p->d_v;
    double h = (double)p->h, h_kv = (double)p->h_kv;
    double in = B * (n_q * (double)p->d_q + n_k * (double)p->d_kin + n_k * (double)p->d_vin);
    double cache = B * h_kv * (double)p->n_past * (d_k + d_v);
    double weights = (double)p->d_q * h * d_k + (double)p->d_kin * h_kv * d_k + (double)p->d_vin * h_kv * d_v +
                     h * d_v * (double)p->d_out;
    return (in + cache + weights + B * n_q * (double)p->d_out) * (double)mha_dtype_size(p->dtype);
}

enum mha_error mha_plan(const struct mha_problem *problem, const struct mha_result *result, size_t threads,
                        struct mha_need *need, struct mha_detail *detail) {
    *need = (struct mha_need){0};
    enum mha_error error = mha_check(problem, result, threads, detail);
    if (error != MHA_OK) return error;
    need->workspace = mha_run_need(problem, result, threads);
    if (need->workspace == SIZE_MAX) {
        *detail = (struct mha_detail){.code = MHA_ERR_OVERFLOW, .field = "workspace"};
        return MHA_ERR_OVERFLOW;
    }
    need->flops = count_flops(problem);
    need->bytes = count_bytes(problem);
    return MHA_OK;
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * core/fused.c - the fast evaluation: which regions a problem becomes, how they are cut into tasks, where everything lies.
 *
 * Model. Weights that came with the problem are packed once. Then the batch is taken in chunks of samples, and a chunk
 * in groups of key/value heads, so that the projected Q', K', V' of what is in work stay near GROUP_BYTES:
 *     pack                                      (inline weights only)
 *     for each chunk of samples:
 *         for each group of key/value heads:
 *             project    Q', K', V' of the group, head by head, [n, d] each
 *             attend     context of its query heads, into [n_q, h*d_v] rows
 *         output         context times W_o
 *     cache              past and new keys copied into `present`
 * Where a result is wanted that is just one of these, it is computed in place. A task is cut to about TASK_FLOPS, or
 * smaller where all threads would not get several; which cut is made never changes a bit (core/kernels/kernels.h).
 *
 * Failures. Kernels tell when a number is not finite; the place is looked up only then, and the earliest is kept under a
 * lock that no finite run ever takes.
 *
 * What this does not do: arithmetic (core/kernels), checks (core/check.c).
 */
#include "fused.h"

#include "failure.h"
#include "kernels/kernels.h"
#include "layer.h"
#include "layout.h"
#include "visible.h"
#include "workspace.h"

#include <math.h>
#include <string.h>

#define GROUP_BYTES ((size_t)12 << 20)  /* Q', K', V' in work, where they are not results */
#define CACHE_BYTES ((size_t)512 << 10) /* a second-level cache, and its ways */
#define CACHE_WAYS  8
#define TASK_FLOPS  4e7
#define LEAST_FLOPS 5e5
enum {
    PANELS_AT_ONCE = 8,   /* panels of queries that share a pass over the keys */
    TASKS_PER_THREAD = 5, /* wanted at least, where there is enough work */
    MOST_ROWS = 192,
    ROW_STEP = 24, /* rows of a task are a multiple of this: no small tiles inside */
    PACK_ELEMENTS = 1 << 16
};

/* A region's part that is one product: [n_rows, n_in] times panels [panel, panel + n_panels), cut into row_tasks x
 * panel_tasks. */
struct product {
    struct mha_projection p;
    enum mha_tensor tensor;
    size_t n_rows, panel, n_panels;
    size_t rows_per_task, panels_per_task;
    size_t row_tasks, panel_tasks;
    size_t b, g; /* first sample, first key/value head, for the message */
};

enum phase { PHASE_BEGIN = 0, PHASE_PACK, PHASE_PROJECT, PHASE_ATTEND, PHASE_OUTPUT, PHASE_CACHE, PHASE_END };

/* Sizes that are settled before the workspace is laid out. */
struct fused_plan {
    struct mha_needs needs;
    size_t samples, groups, heads; /* samples of a chunk; groups, key/value heads of one */
    size_t panels;                 /* panels of queries of one task */
    size_t packed[TENSORS];        /* bytes of each packed weight */
    size_t q, k, v, context;       /* bytes of the buffers, 0 where a result serves or nothing is needed */
    size_t scratch;                /* bytes of one slot */
    size_t total;
};

struct fused {
    const struct mha_kernels *kernels;
    struct fused_plan plan;
    const void *weight[TENSORS];         /* packed; NULL: identity */
    struct mha_weight_view raw[TENSORS]; /* as it came, where that serves; W NULL: not so */
    const void *bias[TENSORS];
    char *pack_to[TENSORS]; /* where inline weights get packed; NULL: nothing to pack */
    char *q, *k, *v, *context, *scratch;

    /* where the chain stands */
    enum phase phase;
    size_t chunk, group;
    struct product product[3]; /* of the open region */
    size_t n_products;

    atomic_flag lock; /* of the rest */
    struct mha_failure failure;
};

static struct fused *fused_of(struct mha_run *run) { return run->state; }

static size_t smaller(size_t a, size_t b) { return a < b ? a : b; }
static size_t larger(size_t a, size_t b) { return a > b ? a : b; }
static size_t ceil_div(size_t a, size_t b) { return a / b + (a % b != 0); }

/* ---- failures ---------------------------------------------------------------------------------------------------- */

static void lock(struct fused *f) {
    while (atomic_flag_test_and_set_explicit(&f->lock, memory_order_acquire)) {
    }
}

static void unlock(struct fused *f) { atomic_flag_clear_explicit(&f->lock, memory_order_release); }

static void note_failure(void *arg, struct mha_failure found) {
    struct fused *f = arg;
    lock(f);
    mha_failure_note(&f->failure, found);
    unlock(f);
}

static bool is_before_known(struct fused *f, const struct mha_failure *found) {
    lock(f);
    const bool before = mha_failure_before(found, &f->failure);
    unlock(f);
    return before;
}

static bool element_is_finite(enum mha_dtype dtype, const void *tensor, size_t index) {
    return dtype == MHA_F32 ? isfinite(((const float *)tensor)[index]) : isfinite(((const double *)tensor)[index]);
}

/* Does anybody see row i of a head of sample b? */
static bool row_counts(const struct mha_problem *p, enum mha_tensor tensor, size_t b, size_t head, size_t i) {
    if (tensor == T_O) return true;
    if (tensor == T_Q) return mha_row_sees(p, b, head, i);
    return mha_key_is_seen(p, b, head, p->n_past + i);
}

/* Columns [begin, end) of a head of one row of a product: notes the first number that is not finite. */
static void note_row(struct mha_run *run, const struct product *x, size_t row, size_t head, size_t begin, size_t end) {
    static const enum mha_stage stages[] = {MHA_STAGE_Q, MHA_STAGE_K, MHA_STAGE_V, MHA_STAGE_OUTPUT};
    const struct mha_projection *p = &x->p;
    const size_t at = row / p->n * p->y_sample + row % p->n * p->y_row + (head - p->head_begin) * p->y_head;
    const size_t b = x->b + row / p->n, i = row % p->n;
    for (size_t c = begin; c < end; c++) {
        if (element_is_finite(run->problem->dtype, p->y, at + c)) continue;
        struct mha_failure found = {stages[x->tensor], 4, {b, head, i, c}};
        if (x->tensor == T_O) found = (struct mha_failure){MHA_STAGE_OUTPUT, 3, {b, i, c, 0}};
        if (is_before_known(fused_of(run), &found) && row_counts(run->problem, x->tensor, b, head, i))
            note_failure(fused_of(run), found);
        return;
    }
}

/* The same for rows and panels of a task: nothing else of y need be there yet. */
static void note_block(struct mha_run *run, const struct product *x, size_t row, size_t row_end, size_t panel,
                       size_t panel_end) {
    const size_t nr = fused_of(run)->kernels->nr, d = x->p.d;
    for (size_t head = x->p.head_begin; head < x->p.head_end; head++) {
        const size_t begin = larger(panel * nr, head * d), end = smaller(panel_end * nr, (head + 1) * d);
        for (size_t r = row; begin < end && r < row_end; r++)
            note_row(run, x, r, head, begin - head * d, end - head * d);
    }
}

/* ---- products ---------------------------------------------------------------------------------------------------- */

static size_t panels_of(const struct fused *f, size_t columns) { return ceil_div(columns, f->kernels->nr); }

/* Rows of x whose blocks of MHA_BLOCK terms fit three quarters of a second-level cache. Rows that lie a power of two apart
 * share its sets: of a stride that 2^k divides, a block of c bytes uses c / 2^k of them. */
static size_t rows_in_cache(const struct product *x, size_t element) {
    const size_t block = smaller(larger(x->p.n_in, 1), MHA_BLOCK) * element, stride = larger(x->p.x_row, 1) * element;
    const size_t apart = smaller(stride & (~stride + 1), CACHE_BYTES / CACHE_WAYS);
    const size_t bytes = CACHE_BYTES / 4 * 3;
    return smaller(apart > block ? bytes / apart : bytes / block, MOST_ROWS);
}

/* Cuts a product into tasks of about `flops`. */
static void cut_product(const struct fused *f, struct product *x, double flops) {
    size_t rows = rows_in_cache(x, mha_dtype_size(f->kernels->dtype)) / ROW_STEP * ROW_STEP;
    rows = smaller(larger(rows, ROW_STEP), larger(x->n_rows, 1));
    rows = ceil_div(x->n_rows, larger(ceil_div(x->n_rows, rows), 1)); /* even blocks */
    x->rows_per_task = larger(ceil_div(rows, 4) * 4, 1);
    const double panel_flops = 2.0 * (double)x->rows_per_task * (double)larger(x->p.n_in, 1) * (double)f->kernels->nr;
    const double panels = flops / panel_flops;
    x->panels_per_task = panels < 1 ? 1 : panels > (double)x->n_panels ? x->n_panels : (size_t)panels;
    if (x->panels_per_task > 0) /* even blocks */
        x->panels_per_task = ceil_div(x->n_panels, ceil_div(x->n_panels, x->panels_per_task));
    x->row_tasks = ceil_div(x->n_rows, x->rows_per_task);
    x->panel_tasks = x->n_panels == 0 ? 0 : ceil_div(x->n_panels, x->panels_per_task);
}

static double product_flops(const struct product *x) {
    return 2.0 * (double)x->n_rows * (double)larger(x->p.n_in, 1) *
           (double)((x->p.head_end - x->p.head_begin) * x->p.d);
}

/* Cuts the open region's products; returns how many tasks they are. */
static size_t cut_products(const struct mha_run *run, struct fused *f) {
    double all = 0;
    for (size_t x = 0; x < f->n_products; x++) all += product_flops(&f->product[x]);
    double flops = all / (double)(run->threads * TASKS_PER_THREAD);
    if (run->threads == 1 || flops > TASK_FLOPS) flops = TASK_FLOPS;
    if (flops < LEAST_FLOPS) flops = LEAST_FLOPS;
    size_t tasks = 0;
    for (size_t x = 0; x < f->n_products; x++) {
        cut_product(f, &f->product[x], flops);
        tasks += f->product[x].row_tasks * f->product[x].panel_tasks;
    }
    return tasks;
}

static void product_task(struct mha_run *run, size_t task, size_t slot) {
    (void)slot;
    struct fused *f = fused_of(run);
    const struct product *x = f->product;
    while (task >= x->row_tasks * x->panel_tasks) task -= x->row_tasks * x->panel_tasks, x++;
    /* neighbours in time share rows */
    const size_t row = task / x->panel_tasks * x->rows_per_task;
    const size_t panel = x->panel + task % x->panel_tasks * x->panels_per_task;
    const size_t row_end = smaller(row + x->rows_per_task, x->n_rows);
    const size_t panel_end = smaller(panel + x->panels_per_task, x->panel + x->n_panels);
    if (f->kernels->project(&x->p, row, row_end, panel, panel_end)) return;
    note_block(run, x, row, row_end, panel, panel_end);
}

/* Adds x W + b of heads [head, head_end) to the open region. y: as in struct mha_projection. */
static void add_product(struct fused *f, enum mha_tensor tensor, struct mha_projection p, size_t n_rows, size_t b,
                        size_t g) {
    p.panels = f->weight[tensor];
    p.raw = f->raw[tensor].W != NULL ? &f->raw[tensor] : NULL;
    p.bias = f->bias[tensor];
    struct product x = {.p = p, .tensor = tensor, .n_rows = n_rows, .b = b, .g = g};
    x.panel = p.head_begin * p.d / f->kernels->nr;
    x.n_panels = panels_of(f, p.head_end * p.d) - x.panel;
    if (p.head_begin == p.head_end || p.d == 0) x.n_panels = 0;
    f->product[f->n_products++] = x;
}

/* ---- where things are -------------------------------------------------------------------------------------------- */

/* The open round: samples [b, b_end), key/value heads [g, g_end). */
struct round {
    size_t b, b_end, g, g_end;
};

static struct round round_of(const struct mha_run *run, const struct fused *f) {
    const struct mha_problem *p = run->problem;
    const size_t b = f->chunk * f->plan.samples, g = f->group * f->plan.heads;
    return (struct round){b, smaller(b + f->plan.samples, p->B), g, smaller(g + f->plan.heads, p->h_kv)};
}

/* A projected tensor: element (sample, head, row, c) at base[sample*y_sample + head*y_head + row*d + c], sample and head
 * counted from the round's first. */
struct place {
    char *base;
    size_t y_sample, y_head;
};

/* In a result or buffer [samples, heads, rows, d], from (b, head, row) on. */
static struct place place_in(void *tensor, size_t element, size_t heads, size_t rows, size_t d, size_t b, size_t head,
                             size_t row) {
    char *base = tensor; /* NULL where nothing needs it; even NULL + 0 is not allowed */
    if (base != NULL) base += ((b * heads + head) * rows + row) * d * element;
    return (struct place){base, heads * rows * d, rows * d};
}

static struct place place_q(const struct mha_run *run, const struct fused *f, struct round at) {
    const struct mha_problem *p = run->problem;
    const size_t element = mha_dtype_size(p->dtype), group = p->h / p->h_kv;
    if (run->result->proj_Q != NULL)
        return place_in(run->result->proj_Q, element, p->h, p->n_q, p->d_k, at.b, at.g * group, 0);
    return place_in(f->q, element, f->plan.heads * group, p->n_q, p->d_k, 0, 0, 0);
}

/* K' or V' of the new keys: in the projections, else in the cache to return, else in the buffer. */
static struct place place_new(const struct mha_run *run, const struct fused *f, struct round at, void *projection,
                              void *present, void *buffer, size_t d) {
    const struct mha_problem *p = run->problem;
    const size_t element = mha_dtype_size(p->dtype);
    if (projection != NULL) return place_in(projection, element, p->h_kv, p->n_k, d, at.b, at.g, 0);
    if (present != NULL) return place_in(present, element, p->h_kv, mha_n_kv(p), d, at.b, at.g, p->n_past);
    return place_in(buffer, element, f->plan.heads, p->n_k, d, 0, 0, 0);
}

static struct place place_k(const struct mha_run *run, const struct fused *f, struct round at) {
    return place_new(run, f, at, run->result->proj_K, run->result->present_K, f->k, run->problem->d_k);
}

static struct place place_v(const struct mha_run *run, const struct fused *f, struct round at) {
    return place_new(run, f, at, run->result->proj_V, run->result->present_V, f->v, run->problem->d_v);
}

/* Is the context itself the output? */
static bool context_is_output(const struct mha_problem *p, const struct mha_result *r) {
    if (r->output == NULL || r->concat != NULL) return false;
    return p->layer != NULL ? mha_layer_packed(p->layer, T_O) == NULL && mha_layer_bias(p->layer, T_O) == NULL
                            : p->weights.W_o == NULL && p->weights.b_o == NULL;
}

/* Context rows [n_q, h*d_v] of sample b. */
static char *context_of(const struct mha_run *run, const struct fused *f, size_t b) {
    const struct mha_problem *p = run->problem;
    const size_t sample = p->n_q * p->h * p->d_v * mha_dtype_size(p->dtype);
    if (run->result->concat != NULL) return (char *)run->result->concat + b * sample;
    if (context_is_output(p, run->result)) return (char *)run->result->output + b * sample;
    return f->context == NULL ? NULL : f->context + (b - f->chunk * f->plan.samples) * sample;
}

/* ---- regions ----------------------------------------------------------------------------------------------------- */

static size_t pack_blocks(const struct fused *f, const struct mha_weight_view *view, size_t *per_task) {
    *per_task = larger(PACK_ELEMENTS / larger(view->n_in * f->kernels->nr, 1), 1);
    return ceil_div(panels_of(f, view->heads * view->d), *per_task);
}

static size_t pack_tasks(const struct mha_run *run, const struct fused *f) {
    size_t tasks = 0, per_task;
    for (int t = 0; t < TENSORS; t++) {
        const struct mha_weight_view view = mha_view_of_weight(run->problem, (enum mha_tensor)t);
        if (f->pack_to[t] != NULL) tasks += pack_blocks(f, &view, &per_task);
    }
    return tasks;
}

static void pack_task(struct mha_run *run, size_t task, size_t slot) {
    (void)slot;
    const struct fused *f = fused_of(run);
    for (int t = 0; t < TENSORS; t++) {
        if (f->pack_to[t] == NULL) continue;
        const struct mha_weight_view view = mha_view_of_weight(run->problem, (enum mha_tensor)t);
        size_t per_task;
        const size_t blocks = pack_blocks(f, &view, &per_task);
        if (task < blocks) {
            const size_t end = smaller((task + 1) * per_task, panels_of(f, view.heads * view.d));
            f->kernels->pack(&view, f->pack_to[t], task * per_task, end);
            return;
        }
        task -= blocks;
    }
}

/* x[b] of an input [B, n, d_in]. */
static const void *input_of(const struct mha_problem *p, const void *x, size_t b, size_t n, size_t d_in) {
    return (const char *)x + b * n * d_in * mha_dtype_size(p->dtype);
}

static size_t open_projections(const struct mha_run *run, struct fused *f) {
    const struct mha_problem *p = run->problem;
    const struct round at = round_of(run, f);
    const size_t samples = at.b_end - at.b, group = p->h / p->h_kv;
    const struct place q = place_q(run, f, at), k = place_k(run, f, at), v = place_v(run, f, at);
    f->n_products = 0;
    if (f->plan.needs.proj_Q)
        add_product(f, T_Q,
                    (struct mha_projection){.x = input_of(p, p->Q, at.b, p->n_q, p->d_q),
                                            .x_row = p->d_q,
                                            .n_in = p->d_q,
                                            .heads = p->h,
                                            .d = p->d_k,
                                            .head_begin = at.g * group,
                                            .head_end = at.g_end * group,
                                            .y = q.base,
                                            .n = p->n_q,
                                            .y_sample = q.y_sample,
                                            .y_row = p->d_k,
                                            .y_head = q.y_head},
                    samples * p->n_q, at.b, at.g);
    if (f->plan.needs.proj_K)
        add_product(f, T_K,
                    (struct mha_projection){.x = input_of(p, p->K, at.b, p->n_k, p->d_kin),
                                            .x_row = p->d_kin,
                                            .n_in = p->d_kin,
                                            .heads = p->h_kv,
                                            .d = p->d_k,
                                            .head_begin = at.g,
                                            .head_end = at.g_end,
                                            .y = k.base,
                                            .n = p->n_k,
                                            .y_sample = k.y_sample,
                                            .y_row = p->d_k,
                                            .y_head = k.y_head},
                    samples * p->n_k, at.b, at.g);
    if (f->plan.needs.proj_V)
        add_product(f, T_V,
                    (struct mha_projection){.x = input_of(p, p->V, at.b, p->n_k, p->d_vin),
                                            .x_row = p->d_vin,
                                            .n_in = p->d_vin,
                                            .heads = p->h_kv,
                                            .d = p->d_v,
                                            .head_begin = at.g,
                                            .head_end = at.g_end,
                                            .y = v.base,
                                            .n = p->n_k,
                                            .y_sample = v.y_sample,
                                            .y_row = p->d_v,
                                            .y_head = v.y_head},
                    samples * p->n_k, at.b, at.g);
    return cut_products(run, f);
}

/* With attention_mean one task takes all heads of its queries, one after the other, because they add to the same row. */
static bool means_heads(const struct mha_run *run) {
    return run->result->attention != NULL && run->result->attention_mean;
}

/* Blocks of panels that one (sample, key/value head) is cut into; for a mean: that one sample is cut into. */
static size_t attend_blocks(const struct mha_run *run, const struct fused *f) {
    const size_t panels = f->kernels->attend_panels(run->problem), group = run->problem->h / run->problem->h_kv;
    if (!means_heads(run)) return ceil_div(panels, f->plan.panels);
    return run->problem->n_q < f->kernels->nr ? smaller(panels, 1) : panels / group;
}

static size_t open_attention(const struct mha_run *run, struct fused *f) {
    const struct round at = round_of(run, f);
    if (!f->plan.needs.scores) return 0;
    return (at.b_end - at.b) * (means_heads(run) ? 1 : at.g_end - at.g) * attend_blocks(run, f);
}

static struct mha_rows rows_of(const struct mha_problem *p, const void *past, struct place new, size_t d,
                               struct round at, size_t b, size_t g) {
    const size_t element = mha_dtype_size(p->dtype);
    struct mha_rows rows = {0};
    if (past != NULL) rows.past = (const char *)past + (b * p->h_kv + g) * p->n_past * d * element;
    if (new.base != NULL) rows.fresh = new.base + ((b - at.b) * new.y_sample + (g - at.g) * new.y_head) * element;
    return rows;
}

static struct mha_attention attention_of(struct mha_run *run, size_t b, size_t g) {
    struct fused *f = fused_of(run);
    const struct mha_problem *p = run->problem;
    const struct round at = round_of(run, f);
    const struct place q = place_q(run, f, at);
    const size_t element = mha_dtype_size(p->dtype), group = p->h / p->h_kv;
    return (struct mha_attention){
        .problem = p,
        .result = run->result,
        .b = b,
        .g = g,
        .q = q.base + ((b - at.b) * q.y_sample + (g - at.g) * group * q.y_head) * element,
        .q_head = q.y_head,
        .k = rows_of(p, p->past_K, place_k(run, f, at), p->d_k, at, b, g),
        .v = rows_of(p, p->past_V, place_v(run, f, at), p->d_v, at, b, g),
        .context = f->plan.needs.heads ? context_of(run, f, b) : NULL,
        .stop = &run->cancelled,
        .note = note_failure,
        .note_arg = f,
    };
}

static void attend_task(struct mha_run *run, size_t task, size_t slot) {
    const struct fused *f = fused_of(run);
    const struct mha_problem *p = run->problem;
    const struct round at = round_of(run, f);
    const size_t blocks = attend_blocks(run, f), heads = at.g_end - at.g, pairs = (at.b_end - at.b) * heads;
    /* causal: the longest first, so that the last to finish are short; else neighbours in time share keys */
    const size_t block = p->causal ? blocks - 1 - task / pairs : task % blocks;
    const size_t pair = p->causal ? task % pairs : task / blocks;
    const struct mha_attention a = attention_of(run, at.b + pair / heads, at.g + pair % heads);
    const size_t panels = f->kernels->attend_panels(p);
    f->kernels->attend(&a, block * f->plan.panels, smaller((block + 1) * f->plan.panels, panels),
                       f->scratch + slot * f->plan.scratch);
}

static void attend_mean_task(struct mha_run *run, size_t task, size_t slot) {
    const struct fused *f = fused_of(run);
    const struct mha_problem *p = run->problem;
    const struct round at = round_of(run, f);
    const size_t blocks = attend_blocks(run, f), panels = f->kernels->attend_panels(p);
    char *scratch = f->scratch + slot * f->plan.scratch;
    for (size_t g = at.g; g < at.g_end && !mha_run_stopped(run); g++) {
        const struct mha_attention a = attention_of(run, at.b + task / blocks, g);
        const size_t step = p->n_q < f->kernels->nr ? 1 : blocks;
        for (size_t panel = task % blocks; panel < panels; panel += step)
            f->kernels->attend(&a, panel, panel + 1, scratch);
    }
}

static size_t open_output(const struct mha_run *run, struct fused *f) {
    const struct mha_problem *p = run->problem;
    const struct round at = round_of(run, f);
    f->n_products = 0;
    if (!f->plan.needs.output || context_is_output(p, run->result)) return 0;
    add_product(
        f, T_O,
        (struct mha_projection){.x = context_of(run, f, at.b),
                                .x_row = p->h * p->d_v,
                                .n_in = p->h * p->d_v,
                                .heads = 1,
                                .d = p->d_out,
                                .head_begin = 0,
                                .head_end = 1,
                                .y = (char *)run->result->output + at.b * p->n_q * p->d_out * mha_dtype_size(p->dtype),
                                .n = p->n_q,
                                .y_sample = p->n_q * p->d_out,
                                .y_row = p->d_out},
        (at.b_end - at.b) * p->n_q, at.b, 0);
    return cut_products(run, f);
}

/* ---- the cache to return ----------------------------------------------------------------------------------------- */

static size_t cache_tasks(const struct mha_run *run) {
    const struct mha_problem *p = run->problem;
    return run->result->present_K != NULL || run->result->present_V != NULL ? p->B * p->h_kv : 0;
}

static void copy_cache(const struct mha_problem *p, void *present, const void *past, const void *projection, size_t d,
                       size_t bg) {
    const size_t row = d * mha_dtype_size(p->dtype);
    if (present == NULL || row == 0) return;
    char *to = (char *)present + bg * mha_n_kv(p) * row;
    if (p->n_past > 0) memcpy(to, (const char *)past + bg * p->n_past * row, p->n_past * row);
    if (projection != NULL && p->n_k > 0)
        memcpy(to + p->n_past * row, (const char *)projection + bg * p->n_k * row, p->n_k * row);
}

static void cache_task(struct mha_run *run, size_t task, size_t slot) {
    (void)slot;
    const struct mha_problem *p = run->problem;
    const struct mha_result *r = run->result;
    copy_cache(p, r->present_K, p->past_K, r->proj_K, p->d_k, task);
    copy_cache(p, r->present_V, p->past_V, r->proj_V, p->d_v, task);
}

/* ---- the chain --------------------------------------------------------------------------------------------------- */

/* Goes from one phase to the next: through the groups of a chunk, then the chunks. */
static void advance(const struct mha_run *run, struct fused *f) {
    if (f->phase == PHASE_ATTEND && ++f->group < f->plan.groups) {
        f->phase = PHASE_PROJECT;
        return;
    }
    if (f->phase == PHASE_OUTPUT && ++f->chunk < ceil_div(run->problem->B, f->plan.samples)) {
        f->phase = PHASE_PROJECT;
        f->group = 0;
        return;
    }
    f->phase++;
}

static struct mha_region open_phase(const struct mha_run *run, struct fused *f) {
    switch (f->phase) {
    case PHASE_PACK:
        return (struct mha_region){pack_tasks(run, f), pack_task};
    case PHASE_PROJECT:
        return (struct mha_region){open_projections(run, f), product_task};
    case PHASE_ATTEND:
        return (struct mha_region){open_attention(run, f), means_heads(run) ? attend_mean_task : attend_task};
    case PHASE_OUTPUT:
        return (struct mha_region){open_output(run, f), product_task};
    case PHASE_CACHE:
        return (struct mha_region){cache_tasks(run), cache_task};
    case PHASE_BEGIN:
    case PHASE_END:
        break;
    }
    return (struct mha_region){0};
}

/* Opens the next phase that has tasks. False: the end. */
static bool next_region(struct mha_run *run) {
    struct fused *f = fused_of(run);
    if (run->problem->B == 0) return false;
    while (f->phase != PHASE_END) {
        advance(run, f);
        const struct mha_region region = open_phase(run, f);
        if (region.n_tasks == 0) continue;
        run->region[0] = region;
        run->n_regions = 1;
        return true;
    }
    return false;
}

static enum mha_error conclude(struct mha_run *run) {
    mha_count_masked_rows(run->problem, run->result);
    return mha_failure_verdict(&fused_of(run)->failure, &run->result->detail);
}

/* ---- sizes ------------------------------------------------------------------------------------------------------- */

/* a*b*c*d. False: does not fit. */
static bool product_of(size_t a, size_t b, size_t c, size_t d, size_t *product) {
    return !__builtin_mul_overflow(a, b, product) && !__builtin_mul_overflow(*product, c, product) &&
           !__builtin_mul_overflow(*product, d, product);
}

/* Adds bytes, rounded up to MHA_ALIGN. False: does not fit. */
static bool add_aligned(size_t *total, size_t bytes) {
    return !__builtin_add_overflow(bytes, (size_t)MHA_ALIGN - 1, &bytes) &&
           !__builtin_add_overflow(*total, bytes / MHA_ALIGN * MHA_ALIGN, total);
}

/* Samples of a chunk and key/value heads of a group, so that `head_bytes` of each and `sample_bytes` of each sample stay
 * near GROUP_BYTES. */
static void plan_rounds(const struct mha_problem *p, size_t head_bytes, size_t sample_bytes, struct fused_plan *plan) {
    plan->heads = head_bytes == 0 ? p->h_kv : smaller(larger(GROUP_BYTES / head_bytes, 1), p->h_kv);
    plan->heads = ceil_div(p->h_kv, ceil_div(p->h_kv, plan->heads)); /* even groups */
    plan->groups = ceil_div(p->h_kv, plan->heads);
    plan->samples = 1;
    if (plan->groups > 1) return;
    const size_t bytes = head_bytes * p->h_kv + sample_bytes; /* both are below 2^61 */
    plan->samples = bytes == 0 ? larger(p->B, 1) : smaller(larger(GROUP_BYTES / bytes, 1), larger(p->B, 1));
}

/* The weight that came with the problem, or NULL. */
static const void *inline_weight(const struct mha_problem *p, enum mha_tensor tensor) {
    const struct mha_weights *w = &p->weights;
    const void *const weights[TENSORS] = {w->W_q, w->W_k, w->W_v, w->W_o};
    return p->layer == NULL ? weights[tensor] : NULL;
}

/* Is it read by few rows only? */
static bool is_raw(const struct mha_problem *p, enum mha_tensor tensor) {
    const bool of_queries = tensor == T_Q || tensor == T_O;
    return inline_weight(p, tensor) != NULL && p->B * (of_queries ? p->n_q : p->n_k) <= MHA_RAW_ROWS;
}

static bool plan_packed(const struct mha_problem *p, const struct mha_kernels *k, struct fused_plan *plan) {
    const bool wanted[TENSORS] = {plan->needs.proj_Q, plan->needs.proj_K, plan->needs.proj_V, plan->needs.output};
    for (int t = 0; t < TENSORS; t++) {
        if (!wanted[t] || inline_weight(p, (enum mha_tensor)t) == NULL || is_raw(p, (enum mha_tensor)t)) continue;
        const struct mha_weight_view v = mha_view_of_weight(p, (enum mha_tensor)t);
        if (!product_of(ceil_div(v.heads * v.d, k->nr), k->nr, v.n_in, mha_dtype_size(p->dtype), &plan->packed[t]))
            return false;
    }
    return true;
}

static bool plan_buffers(const struct mha_problem *p, const struct mha_result *r, struct fused_plan *plan) {
    const size_t element = mha_dtype_size(p->dtype), group = p->h / p->h_kv;
    size_t q = 0, k = 0, v = 0, context = 0; /* of one key/value head; of one sample */
    if (plan->needs.proj_Q && r->proj_Q == NULL && !product_of(group, p->n_q, p->d_k, element, &q)) return false;
    if (plan->needs.proj_K && r->proj_K == NULL && r->present_K == NULL && !product_of(1, p->n_k, p->d_k, element, &k))
        return false;
    if (plan->needs.proj_V && r->proj_V == NULL && r->present_V == NULL && !product_of(1, p->n_k, p->d_v, element, &v))
        return false;
    if (plan->needs.heads && r->concat == NULL && !context_is_output(p, r) &&
        !product_of(p->n_q, p->h, p->d_v, element, &context))
        return false;
    size_t head;
    if (__builtin_add_overflow(q, k, &head) || __builtin_add_overflow(head, v, &head)) return false;
    plan_rounds(p, head, context, plan);
    return product_of(q, plan->heads, plan->samples, 1, &plan->q) &&
           product_of(k, plan->heads, plan->samples, 1, &plan->k) &&
           product_of(v, plan->heads, plan->samples, 1, &plan->v) &&
           product_of(context, plan->samples, 1, 1, &plan->context);
}

/* Panels of queries of one task: PANELS_AT_ONCE, fewer where all threads would not get several tasks. */
static size_t plan_panels(const struct mha_problem *p, const struct mha_result *r, const struct mha_kernels *k,
                          const struct fused_plan *plan, size_t threads) {
    if (r->attention != NULL && r->attention_mean) return 1;
    const size_t panels = k->attend_panels(p), all = panels * plan->heads * plan->samples;
    size_t at_once = threads == 1 ? PANELS_AT_ONCE : larger(all / (threads * TASKS_PER_THREAD), 1);
    at_once = smaller(smaller(at_once, PANELS_AT_ONCE), larger(panels, 1));
    return ceil_div(larger(panels, 1), ceil_div(larger(panels, 1), at_once)); /* even blocks */
}

static bool plan_all(const struct mha_problem *p, const struct mha_result *r, size_t threads, struct fused_plan *plan) {
    const struct mha_kernels *k = mha_kernels_of(p->dtype);
    *plan = (struct fused_plan){.needs = mha_needs_of(r)};
    if (!plan_packed(p, k, plan) || !plan_buffers(p, r, plan)) return false;
    plan->panels = plan_panels(p, r, k, plan, threads);
    plan->scratch = plan->needs.scores ? k->attend_scratch(p, r, plan->panels) : 0;
    size_t scratch;
    if (plan->scratch == SIZE_MAX || __builtin_mul_overflow(plan->scratch, threads, &scratch)) return false;
    bool fits = add_aligned(&plan->total, sizeof(struct fused));
    for (int t = 0; t < TENSORS; t++) fits = fits && add_aligned(&plan->total, plan->packed[t]);
    return fits && add_aligned(&plan->total, plan->q) && add_aligned(&plan->total, plan->k) &&
           add_aligned(&plan->total, plan->v) && add_aligned(&plan->total, plan->context) &&
           add_aligned(&plan->total, scratch);
}

size_t mha_fused_need(const struct mha_problem *problem, const struct mha_result *result, size_t threads) {
    struct fused_plan plan;
    return plan_all(problem, result, threads, &plan) ? plan.total : SIZE_MAX;
}

/* ---- laying out -------------------------------------------------------------------------------------------------- */

/* The next part of the workspace; NULL for nothing. */
static char *carve(char **at, size_t bytes) {
    char *here = *at;
    *at += mha_align_up(bytes);
    return bytes == 0 ? NULL : here;
}

static void find_weights(const struct mha_problem *p, struct fused *f, char **at) {
    const struct mha_weights *w = &p->weights;
    const void *const biases[TENSORS] = {w->b_q, w->b_k, w->b_v, w->b_o};
    for (int t = 0; t < TENSORS; t++) {
        f->pack_to[t] = carve(at, f->plan.packed[t]);
        f->weight[t] = p->layer != NULL ? mha_layer_packed(p->layer, (enum mha_tensor)t) : f->pack_to[t];
        if (f->weight[t] == NULL && inline_weight(p, (enum mha_tensor)t) != NULL)
            f->weight[t] = f; /* of no input, or raw: never read */
        if (is_raw(p, (enum mha_tensor)t)) f->raw[t] = mha_view_of_weight(p, (enum mha_tensor)t);
        f->bias[t] = p->layer != NULL ? mha_layer_bias(p->layer, (enum mha_tensor)t) : biases[t];
    }
}

void mha_fused_init(struct mha_run *run, void *workspace) {
    char *at = workspace;
    struct fused *f = (struct fused *)(void *)carve(&at, sizeof *f);
    *f = (struct fused){.kernels = mha_kernels_of(run->problem->dtype), .failure = MHA_NO_FAILURE};
    atomic_flag_clear(&f->lock);
    plan_all(run->problem, run->result, run->threads, &f->plan);
    find_weights(run->problem, f, &at);
    f->q = carve(&at, f->plan.q);
    f->k = carve(&at, f->plan.k);
    f->v = carve(&at, f->plan.v);
    f->context = carve(&at, f->plan.context);
    f->scratch = at;
    run->state = f;
    run->n_regions = 0;
    run->next_regions = next_region;
    run->conclude = conclude;
}

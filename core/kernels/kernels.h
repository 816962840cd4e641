/* SPDX-License-Identifier: Apache-2.0
 *
 * core/kernels/kernels.h - what the rest of core asks of the kernels. Private to core.
 *
 * Model. Every instruction set has two constant tables of functions, one per dtype; core/isa.c chooses once. Behind a
 * table stand two things: `project`, rows times a packed weight, and `attend`, the fused attention of a few panels of
 * query rows. Everything but weights stays row-major: a packed weight is cut into panels of `nr` columns,
 * [panel][input][nr], zero padded.
 *
 * The same bytes everywhere. Each number has one order of operations, whatever the table, the cut into tasks and the
 * neighbours in a tile:
 *   - a product of length n is a sum of blocks of MHA_BLOCK terms, each a sum of shorter ones (gemm.h: functions of n
 *     alone), added in order; inside a short block one accumulator takes the terms in order, by fused multiply-adds
 *     (base x86-64 has none: there it keeps every promise but equality with the other instruction sets);
 *   - keys are taken in tiles of MHA_KEY_TILE by absolute position; within a tile weights are summed in four lanes
 *     (key mod 4), added as (0+1)+(2+3), and contexts in short blocks (gemm.h: by absolute position); sums and contexts
 *     are multiplied by the tile's alpha, then the tile is added; contexts begin anew every MHA_KEY_ROUND keys and
 *     are added up at the end, sums carry along what additions round away;
 *   - what is hidden or padding has weight exactly 0 and leaves every accumulator as it was.
 *
 * What this does not do: allocate, check arguments, know of threads. Sizes are elements unless they say bytes.
 */
#ifndef MHA_KERNELS_KERNELS_H
#define MHA_KERNELS_KERNELS_H

#include "../failure.h"
#include "../mha.h"

#include <stdatomic.h>

enum { MHA_BLOCK = 256, MHA_KEY_TILE = 128, MHA_KEY_ROUND = 1024 };

/* Where column (head, c) of a weight lies: W[e*input + head*head_stride + c*column], e < n_in. Columns are counted
 * head*d + c. */
struct mha_weight_view {
    const void *W;
    size_t n_in, heads, d;
    size_t input, head, column;
};

/* Up to so many rows a weight that came with the problem is read as it lies: packing it would take longer. */
enum { MHA_RAW_ROWS = 8 };

/* y = x W + b for rows of x [n_rows, n_in]. Row r is row i = r % n of sample r / n; column (head, c), counted from
 * `head_begin`, goes to y[sample*y_sample + i*y_row + (head - head_begin)*y_head + c]. */
struct mha_projection {
    const void *x;
    size_t x_row, n_in;
    const void *panels;                /* the packed weight, all its columns; NULL with `raw` NULL: identity */
    const struct mha_weight_view *raw; /* the weight as it came, for few rows; NULL: packed */
    const void *bias;                  /* [heads*d] or NULL */
    size_t heads, d;
    size_t head_begin, head_end; /* which heads are wanted */
    void *y;
    size_t n, y_sample, y_row, y_head;
};

/* Rows of keys or values of one key/value head: n_past from the cache, the others new; each dense with its own width. */
struct mha_rows {
    const void *past, *fresh;
};

/* Attention of the query heads that read one key/value head of one sample. */
struct mha_attention {
    const struct mha_problem *problem;
    const struct mha_result *result;
    size_t b, g;
    const void *q; /* Q' of the first query head of g, [n_q, d_k]; the next head is q_head further */
    size_t q_head;
    struct mha_rows k, v; /* v unused without context */
    void *context;        /* of sample b, [n_q, h*d_v]; or NULL: not wanted */
    const atomic_bool *stop;
    void (*note)(void *arg, struct mha_failure found); /* told of every failure met, from any thread */
    void *note_arg;
};

struct mha_kernels {
    const char *isa;
    enum mha_dtype dtype;
    size_t nr; /* columns of a panel of a packed weight, rows of a panel of queries */

    /* Panels [begin, end) of a weight, to panels[begin * n_in * nr ...]. */
    void (*pack)(const struct mha_weight_view *view, void *panels, size_t begin, size_t end);

    /* Rows [row, row_end) times the panels [panel, panel_end). False: some number is not finite. */
    bool (*project)(const struct mha_projection *p, size_t row, size_t row_end, size_t panel, size_t panel_end);

    /* Panels of query rows that one key/value head has, and attention for [panel, panel_end) of them. */
    size_t (*attend_panels)(const struct mha_problem *problem);
    void (*attend)(const struct mha_attention *a, size_t panel, size_t panel_end, void *scratch);
    /* Bytes of scratch for attending to `panels` panels at once. SIZE_MAX: does not fit. */
    size_t (*attend_scratch)(const struct mha_problem *problem, const struct mha_result *result, size_t panels);
};

/* The chosen table. */
const struct mha_kernels *mha_kernels_of(enum mha_dtype dtype);

#endif

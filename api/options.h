/* SPDX-License-Identifier: Apache-2.0
 *
 * api/options.h - all fields of a request that are not tensors, checked for type, range and spelling, with their defaults.
 *
 * What it does not do: check options against shapes (request.c, weights.c, masks.c).
 */
#ifndef MHA_API_OPTIONS_H
#define MHA_API_OPTIONS_H

#include <stdbool.h>
#include <stddef.h>

#include "../core/mha.h"
#include "tensor_write.h"

/* What `return` can name, in the order of the contract, which is the order of the answer. */
enum output_id {
    OUT_OUTPUT,
    OUT_ATTENTION,
    OUT_HEADS,
    OUT_PROJECTIONS,
    OUT_SCORES,
    OUT_LOGSUMEXP,
    OUT_CONCAT,
    OUT_PRESENT,
    OUT_COUNT
};
extern const char *const output_names[OUT_COUNT];

enum mask_reading { MASK_BY_LOOK = 0, MASK_ADDITIVE, MASK_BOOL }; /* attn_mask_kind: absent, "additive", "bool" */

struct options {
    bool has_num_heads, has_num_kv_heads, has_layout, has_dtype, has_scale, has_causal_alignment, has_window;
    size_t num_heads, num_kv_heads; /* >= 1; num_kv_heads defaults to num_heads */
    enum mha_layout layout;
    const char *layer; /* NULL: weights come with the request. Lives as long as the request's tree */
    double scale;      /* when has_scale */
    double softcap;    /* 0 = off */
    bool causal;
    enum mha_alignment alignment;
    size_t window_left, window_right; /* MHA_WINDOW_OPEN: no limit */
    enum mask_reading mask_reading;
    enum mha_dtype dtype;
    unsigned outputs; /* bit per output_id */
    bool trace;       /* "trace" was asked for: the answer is in the order of the paper */
    size_t *heads;    /* attention_heads, [n_heads] in the arena, or NULL for all */
    size_t n_heads;
    bool attention_mean;
    enum tensor_write_format format;
};

struct request;

/* Fills `options` from request->rest. False with request->problem set. */
bool options_read(struct request *request, struct options *options);

/* The text of a layout, "in_out". */
const char *layout_name(enum mha_layout layout);

#endif

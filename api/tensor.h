/* SPDX-License-Identifier: Apache-2.0
 *
 * api/tensor.h - one tensor of a request, however it was written: as JSON text, as base64, as a safetensors entry.
 *
 * Model. A body reader fills in what it saw (type, shape, elements as they came). Only when the working precision of the
 * whole request is certain, tensor_convert makes the elements float64 or float32: widened exactly or rounded once. Numbers
 * read as JSON text before the precision was known carry their `ties`, so that this is still one rounding of the text.
 *
 * What it does not do: check shapes against other tensors (weights.c, masks.c, request.c), read any format.
 */
#ifndef MHA_API_TENSOR_H
#define MHA_API_TENSOR_H

#include "../core/mha.h"
#include "fields.h"
#include "memory.h"
#include "problem.h"
#include "tensor_text.h"

#define TENSOR_RANK_MAX TENSOR_TEXT_RANK_MAX

enum tensor_type { TENSOR_F64 = 0, TENSOR_F32, TENSOR_F16, TENSOR_BF16, TENSOR_BOOL, TENSOR_TYPE_COUNT };

/* Bytes of an element; "float64" ...; the type of a name, or TENSOR_TYPE_COUNT. */
size_t tensor_type_size(enum tensor_type type);
const char *tensor_type_name(enum tensor_type type);
enum tensor_type tensor_type_find(const char *name);

struct tensor {
    bool given;            /* the field occurred and was not null */
    bool null;             /* the field occurred as null */
    bool from_text;        /* elements came as JSON numbers: finite, but for null = -infinity where accepted */
    bool finite;           /* every element was looked at as it came, and is finite */
    enum tensor_type type; /* of the elements in `data` now */
    size_t rank;           /* 0: a bare number (key_lengths) */
    size_t dim[TENSOR_RANK_MAX];
    size_t count;         /* product of dim */
    unsigned seen;        /* TENSOR_TEXT_NUMBERS | NULLS | BOOLEANS that occurred (from_text) */
    void *data;           /* [dim[0], ..., dim[rank-1]]; may be borrowed and unaligned (safetensors) until converted */
    struct mem_grow grow; /* owns data, unless grow.data is NULL */
    struct mem_grow ties; /* see tensor_text.h */
    struct tensor_text *text; /* kept only when there are ties */
};

/* No NaN and no infinity among `count` elements; data need not be aligned. */
bool tensor_all_finite(enum tensor_type type, const void *data, size_t count);

/* Makes the elements `dtype`, in place where the tensor owns them, else in new memory of the arena. Booleans stay. Says
 * PROBLEM_NON_FINITE_INPUT for NaN and infinities (but -infinity when minus_infinity_allowed: it hides in attn_mask) and for
 * numbers too large for float32, with the pointer to the element. */
bool tensor_convert(struct tensor *tensor, const char *name, enum mha_dtype dtype, bool minus_infinity_allowed,
                    struct mem_arena *arena, struct mem_budget *budget, struct problem *problem);

/* "/W_q/0/1" for element number `flat`. */
const char *tensor_pointer(char out[PROBLEM_POINTER_MAX], const struct tensor *tensor, const char *name, size_t flat);

#endif

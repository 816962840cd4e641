/* SPDX-License-Identifier: Apache-2.0
 *
 * core/layer.c - resident weights: packed once for the kernels, shared read-only by any number of runs.
 *
 * Model. One allocation: the struct, then each weight packed, then each bias, each aligned to MHA_ALIGN. A layer belongs to
 * the instruction set that was chosen when it was made (panels have its width); mha_isa_force comes before any layer.
 */
#include "layer.h"

#include "check.h"
#include "layout.h"
#include "workspace.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define HUGE_PAGE ((size_t)2 << 20)

struct mha_layer {
    struct mha_layer_shape shape;
    const struct mha_kernels *kernels;
    const void *packed[TENSORS], *bias[TENSORS];
};

/* W_q, W_k or W_v. */
static struct mha_weight_view view_in(const void *W, enum mha_layout layout, size_t n_in, size_t heads, size_t d) {
    const struct mha_strides_in at = mha_projection_strides(layout, n_in, heads, d);
    return (struct mha_weight_view){
        .W = W, .n_in = n_in, .heads = heads, .d = d, .input = at.input, .head = at.head, .column = at.column};
}

static struct mha_weight_view view_out(const void *W, enum mha_layout layout, size_t h, size_t d_v, size_t d_out) {
    const struct mha_strides_out at = mha_output_strides(layout, h, d_v, d_out);
    return (struct mha_weight_view){
        .W = W, .n_in = h * d_v, .heads = 1, .d = d_out, .input = at.context, .column = at.output};
}

/* The members of struct mha_layer_shape and of struct mha_problem have the same names. */
#define VIEW_OF(s, w, tensor)                                                                                          \
    ((tensor) == T_Q   ? view_in((w)->W_q, (w)->layout, (s)->d_q, (s)->h, (s)->d_k)                                    \
     : (tensor) == T_K ? view_in((w)->W_k, (w)->layout, (s)->d_kin, (s)->h_kv, (s)->d_k)                               \
     : (tensor) == T_V ? view_in((w)->W_v, (w)->layout, (s)->d_vin, (s)->h_kv, (s)->d_v)                               \
                       : view_out((w)->W_o, (w)->layout, (s)->h, (s)->d_v, (s)->d_out))

struct mha_weight_view mha_view_of(const struct mha_layer_shape *shape, const struct mha_weights *weights,
                                   enum mha_tensor tensor) {
    return VIEW_OF(shape, weights, tensor);
}

struct mha_weight_view mha_view_of_weight(const struct mha_problem *problem, enum mha_tensor tensor) {
    return VIEW_OF(problem, &problem->weights, tensor);
}

static size_t panels_of(const struct mha_weight_view *v, const struct mha_kernels *k) {
    return v->heads * v->d / k->nr + (v->heads * v->d % k->nr != 0);
}

/* Elements of the packed form, 0 without a weight. A shape that mha_check_layer accepts is below 2^60 bytes, and a panel adds
 * at most nr columns. */
static size_t packed_elements(const struct mha_weight_view *v, const struct mha_kernels *k) {
    return v->W == NULL ? 0 : panels_of(v, k) * k->nr * v->n_in;
}

/* Bias of a tensor, and how many elements. */
static const void *bias_of(const struct mha_layer_shape *s, const struct mha_weights *w, enum mha_tensor tensor,
                           size_t *elements) {
    const void *const bias[TENSORS] = {w->b_q, w->b_k, w->b_v, w->b_o};
    const size_t n[TENSORS] = {s->h * s->d_k, s->h_kv * s->d_k, s->h_kv * s->d_v, s->d_out};
    *elements = bias[tensor] == NULL ? 0 : n[tensor];
    return bias[tensor];
}

static bool add_part(size_t *total, size_t elements, size_t element) {
    size_t bytes;
    return !__builtin_mul_overflow(elements, element, &bytes) && bytes <= PTRDIFF_MAX - MHA_ALIGN &&
           !__builtin_add_overflow(*total, mha_align_up(bytes), total) && *total <= PTRDIFF_MAX;
}

size_t mha_layer_bytes(const struct mha_layer_shape *shape, const struct mha_weights *weights) {
    struct mha_detail detail;
    if (mha_check_layer(shape, weights, &detail) != MHA_OK) return SIZE_MAX;
    const struct mha_kernels *k = mha_kernels_of(shape->dtype);
    const size_t element = mha_dtype_size(shape->dtype);
    size_t total = mha_align_up(sizeof(struct mha_layer)), n_bias;
    for (int t = 0; t < TENSORS; t++) {
        const struct mha_weight_view view = mha_view_of(shape, weights, (enum mha_tensor)t);
        bias_of(shape, weights, (enum mha_tensor)t, &n_bias);
        if (!add_part(&total, packed_elements(&view, k), element) || !add_part(&total, n_bias, element))
            return SIZE_MAX;
    }
    return total;
}

static void fill_layer(struct mha_layer *layer, const struct mha_weights *weights) {
    const struct mha_kernels *k = layer->kernels;
    const size_t element = mha_dtype_size(layer->shape.dtype);
    char *at = (char *)layer + mha_align_up(sizeof *layer);
    for (int t = 0; t < TENSORS; t++) {
        const struct mha_weight_view view = mha_view_of(&layer->shape, weights, (enum mha_tensor)t);
        if (view.W != NULL) {
            k->pack(&view, at, 0, panels_of(&view, k));
            layer->packed[t] = at;
            at += mha_align_up(packed_elements(&view, k) * element);
        }
        size_t n_bias;
        const void *bias = bias_of(&layer->shape, weights, (enum mha_tensor)t, &n_bias);
        if (bias != NULL) {
            memcpy(at, bias, n_bias * element);
            layer->bias[t] = at;
            at += mha_align_up(n_bias * element);
        }
    }
}

/* Large layers lie in huge pages where the system lends them: a single row reads the whole layer once, and with small pages a
 * quarter of its time went into address translation. Only whole huge pages are asked for, so nothing is held that is not counted. */
static void *new_block(size_t bytes) {
#ifdef MADV_HUGEPAGE
    if (bytes >= HUGE_PAGE) {
        void *block;
        if (posix_memalign(&block, HUGE_PAGE, bytes) != 0) return NULL;
        (void)madvise(block, bytes / HUGE_PAGE * HUGE_PAGE, MADV_HUGEPAGE); /* only a wish */
        return block;
    }
#endif
    return aligned_alloc(MHA_ALIGN, bytes);
}

struct mha_layer *mha_layer_new(const struct mha_layer_shape *shape, const struct mha_weights *weights,
                                struct mha_detail *detail) {
    if (mha_check_layer(shape, weights, detail) != MHA_OK) return NULL;
    const size_t bytes = mha_layer_bytes(shape, weights);
    struct mha_layer *layer = bytes == SIZE_MAX ? NULL : new_block(bytes);
    if (layer == NULL) {
        *detail = (struct mha_detail){.code = MHA_ERR_MEMORY, .field = "layer"};
        return NULL;
    }
    *layer = (struct mha_layer){.shape = *shape, .kernels = mha_kernels_of(shape->dtype)};
    fill_layer(layer, weights);
    return layer;
}

/* ---- back to plain tensors --------------------------------------------------------------------------------------- */

/* The shape of a packed weight: rows and columns. */
static void plain_shape(const struct mha_layer *layer, enum mha_tensor tensor, size_t *n_in, size_t *columns) {
    const struct mha_weights none = {.layout = MHA_IN_OUT};
    const struct mha_weight_view view = mha_view_of(&layer->shape, &none, tensor);
    *n_in = view.n_in;
    *columns = view.heads * view.d;
}

size_t mha_layer_plain_bytes(const struct mha_layer *layer) {
    size_t bytes = 0, n_in, columns;
    for (int t = 0; t < TENSORS; t++) {
        plain_shape(layer, (enum mha_tensor)t, &n_in, &columns);
        if (layer->packed[t] != NULL) bytes += mha_align_up(n_in * columns * mha_dtype_size(layer->shape.dtype));
    }
    return bytes;
}

/* Row e, column c of a packed weight lies in panel c / nr. */
static void unpack(const struct mha_layer *layer, enum mha_tensor tensor, char *to) {
    const size_t element = mha_dtype_size(layer->shape.dtype), nr = layer->kernels->nr;
    size_t n_in, columns;
    plain_shape(layer, tensor, &n_in, &columns);
    for (size_t e = 0; e < n_in; e++)
        for (size_t c = 0; c < columns; c++)
            memcpy(to + (e * columns + c) * element,
                   (const char *)layer->packed[tensor] + (c / nr * n_in * nr + e * nr + c % nr) * element, element);
}

struct mha_weights mha_layer_plain(const struct mha_layer *layer, void *to) {
    const void *plain[TENSORS] = {NULL};
    char *at = to;
    for (int t = 0; t < TENSORS; t++) {
        if (layer->packed[t] == NULL) continue;
        size_t n_in, columns;
        plain_shape(layer, (enum mha_tensor)t, &n_in, &columns);
        unpack(layer, (enum mha_tensor)t, at);
        plain[t] = at;
        at += mha_align_up(n_in * columns * mha_dtype_size(layer->shape.dtype));
    }
    return (struct mha_weights){.layout = MHA_IN_OUT,
                                .W_q = plain[T_Q],
                                .W_k = plain[T_K],
                                .W_v = plain[T_V],
                                .W_o = plain[T_O],
                                .b_q = layer->bias[T_Q],
                                .b_k = layer->bias[T_K],
                                .b_v = layer->bias[T_V],
                                .b_o = layer->bias[T_O]};
}

/* ---- what others ask --------------------------------------------------------------------------------------------- */

const void *mha_layer_packed(const struct mha_layer *layer, enum mha_tensor tensor) { return layer->packed[tensor]; }

const void *mha_layer_bias(const struct mha_layer *layer, enum mha_tensor tensor) { return layer->bias[tensor]; }

const struct mha_layer_shape *mha_layer_shape(const struct mha_layer *layer) { return &layer->shape; }

void mha_layer_free(struct mha_layer *layer) { free(layer); }

/* SPDX-License-Identifier: Apache-2.0
 *
 * api/layers.h - resident layers: weights that stay in the server under a name, packed once for the kernels.
 *
 * Model. A `struct layer` is immutable but for its packed forms: the weights as they came (the *source*: float64, float32,
 * float16 or bfloat16, in memory of its own or in a mapped file) and, per working precision, the packed form that core
 * computes with. Numbers of JSON text without a `dtype` are kept as float64 with notes on ties, so that either form is one
 * rounding of the text, as it is for weights sent with a request. A packed form is made when it is first needed (PUT makes the one of its `dtype` at once) and kept: a layer can
 * serve float64 and float32 requests, each from the same source by one exact widening or one rounding. What a layer holds of
 * memory is charged to the process's budget until it is freed; mapped files are not charged, they are the kernel's cache.
 *
 * Layers are counted references. A name in the store holds one, every request that uses the layer holds one. Replacing or
 * deleting a name takes the store's reference away: requests that have begun finish with what they have.
 *
 * Thread safety: everything here may be called from any thread. Packing holds a lock of that layer only, never the store's.
 *
 * What it does not do: read bodies (request.h), files (layer_dir.h) or whole models (checkpoint.h).
 */
#ifndef MHA_API_LAYERS_H
#define MHA_API_LAYERS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

#include "../core/mha.h"
#include "memory.h"
#include "problem.h"
#include "safetensors.h"
#include "tensor.h"

#define LAYER_NAME_MAX 200 /* characters; leaves room for ".safetensors" in a file name */

/* The tensors of a layer, in this order everywhere: W_q, W_k, W_v, W_o, b_q, b_k, b_v, b_o. */
#define LAYER_TENSORS    8
#define LAYER_TENSOR(id) ((size_t)(id) - (size_t)T_W_q)
_Static_assert(T_b_o - T_W_q == LAYER_TENSORS - 1, "the weights stand together in enum tensor_id");

struct layer_tensor {
    bool given; /* false: null (W_*) or absent (b_*) */
    enum tensor_type type;
    size_t rank;
    size_t dim[3];
    size_t stride; /* elements from one row (index of dim[0]) to the next; the product of the others when dense */
    const unsigned char *data; /* any alignment */
    /* float64 from JSON text without a dtype: how to make float32 with one rounding of the text (tensor_text.h); same owner */
    const char *ties;
    size_t ties_size; /* bytes */
};

/* A mapped file that several layers share. */
struct layer_file;

struct layer_source {
    struct layer_tensor tensor[LAYER_TENSORS];
    size_t num_heads, num_kv_heads;
    enum mha_layout layout;
    /* defaults for requests that do not say */
    enum mha_dtype dtype;
    bool has_scale, has_softcap;
    double scale, softcap;
    /* who holds the data: exactly one of them is set */
    struct mem_arena *arena;
    struct layer_file *file;
};

struct layer;
struct layer_store;
struct request;

/* ---- files ---- */

/* Takes over an open file (st_file_close by the last release). NULL: no memory, the file stays the caller's. */
struct layer_file *layer_file_new(const struct st_file *file);
struct layer_file *layer_file_keep(struct layer_file *file);
void layer_file_release(struct layer_file *file); /* NULL is fine */
const struct st_file *layer_file_get(const struct layer_file *file);
/* For the process, once: a page of a mapped file that cannot be read any more while a layer is packed (the file was cut, the disk
 * failed) makes the packing fail, where SIGBUS would end the process. False: the handler cannot be set. */
bool layer_file_catch_faults(void);

/* ---- layers ---- */

/* Reads options and weights of a layer document (PUT body or file) that a body reader has filled in. The tensors stay where
 * they are (the request's arena or a mapped file); no owner is set. Numbers from JSON text become `dtype` here, with their one
 * rounding; all others stay as they came. False with request->problem set. */
bool layer_read_request(struct request *request, struct layer_source *source);

/* Checks that the weights fit together and makes a layer with one reference. On success the layer owns source->arena, or
 * source->file (one reference of it). On failure NULL, *problem set, ownership stays with the caller. `origin` (copied, at most
 * 200 bytes) says in descriptions where it came from: "PUT", "layers/a.safetensors". */
struct layer *layer_new(struct mem_budget *budget, const struct layer_source *source, const char *origin,
                        struct problem *problem);
/* Only before others can see the layers. `to` gets the packed forms of `from`, whose weights are the same. */
void layer_take_packed(struct layer *to, struct layer *from);
void layer_set_origin(struct layer *layer, const char *origin);
struct layer *layer_keep(struct layer *layer);
void layer_release(struct layer *layer); /* NULL is fine */

/* The form for this precision, made now if it was not yet. NULL and *problem: no memory in the budget (503, or 413 if it never
 * fits), a weight that is not finite or too large for float32 (422), or the file was changed under us (500). Valid as long as
 * the caller holds his reference. */
const struct mha_layer *layer_packed(struct layer *layer, enum mha_dtype dtype, struct problem *problem);
/* Whether that is so already, and how many bytes of weights packing would read. */
bool layer_is_packed(const struct layer *layer, enum mha_dtype dtype);
size_t layer_source_bytes(const struct layer *layer);
const struct layer_source *layer_source(const struct layer *layer);
/* dtype of the shape is not meaningful. */
const struct mha_layer_shape *layer_shape(const struct layer *layer);
/* {"name":...,"num_heads":...}: shapes and options, never weights. malloc'd; NULL: no memory. */
char *layer_describe(struct layer *layer, const char *name);

/* `text` as a JSON string. */
void layer_print_string(FILE *out, const char *text);

/* ---- the store ---- */

struct layer_store *layer_store_new(void);
void layer_store_free(struct layer_store *store); /* NULL is fine; releases what it holds */

/* 1 to LAYER_NAME_MAX of A-Z a-z 0-9 . _ -, not beginning with '.' or '-'. False and *problem (may be NULL) otherwise. */
bool layer_name_check(const char *name, struct problem *problem);

/* Puts the layer under that (checked) name; takes the caller's reference. *replaced (may be NULL) says if there was one. False:
 * no memory, nothing changed, the reference stays the caller's. */
bool layer_store_put(struct layer_store *store, const char *name, struct layer *layer, bool *replaced);
/* A new reference, NULL if there is none of that name. */
struct layer *layer_store_get(struct layer_store *store, const char *name);
/* False: there was none. */
bool layer_store_delete(struct layer_store *store, const char *name);
size_t layer_store_count(struct layer_store *store);
/* {"layers":["a","b"]} in byte order. malloc'd; NULL: no memory. */
char *layer_store_list(struct layer_store *store);
/* The closest name for a message, or "" . */
void layer_store_suggest(struct layer_store *store, const char *name, char out[LAYER_NAME_MAX + 1]);

#endif

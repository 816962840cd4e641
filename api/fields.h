/* SPDX-License-Identifier: Apache-2.0
 *
 * api/fields.h - the one table of request fields: name, kind, where it is known, what its tensor accepts. Body readers (JSON,
 * safetensors) look names up here; did-you-mean and the documentation are made from it.
 *
 * A field is a tensor (read into struct request by its tensor_id, never through cJSON) or an option (anything else: it goes to
 * cJSON and from there to struct options).
 */
#ifndef MHA_API_FIELDS_H
#define MHA_API_FIELDS_H

#include <stdbool.h>
#include <stddef.h>

enum tensor_id {
    T_Q,
    T_K,
    T_V,
    T_W_q,
    T_W_k,
    T_W_v,
    T_W_o,
    T_b_q,
    T_b_k,
    T_b_v,
    T_b_o,
    T_past_K,
    T_past_V,
    T_attn_mask,
    T_key_mask,
    T_key_padding_mask,
    T_key_lengths,
    T_sinks,
    TENSOR_COUNT
};

enum option_id {
    O_num_heads,
    O_num_kv_heads,
    O_weight_layout,
    O_layer,
    O_scale,
    O_softcap,
    O_causal,
    O_causal_alignment,
    O_window,
    O_attn_mask_kind,
    O_dtype,
    O_return,
    O_attention_heads,
    O_attention_reduce,
    O_tensor_format,
    OPTION_COUNT
};

/* Which documents know a field; or'ed. */
enum { IN_MHA = 1, IN_LAYER = 2 };

enum field_kind { FIELD_TENSOR, FIELD_OPTION };

struct field {
    const char *name;
    size_t length; /* of the name */
    enum field_kind kind;
    int id;           /* enum tensor_id or enum option_id */
    unsigned where;   /* IN_... */
    unsigned accept;  /* tensors: TENSOR_TEXT_... of api/tensor_text.h */
    const char *form; /* what it looks like, for messages: "[n_q, d_q] or [B, n_q, d_q]", "an integer >= 1" */
};

#define FIELD_COUNT (TENSOR_COUNT + OPTION_COUNT)
extern const struct field fields[FIELD_COUNT]; /* tensors by tensor_id, then options by option_id */

static inline const struct field *field_of_tensor(enum tensor_id id) { return &fields[id]; }
static inline const struct field *field_of_option(enum option_id id) { return &fields[TENSOR_COUNT + (int)id]; }

/* Exactly this name (length bytes), in any document; NULL: unknown. */
const struct field *field_find(const char *name, size_t length);

/* The field of documents `where` that a misspelt name most likely means, or NULL: edits and transposed neighbours, case and
 * underscores ("Wq", "casual"), names other libraries use ("query", "n_head", "mask"). */
const char *field_suggest(const char *name, unsigned where);

/* Likewise among `count` words; NULL if none is close. */
const char *word_suggest(const char *word, const char *const *words, size_t count);

#endif

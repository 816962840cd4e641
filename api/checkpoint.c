/* SPDX-License-Identifier: Apache-2.0
 *
 * api/checkpoint.c - the table of model families and the search of checkpoint.h.
 *
 * To add a family: a row of `families`. A row whose K and V names are NULL has them packed into Q's tensor, Q K V in this
 * order along the output axis. Rows are tried from the top; the first whose four weights exist wins.
 *
 * Names as in the state dicts of Hugging Face transformers and of torch.nn.MultiheadAttention.
 */
#include "checkpoint.h"

#include "checkpoint_config.h"
#include "json_tree.h"

#include <cjson/cJSON.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
    UNSCALED = 1,
    ROTARY = 2
}; /* scores are not divided by sqrt(d_k); Q and K are rotated unless the config denies it */

struct family {
    const char *name;
    const char *prefix_end; /* the last words of the prefix, "" = any */
    enum mha_layout layout;
    unsigned traits;
    const char *weight[4]; /* q, k, v, o */
    const char *bias[4];
    const char *note;
};

#define CAUSAL_NOTE  "causal in the model: send \"causal\": true"
#define DECODER_NOTE "causal in decoders: send \"causal\": true there"
#define T5_NOTE      "scale 1; send the relative position bias as attn_mask"

static const struct family families[] = {
    {"BERT",
     "",
     MHA_OUT_IN,
     0,
     {"self.query.weight", "self.key.weight", "self.value.weight", "output.dense.weight"},
     {"self.query.bias", "self.key.bias", "self.value.bias", "output.dense.bias"},
     NULL},
    {"ViT",
     "",
     MHA_OUT_IN,
     0,
     {"attention.query.weight", "attention.key.weight", "attention.value.weight", "output.dense.weight"},
     {"attention.query.bias", "attention.key.bias", "attention.value.bias", "output.dense.bias"},
     NULL},
    {"ALBERT",
     "",
     MHA_OUT_IN,
     0,
     {"query.weight", "key.weight", "value.weight", "dense.weight"},
     {"query.bias", "key.bias", "value.bias", "dense.bias"},
     NULL},
    {"DistilBERT",
     "",
     MHA_OUT_IN,
     0,
     {"q_lin.weight", "k_lin.weight", "v_lin.weight", "out_lin.weight"},
     {"q_lin.bias", "k_lin.bias", "v_lin.bias", "out_lin.bias"},
     NULL},
    {"GPT-2",
     "",
     MHA_IN_OUT,
     0,
     {"c_attn.weight", NULL, NULL, "c_proj.weight"},
     {"c_attn.bias", NULL, NULL, "c_proj.bias"},
     CAUSAL_NOTE},
    {"torch",
     "",
     MHA_OUT_IN,
     0,
     {"in_proj_weight", NULL, NULL, "out_proj.weight"},
     {"in_proj_bias", NULL, NULL, "out_proj.bias"},
     NULL},
    {"torch",
     "",
     MHA_OUT_IN,
     0,
     {"q_proj_weight", "k_proj_weight", "v_proj_weight", "out_proj.weight"},
     {"in_proj_bias", NULL, NULL, "out_proj.bias"},
     NULL},
    {"GPT-Neo",
     "attn.attention",
     MHA_OUT_IN,
     UNSCALED,
     {"q_proj.weight", "k_proj.weight", "v_proj.weight", "out_proj.weight"},
     {"q_proj.bias", "k_proj.bias", "v_proj.bias", "out_proj.bias"},
     "scale 1; " CAUSAL_NOTE "; in local layers \"window\", too"},
    {"GPT-J",
     "attn",
     MHA_OUT_IN,
     ROTARY,
     {"q_proj.weight", "k_proj.weight", "v_proj.weight", "out_proj.weight"},
     {"q_proj.bias", "k_proj.bias", "v_proj.bias", "out_proj.bias"},
     CAUSAL_NOTE},
    {"OPT/BART/Whisper",
     "",
     MHA_OUT_IN,
     0,
     {"q_proj.weight", "k_proj.weight", "v_proj.weight", "out_proj.weight"},
     {"q_proj.bias", "k_proj.bias", "v_proj.bias", "out_proj.bias"},
     DECODER_NOTE},
    {"T5", "SelfAttention", MHA_OUT_IN, UNSCALED, {"q.weight", "k.weight", "v.weight", "o.weight"}, {0}, T5_NOTE},
    {"T5", "EncDecAttention", MHA_OUT_IN, UNSCALED, {"q.weight", "k.weight", "v.weight", "o.weight"}, {0}, "scale 1"},
    {"Llama",
     "",
     MHA_OUT_IN,
     ROTARY,
     {"q_proj.weight", "k_proj.weight", "v_proj.weight", "o_proj.weight"},
     {"q_proj.bias", "k_proj.bias", "v_proj.bias", "o_proj.bias"},
     CAUSAL_NOTE},
};

/* Tensors beside the four that make the attention something else than what mhad computes. */
static const struct {
    const char *name, *reason;
} obstacles[] = {
    {"rotary_emb.inv_freq", "it rotates Q and K by position (rotary_emb), which mhad does not do yet"},
    {"q_norm.weight", "it normalises Q and K after the projection (q_norm), which mhad does not do"},
    {"k_norm.weight", "it normalises Q and K after the projection (k_norm), which mhad does not do"},
    {"q_layernorm.weight", "it normalises Q and K after the projection (q_layernorm), which mhad does not do"},
    {"self.distance_embedding.weight",
     "it adds relative position embeddings to the scores (distance_embedding), which mhad does not do"},
    {"distance_embedding.weight",
     "it adds relative position embeddings to the scores (distance_embedding), which mhad does not do"},
    {"q_attn.weight", "it is a cross-attention whose Q (q_attn) stands apart from K and V (c_attn), which is not read"},
    {"bias_k", "it appends a learned key and value (bias_k, bias_v), which mhad does not do"},
    {"pos_bias_u", "it adds relative position embeddings to the scores (pos_bias_u), which mhad does not do"},
    {"linear_pos.weight", "it adds relative position embeddings to the scores (linear_pos), which mhad does not do"},
    {"self.relative_position_bias_table",
     "it adds a bias by position inside windows (relative_position_bias_table), which mhad does not do"},
};

/* What may stand beside the projections: what comes before or after the attention, masks that old files carry, and T5's
 * relative bias (the caller's attn_mask). A first word of the name; anything else may change the scores. */
static const char *const harmless[] = {
    "bias",
    "masked_bias",
    "relative_attention_bias",
    "position_ids",
    "dropout",
    "LayerNorm",
    "norm",
    "layer_norm",
    "layernorm",
    "norm1",
    "norm2",
    "ln1",
    "ln2",
    "ln_1",
    "ln_2",
    "layer_norm1",
    "layer_norm2",
    "final_layer_norm",
    "mlp",
    "ffn",
    "feed_forward",
    "intermediate",
    "self_attn_layer_norm",
    "fc1",
    "fc2",
    "linear1",
    "linear2",
};

/* ---- small helpers ----------------------------------------------------------------------------------------------- */

static bool refuse(struct checkpoint_layer *layer, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Keeps the first reason. Returns false. */
static bool refuse(struct checkpoint_layer *layer, const char *format, ...) {
    if (layer->refusal[0]) return false;
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(layer->refusal, sizeof layer->refusal, format, arguments);
    va_end(arguments);
    return false;
}

/* `name` = prefix + stem, where the prefix is empty or ends before a '.'. */
static bool split_name(const char *name, const char *stem, size_t *prefix) {
    size_t n = strlen(name), m = strlen(stem);
    if (n < m || strcmp(name + n - m, stem) != 0) return false;
    if (n > m && name[n - m - 1] != '.') return false;
    *prefix = n > m ? n - m - 1 : 0;
    return true;
}

static bool ends_in_words(const char *text, size_t length, const char *words) {
    size_t m = strlen(words);
    if (m == 0) return true;
    if (length < m || memcmp(text + length - m, words, m) != 0) return false;
    return length == m || text[length - m - 1] == '.';
}

/* The tensor prefix.stem. */
static const struct st_tensor *sibling(const struct st_header *header, const char *prefix, size_t length,
                                       const char *stem) {
    char name[1024];
    int n = snprintf(name, sizeof name, "%.*s%s%s", (int)length, prefix, length ? "." : "", stem);
    return n > 0 && (size_t)n < sizeof name ? st_find(header, name) : NULL;
}

static bool starts_with(const char *text, const char *with) { return strncmp(text, with, strlen(with)) == 0; }

/* The prefix as a layer's name: other characters become '_', too long a prefix loses its beginning. */
static void make_name(char out[LAYER_NAME_MAX + 1], const char *prefix, size_t length) {
    if (length == 0) {
        strcpy(out, "attention");
        return;
    }
    if (length > LAYER_NAME_MAX) {
        prefix += length - LAYER_NAME_MAX;
        length = LAYER_NAME_MAX;
    }
    for (size_t i = 0; i < length; i++) {
        char c = prefix[i];
        bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
        out[i] = plain || (i > 0 && (c == '.' || c == '-')) ? c : '_';
    }
    out[length] = '\0';
}

/* ---- one layer --------------------------------------------------------------------------------------------------- */

/* One part of a layer: a tensor, or the `slice`-th third of a packed one, along its output axis. */
static bool take(struct checkpoint_layer *layer, size_t which, const struct st_tensor *tensor, size_t rank, bool packed,
                 size_t slice) {
    struct layer_tensor *out = &layer->source.tensor[which];
    char shape[64];
    static const enum tensor_type types[ST_DTYPE_COUNT] = {
        [ST_F64] = TENSOR_F64, [ST_F32] = TENSOR_F32, [ST_F16] = TENSOR_F16, [ST_BF16] = TENSOR_BF16};
    st_shape_text(tensor, shape, sizeof shape);
    if (!st_dtype_is_float(tensor->dtype))
        return refuse(layer, "tensor \"%.100s\" is %s; only F64, F32, F16 and BF16 are read", tensor->name,
                      st_dtype_name(tensor->dtype));
    if (tensor->rank != rank)
        return refuse(layer, "tensor \"%.100s\" is %s, but %zu dimensions were expected", tensor->name, shape, rank);
    size_t axis = rank == 2 && layer->source.layout == MHA_IN_OUT ? 1 : 0; /* of the outputs */
    if (packed && tensor->dim[axis] % 3 != 0)
        return refuse(layer, "tensor \"%.100s\" is %s, but Q, K and V side by side make a multiple of 3", tensor->name,
                      shape);
    out->given = true;
    out->type = types[tensor->dtype];
    out->rank = rank;
    for (size_t i = 0; i < rank; i++) out->dim[i] = tensor->dim[i];
    out->stride = rank == 2 ? tensor->dim[1] : 1;
    layer->tensor[which] = tensor;
    if (packed) {
        size_t third = tensor->dim[axis] / 3;
        out->dim[axis] = third;
        layer->offset[which] = slice * third * (axis == 0 ? out->stride : 1) * (st_dtype_bits(tensor->dtype) / 8);
    }
    return true;
}

/* Whether a packed tensor that should be [in, 3 in] is the [3 in, in] of a Linear: it might also be interleaved by heads. */
static bool is_linear(struct checkpoint_layer *layer, const struct st_tensor *tensor) {
    if (tensor->rank != 2 || tensor->dim[0] == 0 || tensor->dim[0] / 3 != tensor->dim[1] || tensor->dim[0] % 3)
        return false;
    refuse(
        layer,
        "tensor \"%.80s\" is [%zu,%zu], but GPT-2 keeps [in, 3 in] with Q, K and V side by side; in a transposed one "
        "their order is not known",
        tensor->name, tensor->dim[0], tensor->dim[1]);
    return true;
}

static void take_all(struct checkpoint_layer *layer, const struct family *family, const struct st_header *header,
                     const char *prefix, size_t length) {
    layer->source.layout = family->layout;
    for (size_t i = 0; i < 4; i++) {
        const char *stem = family->weight[i], *bias = family->bias[i];
        const struct st_tensor *w = sibling(header, prefix, length, stem ? stem : family->weight[0]);
        const struct st_tensor *b = bias || (i < 3 && family->bias[0] && !family->bias[1])
                                        ? sibling(header, prefix, length, bias ? bias : family->bias[0])
                                        : NULL;
        if (!family->weight[1] && family->layout == MHA_IN_OUT && is_linear(layer, w)) return;
        if (!take(layer, i, w, 2, i < 3 && !family->weight[1], i)) return;
        if (b && !take(layer, 4 + i, b, 1, i < 3 && !family->bias[1], i)) return;
    }
}

/* num_heads from outside or the config; num_kv_heads from the widths. */
static bool find_heads(struct checkpoint_layer *layer, const struct checkpoint_config *config, size_t num_heads) {
    struct layer_source *s = &layer->source;
    size_t axis = s->layout == MHA_IN_OUT ? 1 : 0, q_width = s->tensor[0].dim[axis], k_width = s->tensor[1].dim[axis];
    s->num_heads = num_heads ? num_heads : config->num_heads;
    if (s->num_heads == 0)
        return refuse(
            layer,
            "the number of heads is not known%s: put the model's config.json beside the file, or say --num-heads "
            "(with PUT: &num_heads=N, or num_heads in __metadata__.mha)",
            config->given ? ", config.json names none for it" : "");
    if (q_width == 0 || q_width % s->num_heads != 0)
        return refuse(layer, "%zu heads do not divide the width %zu of Q", s->num_heads, q_width);
    size_t d_k = q_width / s->num_heads;
    s->num_kv_heads = k_width / d_k;
    if (k_width % d_k != 0 || s->num_kv_heads == 0 || s->num_heads % s->num_kv_heads != 0)
        return refuse(layer, "the width %zu of K is not that of heads %zu wide whose number divides %zu", k_width, d_k,
                      s->num_heads);
    size_t width = num_heads ? 0 : config->head_width, kv = num_heads ? 0 : config->num_kv_heads;
    if (width != 0 && width != d_k)
        return refuse(layer, "config.json says that heads are %zu wide, but %zu heads share the width %zu of Q", width,
                      s->num_heads, q_width);
    if (kv != 0 && kv != s->num_kv_heads)
        return refuse(layer, "config.json says %zu key/value heads, but the width of K makes it %zu", kv,
                      s->num_kv_heads);
    return true;
}

/* Bias `which` has as many elements as the outputs of its weight. */
static bool bias_fits(struct checkpoint_layer *layer, size_t which, size_t width) {
    const struct layer_tensor *bias = &layer->source.tensor[4 + which];
    return !bias->given || bias->dim[0] == width ||
           refuse(layer, "tensor \"%.100s\" gives %zu elements, but the projection is %zu wide",
                  layer->tensor[4 + which]->name, bias->dim[0], width);
}

/* The shapes of the parts fit together; heads are known. */
static bool find_fit(struct checkpoint_layer *layer) {
    const struct layer_source *s = &layer->source;
    size_t out = s->layout == MHA_IN_OUT ? 1 : 0, width[4], d_v;
    for (size_t i = 0; i < 4; i++) {
        width[i] = s->tensor[i].dim[out];
        if (width[i] == 0 || s->tensor[i].dim[1 - out] == 0)
            return refuse(layer, "tensor \"%.100s\" is empty", layer->tensor[i]->name);
        if (!bias_fits(layer, i, width[i])) return false;
    }
    d_v = width[2] / s->num_kv_heads;
    if (width[2] % s->num_kv_heads != 0)
        return refuse(layer, "%zu key/value heads do not divide the width %zu of V", s->num_kv_heads, width[2]);
    return s->tensor[3].dim[1 - out] == s->num_heads * d_v ||
           refuse(layer, "tensor \"%.100s\" takes a width of %zu, but %zu heads give %zu", layer->tensor[3]->name,
                  s->tensor[3].dim[1 - out], s->num_heads, s->num_heads * d_v);
}

static bool find_options(struct checkpoint_layer *layer, const struct family *family,
                         const struct checkpoint_config *config) {
    struct layer_source *s = &layer->source;
    if (config->rotary == ROTARY_YES || (config->rotary == ROTARY_UNKNOWN && family->traits & ROTARY))
        return refuse(layer,
                      "it rotates Q and K by position (rope), which mhad does not do yet; a model without positions "
                      "says \"position_embedding_type\": \"none\" in config.json");
    if (config->obstacle[0]) return refuse(layer, "%s", config->obstacle);
    s->softcap = config->softcap;
    s->has_softcap = s->softcap > 0;
    s->scale = family->traits & UNSCALED ? 1 : config->scale;
    s->has_scale = s->scale > 0;
    return true;
}

/* Whether the family has this name (without prefix) for one of its weights or biases. */
static bool is_part(const struct family *family, const char *stem) {
    for (size_t i = 0; i < 4; i++)
        if ((family->weight[i] && !strcmp(stem, family->weight[i])) ||
            (family->bias[i] && !strcmp(stem, family->bias[i])))
            return true;
    return false;
}

static bool is_harmless(const char *stem) {
    size_t n = strcspn(stem, ".");
    for (size_t i = 0; i < sizeof harmless / sizeof *harmless; i++)
        if (strlen(harmless[i]) == n && starts_with(stem, harmless[i])) return true;
    return false;
}

/* A tensor in `module` (below the layer's prefix, "" = all of it) that is no part of the family's attention and might change it. */
static void find_stranger(struct checkpoint_layer *layer, const struct family *family, const struct st_header *header,
                          const char *prefix, const char *module, bool strict) {
    char begin[1100];
    size_t length = strlen(prefix), n = (size_t)snprintf(begin, sizeof begin, "%s.%s", prefix, module);
    if (length == 0 || n >= sizeof begin) return;
    for (size_t i = st_lower_bound(header, begin); i < header->n_tensors; i++) {
        const char *name = header->by_name[i]->name, *stem = name + length + 1;
        if (!starts_with(name, begin)) return;
        if (is_part(family, stem) || (!strict && is_harmless(name + n))) continue;
        refuse(layer, "it has a tensor \"%.120s\", which mhad does not know and which may change the result", name);
        return;
    }
}

/* BERT's and ViT's Q, K and V are in a module of their own, and so is the output; all others are in one. */
static void find_strangers(struct checkpoint_layer *layer, const struct family *family, const struct st_header *header,
                           const char *prefix) {
    const char *q = family->weight[0], *dot = strchr(q, '.');
    char module[32] = "";
    bool nested = dot && strchr(dot + 1, '.');
    if (nested) snprintf(module, sizeof module, "%.*s", (int)(dot - q + 1), q);
    find_stranger(layer, family, header, prefix, module, false);
    if (nested) find_stranger(layer, family, header, prefix, "output.dense.", true);
}

static void find_obstacle(struct checkpoint_layer *layer, const struct st_header *header, const char *prefix,
                          size_t length) {
    for (size_t i = 0; i < sizeof obstacles / sizeof *obstacles; i++)
        if (sibling(header, prefix, length, obstacles[i].name)) refuse(layer, "%s", obstacles[i].reason);
}

/* The row of the table whose tensors are all there under the prefix of this tensor, which is its Q. */
static const struct family *family_of(const struct st_header *header, const struct st_tensor *tensor, size_t *length) {
    for (size_t i = 0; i < sizeof families / sizeof *families; i++) {
        const struct family *f = &families[i];
        if (!split_name(tensor->name, f->weight[0], length) || !ends_in_words(tensor->name, *length, f->prefix_end))
            continue;
        bool all = true;
        for (size_t j = 1; j < 4; j++)
            all = all && (!f->weight[j] || sibling(header, tensor->name, *length, f->weight[j]));
        if (all) return f;
    }
    return NULL;
}

struct search {
    const struct st_header *header;
    const unsigned char *data;
    const cJSON *config; /* NULL: none */
    size_t num_heads;
};

static void read_layer(const struct search *search, const struct family *family, const char *q_name, size_t length,
                       struct checkpoint_layer *layer) {
    char prefix[1024];
    snprintf(prefix, sizeof prefix, "%.*s", (int)length, q_name);
    struct checkpoint_config config;
    checkpoint_config_read(search->config, prefix, &config);
    memset(layer, 0, sizeof *layer);
    make_name(layer->name, q_name, length);
    layer->family = family->name;
    layer->note = family->note;
    if (sibling(search->header, prefix, length, "relative_attention_bias.weight")) layer->note = T5_NOTE;
    find_obstacle(layer, search->header, prefix, length);
    take_all(layer, family, search->header, prefix, length);
    if (!layer->refusal[0] && find_options(layer, family, &config) && find_heads(layer, &config, search->num_heads) &&
        find_fit(layer))
        find_strangers(layer, family, search->header, prefix);
    for (size_t i = 0; search->data && i < LAYER_TENSORS; i++)
        if (layer->tensor[i]) layer->source.tensor[i].data = search->data + layer->tensor[i]->begin + layer->offset[i];
    layer->usable = !layer->refusal[0];
}

/* Text by text, numbers by value: layer.2 before layer.10. */
static int compare_names(const void *a, const void *b) {
    const char *x = ((const struct checkpoint_layer *)a)->name, *y = ((const struct checkpoint_layer *)b)->name;
    for (;;) {
        if (*x >= '0' && *x <= '9' && *y >= '0' && *y <= '9') {
            size_t n = strspn(x, "0123456789"), m = strspn(y, "0123456789");
            int order = n != m ? (n < m ? -1 : 1) : memcmp(x, y, n);
            if (order != 0) return order;
            x += n;
            y += m;
            continue;
        }
        if (*x != *y) return (unsigned char)*x < (unsigned char)*y ? -1 : 1;
        if (*x == '\0') return 0;
        x++;
        y++;
    }
}

static bool find_all(const struct search *search, struct checkpoint *out) {
    const struct st_header *header = search->header;
    size_t length, found = 0;
    for (size_t i = 0; i < header->n_tensors; i++) found += family_of(header, &header->tensors[i], &length) != NULL;
    out->layers = calloc(found + 1, sizeof *out->layers);
    if (!out->layers) return false;
    for (size_t i = 0; i < header->n_tensors && out->count < found; i++) {
        const struct family *family = family_of(header, &header->tensors[i], &length);
        if (family) read_layer(search, family, header->tensors[i].name, length, &out->layers[out->count++]);
    }
    qsort(out->layers, out->count, sizeof *out->layers, compare_names);
    for (size_t i = 0; i < out->count; i++) {
        struct checkpoint_layer *layer = &out->layers[i];
        if (i > 0 && strcmp(layer->name, out->layers[i - 1].name) == 0)
            layer->usable = refuse(layer, "its name is that of another layer of the file");
        out->usable += layer->usable;
    }
    return true;
}

/* Why nothing was found, where the names are those of an attention that is not read. */
static const char *why_none(const struct st_header *header) {
    static const char packed[] =
        "no attention layer found that is read: the file packs Q, K and V into one tensor whose "
        "order differs from model to model (GPT-NeoX, Bloom, Falcon, ModernBERT ...); unpack it "
        "and PUT the weights as a layer",
                      disentangled[] = "no attention layer found that is read: the names are those of disentangled "
                                       "attention (DeBERTa), which mhad does not do";
    static const struct {
        const char *stem, *reason;
    } signs[] = {{"query_key_value.weight", packed},
                 {"Wqkv.weight", packed},
                 {"qkv.weight", packed},
                 {"qkv_proj.weight", packed},
                 {"self.query_proj.weight", disentangled},
                 {"self.in_proj.weight", disentangled}};
    size_t prefix;
    for (size_t i = 0; i < header->n_tensors; i++)
        for (size_t j = 0; j < sizeof signs / sizeof *signs; j++)
            if (split_name(header->tensors[i].name, signs[j].stem, &prefix)) return signs[j].reason;
    return "no attention layer found: no tensors with the names of BERT, RoBERTa, ViT, ALBERT, DistilBERT, GPT-2, "
           "torch.nn.MultiheadAttention, OPT, BART, Whisper, T5 or Llama";
}

static bool find_error(struct st_error *error, enum st_rule rule, const char *text) {
    error->rule = rule;
    snprintf(error->text, sizeof error->text, "%s", text);
    return false;
}

bool checkpoint_find(const struct st_header *header, const unsigned char *data, const char *config, size_t num_heads,
                     struct checkpoint *out, struct st_error *error) {
    *out = (struct checkpoint){0};
    cJSON *tree = config ? json_tree(config, strlen(config)) : NULL;
    if (config && !cJSON_IsObject(tree)) {
        cJSON_Delete(tree);
        return find_error(error, ST_HEADER_STRUCTURE,
                          "config.json is not a JSON object (NaN and Infinity, as Python writes them, are not JSON)");
    }
    struct search search = {header, data, tree, num_heads};
    bool ok = find_all(&search, out);
    cJSON_Delete(tree);
    if (!ok) return find_error(error, ST_NO_MEMORY, "out of memory");
    if (out->count > 0) return true;
    checkpoint_free(out);
    return find_error(error, ST_HEADER_STRUCTURE, why_none(header));
}

void checkpoint_free(struct checkpoint *checkpoint) {
    free(checkpoint->layers);
    *checkpoint = (struct checkpoint){0};
}

/* ---- the table ---------------------------------------------------------------------------------------------------- */

static const char *type_word(const struct checkpoint_layer *layer) {
    return layer->tensor[0] ? st_dtype_name(layer->tensor[0]->dtype) : "?";
}

static void print_layer(FILE *out, const struct checkpoint_layer *layer, int width) {
    const struct layer_source *s = &layer->source;
    size_t axis = s->layout == MHA_IN_OUT ? 1 : 0;
    char heads[32] = "?", shape[48] = "?";
    if (s->num_heads)
        snprintf(heads, sizeof heads, s->num_kv_heads != s->num_heads ? "%zu/%zu" : "%zu", s->num_heads,
                 s->num_kv_heads);
    if (layer->tensor[0]) snprintf(shape, sizeof shape, "%zux%zu", s->tensor[0].dim[1 - axis], s->tensor[0].dim[axis]);
    fprintf(out, "%-*s  %-16s  %-7s  %-11s  %s", width, layer->name, layer->family, heads, shape, type_word(layer));
    if (!layer->usable || layer->note)
        fprintf(out, "%*s  %s%s", 5 - (int)strlen(type_word(layer)), "",
                layer->usable ? layer->note : "refused: ", layer->usable ? "" : layer->refusal);
    fputc('\n', out);
}

char *checkpoint_table(const struct checkpoint *checkpoint) {
    char *text = NULL;
    size_t size = 0;
    int width = 5;
    FILE *out = open_memstream(&text, &size);
    if (!out) return NULL;
    for (size_t i = 0; i < checkpoint->count; i++) {
        int n = (int)strlen(checkpoint->layers[i].name);
        width = n > width ? n : width;
    }
    fprintf(out, "%-*s  %-16s  %-7s  %-11s  %-5s  %s\n", width, "layer", "family", "heads", "W_q", "dtype", "notes");
    for (size_t i = 0; i < checkpoint->count; i++) print_layer(out, &checkpoint->layers[i], width);
    fprintf(out, "%zu of %zu layers can be used\n", checkpoint->usable, checkpoint->count);
    return fclose(out) == 0 ? text : NULL;
}

/* ---- the file beside ----------------------------------------------------------------------------------------------- */

static char *read_small_file(const char *path, size_t most) {
    struct stat status;
    char *text = NULL;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) return NULL;
    if (fstat(fd, &status) == 0 && S_ISREG(status.st_mode) && (size_t)status.st_size <= most)
        text = malloc((size_t)status.st_size + 1);
    if (text) {
        ssize_t n = read(fd, text, (size_t)status.st_size);
        text[n > 0 ? n : 0] = '\0';
    }
    close(fd);
    return text;
}

char *checkpoint_config_beside(const char *path) {
    const char *slash = strrchr(path, '/');
    char config[4096];
    int n = snprintf(config, sizeof config, "%.*s/config.json", slash ? (int)(slash - path) : 1, slash ? path : ".");
    return n > 0 && (size_t)n < sizeof config ? read_small_file(config, 16u << 20) : NULL;
}

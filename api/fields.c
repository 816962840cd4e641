/* SPDX-License-Identifier: Apache-2.0
 *
 * api/fields.c - the table of request fields and did-you-mean.
 *
 * Suggestions. First the names of other libraries, then equality without case and underscores, then the smallest optimal
 * string alignment distance (insert, delete, replace, swap neighbours; Damerau 1964, Levenshtein 1966), at most a third of
 * the word and at most 3.
 */
#include "fields.h"

#include <string.h>

#include "tensor_text.h"

#define REALS TENSOR_TEXT_NUMBERS
#define MASK  (TENSOR_TEXT_NUMBERS | TENSOR_TEXT_NULLS | TENSOR_TEXT_BOOLEANS)
#define BITS  (TENSOR_TEXT_BOOLEANS | TENSOR_TEXT_ZERO_ONE)
#define BOTH  (IN_MHA | IN_LAYER)

#define TENSOR(id, where, accept, form) [T_##id] = {#id, sizeof #id - 1, FIELD_TENSOR, T_##id, where, accept, form}
#define OPTION(id, where, form)         [TENSOR_COUNT + O_##id] = {#id, sizeof #id - 1, FIELD_OPTION, O_##id, where, 0, form}

const struct field fields[FIELD_COUNT] = {
    TENSOR(Q, IN_MHA, REALS, "[n_q, d_q] or [B, n_q, d_q]"),
    TENSOR(K, IN_MHA, REALS, "[n_k, d_kin] or [B, n_k, d_kin]"),
    TENSOR(V, IN_MHA, REALS, "[n_k, d_vin] or [B, n_k, d_vin]"),
    TENSOR(W_q, BOTH, REALS, "[d_q, h*d_k], or null for no projection"),
    TENSOR(W_k, BOTH, REALS, "[d_kin, h_kv*d_k], or null for no projection"),
    TENSOR(W_v, BOTH, REALS, "[d_vin, h_kv*d_v], or null for no projection"),
    TENSOR(W_o, BOTH, REALS, "[h*d_v, d_out], or null to return the concatenated heads"),
    TENSOR(b_q, BOTH, REALS, "[h*d_k]"),
    TENSOR(b_k, BOTH, REALS, "[h_kv*d_k]"),
    TENSOR(b_v, BOTH, REALS, "[h_kv*d_v]"),
    TENSOR(b_o, BOTH, REALS, "[d_out]"),
    TENSOR(past_K, IN_MHA, REALS, "[h_kv, n_past, d_k] or [B, h_kv, n_past, d_k]"),
    TENSOR(past_V, IN_MHA, REALS, "[h_kv, n_past, d_v] or [B, h_kv, n_past, d_v]"),
    TENSOR(attn_mask, IN_MHA, MASK, "[n_q, n_k] or [B or 1, h or 1, n_q or 1, n_k or 1], booleans or numbers"),
    TENSOR(key_mask, IN_MHA, BITS, "[n_k] or [B, n_k], true/false or 0/1"),
    TENSOR(key_padding_mask, IN_MHA, TENSOR_TEXT_BOOLEANS, "[n_k] or [B, n_k], true = ignore this key"),
    TENSOR(key_lengths, IN_MHA, REALS, "one integer or [B] integers"),
    TENSOR(sinks, IN_MHA, REALS, "[h]"),
    OPTION(num_heads, BOTH, "an integer >= 1"),
    OPTION(num_kv_heads, BOTH, "an integer >= 1 that divides num_heads"),
    OPTION(weight_layout, BOTH, "\"in_out\", \"out_in\", \"head_in_out\" or \"in_head_out\""),
    OPTION(layer, IN_MHA, "the name of a resident layer, a string"),
    OPTION(scale, BOTH, "a number"),
    OPTION(softcap, BOTH, "a number >= 0"),
    OPTION(causal, IN_MHA, "true or false"),
    OPTION(causal_alignment, IN_MHA, "\"top_left\" or \"bottom_right\""),
    OPTION(window, IN_MHA, "{\"left\": integer or null, \"right\": integer or null}"),
    OPTION(attn_mask_kind, IN_MHA, "\"additive\" or \"bool\""),
    OPTION(dtype, BOTH, "\"float64\" or \"float32\""),
    OPTION(return, IN_MHA, "an array of names such as [\"output\",\"attention\"]"),
    OPTION(attention_heads, IN_MHA, "an array of head numbers"),
    OPTION(attention_reduce, IN_MHA, "\"none\" or \"mean\""),
    OPTION(tensor_format, IN_MHA, "\"nested\", \"flat\" or \"base64\""),
};

const struct field *field_find(const char *name, size_t length) {
    for (size_t i = 0; i < FIELD_COUNT; i++) {
        if (fields[i].length != length || length == 0) continue;
        /* the last letter first: W_q, W_k, W_v and W_o differ in nothing else */
        if (fields[i].name[length - 1] != name[length - 1]) continue;
        if (memcmp(fields[i].name, name, length) == 0) return &fields[i];
    }
    return NULL;
}

/* ---- did you mean ---- */

/* What others call it. Compared in plain form: lower case, no '_' and '-'. */
static const struct alias {
    const char *plain, *name;
} aliases[] = {
    {"query", "Q"},
    {"queries", "Q"},
    {"key", "K"},
    {"keys", "K"},
    {"value", "V"},
    {"values", "V"},
    {"x", "Q"},
    {"input", "Q"},
    {"hiddenstates", "Q"},
    {"memory", "K"},
    {"wquery", "W_q"},
    {"wkey", "W_k"},
    {"wvalue", "W_v"},
    {"wout", "W_o"},
    {"woutput", "W_o"},
    {"qproj", "W_q"},
    {"kproj", "W_k"},
    {"vproj", "W_v"},
    {"oproj", "W_o"},
    {"outproj", "W_o"},
    {"qprojweight", "W_q"},
    {"kprojweight", "W_k"},
    {"vprojweight", "W_v"},
    {"outprojweight", "W_o"},
    {"qprojbias", "b_q"},
    {"kprojbias", "b_k"},
    {"vprojbias", "b_v"},
    {"outprojbias", "b_o"},
    {"bquery", "b_q"},
    {"bkey", "b_k"},
    {"bvalue", "b_v"},
    {"bout", "b_o"},
    {"biasq", "b_q"},
    {"biask", "b_k"},
    {"biasv", "b_v"},
    {"biaso", "b_o"},
    {"heads", "num_heads"},
    {"h", "num_heads"},
    {"nhead", "num_heads"},
    {"nheads", "num_heads"},
    {"numattentionheads", "num_heads"},
    {"qnumheads", "num_heads"},
    {"kvheads", "num_kv_heads"},
    {"nkvheads", "num_kv_heads"},
    {"nheadkv", "num_kv_heads"},
    {"kvnumheads", "num_kv_heads"},
    {"numkeyvalueheads", "num_kv_heads"},
    {"mask", "attn_mask"},
    {"attentionmask", "attn_mask"},
    {"srcmask", "attn_mask"},
    {"attentionbias", "attn_mask"},
    {"attnbias", "attn_mask"},
    {"iscausal", "causal"},
    {"usecausalmask", "causal"},
    {"paddingmask", "key_padding_mask"},
    {"keypadding", "key_padding_mask"},
    {"srckeypaddingmask", "key_padding_mask"},
    {"seqlens", "key_lengths"},
    {"lengths", "key_lengths"},
    {"pastkey", "past_K"},
    {"pastvalue", "past_V"},
    {"kcache", "past_K"},
    {"vcache", "past_V"},
    {"sink", "sinks"},
    {"needweights", "return"},
    {"returns", "return"},
    {"averageattnweights", "attention_reduce"},
    {"layout", "weight_layout"},
    {"precision", "dtype"},
    {"type", "dtype"},
    {"format", "tensor_format"},
    {"slidingwindow", "window"},
    {"windowsize", "window"},
    {"logitsoftcap", "softcap"},
    {"logitcap", "softcap"},
    {"softcapping", "softcap"},
    {"softmaxscale", "scale"},
    {"layername", "layer"},
    {"model", "layer"},
};

#define WORD_MAX 40

/* Lower case without '_' and '-'. Returns false when the word is too long to be meant. */
static bool plain_form(const char *word, char out[WORD_MAX]) {
    size_t n = 0;
    for (const char *c = word; *c; c++) {
        if (*c == '_' || *c == '-') continue;
        if (n + 1 >= WORD_MAX) return false;
        out[n++] = (char)(*c >= 'A' && *c <= 'Z' ? *c - 'A' + 'a' : *c);
    }
    out[n] = 0;
    return true;
}

/* Optimal string alignment distance of two plain words. */
static size_t distance(const char *a, const char *b) {
    size_t rows[3][WORD_MAX + 1], n = strlen(a), m = strlen(b);
    size_t *before = rows[0], *last = rows[1], *now = rows[2];
    for (size_t j = 0; j <= m; j++) last[j] = j;
    for (size_t i = 1; i <= n; i++) {
        now[0] = i;
        for (size_t j = 1; j <= m; j++) {
            size_t best = last[j - 1] + (a[i - 1] != b[j - 1]);
            if (last[j] + 1 < best) best = last[j] + 1;
            if (now[j - 1] + 1 < best) best = now[j - 1] + 1;
            bool swapped = i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1];
            if (swapped && before[j - 2] + 1 < best) best = before[j - 2] + 1;
            now[j] = best;
        }
        size_t *spare = before;
        before = last;
        last = now;
        now = spare;
    }
    return last[m];
}

/* What others call a value of an option. NULL: not to be had, and what is spelled alike is not meant. */
static const struct alias words_of_others[] = {
    {"fp32", "float32"},
    {"f32", "float32"},
    {"float", "float32"},
    {"single", "float32"},
    {"fp64", "float64"},
    {"f64", "float64"},
    {"double", "float64"},
    {"float16", NULL},
    {"fp16", NULL},
    {"f16", NULL},
    {"half", NULL},
    {"bfloat16", NULL},
    {"bf16", NULL},
    {"lowerright", "bottom_right"},
    {"upperleft", "top_left"},
    {"average", "mean"},
    {"avg", "mean"},
    {"boolean", "bool"},
    {"float", "additive"},
    {"number", "additive"},
    {"weights", "attention"},
    {"attnweights", "attention"},
    {"probs", "attention"},
    {"lse", "logsumexp"},
    {"logits", "scores"},
    {"context", "concat"},
    {"cache", "present"},
    {"all", "trace"},
};

/* Sets *name to what `plain` is called here, or NULL; false: nobody calls it so. */
static bool word_of_others(const char *plain, const char *const *words, size_t count, const char **name) {
    for (size_t a = 0; a < sizeof words_of_others / sizeof *words_of_others; a++) {
        if (strcmp(words_of_others[a].plain, plain) != 0) continue;
        *name = words_of_others[a].name;
        if (!*name) return true;
        for (size_t i = 0; i < count; i++)
            if (words[i] && strcmp(words[i], *name) == 0) return true;
    }
    return false;
}

const char *word_suggest(const char *word, const char *const *words, size_t count) {
    char plain[WORD_MAX], other[WORD_MAX];
    if (!plain_form(word, plain)) return NULL;
    const char *best = NULL;
    if (word_of_others(plain, words, count, &best)) return best;
    best = NULL;
    size_t least = strlen(plain) / 3 < 3 ? strlen(plain) / 3 + 1 : 4; /* one more than allowed */
    for (size_t i = 0; i < count; i++) {
        if (!words[i] || !plain_form(words[i], other)) continue;
        size_t d = distance(plain, other);
        if (d < least) {
            least = d;
            best = words[i];
        }
    }
    return best;
}

const char *field_suggest(const char *name, unsigned where) {
    char plain[WORD_MAX];
    if (!plain_form(name, plain)) return NULL;
    for (size_t i = 0; i < sizeof aliases / sizeof *aliases; i++) {
        const struct field *field = field_find(aliases[i].name, strlen(aliases[i].name));
        if (strcmp(aliases[i].plain, plain) == 0 && field && (field->where & where)) return field->name;
    }
    const char *names[FIELD_COUNT];
    for (size_t i = 0; i < FIELD_COUNT; i++) names[i] = fields[i].where & where ? fields[i].name : NULL;
    return word_suggest(name, names, FIELD_COUNT);
}

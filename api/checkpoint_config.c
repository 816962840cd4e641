/* SPDX-License-Identifier: Apache-2.0
 *
 * api/checkpoint_config.c - see checkpoint_config.h.
 *
 * Names as in the config classes of Hugging Face transformers.
 */
#include "checkpoint_config.h"

#include <cjson/cJSON.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

/* Models that are told by their config alone: their tensors have the names of BERT, GPT-2 or BART. */
static const struct {
    const char *type, *reason;
} model_types[] = {
    {"roformer", "it rotates Q and K by position (RoFormer: rope), which mhad does not do yet"},
    {"nezha", "it adds relative position embeddings to keys and values (Nezha), which mhad does not do"},
    {"bros", "it adds scores of box positions (BROS), which mhad does not do"},
    {"speecht5", "it adds relative position embeddings to the scores (SpeechT5), which mhad does not do"},
    {"canine", "some of its layers attend inside blocks only (CANINE), which mhad does not do"},
    {"nystromformer", "it approximates the attention (Nystromformer), which mhad does not do"},
    {"yoso", "it approximates the attention (YOSO), which mhad does not do"},
    {"mra", "it approximates the attention (MRA), which mhad does not do"},
    {"autoformer", "it computes autocorrelations and not attention (Autoformer)"},
    {"gpt_bigcode", "its c_attn is not that of GPT-2: transposed, with Q, K and V of each head or K and V of one head"},
};

/* Members of the config that change the scores when they are there and neither false nor 0. */
static const struct {
    const char *key, *reason;
} obstacles[] = {
    {"scale_attn_by_inverse_layer_idx",
     "its scale depends on the layer's number (scale_attn_by_inverse_layer_idx); load it with a scale of your own"},
    {"alibi", "it adds a bias by distance to the scores (alibi), which mhad does not do"},
    {"use_relative_position_bias", "it adds a bias by position (use_relative_position_bias), which mhad does not do"},
    {"use_shared_relative_position_bias",
     "it adds a bias by position (use_shared_relative_position_bias), which mhad does not do"},
    {"has_relative_attention_bias", "it adds a bias by position (has_relative_attention_bias), which mhad does not do"},
    {"attn_temperature_tuning", "it scales Q by position (attn_temperature_tuning), which mhad does not do"},
    {"clip_qkv", "it cuts off large Q, K and V (clip_qkv), which mhad does not do"},
};

/* ---- words of a prefix -------------------------------------------------------------------------------------------- */

static bool starts_with(const char *text, const char *with) { return strncmp(text, with, strlen(with)) == 0; }

/* Whether one of the words between the dots of the prefix is `word`. */
static bool has_word(const char *prefix, const char *word) {
    size_t m = strlen(word);
    for (const char *p = prefix; (p = strstr(p, word)) != NULL; p++)
        if ((p == prefix || p[-1] == '.') && (p[m] == '.' || p[m] == '\0')) return true;
    return false;
}

/* The first number among the words: 3 of "model.layers.3.self_attn"; -1 if there is none. */
static long first_index(const char *prefix) {
    for (const char *p = prefix; *p; p++) {
        if ((p != prefix && p[-1] != '.') || *p < '0' || *p > '9') continue;
        long value = 0;
        while (*p >= '0' && *p <= '9' && value < 100000) value = value * 10 + (*p++ - '0');
        if (*p == '.' || *p == '\0') return value;
        p--;
    }
    return -1;
}

/* ---- members of the config ---------------------------------------------------------------------------------------- */

/* An integer >= 1 under one of the keys, 0 if none has one. */
static size_t config_count(const cJSON *config, const char *const *keys) {
    for (; *keys; keys++) {
        const cJSON *item = cJSON_GetObjectItemCaseSensitive(config, *keys);
        if (cJSON_IsNumber(item) && item->valuedouble >= 1 && item->valuedouble <= 1e6 &&
            item->valuedouble == (double)(long)item->valuedouble)
            return (size_t)item->valuedouble;
    }
    return 0;
}

static size_t config_heads(const cJSON *config, const char *prefix) {
    static const char *const encoder[] = {"encoder_attention_heads", NULL};
    static const char *const decoder[] = {"decoder_attention_heads", NULL};
    static const char *const any[] = {"num_attention_heads", "n_head", "n_heads", "num_heads", "nhead", NULL};
    size_t heads = has_word(prefix, "decoder")   ? config_count(config, decoder)
                   : has_word(prefix, "encoder") ? config_count(config, encoder)
                                                 : 0;
    return heads ? heads : config_count(config, any);
}

/* The part of the config that speaks about this layer: models made of several have one for each. The first word of the prefix that
 * names a part decides; without one, a config that has no head count of its own is asked for its only part that has. */
static const cJSON *config_for(const cJSON *config, const char *prefix) {
    static const char *const parts[][2] = {
        {"text_model", "text_config"},
        {"language_model", "text_config"},
        {"text_encoder", "text_config"},
        {"text_decoder", "text_config"},
        {"text_backbone", "text_config"},
        {"vision_model", "vision_config"},
        {"vision_tower", "vision_config"},
        {"visual", "vision_config"},
        {"audio_tower", "audio_config"},
        {"audio_model", "audio_config"},
        {"image_model", "image_config"},
        {"multimodal_model", "multimodal_config"},
        {"qformer", "qformer_config"},
        {"text_encoder", "text_encoder"},
        {"audio_encoder", "audio_encoder"},
        {"encoder", "encoder"},
        {"decoder", "decoder"},
    };
    for (const char *word = prefix; word; word = strchr(word, '.') ? strchr(word, '.') + 1 : NULL)
        for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
            const cJSON *part = cJSON_GetObjectItemCaseSensitive(config, parts[i][1]);
            if (strcspn(word, ".") == strlen(parts[i][0]) && starts_with(word, parts[i][0]) && cJSON_IsObject(part))
                return part;
        }
    const cJSON *only = NULL;
    if (config_heads(config, prefix)) return config;
    for (const cJSON *part = config->child; part; part = part->next) {
        if (!cJSON_IsObject(part) || !config_heads(part, prefix)) continue;
        if (only) return config;
        only = part;
    }
    return only ? only : config;
}

static bool config_truth(const cJSON *config, const char *key, bool otherwise) {
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(config, key);
    return cJSON_IsBool(item) ? cJSON_IsTrue(item) : otherwise;
}

/* Whether it has this member, and neither null nor false nor 0. */
static bool config_says(const cJSON *config, const char *key) {
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(config, key);
    bool zero = cJSON_IsNumber(item) && item->valuedouble == 0;
    return item && !cJSON_IsNull(item) && !cJSON_IsFalse(item) && !zero;
}

/* A finite number > 0, or 0. */
static double config_positive(const cJSON *config, const char *key) {
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(config, key);
    return cJSON_IsNumber(item) && item->valuedouble > 0 && isfinite(item->valuedouble) ? item->valuedouble : 0;
}

/* The text of a member, "" if it has none. */
static const char *config_text(const cJSON *config, const char *key) {
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(config, key);
    return cJSON_IsString(item) ? item->valuestring : "";
}

static enum checkpoint_rotary config_rotary(const cJSON *config, long index) {
    static const char *const signs[] = {
        "rope_theta", "rope_scaling",          "rope_parameters",       "rotary_dim",           "rotary_emb_base",
        "rotary_pct", "rotary_embedding_base", "partial_rotary_factor", "use_rotary_embedding", "use_rope"};
    const char *kind = config_text(config, "position_embedding_type");
    if (!strcmp(kind, "none") || !strcmp(kind, "nope")) return ROTARY_NO;
    if (!strcmp(kind, "rotary") || !strcmp(kind, "rope")) return ROTARY_YES;
    const cJSON *layers = cJSON_GetObjectItemCaseSensitive(config, "no_rope_layers"); /* 1: rotated, 0: not */
    const cJSON *layer = cJSON_IsArray(layers) && index >= 0 ? cJSON_GetArrayItem(layers, (int)index) : NULL;
    if (cJSON_IsNumber(layer)) return layer->valuedouble == 0 ? ROTARY_NO : ROTARY_YES;
    for (size_t i = 0; i < sizeof signs / sizeof *signs; i++) {
        if (config_says(config, signs[i])) return ROTARY_YES;
    }
    return ROTARY_UNKNOWN;
}

/* ---- the whole ------------------------------------------------------------------------------------------------------ */

/* What speaks against every model of this type, or with this member; "" for nothing. */
static const char *known_reason(const cJSON *config) {
    const char *type = config_text(config, "model_type");
    for (size_t i = 0; i < sizeof obstacles / sizeof *obstacles; i++)
        if (config_says(config, obstacles[i].key)) return obstacles[i].reason;
    for (size_t i = 0; i < sizeof model_types / sizeof *model_types; i++)
        if (!strcmp(type, model_types[i].type)) return model_types[i].reason;
    return "";
}

/* What it says against the layer as mhad would compute it, into out; "" for nothing. */
static void find_obstacle(const cJSON *config, char out[CHECKPOINT_OBSTACLE_MAX]) {
    const char *kind = config_text(config, "position_embedding_type"),
               *attention = config_text(config, "attention_type"), *reason = known_reason(config);
    if (reason[0])
        snprintf(out, CHECKPOINT_OBSTACLE_MAX, "%s", reason);
    else if (!strcmp(kind, "alibi") || starts_with(kind, "relative"))
        snprintf(out, CHECKPOINT_OBSTACLE_MAX,
                 "it adds to the scores by position (\"position_embedding_type\": \"%.40s\"), which mhad does not do",
                 kind);
    else if (!strcmp(attention, "block_sparse") || !strcmp(attention, "prob"))
        snprintf(out, CHECKPOINT_OBSTACLE_MAX,
                 "not every query sees every key (\"attention_type\": \"%.40s\"), which mhad does not do", attention);
    else
        out[0] = '\0';
}

/* The scale that it gives, 0 if it gives none. */
static double config_scale(const cJSON *config) {
    double multiplier = config_positive(config, "attention_multiplier"),
           width = config_positive(config, "query_pre_attn_scalar");
    if (!config_truth(config, "scale_attn_weights", true)) return 1;
    return multiplier > 0 ? multiplier : width > 0 ? 1 / sqrt(width) : 0;
}

void checkpoint_config_read(const struct cJSON *whole, const char *prefix, struct checkpoint_config *out) {
    static const char *const width_keys[] = {"head_dim", "d_kv", NULL}, *const kv_keys[] = {"num_key_value_heads",
                                                                                            NULL};
    const cJSON *config = whole ? config_for(whole, prefix) : NULL;
    *out = (struct checkpoint_config){.given = whole != NULL,
                                      .num_heads = config_heads(config, prefix),
                                      .num_kv_heads = config_count(config, kv_keys),
                                      .head_width = config_count(config, width_keys),
                                      .rotary = config_rotary(config, first_index(prefix)),
                                      .scale = config_scale(config),
                                      .softcap = config_positive(config, "attn_logit_softcapping")};
    find_obstacle(config, out->obstacle);
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * tests/unit/test_checkpoint.c - attention layers found in whole-model files, one small file per family of models.
 *
 * Each file is written with the family's own names, element types and layouts, among tensors of other kinds; loaded with the
 * config.json of that family beside it; and the layer's output is compared with plain loops over the tensors as the family
 * defines them (y = x W^T + b for Linear, y = x W + b for GPT-2's Conv1D, thirds of a packed tensor), which share no code with
 * the product.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "../../api/checkpoint.h"
#include "../../api/layer_dir.h"
#include "support/half.h"

enum { D = 12, N = 5, TENSORS_MAX = 64 };

static struct mem_budget budget = {.limit = 64u << 20};
static char directory[] = "/tmp/test_checkpoint_XXXXXX";
static char model_path[64], config_path[64];

/* ---- writing a small model --------------------------------------------------------------------------------------- */

struct made {
    char name[160];
    enum st_dtype dtype;
    size_t rank, dim[2];
    double *values; /* multiples of 1/16, so that every dtype holds them exactly */
};

static struct made made[TENSORS_MAX];
static size_t n_made;

static void forget_all(void) {
    for (size_t i = 0; i < n_made; i++) free(made[i].values);
    n_made = 0;
}

/* Adds prefix.stem [a, b] (b 0: [a]) of numbers that depend on its name; returns them. */
static const double *add(const char *prefix, const char *stem, enum st_dtype dtype, size_t a, size_t b) {
    struct made *m = &made[n_made++];
    assert_true(n_made <= TENSORS_MAX);
    snprintf(m->name, sizeof m->name, "%s%s%s", prefix, *prefix ? "." : "", stem);
    m->dtype = dtype;
    m->rank = b ? 2 : 1;
    m->dim[0] = a;
    m->dim[1] = b;
    size_t count = a * (b ? b : 1);
    m->values = malloc(count * sizeof *m->values);
    assert_non_null(m->values);
    uint32_t state = 2166136261u;
    for (const char *c = m->name; *c; c++) state = (state ^ (unsigned char)*c) * 16777619u;
    for (size_t i = 0; i < count; i++) {
        state = state * 1664525u + 1013904223u;
        m->values[i] = ((double)(state >> 28) - 7.5) / 16;
        m->values[i] = round(m->values[i] * 16) / 16;
    }
    return m->values;
}

static size_t element(enum st_dtype dtype, double value, unsigned char *out) {
    float f = (float)value;
    uint16_t half = half_bits(f);
    uint32_t bits;
    memcpy(&bits, &f, 4);
    switch (dtype) {
    case ST_F64:
        memcpy(out, &value, 8);
        return 8;
    case ST_F32:
        memcpy(out, &f, 4);
        return 4;
    case ST_F16:
        memcpy(out, &half, 2);
        return 2;
    case ST_BF16:
        memcpy(out, (unsigned char *)&bits + 2, 2);
        return 2;
    default:
        memset(out, 0, 8);
        return st_dtype_bits(dtype) / 8;
    }
}

static void write_text(const char *path, const char *text) {
    unlink(path);
    if (!text) return;
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
}

/* Writes what was added to model_path and the config beside it (NULL: none). */
static void write_model(const char *config) {
    struct st_out out[TENSORS_MAX];
    size_t bytes = 0;
    for (size_t i = 0; i < n_made; i++)
        out[i] = (struct st_out){
            .name = made[i].name, .dtype = made[i].dtype, .rank = made[i].rank, .dim = made[i].dim, .data = &made[i]};
    char *header = st_write_header(out, n_made, NULL, 0, &bytes);
    FILE *f = fopen(model_path, "wb");
    assert_non_null(header);
    assert_non_null(f);
    fwrite(header, 1, bytes, f);
    for (size_t i = 0; i < n_made; i++) {
        const struct made *m = out[i].data;
        size_t count = m->dim[0] * (m->rank == 2 ? m->dim[1] : 1);
        for (size_t j = 0; j < count; j++) {
            unsigned char e[8];
            fwrite(e, 1, element(m->dtype, m->values[j], e), f);
        }
    }
    fclose(f);
    free(header);
    write_text(config_path, config);
}

/* ---- the layer as its family defines it -------------------------------------------------------------------------- */

struct truth {
    size_t h, h_kv, d_k, d_v, d_in, d_out;
    double scale;
    bool causal;
    double wq[D][D], wk[D][D], wv[D][D], wo[D][D]; /* [in][out] */
    double bq[D], bk[D], bv[D], bo[D];
};

static struct truth zero_truth(size_t h, size_t h_kv) {
    struct truth t = {.h = h, .h_kv = h_kv, .d_k = D / h, .d_v = D / h, .d_in = D, .d_out = D};
    t.scale = 1 / sqrt((double)t.d_k);
    return t;
}

/* torch's Linear: weight [out, in]. */
static void take_linear(double to[D][D], const double *weight, size_t out, size_t in) {
    for (size_t o = 0; o < out; o++)
        for (size_t i = 0; i < in; i++) to[i][o] = weight[o * in + i];
}

static void take_bias(double to[D], const double *bias, size_t count) { memcpy(to, bias, count * sizeof *to); }

static void project(double y[N][D], const double x[N][D], const double w[D][D], const double b[D], size_t in,
                    size_t out) {
    for (size_t t = 0; t < N; t++)
        for (size_t o = 0; o < out; o++) {
            y[t][o] = b[o];
            for (size_t i = 0; i < in; i++) y[t][o] += x[t][i] * w[i][o];
        }
}

static void input(double x[N][D]) {
    for (size_t t = 0; t < N; t++)
        for (size_t i = 0; i < D; i++) x[t][i] = sin((double)(t * D + i) * 0.7) * 2;
}

static void evaluate(const struct truth *t, double y[N][D]) {
    double x[N][D], q[N][D], k[N][D], v[N][D], c[N][D] = {{0}};
    input(x);
    project(q, x, t->wq, t->bq, t->d_in, t->h * t->d_k);
    project(k, x, t->wk, t->bk, t->d_in, t->h_kv * t->d_k);
    project(v, x, t->wv, t->bv, t->d_in, t->h_kv * t->d_v);
    for (size_t head = 0; head < t->h; head++)
        for (size_t i = 0; i < N; i++) {
            size_t kv = head * t->h_kv / t->h;
            double weight[N], sum = 0;
            for (size_t j = 0; j < N; j++) {
                double s = 0;
                for (size_t d = 0; d < t->d_k; d++) s += q[i][head * t->d_k + d] * k[j][kv * t->d_k + d];
                weight[j] = t->causal && j > i ? 0 : exp(s * t->scale);
                sum += weight[j];
            }
            for (size_t j = 0; j < N; j++)
                for (size_t d = 0; d < t->d_v; d++) c[i][head * t->d_v + d] += weight[j] / sum * v[j][kv * t->d_v + d];
        }
    project(y, (const double(*)[D])c, t->wo, t->bo, t->h * t->d_v, t->d_out);
}

/* ---- the layer as mhad loads it ---------------------------------------------------------------------------------- */

static void run_layer(struct layer *layer, bool causal, double y[N][D]) {
    struct problem problem;
    problem_init(&problem);
    const struct mha_layer *packed = layer_packed(layer, MHA_F64, &problem);
    if (!packed) fail_msg("%s", problem.detail);
    const struct mha_layer_shape *s = mha_layer_shape(packed);
    const struct layer_source *source = layer_source(layer);
    double x[N][D];
    input(x);
    assert_int_equal(s->d_q, D);
    assert_int_equal(s->d_out, D);
    struct mha_problem p = {.B = 1,
                            .n_q = N,
                            .n_k = N,
                            .h = s->h,
                            .h_kv = s->h_kv,
                            .d_k = s->d_k,
                            .d_v = s->d_v,
                            .d_q = D,
                            .d_kin = D,
                            .d_vin = D,
                            .d_out = D,
                            .Q = x,
                            .K = x,
                            .V = x,
                            .layer = packed,
                            .causal = causal};
    p.scale = source->has_scale ? source->scale : 1 / sqrt((double)s->d_k);
    p.softcap = source->has_softcap ? source->softcap : 0;
    struct mha_result result = {.output = y};
    struct mha_need need;
    struct mha_detail detail;
    assert_int_equal(mha_plan(&p, &result, 1, &need, &detail), MHA_OK);
    void *workspace = aligned_alloc(MHA_ALIGN, (need.workspace + MHA_ALIGN) / MHA_ALIGN * MHA_ALIGN);
    assert_int_equal(mha_run_here(mha_run_init(workspace, &p, &result, 1)), MHA_OK);
    free(workspace);
}

/* The model written last: its layer `name` is of that family and computes what the truth says. `count`: layers in the file. */
static void check_layer(const char *name, size_t count, size_t num_heads, const struct truth *truth) {
    struct layer_store *store = layer_store_new();
    struct problem problem;
    size_t loaded = 0, refused = 0;
    problem_init(&problem);
    if (!layer_checkpoint_load(model_path, num_heads, &budget, store, &loaded, &refused, &problem))
        fail_msg("%s", problem.detail);
    assert_int_equal(loaded, count);
    assert_int_equal(refused, 0);
    struct layer *layer = layer_store_get(store, name);
    if (!layer) fail_msg("no layer %s in %s", name, layer_store_list(store));
    double expected[N][D], actual[N][D];
    evaluate(truth, expected);
    run_layer(layer, truth->causal, actual);
    for (size_t i = 0; i < N; i++)
        for (size_t j = 0; j < D; j++)
            if (!(fabs(actual[i][j] - expected[i][j]) <= 1e-12 * (1 + fabs(expected[i][j]))))
                fail_msg("%s [%zu][%zu]: %.17g, not %.17g", name, i, j, actual[i][j], expected[i][j]);
    layer_release(layer);
    layer_store_free(store);
    assert_int_equal(atomic_load(&budget.used), 0);
}

/* ---- families ---------------------------------------------------------------------------------------------------- */

/* Four Linear layers with these stems; a NULL bias stem: none. */
static struct truth add_linear(const char *prefix, const char *const weight[4], const char *const bias[4],
                               enum st_dtype dtype, size_t h, size_t h_kv) {
    struct truth t = zero_truth(h, h_kv);
    double(*to[4])[D] = {t.wq, t.wk, t.wv, t.wo};
    double *to_bias[4] = {t.bq, t.bk, t.bv, t.bo};
    size_t d_kv = h_kv * t.d_k, out[4] = {D, d_kv, d_kv, D};
    for (int i = 0; i < 4; i++) {
        take_linear(to[i], add(prefix, weight[i], dtype, out[i], D), out[i], D);
        if (bias[i]) take_bias(to_bias[i], add(prefix, bias[i], dtype, out[i], 0), out[i]);
    }
    return t;
}

static void bert_and_roberta(void **state) {
    (void)state;
    static const char *const weight[] = {"self.query.weight", "self.key.weight", "self.value.weight",
                                         "output.dense.weight"};
    static const char *const bias[] = {"self.query.bias", "self.key.bias", "self.value.bias", "output.dense.bias"};
    forget_all();
    add("embeddings", "word_embeddings.weight", ST_F32, 7, D);
    add_linear("roberta.encoder.layer.0.attention", weight, bias, ST_F32, 3, 3);
    struct truth t = add_linear("roberta.encoder.layer.11.attention", weight, bias, ST_F32, 3, 3);
    add("roberta.encoder.layer.11", "intermediate.dense.weight", ST_F32, 24, D);
    add("roberta.encoder.layer.11", "output.dense.weight", ST_F32, D, 24);
    write_model("{\"num_attention_heads\": 3, \"position_embedding_type\": \"absolute\"}");
    check_layer("roberta.encoder.layer.11.attention", 2, 0, &t);
}

static void vit_without_qkv_biases(void **state) {
    (void)state;
    static const char *const weight[] = {"attention.query.weight", "attention.key.weight", "attention.value.weight",
                                         "output.dense.weight"};
    static const char *const bias[] = {NULL, NULL, NULL, "output.dense.bias"};
    forget_all();
    struct truth t = add_linear("vit.encoder.layer.0.attention", weight, bias, ST_F16, 4, 4);
    write_model("{\"num_attention_heads\": 4}");
    check_layer("vit.encoder.layer.0.attention", 1, 0, &t);
}

static void distilbert(void **state) {
    (void)state;
    static const char *const weight[] = {"q_lin.weight", "k_lin.weight", "v_lin.weight", "out_lin.weight"};
    static const char *const bias[] = {"q_lin.bias", "k_lin.bias", "v_lin.bias", "out_lin.bias"};
    forget_all();
    struct truth t = add_linear("distilbert.transformer.layer.3.attention", weight, bias, ST_BF16, 2, 2);
    write_model("{\"n_heads\": 2}");
    check_layer("distilbert.transformer.layer.3.attention", 1, 0, &t);
}

static void albert(void **state) {
    (void)state;
    static const char *const weight[] = {"query.weight", "key.weight", "value.weight", "dense.weight"};
    static const char *const bias[] = {"query.bias", "key.bias", "value.bias", "dense.bias"};
    forget_all();
    struct truth t =
        add_linear("albert.encoder.albert_layer_groups.0.albert_layers.0.attention", weight, bias, ST_F32, 3, 3);
    write_model("{\"num_attention_heads\": 3}");
    check_layer("albert.encoder.albert_layer_groups.0.albert_layers.0.attention", 1, 0, &t);
}

static void gpt2_whose_q_k_and_v_are_columns_of_one_tensor(void **state) {
    (void)state;
    forget_all();
    struct truth t = zero_truth(4, 4);
    const double *w = add("h.0.attn", "c_attn.weight", ST_F32, D, 3 * D),
                 *b = add("h.0.attn", "c_attn.bias", ST_F32, 3 * D, 0);
    const double *o = add("h.0.attn", "c_proj.weight", ST_F32, D, D),
                 *bo = add("h.0.attn", "c_proj.bias", ST_F32, D, 0);
    add("h.0.attn", "bias", ST_F32, 5, 5); /* the causal mask that old files carry */
    add("h.0.mlp", "c_proj.weight", ST_F32, 4 * D, D);
    for (size_t i = 0; i < D; i++)
        for (size_t j = 0; j < D; j++) {
            t.wq[i][j] = w[i * 3 * D + j];
            t.wk[i][j] = w[i * 3 * D + D + j];
            t.wv[i][j] = w[i * 3 * D + 2 * D + j];
            t.wo[i][j] = o[i * D + j];
        }
    take_bias(t.bq, b, D);
    take_bias(t.bk, b + D, D);
    take_bias(t.bv, b + 2 * D, D);
    take_bias(t.bo, bo, D);
    t.causal = true;
    write_model("{\"n_head\": 4, \"scale_attn_weights\": true}");
    check_layer("h.0.attn", 1, 0, &t);
    t.scale = 1;
    write_model("{\"n_head\": 4, \"scale_attn_weights\": false}");
    check_layer("h.0.attn", 1, 0, &t);
}

static struct truth add_torch(const char *prefix, enum st_dtype dtype, size_t h) {
    struct truth t = zero_truth(h, h);
    const double *w = add(prefix, "in_proj_weight", dtype, 3 * D, D), *b = add(prefix, "in_proj_bias", dtype, 3 * D, 0);
    take_linear(t.wq, w, D, D);
    take_linear(t.wk, w + D * D, D, D);
    take_linear(t.wv, w + 2 * D * D, D, D);
    take_bias(t.bq, b, D);
    take_bias(t.bk, b + D, D);
    take_bias(t.bv, b + 2 * D, D);
    take_linear(t.wo, add(prefix, "out_proj.weight", dtype, D, D), D, D);
    take_bias(t.bo, add(prefix, "out_proj.bias", dtype, D, 0), D);
    return t;
}

static void torch_whose_q_k_and_v_are_rows_of_one_tensor(void **state) {
    (void)state;
    forget_all();
    struct truth t = add_torch("encoder.layers.1.self_attn", ST_F64, 2);
    write_model(NULL);
    check_layer("encoder.layers.1.self_attn", 1, 2, &t);
    forget_all(); /* the state dict of a bare module has no prefix */
    t = add_torch("", ST_F16, 3);
    write_model(NULL);
    check_layer("attention", 1, 3, &t);
}

static void torch_with_widths_of_its_own_for_k_and_v(void **state) {
    (void)state;
    static const char *const weight[] = {"q_proj_weight", "k_proj_weight", "v_proj_weight", "out_proj.weight"};
    static const char *const none[] = {NULL, NULL, NULL, NULL};
    forget_all();
    struct truth t = add_linear("attn", weight, none, ST_F32, 2, 2);
    const double *b = add("attn", "in_proj_bias", ST_F32, 3 * D, 0);
    take_bias(t.bq, b, D);
    take_bias(t.bk, b + D, D);
    take_bias(t.bv, b + 2 * D, D);
    write_model(NULL);
    check_layer("attn", 1, 2, &t);
}

static const char *const proj_weight[] = {"q_proj.weight", "k_proj.weight", "v_proj.weight", "out_proj.weight"};
static const char *const proj_bias[] = {"q_proj.bias", "k_proj.bias", "v_proj.bias", "out_proj.bias"};

static void opt(void **state) {
    (void)state;
    forget_all();
    struct truth t = add_linear("model.decoder.layers.2.self_attn", proj_weight, proj_bias, ST_F16, 3, 3);
    t.causal = true;
    write_model("{\"num_attention_heads\": 3, \"model_type\": \"opt\"}");
    check_layer("model.decoder.layers.2.self_attn", 1, 0, &t);
}

static void whisper_has_no_k_bias_and_a_head_count_for_each_side(void **state) {
    (void)state;
    static const char *const bias[] = {"q_proj.bias", NULL, "v_proj.bias", "out_proj.bias"};
    static const char config[] =
        "{\"encoder_attention_heads\": 2, \"decoder_attention_heads\": 4, \"num_hidden_layers\": 1}";
    forget_all();
    struct truth encoder = add_linear("model.encoder.layers.0.self_attn", proj_weight, bias, ST_F16, 2, 2);
    struct truth cross = add_linear("model.decoder.layers.0.encoder_attn", proj_weight, bias, ST_F16, 4, 4);
    write_model(config);
    check_layer("model.encoder.layers.0.self_attn", 2, 0, &encoder);
    check_layer("model.decoder.layers.0.encoder_attn", 2, 0, &cross);
}

static void gpt_neo_does_not_scale(void **state) {
    (void)state;
    static const char *const bias[] = {NULL, NULL, NULL, "out_proj.bias"};
    forget_all();
    struct truth t = add_linear("transformer.h.0.attn.attention", proj_weight, bias, ST_F32, 3, 3);
    t.scale = 1;
    write_model("{\"num_heads\": 3}");
    check_layer("transformer.h.0.attn.attention", 1, 0, &t);
}

static void t5_has_no_biases_and_scale_1(void **state) {
    (void)state;
    static const char *const weight[] = {"q.weight", "k.weight", "v.weight", "o.weight"}, *const none[4] = {0};
    forget_all();
    struct truth t = add_linear("encoder.block.0.layer.0.SelfAttention", weight, none, ST_F32, 3, 3);
    add("encoder.block.0.layer.0.SelfAttention", "relative_attention_bias.weight", ST_F32, 32, 3);
    struct truth cross = add_linear("decoder.block.0.layer.1.EncDecAttention", weight, none, ST_F32, 3, 3);
    t.scale = cross.scale = 1;
    write_model("{\"num_heads\": 3, \"d_kv\": 4}");
    check_layer("encoder.block.0.layer.0.SelfAttention", 2, 0, &t);
    check_layer("decoder.block.0.layer.1.EncDecAttention", 2, 0, &cross);
}

static const char *const llama_weight[] = {"q_proj.weight", "k_proj.weight", "v_proj.weight", "o_proj.weight"};
static const char *const no_bias[4] = {NULL, NULL, NULL, NULL};

static void llama_names_without_positions(void **state) {
    (void)state;
    forget_all();
    struct truth t = add_linear("model.layers.1.self_attn", llama_weight, no_bias, ST_BF16, 6, 2);
    t.causal = true;
    write_model("{\"num_attention_heads\": 6, \"num_key_value_heads\": 2, \"position_embedding_type\": \"none\"}");
    check_layer("model.layers.1.self_attn", 1, 0, &t);
    write_model("{\"num_attention_heads\": 6, \"rope_theta\": 1e4, \"no_rope_layers\": [1, 0]}");
    check_layer("model.layers.1.self_attn", 1, 0, &t);
}

/* ---- what is refused --------------------------------------------------------------------------------------------- */

/* Nothing of the model written last can be used, and the message says `word`. */
static void check_refused(size_t num_heads, const char *word) {
    struct layer_store *store = layer_store_new();
    struct problem problem;
    size_t loaded, refused;
    problem_init(&problem);
    assert_false(layer_checkpoint_load(model_path, num_heads, &budget, store, &loaded, &refused, &problem));
    if (!strstr(problem.detail, word)) fail_msg("\"%s\" does not say \"%s\"", problem.detail, word);
    assert_int_equal(layer_store_count(store), 0);
    layer_store_free(store);
    assert_int_equal(atomic_load(&budget.used), 0);
}

static void rotary_positions_are_refused_by_name(void **state) {
    (void)state;
    forget_all();
    add_linear("model.layers.0.self_attn", llama_weight, no_bias, ST_BF16, 6, 2);
    write_model("{\"num_attention_heads\": 6, \"rope_theta\": 500000.0}");
    check_refused(0, "rope");
    write_model("{\"num_attention_heads\": 6}"); /* the names alone make it likely */
    check_refused(0, "rope");
    write_model(NULL);
    check_refused(6, "rope");
    forget_all();
    add_linear("transformer.h.0.attn", proj_weight, no_bias, ST_F32, 3, 3); /* GPT-J */
    write_model("{\"n_head\": 3, \"rotary_dim\": 4}");
    check_refused(0, "rope");
    forget_all();
    static const char *const weight[] = {"self.query.weight", "self.key.weight", "self.value.weight",
                                         "output.dense.weight"};
    add_linear("esm.encoder.layer.0.attention", weight, no_bias, ST_F32, 3, 3);
    write_model("{\"num_attention_heads\": 3, \"position_embedding_type\": \"rotary\"}");
    check_refused(0, "rope");
}

static void what_stands_beside_the_projections_is_not_ignored(void **state) {
    (void)state;
    static const char *const beside[][2] = {
        {"q_norm.weight", "q_norm"}, {"rotary_emb.inv_freq", "rotary"}, {"bias_k", "bias_k"}};
    for (size_t i = 0; i < 3; i++) {
        forget_all();
        add_linear("a.self_attn", proj_weight, no_bias, ST_F32, 3, 3);
        add("a.self_attn", beside[i][0], ST_F32, D, 0);
        write_model("{\"num_attention_heads\": 3}");
        check_refused(0, beside[i][1]);
    }
}

static const char *const bert_weight[] = {"self.query.weight", "self.key.weight", "self.value.weight",
                                          "output.dense.weight"};
static const char *const vit_weight[] = {"attention.query.weight", "attention.key.weight", "attention.value.weight",
                                         "output.dense.weight"};

/* Tensors of real models that change what is computed: scaled cosine (Swin v2), biases under other names (VideoMAE), gated
 * relative positions (WavLM), positions on values (VITS), a norm of the heads (Kosmos-2), entity queries (LUKE), global
 * attention (Longformer), a convolution before K and V (SegFormer), low-rank updates, scales of quantised weights. */
static void a_tensor_inside_the_attention_that_is_not_known_refuses_the_layer(void **state) {
    (void)state;
    static const struct {
        const char *const *weight;
        const char *beside;
    } cases[] = {{bert_weight, "self.logit_scale"},
                 {bert_weight, "self.rotary_embeddings.inv_freq"},
                 {bert_weight, "self.w2e_query.weight"},
                 {bert_weight, "self.query_global.weight"},
                 {bert_weight, "self.sr.weight"},
                 {bert_weight, "self.query.lora_A.weight"},
                 {bert_weight, "output.dense.lora_A.default.weight"},
                 {bert_weight, "output.dense.weight_scale"},
                 {vit_weight, "attention.q_bias"},
                 {vit_weight, "attention.relative_position_bias.relative_position_bias_table"},
                 {proj_weight, "gru_rel_pos_linear.weight"},
                 {proj_weight, "emb_rel_k"},
                 {proj_weight, "inner_attn_ln.weight"},
                 {proj_weight, "q_proj.weight_scale"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        forget_all();
        add_linear("m.layer.0.attention", cases[i].weight, no_bias, ST_F32, 3, 3);
        add("m.layer.0.attention", cases[i].beside, ST_F32, D, 0);
        write_model("{\"num_attention_heads\": 3}");
        check_refused(0, cases[i].beside);
    }
}

static void what_comes_before_or_after_the_attention_does_not_matter(void **state) {
    (void)state;
    forget_all();
    struct truth t = add_linear("m.layer.0.attention", bert_weight, no_bias, ST_F32, 3, 3);
    add("m.layer.0.attention", "output.LayerNorm.weight", ST_F32, D, 0);
    add("m.layer.0.attention", "LayerNorm.weight", ST_F32, D, 0);
    add("m.layer.0.attention2", "self.logit_scale", ST_F32, D, 0); /* another module */
    add("m.layer.0", "output.dense.weight", ST_F32, D, D);
    write_model("{\"num_attention_heads\": 3}");
    check_layer("m.layer.0.attention", 1, 0, &t);
    forget_all();
    t = add_linear("blocks.0", proj_weight, no_bias, ST_F32, 3, 3); /* projections in the block itself */
    add("blocks.0", "norm1.weight", ST_F32, D, 0);
    add("blocks.0", "mlp.fc1.weight", ST_F32, D, D);
    write_model("{\"num_attention_heads\": 3}");
    check_layer("blocks.0", 1, 0, &t);
}

static void models_that_only_their_config_tells_apart_are_refused(void **state) {
    (void)state;
    static const char *const cases[][2] = {
        {"\"model_type\": \"roformer\"", "rope"},
        {"\"model_type\": \"nezha\"", "relative position"},
        {"\"position_embedding_type\": \"alibi\"", "alibi"},
        {"\"alibi\": true", "alibi"},
        {"\"position_embedding_type\": \"relative_key_query\"", "relative_key_query"},
        {"\"attention_type\": \"block_sparse\"", "block_sparse"},
        {"\"use_shared_relative_position_bias\": true", "use_shared_relative_position_bias"},
        {"\"has_relative_attention_bias\": true", "has_relative_attention_bias"},
        {"\"use_rotary_embedding\": true", "rope"},
        {"\"scale_attn_by_inverse_layer_idx\": true", "layer's number"},
        {"\"head_dim\": 3", "heads are 3 wide"},
    };
    forget_all();
    struct truth t = add_linear("m.encoder.layer.0.attention", bert_weight, no_bias, ST_F32, 3, 3);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char config[200];
        snprintf(config, sizeof config, "{\"num_attention_heads\": 3, %s}", cases[i][0]);
        write_model(config);
        check_refused(0, cases[i][1]);
    }
    write_model("{\"num_attention_heads\": 3, \"model_type\": \"bert\", \"position_embedding_type\": \"absolute\", "
                "\"attention_type\": \"original_full\", \"alibi\": false, \"rotary_pct\": 0, \"rope_scaling\": null, "
                "\"use_rotary_embedding\": false, \"has_relative_attention_bias\": false, \"head_dim\": 4}");
    check_layer("m.encoder.layer.0.attention", 1, 0, &t);
}

static void a_scale_of_the_configs_own_is_used(void **state) {
    (void)state;
    forget_all();
    struct truth t = add_linear("model.layers.1.self_attn", llama_weight, no_bias, ST_BF16, 6, 2);
    t.causal = true;
    t.scale = 0.0625; /* Granite 4 without positions */
    write_model(
        "{\"num_attention_heads\": 6, \"position_embedding_type\": \"nope\", \"attention_multiplier\": 0.0625}");
    check_layer("model.layers.1.self_attn", 1, 0, &t);
    t.scale = 0.125; /* as Gemma writes it */
    write_model("{\"num_attention_heads\": 6, \"position_embedding_type\": \"none\", \"query_pre_attn_scalar\": 64}");
    check_layer("model.layers.1.self_attn", 1, 0, &t);
    t.scale = 1 / sqrt(2.0); /* numbers that are none change nothing */
    write_model("{\"num_attention_heads\": 6, \"position_embedding_type\": \"none\", \"query_pre_attn_scalar\": 0, "
                "\"attention_multiplier\": -1, \"attn_logit_softcapping\": 1e999}");
    check_layer("model.layers.1.self_attn", 1, 0, &t);
}

/* Q-Former (BLIP-2) has 3 heads here, the text model beside it 6: both divide the width, one is right. */
static void each_part_of_a_model_has_its_own_head_count(void **state) {
    (void)state;
    forget_all();
    struct truth t = add_linear("qformer.encoder.layer.0.attention", vit_weight, no_bias, ST_F32, 3, 3);
    write_model("{\"text_config\": {\"num_attention_heads\": 6}, \"qformer_config\": {\"num_attention_heads\": 3}}");
    check_layer("qformer.encoder.layer.0.attention", 1, 0, &t);
    forget_all();
    t = add_linear("resampler.layers.0.self_attn", proj_weight, no_bias, ST_F32, 3, 3);
    write_model("{\"text_config\": {\"num_attention_heads\": 6}, \"vision_config\": {\"num_attention_heads\": 4}}");
    check_refused(0, "--num-heads");
    write_model("{\"text_config\": {\"num_attention_heads\": 3}, \"vision_config\": {\"num_attention_heads\": null}}");
    check_layer("resampler.layers.0.self_attn", 1, 0, &t);
    forget_all(); /* encoder-decoders of two models */
    add_linear("encoder.encoder.layer.0.attention", vit_weight, no_bias, ST_F32, 6, 6);
    t = add_linear("decoder.roberta.encoder.layer.0.attention", bert_weight, no_bias, ST_F32, 3, 3);
    write_model("{\"encoder\": {\"num_attention_heads\": 6}, \"decoder\": {\"num_attention_heads\": 3}}");
    check_layer("decoder.roberta.encoder.layer.0.attention", 2, 0, &t);
}

static void a_packed_tensor_in_the_other_orientation_is_refused(void **state) {
    (void)state;
    forget_all();
    add("transformer.h.0.attn", "c_attn.weight", ST_F32, 3 * D, D);
    add("transformer.h.0.attn", "c_proj.weight", ST_F32, D, D);
    write_model("{\"n_head\": 4}");
    check_refused(0, "transposed");
    forget_all(); /* GPT-2's cross-attention */
    add("h.0.crossattention", "c_attn.weight", ST_F32, D, 2 * D);
    add("h.0.crossattention", "q_attn.weight", ST_F32, D, D);
    add("h.0.crossattention", "c_proj.weight", ST_F32, D, D);
    write_model("{\"n_head\": 4}");
    check_refused(0, "q_attn");
}

static void names_of_attention_that_is_not_read_are_told(void **state) {
    (void)state;
    static const char *const cases[][2] = {{"attention.query_key_value.weight", "packs Q, K and V"}, /* GPT-NeoX */
                                           {"attn.Wqkv.weight", "ModernBERT"},
                                           {"attention.self.query_proj.weight", "disentangled"},
                                           {"attention.self.in_proj.weight", "disentangled"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        forget_all();
        add("layers.0", cases[i][0], ST_F32, 3 * D, D);
        add("layers.0", "attention.dense.weight", ST_F32, D, D);
        write_model("{\"num_attention_heads\": 3}");
        check_refused(0, cases[i][1]);
    }
}

/* One such layer does not keep the server from starting with the others. */
static void parts_that_do_not_fit_refuse_their_layer_alone(void **state) {
    (void)state;
    static const struct {
        const char *stem;
        size_t rows, columns;
        const char *word;
    } cases[] = {{"out_proj.weight", D, D - 2, "takes a width of 10"},
                 {"v_proj.weight", D - 2, D, "do not divide the width 10 of V"},
                 {"v_proj.bias", D - 2, 0, "gives 10 elements"},
                 {"out_proj.weight", D, 0, "2 dimensions"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        forget_all();
        add_linear("good.self_attn", proj_weight, no_bias, ST_F32, 3, 3);
        for (size_t j = 0; j < 4; j++)
            if (strcmp(proj_weight[j], cases[i].stem) != 0) add("bad.self_attn", proj_weight[j], ST_F32, D, D);
        add("bad.self_attn", cases[i].stem, ST_F32, cases[i].rows, cases[i].columns);
        write_model("{\"num_attention_heads\": 3}");
        struct layer_store *store = layer_store_new();
        struct problem problem;
        size_t loaded, refused;
        problem_init(&problem);
        if (!layer_checkpoint_load(model_path, 0, &budget, store, &loaded, &refused, &problem))
            fail_msg("%s", problem.detail);
        assert_int_equal(loaded, 1);
        assert_int_equal(refused, 1);
        if (!strstr(problem.detail, cases[i].word))
            fail_msg("\"%s\" does not say \"%s\"", problem.detail, cases[i].word);
        layer_store_free(store);
    }
}

static void heads_that_are_unknown_or_do_not_fit_are_refused(void **state) {
    (void)state;
    forget_all();
    add_torch("attn", ST_F32, 3);
    write_model(NULL);
    check_refused(0, "--num-heads");
    check_refused(5, "do not divide");
    write_model("{\"num_attention_heads\": 3, \"num_key_value_heads\": 1}");
    check_refused(0, "key/value heads");
    write_model("not json");
    check_refused(0, "config.json");
}

static void tensors_of_other_types_and_shapes_are_refused_by_name(void **state) {
    (void)state;
    forget_all();
    add("attn", "in_proj_weight", ST_F8_E4M3, 3 * D, D);
    add("attn", "out_proj.weight", ST_F32, D, D);
    write_model(NULL);
    check_refused(3, "attn.in_proj_weight\" is F8_E4M3");
    forget_all();
    add("attn", "in_proj_weight", ST_F32, 3 * D + 1, D);
    add("attn", "out_proj.weight", ST_F32, D, D);
    write_model(NULL);
    check_refused(3, "multiple of 3");
    forget_all();
    add("attn", "in_proj_weight", ST_F32, 3 * D, 0);
    add("attn", "out_proj.weight", ST_F32, D, D);
    write_model(NULL);
    check_refused(3, "2 dimensions");
    forget_all();
    add("embeddings", "weight", ST_F32, D, D);
    write_model(NULL);
    check_refused(3, "no attention layer found");
}

static void one_refused_layer_does_not_keep_the_others_out(void **state) {
    (void)state;
    forget_all();
    add_torch("good", ST_F32, 3);
    add_torch("bad", ST_F32, 3);
    add("bad", "bias_k", ST_F32, D, 0);
    write_model(NULL);
    struct layer_store *store = layer_store_new();
    struct problem problem;
    size_t loaded, refused;
    problem_init(&problem);
    assert_true(layer_checkpoint_load(model_path, 3, &budget, store, &loaded, &refused, &problem));
    assert_int_equal(loaded, 1);
    assert_int_equal(refused, 1);
    assert_non_null(strstr(problem.detail, "layer bad is refused"));
    layer_store_free(store);
}

static void the_table_lists_layers_in_natural_order_with_heads_and_reasons(void **state) {
    (void)state;
    forget_all();
    add_torch("layers.10", ST_F32, 3);
    add_torch("layers.9", ST_F16, 3);
    add_torch("layers.2", ST_F32, 3);
    add("layers.2", "bias_k", ST_F32, D, 0);
    write_model(NULL);
    struct problem problem;
    problem_init(&problem);
    char *table = layer_checkpoint_list(model_path, 3, &problem);
    assert_non_null(table);
    const char *two = strstr(table, "layers.2 "), *nine = strstr(table, "layers.9 "),
               *ten = strstr(table, "layers.10 ");
    assert_true(two && nine && ten && two < nine && nine < ten);
    assert_non_null(strstr(two, "refused: "));
    assert_non_null(strstr(nine, "torch"));
    assert_non_null(strstr(nine, "12x12"));
    assert_non_null(strstr(nine, "F16"));
    assert_non_null(strstr(table, "2 of 3 layers can be used"));
    free(table);
    assert_null(layer_checkpoint_list("/nonexistent", 0, &problem));
    assert_non_null(strstr(problem.detail, "/nonexistent"));
}

static int make_directory(void **state) {
    (void)state;
    if (!mkdtemp(directory)) return -1;
    snprintf(model_path, sizeof model_path, "%s/model.safetensors", directory);
    snprintf(config_path, sizeof config_path, "%s/config.json", directory);
    return 0;
}

static int remove_directory(void **state) {
    (void)state;
    forget_all();
    unlink(model_path);
    unlink(config_path);
    return rmdir(directory);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bert_and_roberta),
        cmocka_unit_test(vit_without_qkv_biases),
        cmocka_unit_test(distilbert),
        cmocka_unit_test(albert),
        cmocka_unit_test(gpt2_whose_q_k_and_v_are_columns_of_one_tensor),
        cmocka_unit_test(torch_whose_q_k_and_v_are_rows_of_one_tensor),
        cmocka_unit_test(torch_with_widths_of_its_own_for_k_and_v),
        cmocka_unit_test(opt),
        cmocka_unit_test(whisper_has_no_k_bias_and_a_head_count_for_each_side),
        cmocka_unit_test(gpt_neo_does_not_scale),
        cmocka_unit_test(t5_has_no_biases_and_scale_1),
        cmocka_unit_test(llama_names_without_positions),
        cmocka_unit_test(rotary_positions_are_refused_by_name),
        cmocka_unit_test(what_stands_beside_the_projections_is_not_ignored),
        cmocka_unit_test(a_tensor_inside_the_attention_that_is_not_known_refuses_the_layer),
        cmocka_unit_test(what_comes_before_or_after_the_attention_does_not_matter),
        cmocka_unit_test(models_that_only_their_config_tells_apart_are_refused),
        cmocka_unit_test(a_scale_of_the_configs_own_is_used),
        cmocka_unit_test(each_part_of_a_model_has_its_own_head_count),
        cmocka_unit_test(a_packed_tensor_in_the_other_orientation_is_refused),
        cmocka_unit_test(names_of_attention_that_is_not_read_are_told),
        cmocka_unit_test(parts_that_do_not_fit_refuse_their_layer_alone),
        cmocka_unit_test(heads_that_are_unknown_or_do_not_fit_are_refused),
        cmocka_unit_test(tensors_of_other_types_and_shapes_are_refused_by_name),
        cmocka_unit_test(one_refused_layer_does_not_keep_the_others_out),
        cmocka_unit_test(the_table_lists_layers_in_natural_order_with_heads_and_reasons),
    };
    return cmocka_run_group_tests_name("checkpoint", tests, make_directory, remove_directory);
}

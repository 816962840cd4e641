/* SPDX-License-Identifier: Apache-2.0
 *
 * tests/unit/support/accuracy_layer.c - see accuracy_layer.h.
 */
#include "accuracy_layer.h"

#include "random_problem.h"

#include <math.h>
#include <stdlib.h>

struct recipe {
    const char *kind;
    size_t n_q, n_k, d_in, h, d; /* d_k = d_v = d; 0: drawn */
    double gain;                 /* multiplies the scale: how large scores get */
    double spread;               /* of the tokens around a common vector, relative to it; 0: no common vector */
};

static const struct recipe ordinary = {"random", 0, 0, 0, 0, 0, 1, 0};

/* Layer ACCURACY_RANDOM + i uses entry i mod their number, with a seed of its own. */
static const struct recipe hard[] = {
    {"scores of +-700", 12, 24, 32, 2, 16, 230, 0},
    {"scores that nearly agree", 8, 32, 32, 2, 16, 30, 1e-5},
    {"equal tokens", 6, 100, 16, 2, 8, 1, 1e-15},
    {"4096 keys, small heads", 6, 4096, 8, 2, 4, 1, 0},
    {"4096 keys, peaked", 6, 4096, 8, 2, 4, 6, 0},
    {"2048 inputs", 3, 6, 2048, 2, 4, 1, 0},
    {"256 inputs, 4 heads of 64", 12, 12, 256, 4, 64, 1, 0},
    {"one head of 512", 4, 12, 16, 1, 512, 1, 0},
    {"one key", 5, 1, 24, 2, 12, 1, 0},
};

static const struct recipe *recipe(size_t index) {
    return index < ACCURACY_RANDOM ? &ordinary : &hard[(index - ACCURACY_RANDOM) % (sizeof hard / sizeof hard[0])];
}

const char *accuracy_kind(size_t index) { return recipe(index)->kind; }

static void *own(struct accuracy_layer *layer, size_t bytes) {
    void *memory = calloc(1, bytes);
    if (memory == NULL || layer->n_owned == sizeof layer->owned / sizeof layer->owned[0]) abort();
    return layer->owned[layer->n_owned++] = memory;
}

static void store(enum mha_dtype dtype, void *data, size_t i, double value) {
    if (dtype == MHA_F32) {
        ((float *)data)[i] = (float)value;
    } else {
        ((double *)data)[i] = value;
    }
}

/* Twelve uniform numbers add up to nearly a normal one, without a libm whose last bit may differ. */
static double normal(uint64_t *state) {
    double sum = -6;
    for (int i = 0; i < 12; i++) sum += random_unit(state);
    return sum;
}

static void *normals(struct accuracy_layer *layer, uint64_t *state, size_t n, double deviation) {
    void *data = own(layer, n * mha_dtype_size(layer->problem.dtype));
    for (size_t i = 0; i < n; i++) store(layer->problem.dtype, data, i, deviation * normal(state));
    return data;
}

static void *tokens(struct accuracy_layer *layer, uint64_t *state, size_t n, size_t width, double spread) {
    if (spread == 0) return normals(layer, state, n * width, 1);
    void *data = own(layer, n * width * mha_dtype_size(layer->problem.dtype));
    for (size_t c = 0; c < width; c++) {
        const double common = normal(state);
        for (size_t i = 0; i < n; i++)
            store(layer->problem.dtype, data, i * width + c, common * (1 + spread * normal(state)));
    }
    return data;
}

static size_t between(uint64_t *state, size_t low, size_t high) { return low + random_below(state, high - low + 1); }

static void draw_dimensions(struct mha_problem *p, const struct recipe *from, uint64_t *state) {
    const size_t h = (size_t)1 << random_below(state, 3), d = between(state, 2, 20), n = between(state, 2, 40);
    const size_t d_in = between(state, 4, 64), n_cross = random_below(state, 3) ? n : between(state, 1, 60);
    p->B = 1;
    p->n_q = from->n_q ? from->n_q : n;
    p->n_k = from->n_k ? from->n_k : n_cross;
    p->h = p->h_kv = from->h ? from->h : h;
    p->d_k = p->d_v = from->d ? from->d : d;
    p->d_q = p->d_kin = p->d_vin = from->d_in ? from->d_in : d_in;
    p->d_out = p->d_q;
    p->causal = !from->n_q && random_below(state, 4) == 0;
    p->scale = from->gain / sqrt((double)p->d_k);
    if (p->dtype == MHA_F32) p->scale = (float)p->scale;
}

struct accuracy_layer *accuracy_layer_new(size_t index, enum mha_dtype dtype) {
    struct accuracy_layer *layer = calloc(1, sizeof *layer);
    if (layer == NULL) abort();
    const struct recipe *from = recipe(index);
    struct mha_problem *p = &layer->problem;
    uint64_t state = 0xacc0000 + index;
    p->dtype = dtype;
    draw_dimensions(p, from, &state);

    const size_t width = p->h * p->d_k;
    const bool self = p->n_q == p->n_k;
    const double gain = 1 / sqrt((double)p->d_q);
    p->Q = tokens(layer, &state, p->n_q, p->d_q, from->spread);
    p->K = self ? p->Q : tokens(layer, &state, p->n_k, p->d_kin, from->spread);
    p->V = p->K;
    p->weights.W_q = normals(layer, &state, p->d_q * width, gain);
    p->weights.W_k = normals(layer, &state, p->d_kin * width, gain);
    p->weights.W_v = normals(layer, &state, p->d_vin * width, gain);
    p->weights.W_o = normals(layer, &state, width * p->d_out, 1 / sqrt((double)width));
    if (random_below(&state, 2)) {
        p->weights.b_q = normals(layer, &state, width, 0.1);
        p->weights.b_k = normals(layer, &state, width, 0.1);
        p->weights.b_v = normals(layer, &state, width, 0.1);
        p->weights.b_o = normals(layer, &state, p->d_out, 0.1);
    }
    layer->result.output = own(layer, p->n_q * p->d_out * mha_dtype_size(dtype));
    return layer;
}

void accuracy_layer_free(struct accuracy_layer *layer) {
    for (size_t i = 0; i < layer->n_owned; i++) free(layer->owned[i]);
    free(layer);
}

static enum mha_error run(struct accuracy_layer *layer) {
    struct mha_need need;
    struct mha_detail detail;
    enum mha_error error = mha_plan(&layer->problem, &layer->result, 1, &need, &detail);
    if (error != MHA_OK) return error;
    void *workspace = aligned_alloc(MHA_ALIGN, (need.workspace + MHA_ALIGN) / MHA_ALIGN * MHA_ALIGN);
    if (workspace == NULL) abort();
    error = mha_run_here(mha_run_init(workspace, &layer->problem, &layer->result, 1));
    free(workspace);
    return error;
}

static quad magnitude(quad x) { return x < 0 ? -x : x; }

static quad element(const struct accuracy_layer *layer, size_t i) {
    const void *output = layer->result.output;
    return layer->problem.dtype == MHA_F32 ? (quad)((const float *)output)[i] : (quad)((const double *)output)[i];
}

struct accuracy accuracy_measure(struct accuracy_layer *layer, const struct oracle *exact) {
    struct accuracy a = {INFINITY, INFINITY};
    if (run(layer) != MHA_OK) return a;
    quad largest = 0, worst = 0, sum = 0;
    for (size_t i = 0; i < exact->output.n; i++) {
        const quad want = exact->output.value[i], error = magnitude(element(layer, i) - want);
        if (error != error) return a;
        if (error > worst) worst = error;
        if (magnitude(want) > largest) largest = magnitude(want);
        sum += error;
    }
    a.max = (double)(worst / largest);
    a.mean = (double)(sum / largest / (quad)exact->output.n);
    return a;
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * tests/tools/accuracy_dump.c - writes the layers of accuracy_layer.h with their exact outputs and the library's errors to
 * standard output, for tests/bench/accuracy_numpy.py.
 *
 * Format, little-endian, one record after the other: int64 [16] = index, bytes of an element, n_q, n_k, h, d (of a head),
 * d_in, causal, biases, self (K is Q), then 0; double scale, our max error, our mean error; then in the layer's type Q,
 * K (unless self), W_q, W_k, W_v, W_o, (b_q, b_k, b_v, b_o); then the exact output as two arrays of double, high and low
 * parts.
 */
#include <stdio.h>
#include <stdlib.h>

#include "../unit/support/accuracy_layer.h"

static void put(const void *data, size_t size, size_t n) {
    if (fwrite(data, size, n, stdout) != n) {
        perror("accuracy_dump");
        exit(1);
    }
}

static void put_tensors(const struct mha_problem *p) {
    const size_t size = mha_dtype_size(p->dtype), width = p->h * p->d_k;
    const struct mha_weights *w = &p->weights;
    put(p->Q, size, p->n_q * p->d_q);
    if (p->K != p->Q) put(p->K, size, p->n_k * p->d_kin);
    put(w->W_q, size, p->d_q * width);
    put(w->W_k, size, p->d_kin * width);
    put(w->W_v, size, p->d_vin * width);
    put(w->W_o, size, width * p->d_out);
    if (w->b_q == NULL) return;
    put(w->b_q, size, width);
    put(w->b_k, size, width);
    put(w->b_v, size, width);
    put(w->b_o, size, p->d_out);
}

static void put_layer(size_t index, enum mha_dtype dtype) {
    struct accuracy_layer *layer = accuracy_layer_new(index, dtype);
    const struct mha_problem *p = &layer->problem;
    struct oracle *exact = oracle_new(p);
    const struct accuracy ours = accuracy_measure(layer, exact);
    const int64_t head[16] = {(int64_t)index,         (int64_t)mha_dtype_size(dtype),
                              (int64_t)p->n_q,        (int64_t)p->n_k,
                              (int64_t)p->h,          (int64_t)p->d_k,
                              (int64_t)p->d_q,        p->causal,
                              p->weights.b_q != NULL, p->K == p->Q};
    put(head, sizeof head[0], 16);
    put(&p->scale, sizeof p->scale, 1);
    put(&ours.max, sizeof ours.max, 1);
    put(&ours.mean, sizeof ours.mean, 1);
    put_tensors(p);
    for (int part = 0; part < 2; part++)
        for (size_t i = 0; i < exact->output.n; i++) {
            const double high = (double)exact->output.value[i], low = (double)(exact->output.value[i] - (quad)high);
            put(part ? &low : &high, sizeof high, 1);
        }
    oracle_free(exact);
    accuracy_layer_free(layer);
}

int main(void) {
    for (size_t i = 0; i < ACCURACY_LAYERS; i++) {
        put_layer(i, MHA_F64);
        put_layer(i, MHA_F32);
    }
    return 0;
}

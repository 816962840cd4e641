/* SPDX-License-Identifier: Apache-2.0
 *
 * core/kernels/pack.h - a weight cut into panels, [panel][input][NR], zero padded, from any of the layouts (core/layout.h).
 *
 * What this does not do: anything to the numbers.
 */
#ifndef MHA_KERNELS_PACK_H
#define MHA_KERNELS_PACK_H

#include "kernels.h"
#include "vector.h"

/* Column `column` of the weight, or NULL beyond the last. */
static const real *column_of(const struct mha_weight_view *w, size_t column) {
    if (column >= w->heads * w->d) return NULL;
    return (const real *)w->W + column / w->d * w->head + column % w->d * w->column;
}

static void pack_panel(const struct mha_weight_view *w, real *panel, size_t first) {
    const real *col[NR];
    bool dense = true; /* the columns lie side by side */
    for (size_t j = 0; j < NR; j++) {
        col[j] = column_of(w, first + j);
        dense = dense && col[j] != NULL && col[j] == col[0] + j;
    }
    if (dense) {
        for (size_t e = 0; e < w->n_in; e++) memcpy(panel + e * NR, col[0] + e * w->input, NR * sizeof(real));
        return;
    }
    for (size_t j = 0; j < NR; j++)
        for (size_t e = 0; e < w->n_in; e++) panel[e * NR + j] = col[j] == NULL ? 0 : col[j][e * w->input];
}

/* Whole panels of a weight whose rows lie one after the other: read as they lie. Panel by panel, every 96 bytes would come from
 * another page. */
static void pack_rows(const struct mha_weight_view *w, real *panels, size_t n_panels, size_t first) {
    const real *row = (const real *)w->W + first;
    for (size_t e = 0; e < w->n_in; e++, row += w->input)
        for (size_t x = 0; x < n_panels; x++) memcpy(panels + (x * w->n_in + e) * NR, row + x * NR, NR * sizeof(real));
}

static void pack(const struct mha_weight_view *view, void *panels, size_t begin, size_t end) {
    const size_t whole = view->heads * view->d / NR; /* panels without padding */
    const bool rows = view->column == 1 && (view->head == view->d || view->heads == 1);
    real *const to = panels;
    if (rows && begin < whole) {
        const size_t n = (end < whole ? end : whole) - begin;
        pack_rows(view, to + begin * view->n_in * NR, n, begin * NR);
        begin += n;
    }
    for (; begin < end; begin++) pack_panel(view, to + begin * view->n_in * NR, begin * NR);
}

#endif

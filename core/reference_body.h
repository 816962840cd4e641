/* SPDX-License-Identifier: Apache-2.0
 *
 * core/reference_body.h - the body of core/reference.c, included there once per type. Not a header of its own, hence no
 * guard.
 *
 * REAL is the type, EXP, LOG and TANH its functions, NAME(x) makes a name of that type's own. Pointers carry their axes
 * in their names: Q_bhnd is [B, h, n_q, d_k], q_d one row of it. The passes follow the order of the paper: project ->
 * take over the cache -> per row: visible? scores, mask, softmax, context -> merge heads -> output projection
 */

/* One evaluation: the problem, where the results go, and the intermediate steps. */
struct NAME(evaluation) {
    const struct mha_problem *p;
    struct mha_result *r;
    struct mha_failure failure;
    struct mha_weights weights; /* the problem's, or the layer's */
    size_t n_kv;
    REAL *Q_bhnd;       /* [B, h, n_q, d_k]      Q'                       */
    REAL *K_bgnd;       /* [B, h_kv, n_kv, d_k]  K', past then new        */
    REAL *V_bgnd;       /* [B, h_kv, n_kv, d_v]  V', past then new        */
    REAL *C_bnhd;       /* [B, n_q, h, d_v]      contexts, already merged */
    REAL *row_j;        /* [n_kv]  scores of one query, then its weights  */
    uint8_t *visible_j; /* [n_kv]  may this query see key j?              */
};

/* ---- projections ------------------------------------------------------------------------------------------------- */

/* One projection: how to read x and W, and where the split result goes. */
struct NAME(projection) {
    const REAL *x_bni; /* [B, n, d_in] */
    const REAL *W;     /* (d_in, heads, d) in `layout`, or NULL: identity */
    const REAL *bias;  /* [heads*d] or NULL */
    size_t n, d_in, heads, d;
    REAL *y_bgnd; /* [B, heads, n_past + n, d]; the new rows start at n_past */
    size_t n_past;
};

/* Element (g, c) of x W + b for one row x_i. Without W, head g is a contiguous slice of x. */
static REAL NAME(project_one)(const struct NAME(projection) * j, struct mha_strides_in at, const REAL *x_i, size_t g,
                              size_t c) {
    REAL sum = 0;
    if (j->W == NULL)
        sum = x_i[g * j->d + c];
    else
        for (size_t e = 0; e < j->d_in; e++) sum += x_i[e] * j->W[e * at.input + g * at.head + c * at.column];
    return j->bias == NULL ? sum : sum + j->bias[g * j->d + c];
}

/* y = split(x W + b): every sample, head, row and column on its own. */
static void NAME(project)(size_t B, enum mha_layout layout, const struct NAME(projection) * j) {
    struct mha_strides_in at = mha_projection_strides(layout, j->d_in, j->heads, j->d);
    for (size_t b = 0; b < B; b++)
        for (size_t g = 0; g < j->heads; g++)
            for (size_t i = 0; i < j->n; i++) {
                const REAL *x_i = j->x_bni + (b * j->n + i) * j->d_in;
                REAL *y_d = j->y_bgnd + ((b * j->heads + g) * (j->n_past + j->n) + j->n_past + i) * j->d;
                for (size_t c = 0; c < j->d; c++) y_d[c] = NAME(project_one)(j, at, x_i, g, c);
            }
}

/* Copies rows between [outer, n_to, d] and [outer, n_from, d], starting at row `to` and row `from`. */
static void NAME(copy_rows)(REAL *dst, size_t n_to, size_t to, const REAL *src, size_t n_from, size_t from,
                            size_t outer, size_t n, size_t d) {
    if (n == 0 || d == 0) return;
    for (size_t o = 0; o < outer; o++)
        memcpy(dst + (o * n_to + to) * d, src + (o * n_from + from) * d, n * d * sizeof(REAL));
}

static void NAME(project_all)(struct NAME(evaluation) * e, struct mha_needs needs) {
    const struct mha_problem *p = e->p;
    const struct mha_weights *w = &e->weights;
    if (needs.proj_Q) NAME(project)
    (p->B, w->layout,
     &(struct NAME(projection)){.x_bni = p->Q,
                                .W = w->W_q,
                                .bias = w->b_q,
                                .n = p->n_q,
                                .d_in = p->d_q,
                                .heads = p->h,
                                .d = p->d_k,
                                .y_bgnd = e->Q_bhnd});
    if (needs.proj_K) NAME(project)
    (p->B, w->layout,
     &(struct NAME(projection)){.x_bni = p->K,
                                .W = w->W_k,
                                .bias = w->b_k,
                                .n = p->n_k,
                                .d_in = p->d_kin,
                                .heads = p->h_kv,
                                .d = p->d_k,
                                .y_bgnd = e->K_bgnd,
                                .n_past = p->n_past});
    if (needs.proj_V) NAME(project)
    (p->B, w->layout,
     &(struct NAME(projection)){.x_bni = p->V,
                                .W = w->W_v,
                                .bias = w->b_v,
                                .n = p->n_k,
                                .d_in = p->d_vin,
                                .heads = p->h_kv,
                                .d = p->d_v,
                                .y_bgnd = e->V_bgnd,
                                .n_past = p->n_past});
}

/* The cache comes before the new keys. */
static void NAME(take_over_past)(struct NAME(evaluation) * e, struct mha_needs needs) {
    const struct mha_problem *p = e->p;
    size_t outer = p->B * p->h_kv;
    if (needs.proj_K) NAME(copy_rows)(e->K_bgnd, e->n_kv, 0, p->past_K, p->n_past, 0, outer, p->n_past, p->d_k);
    if (needs.proj_V) NAME(copy_rows)(e->V_bgnd, e->n_kv, 0, p->past_V, p->n_past, 0, outer, p->n_past, p->d_v);
}

static void NAME(write_projections)(struct NAME(evaluation) * e) {
    const struct mha_problem *p = e->p;
    const struct mha_result *r = e->r;
    size_t outer = p->B * p->h_kv;
    if (r->proj_Q != NULL) NAME(copy_rows)(r->proj_Q, p->n_q, 0, e->Q_bhnd, p->n_q, 0, p->B * p->h, p->n_q, p->d_k);
    if (r->proj_K != NULL) NAME(copy_rows)(r->proj_K, p->n_k, 0, e->K_bgnd, e->n_kv, p->n_past, outer, p->n_k, p->d_k);
    if (r->proj_V != NULL) NAME(copy_rows)(r->proj_V, p->n_k, 0, e->V_bgnd, e->n_kv, p->n_past, outer, p->n_k, p->d_v);
    if (r->present_K != NULL) NAME(copy_rows)(r->present_K, e->n_kv, 0, e->K_bgnd, e->n_kv, 0, outer, e->n_kv, p->d_k);
    if (r->present_V != NULL) NAME(copy_rows)(r->present_V, e->n_kv, 0, e->V_bgnd, e->n_kv, 0, outer, e->n_kv, p->d_v);
}

/* Notes the first non-finite number of a visible row of y [B, heads, n_past + n, d]. */
static void NAME(check_projection)(struct NAME(evaluation) * e, enum mha_stage stage, const REAL *y_bgnd, size_t heads,
                                   size_t n_past, size_t n, size_t d) {
    for (size_t b = 0; b < e->p->B; b++)
        for (size_t g = 0; g < heads; g++)
            for (size_t i = 0; i < n; i++)
                for (size_t c = 0; c < d; c++) {
                    if (isfinite(y_bgnd[((b * heads + g) * (n_past + n) + n_past + i) * d + c])) continue;
                    if (stage == MHA_STAGE_Q ? !mha_row_sees(e->p, b, g, i) : !mha_key_is_seen(e->p, b, g, n_past + i))
                        break; /* nobody sees this row */
                    mha_failure_note(&e->failure, (struct mha_failure){stage, 4, {b, g, i, c}});
                    return;
                }
}

static void NAME(check_projections)(struct NAME(evaluation) * e, struct mha_needs needs) {
    const struct mha_problem *p = e->p;
    if (needs.proj_Q) NAME(check_projection)(e, MHA_STAGE_Q, e->Q_bhnd, p->h, 0, p->n_q, p->d_k);
    if (needs.proj_K) NAME(check_projection)(e, MHA_STAGE_K, e->K_bgnd, p->h_kv, p->n_past, p->n_k, p->d_k);
    if (needs.proj_V) NAME(check_projection)(e, MHA_STAGE_V, e->V_bgnd, p->h_kv, p->n_past, p->n_k, p->d_v);
}

/* ---- one query row ----------------------------------------------------------------------------------------------- */

/* Which row the passes below work on. */
struct NAME(row) {
    size_t b, head, g, i; /* g: the key/value head that `head` reads */
};

/* visible_j: the intersection of everything that hides. Returns whether any key is left. */
static bool NAME(find_visible)(struct NAME(evaluation) * e, struct NAME(row) at) {
    bool any = false;
    for (size_t j = 0; j < e->n_kv; j++) {
        e->visible_j[j] = mha_visible(e->p, at.b, at.head, at.i, j);
        any = any || e->visible_j[j];
    }
    return any;
}

/* (q * scale) . k; the scale comes first, so that a large product whose scaled value fits does not overflow. */
static REAL NAME(scaled_product)(const REAL *q_d, const REAL *k_d, size_t d_k, REAL scale) {
    REAL sum = 0;
    for (size_t c = 0; c < d_k; c++) sum += q_d[c] * scale * k_d[c];
    return sum;
}

static void NAME(note_score)(struct NAME(evaluation) * e, struct NAME(row) at, size_t j, REAL score) {
    if (isfinite(score)) return;
    mha_failure_note(&e->failure, (struct mha_failure){MHA_STAGE_SCORES, 4, {at.b, at.head, at.i, j}});
}

/* row_j: scaled and capped scores; of the hidden keys too, because they may have been asked for. */
static void NAME(score_row)(struct NAME(evaluation) * e, struct NAME(row) at) {
    const struct mha_problem *p = e->p;
    const REAL *q_d = e->Q_bhnd + ((at.b * p->h + at.head) * p->n_q + at.i) * p->d_k;
    const REAL cap = (REAL)p->softcap;
    for (size_t j = 0; j < e->n_kv; j++) {
        const REAL *k_d = e->K_bgnd + ((at.b * p->h_kv + at.g) * e->n_kv + j) * p->d_k;
        REAL score = NAME(scaled_product)(q_d, k_d, p->d_k, (REAL)p->scale);
        if (e->visible_j[j]) NAME(note_score)(e, at, j, score);
        e->row_j[j] = cap > 0 ? cap * TANH(score / cap) : score;
    }
}

/* row_j: + additive mask, of the visible keys. */
static void NAME(mask_row)(struct NAME(evaluation) * e, struct NAME(row) at) {
    if (e->p->attn_mask.kind != MHA_MASK_ADDITIVE) return;
    const REAL *mask = e->p->attn_mask.data;
    for (size_t j = 0; j < e->n_kv; j++) {
        if (!e->visible_j[j]) continue;
        e->row_j[j] += mask[mha_mask_index(&e->p->attn_mask, at.b, at.head, at.i, j)];
        NAME(note_score)(e, at, j, e->row_j[j]);
    }
}

/* row_j: scores to weights; hidden keys get exactly 0. A sink is one more logit without a value. Returns the logsumexp.
 */
static REAL NAME(softmax_row)(struct NAME(evaluation) * e, struct NAME(row) at) {
    const REAL *sinks_h = e->p->sinks;
    REAL largest = sinks_h != NULL ? sinks_h[at.head] : (REAL)-INFINITY;
    for (size_t j = 0; j < e->n_kv; j++)
        if (e->visible_j[j] && e->row_j[j] > largest) largest = e->row_j[j];

    REAL sum = sinks_h != NULL ? EXP(sinks_h[at.head] - largest) : 0;
    for (size_t j = 0; j < e->n_kv; j++) {
        e->row_j[j] = e->visible_j[j] ? EXP(e->row_j[j] - largest) : 0;
        sum += e->row_j[j];
    }
    for (size_t j = 0; j < e->n_kv; j++)
        if (e->visible_j[j]) e->row_j[j] /= sum;

    REAL logsumexp = largest + LOG(sum);
    if (sinks_h != NULL && (isnan(sinks_h[at.head]) || sinks_h[at.head] == (REAL)INFINITY))
        mha_failure_note(&e->failure, (struct mha_failure){MHA_STAGE_SCORES, 3, {at.b, at.head, at.i}});
    return logsumexp;
}

/* The context: weights times V', skipping the hidden. */
static void NAME(context_row)(struct NAME(evaluation) * e, struct NAME(row) at) {
    const struct mha_problem *p = e->p;
    const REAL *V_jd = e->V_bgnd + (at.b * p->h_kv + at.g) * e->n_kv * p->d_v;
    REAL *context_d = e->C_bnhd + ((at.b * p->n_q + at.i) * p->h + at.head) * p->d_v;
    for (size_t c = 0; c < p->d_v; c++) {
        REAL sum = 0;
        for (size_t j = 0; j < e->n_kv; j++)
            if (e->visible_j[j]) sum += e->row_j[j] * V_jd[j * p->d_v + c];
        context_d[c] = sum;
        if (!isfinite(sum))
            mha_failure_note(&e->failure, (struct mha_failure){MHA_STAGE_HEADS, 4, {at.b, at.head, at.i, c}});
    }
}

/* ---- maps -------------------------------------------------------------------------------------------------------- */

static size_t NAME(n_listed)(const struct NAME(evaluation) * e) {
    return e->r->heads_listed != NULL ? e->r->n_heads_listed : e->p->h;
}

/* Copies row_j into every place that the list gives this head in a map [B, listed, n_q, n_kv]. */
static void NAME(write_map_row)(const struct NAME(evaluation) * e, struct NAME(row) at, REAL *map) {
    size_t listed = NAME(n_listed)(e);
    for (size_t s = 0; s < listed; s++) {
        if ((e->r->heads_listed != NULL ? e->r->heads_listed[s] : s) != at.head) continue;
        REAL *map_j = map + ((at.b * listed + s) * e->p->n_q + at.i) * e->n_kv;
        for (size_t j = 0; j < e->n_kv; j++) map_j[j] = e->row_j[j];
    }
}

/* Adds row_j, once for every place in the list, to the mean map [B, n_q, n_kv]. */
static void NAME(add_mean_row)(const struct NAME(evaluation) * e, struct NAME(row) at) {
    size_t listed = NAME(n_listed)(e);
    REAL *mean_j = (REAL *)e->r->attention + (at.b * e->p->n_q + at.i) * e->n_kv;
    for (size_t s = 0; s < listed; s++) {
        if ((e->r->heads_listed != NULL ? e->r->heads_listed[s] : s) != at.head) continue;
        for (size_t j = 0; j < e->n_kv; j++) mean_j[j] += e->row_j[j];
    }
}

static void NAME(write_attention_row)(const struct NAME(evaluation) * e, struct NAME(row) at) {
    if (e->r->attention == NULL) return;
    if (e->r->attention_mean)
        NAME(add_mean_row)(e, at);
    else
        NAME(write_map_row)(e, at, e->r->attention);
}

static size_t NAME(mean_count)(const struct NAME(evaluation) * e) { return e->p->B * e->p->n_q * e->n_kv; }

static void NAME(begin_mean)(struct NAME(evaluation) * e) {
    if (e->r->attention == NULL || !e->r->attention_mean) return;
    for (size_t x = 0; x < NAME(mean_count)(e); x++) ((REAL *)e->r->attention)[x] = 0;
}

static void NAME(end_mean)(struct NAME(evaluation) * e) {
    if (e->r->attention == NULL || !e->r->attention_mean) return;
    for (size_t x = 0; x < NAME(mean_count)(e); x++) ((REAL *)e->r->attention)[x] /= (REAL)NAME(n_listed)(e);
}

/* ---- attention and the way out ----------------------------------------------------------------------------------- */

static void NAME(attend_row)(struct NAME(evaluation) * e, struct NAME(row) at, bool with_context) {
    const struct mha_problem *p = e->p;
    bool sees = NAME(find_visible)(e, at);
    NAME(score_row)(e, at);
    if (e->r->scores != NULL) NAME(write_map_row)(e, at, e->r->scores);
    NAME(mask_row)(e, at);

    REAL logsumexp = (REAL)-INFINITY;
    if (sees)
        logsumexp = NAME(softmax_row)(e, at);
    else
        for (size_t j = 0; j < e->n_kv; j++) e->row_j[j] = 0;
    if (e->r->logsumexp != NULL) ((REAL *)e->r->logsumexp)[(at.b * p->h + at.head) * p->n_q + at.i] = logsumexp;
    NAME(write_attention_row)(e, at);
    if (with_context) NAME(context_row)(e, at);
}

static void NAME(attend)(struct NAME(evaluation) * e, bool with_context) {
    const struct mha_problem *p = e->p;
    NAME(begin_mean)(e);
    for (size_t b = 0; b < p->B; b++)
        for (size_t head = 0; head < p->h; head++)
            for (size_t i = 0; i < p->n_q; i++)
                NAME(attend_row)(e, (struct NAME(row)){b, head, head / (p->h / p->h_kv), i}, with_context);
    NAME(end_mean)(e);
}

/* heads [B, h, n_q, d_v] and concat [B, n_q, h*d_v] are the same numbers in two orders. */
static void NAME(write_contexts)(struct NAME(evaluation) * e) {
    const struct mha_problem *p = e->p;
    size_t rows = p->B * p->n_q;
    if (e->r->concat != NULL) NAME(copy_rows)(e->r->concat, rows, 0, e->C_bnhd, rows, 0, 1, rows, p->h * p->d_v);
    if (e->r->heads == NULL) return;
    for (size_t b = 0; b < p->B; b++)
        for (size_t head = 0; head < p->h; head++)
            for (size_t i = 0; i < p->n_q; i++)
                memcpy((REAL *)e->r->heads + ((b * p->h + head) * p->n_q + i) * p->d_v,
                       e->C_bnhd + ((b * p->n_q + i) * p->h + head) * p->d_v, p->d_v * sizeof(REAL));
}

/* Element o of one merged row times W_o, + b_o. */
static REAL NAME(output_one)(const struct mha_problem *p, const struct mha_weights *w, const REAL *context_x,
                             size_t o) {
    const REAL *W_o = w->W_o, *b_o = w->b_o;
    struct mha_strides_out at = mha_output_strides(w->layout, p->h, p->d_v, p->d_out);
    REAL sum = 0;
    if (W_o == NULL)
        sum = context_x[o];
    else
        for (size_t x = 0; x < p->h * p->d_v; x++) sum += context_x[x] * W_o[x * at.context + o * at.output];
    return b_o == NULL ? sum : sum + b_o[o];
}

static void NAME(project_output)(struct NAME(evaluation) * e) {
    const struct mha_problem *p = e->p;
    const struct mha_weights *w = &e->weights;
    for (size_t b = 0; b < p->B; b++)
        for (size_t i = 0; i < p->n_q; i++) {
            const REAL *context_x = e->C_bnhd + (b * p->n_q + i) * p->h * p->d_v;
            REAL *out_o = (REAL *)e->r->output + (b * p->n_q + i) * p->d_out;
            for (size_t o = 0; o < p->d_out; o++) {
                out_o[o] = NAME(output_one)(p, w, context_x, o);
                if (!isfinite(out_o[o]))
                    mha_failure_note(&e->failure, (struct mha_failure){MHA_STAGE_OUTPUT, 3, {b, i, o}});
            }
        }
}

static enum mha_error NAME(evaluate)(const struct mha_problem *p, struct mha_result *r, char *workspace) {
    struct NAME(evaluation) e = {.p = p, .r = r, .failure = MHA_NO_FAILURE, .n_kv = mha_n_kv(p)};
    e.Q_bhnd = carve(&workspace, p->B * p->h * p->n_q * p->d_k, sizeof(REAL));
    e.K_bgnd = carve(&workspace, p->B * p->h_kv * e.n_kv * p->d_k, sizeof(REAL));
    e.V_bgnd = carve(&workspace, p->B * p->h_kv * e.n_kv * p->d_v, sizeof(REAL));
    e.C_bnhd = carve(&workspace, p->B * p->n_q * p->h * p->d_v, sizeof(REAL));
    e.row_j = carve(&workspace, e.n_kv, sizeof(REAL));
    e.visible_j = carve(&workspace, e.n_kv, 1);

    e.weights = p->layer != NULL ? mha_layer_plain(p->layer, workspace) : p->weights;

    struct mha_needs needs = mha_needs_of(r);
    NAME(project_all)(&e, needs);
    NAME(take_over_past)(&e, needs);
    NAME(write_projections)(&e);
    NAME(check_projections)(&e, needs);
    mha_count_masked_rows(p, r);
    if (needs.scores) NAME(attend)(&e, needs.heads);
    if (needs.heads) NAME(write_contexts)(&e);
    if (needs.output) NAME(project_output)(&e);
    return mha_failure_verdict(&e.failure, &r->detail);
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * core/mha.h - multi-head attention (Vaswani et al., 2017, section 3.2), the public header of libmha.
 *
 * Model. A caller fills a `struct mha_problem` (what to compute: plain data and borrowed pointers) and a
 * `struct mha_result` (where to put what he wants back), asks `mha_plan` what workspace that needs, allocates it, makes a
 * run out of the three with `mha_run_init`, and lets it go: on the calling thread (`mha_run_here`) or on a worker pool
 * (`mha_pool_submit`). Nothing here allocates behind the caller's back, except `mha_pool_new` and `mha_layer_new`, whose
 * memory is theirs until `..._free`.
 *
 * Guarantees. The bytes of a row of a result depend on that row's inputs alone: not on the batch, the other rows, the
 * number of threads, load, maps being asked for, hidden keys, nor the instruction set (AVX2+FMA, AVX-512, NEON). A hidden
 * key or value may hold anything, NaN included. A run can be cancelled between two tiles.
 *
 * What this does not do: parse, allocate results, print, exit, read the environment, keep globals a caller can change.
 *
 * The alphabet of dimensions, used everywhere:
 *   B      samples in the batch
 *   n_q    queries (rows of Q)                    n_k   new keys (rows of K and V)
 *   n_past keys in the cache                      n_kv  n_past + n_k, the width of masks and maps
 *   h      query heads                            h_kv  key/value heads; divides h; query head i reads floor(i*h_kv/h)
 *   d_k    width of a head of Q' and K'           d_v   width of a head of V'
 *   d_q, d_kin, d_vin  widths of the inputs Q, K, V        d_out  width of the output
 * A prime (Q', K', V') means projected. All tensors are dense, row-major, of `dtype`, aligned to at least their element.
 */
#ifndef MHA_CORE_MHA_H
#define MHA_CORE_MHA_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum mha_dtype { MHA_F64 = 0, MHA_F32 = 1 };

/* Bytes of one element. */
static inline size_t mha_dtype_size(enum mha_dtype dtype) { return dtype == MHA_F32 ? 4 : 8; }

/* ---- errors ------------------------------------------------------------------------------------------------------ */

enum mha_error {
    MHA_OK = 0,
    MHA_ERR_DIMENSION,  /* a dimension is impossible: h 0, h_kv not dividing h, d_k 0 ...                    */
    MHA_ERR_POINTER,    /* a tensor that the problem needs is NULL                                          */
    MHA_ERR_OPTION,     /* scale not finite, softcap negative, an enum out of range                          */
    MHA_ERR_OVERFLOW,   /* a product of dimensions does not fit size_t                                      */
    MHA_ERR_MEMORY,     /* an allocation failed (mha_pool_new, mha_layer_new)                               */
    MHA_ERR_CANCELLED,  /* mha_run_cancel came before the end                                               */
    MHA_ERR_NON_FINITE, /* a result is NaN or infinite where the inputs that it may see are not hidden      */
};

/* Where it went wrong. `field` is constant storage, named as in struct mha_problem ("h_kv", "W_q"). */
struct mha_detail {
    enum mha_error code;
    const char *field;
    size_t expected, actual; /* the two numbers that disagree, where there are two */
    size_t index[4];         /* first offending element (MHA_ERR_NON_FINITE), outermost first */
    size_t rank;             /* how many of `index` count */
};

/* A constant English sentence fragment for a code. */
const char *mha_error_text(enum mha_error code);

/* ---- the problem ------------------------------------------------------------------------------------------------- */

/* How the numbers of a weight are laid out. A projection W_q, W_k, W_v has in x heads x d elements, W_o heads x d_v x out. */
enum mha_layout {
    MHA_IN_OUT = 0,  /* [in, heads*d]; W_o [h*d_v, out]. y = x W, as in the paper                            */
    MHA_OUT_IN,      /* [heads*d, in]; W_o [out, h*d_v]. y = x W^T, torch nn.Linear                          */
    MHA_HEAD_IN_OUT, /* [heads, in, d]; W_o [h, d_v, out]                                                    */
    MHA_IN_HEAD_OUT, /* [in, heads, d]; W_o [h, d_v, out]. Keras, Flax; same memory as MHA_IN_OUT            */
};

struct mha_weights {
    enum mha_layout layout;
    const void *W_q, *W_k, *W_v, *W_o; /* each may be NULL: no projection (identity) */
    const void *b_q;                   /* [h*d_k]    or NULL */
    const void *b_k;                   /* [h_kv*d_k] or NULL */
    const void *b_v;                   /* [h_kv*d_v] or NULL */
    const void *b_o;                   /* [d_out]    or NULL */
};

/* Weights packed once for the kernels; see mha_layer_new. Immutable, so any number of runs may share one. */
struct mha_layer;

enum mha_mask_kind { MHA_MASK_NONE = 0, MHA_MASK_BOOL, MHA_MASK_ADDITIVE };

/* attn_mask. Every dim is 1 (broadcast) or full. Bool: uint8_t, nonzero = may attend. Additive: `dtype`, added to the scaled
 * and capped score; -infinity hides. */
struct mha_mask {
    enum mha_mask_kind kind;
    const void *data; /* [dim[0], dim[1], dim[2], dim[3]] */
    size_t dim[4];    /* of B, h, n_q, n_kv */
};

enum mha_alignment {
    MHA_TOP_LEFT = 0, /* offset = n_past */
    MHA_BOTTOM_RIGHT, /* offset = keys - n_q, keys = key_lengths[b] if given, else n_kv */
};

#define MHA_WINDOW_OPEN SIZE_MAX /* no limit on this side */

struct mha_problem {
    enum mha_dtype dtype;
    size_t B, n_q, n_k, n_past, h, h_kv, d_k, d_v;
    size_t d_q, d_kin, d_vin, d_out; /* d_q = h*d_k when W_q is NULL, and so on; d_out = h*d_v when W_o is NULL */

    const void *Q;      /* [B, n_q, d_q]   */
    const void *K;      /* [B, n_k, d_kin] */
    const void *V;      /* [B, n_k, d_vin] */
    const void *past_K; /* [B, h_kv, n_past, d_k], NULL when n_past is 0 */
    const void *past_V; /* [B, h_kv, n_past, d_v] */

    struct mha_weights weights;    /* used when `layer` is NULL */
    const struct mha_layer *layer; /* borrowed; its dtype and dimensions must equal the problem's */

    double scale;   /* multiplies Q' K'^T; the caller sets 1/sqrt(d_k) or his own. Finite */
    double softcap; /* s = softcap * tanh(s / softcap); 0 = off. Finite, >= 0 */
    bool causal;    /* query i sees key j iff j <= i + offset */
    enum mha_alignment alignment;
    bool window;                      /* key j visible iff i+offset-left <= j <= i+offset+right */
    size_t window_left, window_right; /* MHA_WINDOW_OPEN: no limit */
    struct mha_mask attn_mask;
    const uint8_t *key_mask;   /* [key_mask_B, n_kv], nonzero = this key exists; or NULL */
    size_t key_mask_B;         /* 1 or B */
    const size_t *key_lengths; /* [B], only the first key_lengths[b] keys of past+new exist; or NULL */
    const void *sinks;         /* [h], one more logit per head in the denominator, without a value; or NULL */
};

/* ---- the result -------------------------------------------------------------------------------------------------- */

/* Every pointer that is not NULL gets filled; the caller owns the memory, sizes by the shapes given here.
 * `attention` and `scores` hold the heads listed in `heads_listed` (n_heads_listed of them, in that order), or all h when the
 * list is NULL; with `attention_mean` `attention` (only it) is the mean over those heads, [B, n_q, n_kv].
 * A row without visible keys: weights 0, context 0, logsumexp -infinity, with a sink too. Scores, projections and present rows
 * of a hidden key are written as computed (they may be NaN or infinite; api writes null). */
struct mha_result {
    void *output;    /* [B, n_q, d_out] */
    void *attention; /* [B, n_heads_listed, n_q, n_kv] */
    void *heads;     /* [B, h, n_q, d_v], the context of each head */
    void *proj_Q;    /* [B, h, n_q, d_k], with bias, not scaled */
    void *proj_K;    /* [B, h_kv, n_k, d_k], new keys only */
    void *proj_V;    /* [B, h_kv, n_k, d_v] */
    void *scores;    /* [B, n_heads_listed, n_q, n_kv], scaled and capped, before masks */
    void *logsumexp; /* [B, h, n_q], natural log of the softmax denominator (sink included) */
    void *concat;    /* [B, n_q, h*d_v] */
    void *present_K; /* [B, h_kv, n_kv, d_k], past then new */
    void *present_V; /* [B, h_kv, n_kv, d_v] */
    const size_t *heads_listed;
    size_t n_heads_listed;
    bool attention_mean;

    /* filled by the run */
    uint64_t masked_rows;     /* (sample, head, query) rows without a visible key */
    size_t masked_first[3];   /* the first of them: b, head, i */
    struct mha_detail detail; /* what went wrong; detail.code is what mha_run_status says */
};

/* ---- planning and running ---------------------------------------------------------------------------------------- */

struct mha_need {
    size_t workspace; /* bytes, to be aligned to MHA_ALIGN */
    double flops;     /* multiply-adds counted as two; visible work only for causal and windows */
    double bytes;     /* read and written at least, for the memory-bound cases */
};

#define MHA_ALIGN 64

/* Checks the problem against the wanted results and says what the run needs, without touching tensor data. `threads` is the
 * most that will work on it at once (1 for mha_run_here): scratch is per thread. Returns MHA_OK or the code, details in
 * *detail (never NULL). */
enum mha_error mha_plan(const struct mha_problem *problem, const struct mha_result *result, size_t threads,
                        struct mha_need *need, struct mha_detail *detail);

struct mha_run;

/* Lays the run out in `workspace` (need.workspace bytes, aligned to MHA_ALIGN, owned by the caller and alive until the run
 * has ended). problem and result are borrowed until then. Cannot fail after mha_plan said MHA_OK for the same three. */
struct mha_run *mha_run_init(void *workspace, const struct mha_problem *problem, struct mha_result *result,
                             size_t threads);

/* Computes everything on the calling thread. Returns mha_run_status. */
enum mha_error mha_run_here(struct mha_run *run);

/* From any thread: the run ends within about one tile, with MHA_ERR_CANCELLED. */
void mha_run_cancel(struct mha_run *run);

/* After the end. MHA_OK, MHA_ERR_CANCELLED or MHA_ERR_NON_FINITE; result->detail has the rest: field is the first stage, in the
 * order of the paper, at which something that a wanted result depends on went NaN or infinite, and index the first place:
 *     projections.Q  [b, head, i, c]  Q' of a query that sees a key        heads   [b, head, i, c]  a context
 *     projections.K  [b, g, j, c]     K' of a new key that is seen         output  [b, i, o]
 *     projections.V  [b, g, j, c]     V' of such a key
 *     scores         [b, head, i, j]  a visible score, before the softcap or with the mask added; -infinity counts, unless it
 *                                     is the mask's. [b, head, i]: the sink is NaN or +infinity
 * What is hidden never fails: scores, projections and caches of hidden keys are written as computed and may be NaN. */
enum mha_error mha_run_status(const struct mha_run *run);

/* The obviously right evaluation of the same problem: long loops, nothing blocked, in `dtype`. Slow; kept as the oracle of
 * the tests. Needs mha_reference_need bytes of workspace. Same return values as mha_run_here. */
size_t mha_reference_need(const struct mha_problem *problem);
enum mha_error mha_reference(const struct mha_problem *problem, struct mha_result *result, void *workspace);

/* ---- layers ------------------------------------------------------------------------------------------------------ */

struct mha_layer_shape {
    enum mha_dtype dtype;
    size_t h, h_kv, d_k, d_v, d_q, d_kin, d_vin, d_out;
};

/* Packs weights and biases for the kernels. Nothing of `weights` is needed afterwards. *bytes (may be NULL) gets the size of
 * the packed form. NULL and *detail on error. Free with mha_layer_free (NULL is fine). */
struct mha_layer *mha_layer_new(const struct mha_layer_shape *shape, const struct mha_weights *weights,
                                struct mha_detail *detail);
size_t mha_layer_bytes(const struct mha_layer_shape *shape, const struct mha_weights *weights); /* SIZE_MAX: overflow */
const struct mha_layer_shape *mha_layer_shape(const struct mha_layer *layer);
void mha_layer_free(struct mha_layer *layer);

/* ---- the worker pool --------------------------------------------------------------------------------------------- */

/* A fixed set of threads shared by all runs. A run is a chain of parallel regions cut into tasks; each worker takes the next
 * task of the next run in turn, so several runs share the pool fairly and no worker ever waits for another run. No lock is
 * held while a task computes. */
struct mha_pool;

/* `threads` workers (>= 1). NULL when memory or threads are short. */
struct mha_pool *mha_pool_new(size_t threads);
size_t mha_pool_threads(const struct mha_pool *pool);

/* Hands the run over; `done(arg)` is called once, on a worker, after its end (also when cancelled), and must not block.
 * The run must have been planned for at least mha_pool_threads(pool) threads. */
void mha_pool_submit(struct mha_pool *pool, struct mha_run *run, void (*done)(void *arg), void *arg);

/* Waits for the runs in it, joins the workers. NULL is fine. */
void mha_pool_free(struct mha_pool *pool);

/* ---- the instruction set ----------------------------------------------------------------------------------------- */

/* Kernels exist per instruction set: "x86-64", "x86-64-v3" (AVX2+FMA), "x86-64-v4" (AVX-512), "neon", "generic". One is chosen
 * at the first use by what the CPU can do. mha_isa_force picks another (before any other call; tests, and MHAD_ISA in the
 * server); false if this build or CPU cannot. */
const char *mha_isa_name(void);
bool mha_isa_force(const char *name);

/* "1.0.0" */
const char *mha_version(void);

#ifdef __cplusplus
}
#endif
#endif

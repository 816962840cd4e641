/* SPDX-License-Identifier: Apache-2.0
 *
 * tests/bench/bench_layer.c [--peers PYTHON NAME,NAME...] [--only-peers] [--quick] - whole layers against the FMA peak and other libraries.
 *
 * Model. A layer is computed through the public interface (mha_plan, mha_run_init, mha_pool_submit), as the server does it. All
 * contenders of a row take turns within a round: peak loop, ours, ours causal, ours with inline weights, each peer; a row is the
 * median over the rounds of the round's own ratios, so that a clock that drifts or a neighbour who comes and goes hits all alike.
 * Rounds in which this process was preempted are left out as long as MIN_CLEAN others remain.
 *
 * Two times are taken. "One caller": from the submission to the end of the run, the next one submitted after that; this is what
 * is compared with peers, which are called in the same way. "Steady": two runs in the pool at once, so that no worker goes to
 * sleep between layers; this is what is compared with the peak. For layers of many milliseconds they are the same.
 *
 * Work counted: 8 n d^2 + 4 n^2 d operations, causal 8 n d^2 + 2 n (n + 1) d; the exponentials count nothing.
 */
#include <math.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "../../core/mha.h"
#include "../../server/cpus.h"
#include "support/peak.h"
#include "support/peer.h"
#include "support/rows.h"

enum { ROUNDS_MAX = 41, ROUNDS_MIN = 5, MIN_CLEAN = 5, PEERS_MAX = 4 };
#define PEAK_SECONDS 0.012

static const char *const dtype_names[] = {"float64", "float32"};

/* ---- one layer, ready to run ------------------------------------------------------------------------------------- */

struct layer_case {
    enum mha_dtype dtype;
    size_t n, d, h, n_past, h_kv; /* h_kv 0: h */
};

static size_t kv_heads(const struct layer_case *c) { return c->h_kv ? c->h_kv : c->h; }

struct job {
    struct mha_problem problem;
    struct mha_result result;
    struct mha_need need;
    struct mha_pool *pool;
    void *workspace;
    sem_t ended;
    double ended_at;
};

struct tensors {
    struct layer_case c;
    char *all; /* X, W_q, W_k, W_v, W_o, past_K, past_V, one after another, as peers.py reads them */
    size_t bytes;
    const void *X, *W[4], *past_K, *past_V;
    struct mha_layer *layer;
};

static void give_up(const char *what, const struct mha_detail *detail) {
    fprintf(stderr, "bench_layer: %s: %s %s\n", what, mha_error_text(detail->code), detail->field ? detail->field : "");
    exit(2);
}

static void tensors_make(struct tensors *t, const struct layer_case *c) {
    size_t size = mha_dtype_size(c->dtype), x = c->n * c->d, w = c->d * c->d;
    size_t past = c->n_past * kv_heads(c) * (c->d / c->h);
    bool f32 = c->dtype == MHA_F32;
    *t = (struct tensors){.c = *c, .bytes = (x + 4 * w + 2 * past) * size};
    t->all = must_alloc(t->bytes);
    fill_random(t->all, x, f32, 1.7, 1);
    fill_random(t->all + x * size, 4 * w, f32, 1.7 / sqrt((double)c->d), 2);
    fill_random(t->all + (x + 4 * w) * size, 2 * past, f32, 1, 3);
    t->X = t->all;
    for (size_t i = 0; i < 4; i++) t->W[i] = t->all + (x + i * w) * size;
    if (past > 0) t->past_K = t->all + (x + 4 * w) * size, t->past_V = t->all + (x + 4 * w + past) * size;
    struct mha_layer_shape shape = {.dtype = c->dtype,
                                    .h = c->h,
                                    .h_kv = kv_heads(c),
                                    .d_k = c->d / c->h,
                                    .d_v = c->d / c->h,
                                    .d_q = c->d,
                                    .d_kin = c->d,
                                    .d_vin = c->d,
                                    .d_out = c->d};
    struct mha_weights weights = {.W_q = t->W[0], .W_k = t->W[1], .W_v = t->W[2], .W_o = t->W[3]};
    struct mha_detail detail = {0};
    t->layer = mha_layer_new(&shape, &weights, &detail);
    if (!t->layer) give_up("mha_layer_new", &detail);
}

static void tensors_free(struct tensors *t) {
    mha_layer_free(t->layer);
    free(t->all);
}

static void job_make(struct job *job, const struct tensors *t, struct mha_pool *pool, bool causal,
                     bool inline_weights) {
    const struct layer_case *c = &t->c;
    size_t d_k = c->d / c->h;
    *job = (struct job){.pool = pool};
    job->problem = (struct mha_problem){.dtype = c->dtype,
                                        .B = 1,
                                        .n_q = c->n,
                                        .n_k = c->n,
                                        .n_past = c->n_past,
                                        .h = c->h,
                                        .h_kv = kv_heads(c),
                                        .d_k = d_k,
                                        .d_v = d_k,
                                        .d_q = c->d,
                                        .d_kin = c->d,
                                        .d_vin = c->d,
                                        .d_out = c->d,
                                        .Q = t->X,
                                        .K = t->X,
                                        .V = t->X,
                                        .past_K = t->past_K,
                                        .past_V = t->past_V,
                                        .scale = 1 / sqrt((double)d_k),
                                        .causal = causal};
    if (inline_weights)
        job->problem.weights = (struct mha_weights){.W_q = t->W[0], .W_k = t->W[1], .W_v = t->W[2], .W_o = t->W[3]};
    else
        job->problem.layer = t->layer;
    job->result.output = must_alloc(c->n * c->d * mha_dtype_size(c->dtype));
    struct mha_detail detail = {0};
    if (mha_plan(&job->problem, &job->result, mha_pool_threads(pool), &job->need, &detail) != MHA_OK)
        give_up("mha_plan", &detail);
    job->workspace = must_alloc(job->need.workspace);
    sem_init(&job->ended, 0, 0);
}

static void job_free(struct job *job) {
    free(job->workspace);
    free(job->result.output);
    sem_destroy(&job->ended);
}

static void job_ended(void *argument) {
    struct job *job = argument;
    job->ended_at = wall_seconds();
    sem_post(&job->ended);
}

static void job_submit(struct job *job) {
    size_t threads = mha_pool_threads(job->pool);
    mha_pool_submit(job->pool, mha_run_init(job->workspace, &job->problem, &job->result, threads), job_ended, job);
}

static void job_wait(struct job *job) {
    while (sem_wait(&job->ended) != 0) continue;
    if (job->result.detail.code != MHA_OK) give_up("a run", &job->result.detail);
}

/* Seconds a run, one at a time. */
static double one_caller(struct job *job, unsigned count) {
    double total = 0;
    for (unsigned i = 0; i < count; i++) {
        double begun = wall_seconds();
        job_submit(job);
        job_wait(job);
        total += job->ended_at - begun;
    }
    return total / count;
}

/* Seconds a run with two in the pool all the time. */
static double steady(struct job *a, struct job *b, unsigned count) {
    struct job *jobs[2] = {a, b};
    if (count < 4) return one_caller(a, count);
    job_submit(a);
    job_submit(b);
    job_wait(a);
    double begun = a->ended_at;
    for (unsigned i = 0; i < count; i++) {
        job_submit(jobs[i % 2]);
        job_wait(jobs[(i + 1) % 2]);
    }
    double ended = jobs[count % 2]->ended_at;
    job_wait(jobs[(count + 1) % 2]);
    return (ended - begun) / count;
}

static double work(const struct layer_case *c, bool causal) {
    double n = (double)c->n, d = (double)c->d, keys = n + (double)c->n_past;
    return 8 * n * d * d + (causal ? 2 * n * (n + 1) * d : 4 * n * keys * d);
}

/* ---- samples ------------------------------------------------------------------------------------------------------- */

/* One figure, once a round. */
struct series {
    double value[ROUNDS_MAX];
    bool clean[ROUNDS_MAX];
    size_t count;
};

static void note_value(struct series *s, double value, bool clean) {
    s->value[s->count] = value;
    s->clean[s->count++] = clean;
}

/* The median of a[i] * sign: over clean rounds if there are enough. b: divide by it, round by round; NULL: do not. */
static double middle(const struct series *a, const struct series *b) {
    double kept[ROUNDS_MAX];
    size_t n = 0;
    for (int all = 0; all < 2 && n < MIN_CLEAN; all++) {
        n = 0;
        for (size_t i = 0; i < a->count; i++)
            if (all || (a->clean[i] && (!b || b->clean[i]))) kept[n++] = b ? a->value[i] / b->value[i] : a->value[i];
    }
    return median(kept, n);
}

static size_t clean_rounds(const struct series *s) {
    size_t n = 0;
    for (size_t i = 0; i < s->count; i++) n += s->clean[i];
    return n;
}

/* ---- the program's state --------------------------------------------------------------------------------------------- */

struct bench {
    struct mha_pool *pool;
    size_t threads;
    struct peer peers[PEERS_MAX];
    size_t n_peers;
    bool only_peers, quick;    /* quick: the smallest layer alone, to see that all works */
    char file[64], output[64]; /* tensors for the peers, and what they give back */
};

/* How many runs make about 25 ms. */
static unsigned runs_per_round(double seconds) {
    if (seconds > 0.02) return 1;
    return (unsigned)fmin(200, ceil(0.025 / seconds));
}

static size_t rounds_for(double seconds_per_round, double budget) {
    return (size_t)fmax(ROUNDS_MIN, fmin(ROUNDS_MAX, budget / seconds_per_round));
}

/* ---- peers -------------------------------------------------------------------------------------------------------- */

static bool give_tensors(struct bench *bench, const struct tensors *t) {
    FILE *out = fopen(bench->file, "w");
    bool good = out && fwrite(t->all, 1, t->bytes, out) == t->bytes;
    if (out && fclose(out) != 0) good = false;
    if (!good) fprintf(stderr, "bench_layer: cannot write %s\n", bench->file);
    return good;
}

/* A peer that computes something else is no yardstick. */
static bool same_result(struct bench *bench, struct peer *peer, const struct job *job) {
    size_t count = job->problem.n_q * job->problem.d_out, size = mha_dtype_size(job->problem.dtype);
    char *theirs = must_alloc(count * size);
    FILE *in = peer_output(peer, bench->output) ? fopen(bench->output, "r") : NULL;
    bool good = in && fread(theirs, size, count, in) == count;
    if (in) fclose(in);
    double worst = 0, largest = 0, limit = size == 4 ? 2e-5 : 1e-13;
    for (size_t i = 0; good && i < count; i++) {
        double a = size == 4 ? (double)((const float *)job->result.output)[i] : ((const double *)job->result.output)[i];
        double b =
            size == 4 ? (double)((const float *)(const void *)theirs)[i] : ((const double *)(const void *)theirs)[i];
        worst = fmax(worst, fabs(a - b));
        largest = fmax(largest, fabs(b));
        good = !isnan(a) && !isnan(b);
    }
    free(theirs);
    good = good && largest > 0 && worst <= limit * largest;
    if (!good)
        fprintf(stderr, "bench_layer: %s gives another result (differs by %g of %g)\n", peer->name, worst, largest);
    return good;
}

struct peer_state {
    bool full_on, causal_on;
    unsigned full_runs, causal_runs;
    struct series full, causal, of_full, of_causal; /* seconds; over ours */
};

static bool peer_ready(struct bench *bench, struct peer *peer, const struct tensors *t, const struct job *job,
                       unsigned *runs) {
    const struct layer_case *c = &t->c;
    const char *arguments = say("%s %zu %zu %zu %s %d %zu", bench->file, c->n, c->d, c->h,
                                c->dtype == MHA_F32 ? "f32" : "f64", job->problem.causal, c->n_past);
    if (!peer_load(peer, arguments) || !same_result(bench, peer, job)) return false;
    double seconds = peer_run(peer, 1);
    *runs = seconds > 0 ? runs_per_round(seconds) : 0;
    return seconds > 0;
}

/* ---- rows of one layer ------------------------------------------------------------------------------------------------ */

struct targets {
    double resident, inline_weights, causal, numpy; /* of peak, of peak, of peak (0: no such row), times NumPy */
};

struct layer_rows {
    struct series peak, resident, resident_one, inlined, causal, causal_beside_peers;
    struct series of_peak, cpu_of_peak, inline_of_peak, causal_of_peak, causal_of_full;
};

static double run_clean(double (*run)(struct job *, struct job *, unsigned), struct job *a, struct job *b,
                        unsigned count, bool *clean) {
    long before = preemptions();
    double seconds = run(a, b, count);
    *clean = preemptions() == before;
    return seconds;
}

static double run_one(struct job *a, struct job *b, unsigned count) {
    (void)b;
    return one_caller(a, count);
}

static double peak_now(const struct bench *bench, const struct layer_case *c) {
    return peak_flops(c->dtype == MHA_F32, bench->threads, PEAK_SECONDS);
}

static void print_percent(const char *group, const char *what, const struct series *of_peak, const struct series *time,
                          double target, double peak, const char *note) {
    double share = middle(of_peak, NULL), seconds = middle(time, NULL);
    row(group, what, say("%.3g ms", seconds * 1e3), say("peak %.3g GF/s", peak / 1e9), say("%.1f %%", share * 100),
        target > 0 ? say(">= %.0f %%", target * 100) : "", target > 0 ? verdict(share >= target) : "",
        say("%zu of %zu rounds undisturbed%s%s", clean_rounds(of_peak), of_peak->count, *note ? "; " : "", note));
}

static void print_peer(const struct bench *bench, size_t i, const char *what, const struct series *ours,
                       const struct series *theirs, const struct series *ratio, double target) {
    double times = middle(ratio, NULL);
    row("peers", say("%s, %s", what, bench->peers[i].name), say("%.3g ms", middle(ours, NULL) * 1e3),
        say("%.3g ms", middle(theirs, NULL) * 1e3), say("%.2fx", times), say(">= %.3gx", target),
        verdict(times >= target), "one caller");
}

/* The same round for all: peak, ours in every form, then the peers. */
static void layer_round(struct bench *bench, const struct layer_case *c, struct job jobs[4], struct layer_rows *rows,
                        struct peer_state *peers, unsigned count, bool causal) {
    bool clean;
    double peak = peak_now(bench, c), cpu = process_cpu_seconds();
    double seconds = run_clean(steady, &jobs[0], &jobs[1], count, &clean);
    cpu = process_cpu_seconds() - cpu;
    unsigned runs = count < 4 ? count : count + 2; /* two fill the pool */
    note_value(&rows->peak, peak, true);
    note_value(&rows->cpu_of_peak, work(c, false) * runs / cpu / (peak / (double)bench->threads), true);
    note_value(&rows->resident, seconds, clean);
    note_value(&rows->of_peak, work(c, false) / seconds / peak, clean);
    double full = seconds;
    double one = count < 4 ? full : run_clean(run_one, &jobs[0], NULL, count, &clean);
    note_value(&rows->resident_one, one, clean);
    seconds = run_clean(steady, &jobs[2], &jobs[2], 1, &clean);
    if (count > 1) seconds = run_clean(run_one, &jobs[2], NULL, count, &clean);
    note_value(&rows->inlined, seconds, clean);
    note_value(&rows->inline_of_peak, work(c, false) / seconds / peak, clean);
    double causal_one = 0;
    if (causal) {
        causal_one = run_clean(run_one, &jobs[3], NULL, count, &clean);
        note_value(&rows->causal, causal_one, clean);
        note_value(&rows->causal_of_peak, work(c, true) / causal_one / peak, clean);
        note_value(&rows->causal_of_full, causal_one / one, clean);
    }
    for (size_t i = 0; i < bench->n_peers; i++) {
        if (!peers[i].full_on) continue;
        seconds = peer_run(&bench->peers[i], peers[i].full_runs);
        note_value(&peers[i].full, seconds, true);
        note_value(&peers[i].of_full, seconds / one, true);
    }
    usleep(30000); /* threads of the peers that still spin go to sleep */
}

/* Peers hold one set of tensors, so their causal layers come in rounds of their own. */
static void causal_rounds(struct bench *bench, const struct tensors *tensors, struct job *job, struct peer_state *peers,
                          struct series *ours, unsigned count, size_t rounds) {
    for (size_t i = 0; i < bench->n_peers; i++)
        peers[i].causal_on = peer_ready(bench, &bench->peers[i], tensors, job, &peers[i].causal_runs);
    for (size_t round = 0; round < rounds; round++) {
        bool clean;
        double seconds = run_clean(run_one, job, NULL, count, &clean);
        note_value(ours, seconds, clean);
        for (size_t i = 0; i < bench->n_peers; i++) {
            if (!peers[i].causal_on) continue;
            double theirs = peer_run(&bench->peers[i], peers[i].causal_runs);
            note_value(&peers[i].causal, theirs, true);
            note_value(&peers[i].of_causal, theirs / seconds, true);
        }
        usleep(30000);
    }
}

static void print_layer(const struct bench *bench, const struct layer_case *c, const struct layer_rows *rows,
                        const struct targets *targets, const struct peer_state *peers) {
    const char *name = say("(%zu,%zu,%zu) %s", c->n, c->d, c->h, dtype_names[c->dtype]);
    double peak = middle(&rows->peak, NULL);
    if (!bench->only_peers) {
        print_percent("layer", say("%s, resident layer", name), &rows->of_peak, &rows->resident, targets->resident,
                      peak,
                      say("by CPU time %.1f %%; one caller %.3g ms", middle(&rows->cpu_of_peak, NULL) * 100,
                          middle(&rows->resident_one, NULL) * 1e3));
        print_percent("layer", say("%s, weights inline", name), &rows->inline_of_peak, &rows->inlined,
                      targets->inline_weights, peak, "");
        if (targets->causal > 0) {
            print_percent("layer", say("%s, causal, visible work", name), &rows->causal_of_peak, &rows->causal,
                          targets->causal, peak, "");
            double share = middle(&rows->causal_of_full, NULL);
            row("layer", say("%s, causal against full", name), say("%.3g ms", middle(&rows->causal, NULL) * 1e3),
                say("%.3g ms", middle(&rows->resident_one, NULL) * 1e3), say("%.2fx", share), "<= 0.80x",
                verdict(share <= 0.8), "");
        }
    }
    for (size_t i = 0; i < bench->n_peers; i++) {
        /* against every peer: the fastest one decides, so each must be beaten by as much */
        double target = strcmp(bench->peers[i].name, "numpy") == 0 ? targets->numpy : targets->numpy > 1 ? 1.5 : 1;
        if (peers[i].full.count > 0)
            print_peer(bench, i, name, &rows->resident_one, &peers[i].full, &peers[i].of_full, target);
        if (peers[i].causal.count > 0)
            print_peer(bench, i, say("%s causal", name), &rows->causal_beside_peers, &peers[i].causal,
                       &peers[i].of_causal, 1);
    }
}

static void measure_layer(struct bench *bench, const struct layer_case *c, const struct targets *targets,
                          double budget) {
    struct tensors tensors;
    struct job jobs[4]; /* resident, once more, inline weights, causal */
    struct layer_rows *rows = must_alloc(sizeof *rows);
    struct peer_state *peers = must_alloc(sizeof *peers * PEERS_MAX);
    tensors_make(&tensors, c);
    for (size_t i = 0; i < 4; i++) job_make(&jobs[i], &tensors, bench->pool, i == 3, i == 2);
    double first = one_caller(&jobs[0], 1);
    if (first < 0.05) first = one_caller(&jobs[0], 3);
    one_caller(&jobs[2], 1);
    one_caller(&jobs[3], 1);
    unsigned count = runs_per_round(first);
    bool causal = targets->causal > 0, given = bench->n_peers > 0 && give_tensors(bench, &tensors);
    double round = first * count * 4;
    for (size_t i = 0; given && i < bench->n_peers; i++) {
        peers[i].full_on = peer_ready(bench, &bench->peers[i], &tensors, &jobs[0], &peers[i].full_runs);
        double begun = wall_seconds();
        if (peers[i].full_on) peer_run(&bench->peers[i], peers[i].full_runs);
        round += wall_seconds() - begun;
    }
    size_t rounds = rounds_for(round + 0.05, budget);
    for (size_t i = 0; i < rounds; i++) layer_round(bench, c, jobs, rows, peers, count, causal);
    if (causal && given) causal_rounds(bench, &tensors, &jobs[3], peers, &rows->causal_beside_peers, count, ROUNDS_MIN);
    print_layer(bench, c, rows, targets, peers);
    for (size_t i = 0; i < 4; i++) job_free(&jobs[i]);
    tensors_free(&tensors);
    free(rows);
    free(peers);
}

/* ---- decoding -------------------------------------------------------------------------------------------------------- */

/* A few queries, n_past cached keys: what must come from memory is the cache and the weights. Peers are asked about the plainest
 * case. */
static void measure_decode(struct bench *bench, enum mha_dtype dtype, size_t n_q, size_t h_kv, size_t n_past) {
    struct layer_case c = {dtype, n_q, 1024, 16, n_past, h_kv};
    struct tensors tensors;
    struct job job;
    struct peer_state *peers = must_alloc(sizeof *peers * PEERS_MAX);
    struct series read = {.count = 0}, ours = {.count = 0}, share = {.count = 0};
    tensors_make(&tensors, &c);
    job_make(&job, &tensors, bench->pool, false, false);
    size_t d_kv = h_kv * (c.d / c.h), bytes = 2 * (c.d * c.d + c.d * d_kv + c.n_past * d_kv) * mha_dtype_size(dtype);
    char *plain = must_alloc(bytes);
    one_caller(&job, 3);
    bool plainest = n_q == 1 && h_kv == c.h, given = plainest && bench->n_peers > 0 && give_tensors(bench, &tensors);
    for (size_t i = 0; given && i < bench->n_peers; i++)
        if (strcmp(bench->peers[i].name, "onnxruntime") != 0)
            peers[i].full_on = peer_ready(bench, &bench->peers[i], &tensors, &job, &peers[i].full_runs);
    for (size_t round = 0; round < 21; round++) {
        bool clean;
        double seconds = 0, reading = 0;
        for (int i = 0; i < 4; i++) reading += peak_read_seconds(plain, bytes, bench->threads) / 4;
        seconds = run_clean(run_one, &job, NULL, 4, &clean);
        note_value(&read, reading, true);
        note_value(&ours, seconds, clean);
        note_value(&share, reading / seconds, clean);
        for (size_t i = 0; i < bench->n_peers; i++) {
            if (!peers[i].full_on) continue;
            double theirs = peer_run(&bench->peers[i], peers[i].full_runs);
            note_value(&peers[i].full, theirs, true);
            note_value(&peers[i].of_full, theirs / seconds, true);
            usleep(20000);
        }
    }
    double of_read = middle(&share, NULL);
    const char *name = say("n_q %zu,%s %zu cached keys, d 1024, %s", n_q, h_kv < c.h ? " h_kv 4 of 16," : "", n_past,
                           dtype_names[dtype]);
    if (!bench->only_peers)
        row("decode", name, say("%.3g ms", middle(&ours, NULL) * 1e3),
            say("plain read %.3g ms", middle(&read, NULL) * 1e3), say("%.1f %%", of_read * 100),
            plainest ? ">= 85 %" : "", plainest ? verdict(of_read >= 0.85) : "",
            say("%.1f of %.1f GB/s; %zu of %zu rounds undisturbed", (double)bytes / middle(&ours, NULL) / 1e9,
                (double)bytes / middle(&read, NULL) / 1e9, clean_rounds(&share), share.count));
    for (size_t i = 0; i < bench->n_peers; i++)
        if (peers[i].full.count > 0) print_peer(bench, i, name, &ours, &peers[i].full, &peers[i].of_full, 1);
    job_free(&job);
    tensors_free(&tensors);
    free(plain);
    free(peers);
}

/* ---- how cost grows ---------------------------------------------------------------------------------------------------- */

static void measure_sweep(struct bench *bench, enum mha_dtype dtype) {
    double before = 0;
    for (size_t n = 64; n <= 8192; n *= 2) {
        struct layer_case c = {dtype, n, 512, 8, 0, 0};
        struct tensors tensors;
        struct job jobs[2];
        struct series time = {.count = 0}, share = {.count = 0};
        tensors_make(&tensors, &c);
        job_make(&jobs[0], &tensors, bench->pool, false, false);
        job_make(&jobs[1], &tensors, bench->pool, false, false);
        double first = one_caller(&jobs[0], 1);
        unsigned count = runs_per_round(first);
        for (size_t i = 0; i < (first > 0.3 ? 3 : 7); i++) {
            bool clean;
            double peak = peak_now(bench, &c), seconds = run_clean(steady, &jobs[0], &jobs[1], count, &clean);
            note_value(&time, seconds, clean);
            note_value(&share, work(&c, false) / seconds / peak, clean);
        }
        double seconds = middle(&time, NULL);
        row("sweep", say("n %zu, d 512, h 8, %s", n, dtype_names[dtype]), say("%.4g ms", seconds * 1e3), "",
            say("%.1f %% of peak", middle(&share, NULL) * 100), "", "",
            before > 0 ? say("%.2fx the time of half n; work %.2fx; workspace %.1f MiB", seconds / before,
                             work(&c, false) / work(&(struct layer_case){dtype, n / 2, 512, 8, 0, 0}, false),
                             (double)jobs[0].need.workspace / 0x1p20)
                       : say("workspace %.1f MiB", (double)jobs[0].need.workspace / 0x1p20));
        before = seconds;
        job_free(&jobs[0]);
        job_free(&jobs[1]);
        tensors_free(&tensors);
    }
}

/* 1, 2, 4 ... all threads; each against the peak of as many. */
static void measure_threads(const struct bench *bench, const struct layer_case *c) {
    struct tensors tensors;
    tensors_make(&tensors, c);
    double alone = 0;
    for (size_t threads = 1; threads <= bench->threads;
         threads = threads < bench->threads && threads * 2 > bench->threads ? bench->threads : threads * 2) {
        struct mha_pool *pool = mha_pool_new(threads);
        struct job jobs[2];
        struct series time = {.count = 0}, share = {.count = 0};
        if (!pool) exit(2);
        job_make(&jobs[0], &tensors, pool, false, false);
        job_make(&jobs[1], &tensors, pool, false, false);
        double first = one_caller(&jobs[0], 1);
        unsigned count = runs_per_round(first);
        for (size_t i = 0; i < 7; i++) {
            bool clean;
            double peak = peak_flops(c->dtype == MHA_F32, threads, PEAK_SECONDS);
            double seconds = run_clean(steady, &jobs[0], &jobs[1], count, &clean);
            note_value(&time, seconds, clean);
            note_value(&share, work(c, false) / seconds / peak, clean);
        }
        double seconds = middle(&time, NULL);
        if (threads == 1) alone = seconds;
        row("threads",
            say("(%zu,%zu,%zu) %s, %zu thread%s", c->n, c->d, c->h, dtype_names[c->dtype], threads,
                threads == 1 ? "" : "s"),
            say("%.4g ms", seconds * 1e3), "", say("%.1f %% of peak", middle(&share, NULL) * 100), "", "",
            say("%.2fx one thread", alone / seconds));
        job_free(&jobs[0]);
        job_free(&jobs[1]);
        mha_pool_free(pool);
    }
    tensors_free(&tensors);
}

/* ---- main --------------------------------------------------------------------------------------------------------------- */

static void print_peak(const struct bench *bench) {
    for (int f32 = 0; f32 < 2; f32++) {
        for (size_t threads = 1; threads <= bench->threads; threads += bench->threads > 1 ? bench->threads - 1 : 1) {
            double rates[9];
            for (size_t i = 0; i < 9; i++) rates[i] = peak_flops(f32, threads, 0.03);
            row("peak", say("FMA peak, %s, %zu thread%s", dtype_names[f32], threads, threads == 1 ? "" : "s"),
                say("%.1f GF/s", median(rates, 9) / 1e9), "", "", "", "",
                say("%s; ours runs %s", peak_vectors(), mha_isa_name()));
        }
    }
}

static void start_peers(struct bench *bench, const char *python, char *names) {
    for (char *name = strtok(names, ","); name && bench->n_peers < PEERS_MAX; name = strtok(NULL, ","))
        if (peer_start(&bench->peers[bench->n_peers], python, name, bench->threads)) {
            remark(say("%s: %s", name, bench->peers[bench->n_peers].about));
            bench->n_peers++;
        }
}

static bool parse_arguments(struct bench *bench, int count, char **arguments) {
    for (int i = 1; i < count; i++) {
        if (strcmp(arguments[i], "--only-peers") == 0)
            bench->only_peers = true;
        else if (strcmp(arguments[i], "--quick") == 0)
            bench->quick = true;
        else if (strcmp(arguments[i], "--peers") == 0 && i + 2 < count)
            start_peers(bench, arguments[i + 1], arguments[i + 2]), i += 2;
        else
            return false;
    }
    return true;
}

static const struct {
    size_t n, d, h;
    struct targets targets[2]; /* float64, float32 */
} layers[] = {
    {2048, 1024, 16, {{0.85, 0.83, 0.83, 2.8}, {0.85, 0.83, 0.83, 3.5}}},
    {512, 512, 8, {{0.82, 0, 0, 1}, {0.82, 0, 0, 1}}},
    {128, 512, 8, {{0.80, 0, 0, 1}, {0.80, 0, 0, 1}}},
};

int main(int count, char **arguments) {
    struct bench bench = {.threads = cpus_granted()};
    snprintf(bench.file, sizeof bench.file, "/tmp/mhad-bench-%d.tensors", (int)getpid());
    snprintf(bench.output, sizeof bench.output, "/tmp/mhad-bench-%d.output", (int)getpid());
    if (!parse_arguments(&bench, count, arguments)) {
        fprintf(stderr, "usage: bench_layer [--peers PYTHON NAME,NAME...] [--only-peers] [--quick]\n");
        return 2;
    }
    bench.pool = mha_pool_new(bench.threads);
    if (!bench.pool) return 2;
    if (!bench.only_peers) print_peak(&bench);
    const size_t n_layers = sizeof layers / sizeof layers[0];
    for (size_t i = bench.quick ? n_layers - 1 : 0; i < n_layers; i++)
        for (int f32 = 0; f32 < 2; f32++) {
            struct layer_case c = {f32 ? MHA_F32 : MHA_F64, layers[i].n, layers[i].d, layers[i].h, 0, 0};
            measure_layer(&bench, &c, &layers[i].targets[f32], bench.only_peers ? 50 : 18);
        }
    if (!bench.quick) {
        for (int f32 = 0; f32 < 2; f32++) {
            measure_decode(&bench, f32 ? MHA_F32 : MHA_F64, 1, 16, 4096);
            if (bench.only_peers) continue;
            measure_decode(&bench, f32 ? MHA_F32 : MHA_F64, 1, 4, 16384); /* as much: more than caches hold */
            measure_decode(&bench, f32 ? MHA_F32 : MHA_F64, 4, 16, 4096);
        }
    }
    for (size_t i = 0; i < bench.n_peers; i++) peer_stop(&bench.peers[i]);
    unlink(bench.file);
    unlink(bench.output);
    if (!bench.only_peers && !bench.quick) {
        measure_sweep(&bench, MHA_F64);
        measure_sweep(&bench, MHA_F32);
        for (int f32 = 0; f32 < 2; f32++) {
            measure_threads(&bench, &(struct layer_case){f32 ? MHA_F32 : MHA_F64, 2048, 1024, 16, 0, 0});
            measure_threads(&bench, &(struct layer_case){f32 ? MHA_F32 : MHA_F64, 128, 512, 8, 0, 0});
        }
    }
    mha_pool_free(bench.pool);
    return 0;
}

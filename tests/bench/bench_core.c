/* SPDX-License-Identifier: Apache-2.0
 *
 * tests/bench/bench_core.c - whole attention layers against the FMA peak of this CPU, decoding against its read bandwidth.
 *
 * Model. Every repetition of a row is enclosed by two runs of its yardstick (a loop of independent fused multiply-adds, or a
 * plain read of as many bytes), because clocks drift and neighbours come and go; a row is the median and the best of the
 * repetitions' ratios. One thread is measured in CPU time on the calling thread; more threads by the wall clock on a pool, and
 * by the CPU time of the process next to it, which a busy machine disturbs less. Weights are a resident layer unless the row
 * says inline. Flops count visible work only (mha_plan); exponentials cost time and count nothing.
 *
 * Usage: bench_core [--json] [--quick] [--only TEXT] [--threads N] [--isa NAME]
 * Exit status 1 with BENCH_STRICT=1 if a median misses its target.
 */
#include "../../core/mha.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { MAX_REPETITIONS = 41 };

/* ---- clocks and statistics --------------------------------------------------------------------------------------- */

static double seconds_of(clockid_t clock) {
    struct timespec t;
    clock_gettime(clock, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int by_value(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *values, size_t n) {
    qsort(values, n, sizeof *values, by_value);
    return values[n / 2];
}

/* ---- peak: independent fused multiply-adds ----------------------------------------------------------------------- */

/* Twelve accumulators cover latencies up to 6 at two a cycle. The empty asm makes each a value of its own: the compiler must not
 * see that they are equal. */
#define PEAK(name, target_attribute, real, bytes, constraint)                                                          \
    target_attribute __attribute__((noinline)) static double name(long n) {                                            \
        typedef real vec __attribute__((vector_size(bytes)));                                                          \
        const vec zero = {0};                                                                                          \
        vec x = zero + (real)0.999, y = zero + (real)0.001, c0, c1, c2, c3, c4, c5, c6, c7, c8, c9, ca, cb;            \
        c0 = c1 = c2 = c3 = c4 = c5 = c6 = c7 = c8 = c9 = ca = cb = zero;                                              \
        for (long k = 0; k < n; k++) {                                                                                 \
            __asm__ volatile(""                                                                                        \
                             : "+" constraint(c0), "+" constraint(c1), "+" constraint(c2), "+" constraint(c3),         \
                               "+" constraint(c4), "+" constraint(c5), "+" constraint(c6), "+" constraint(c7),         \
                               "+" constraint(c8), "+" constraint(c9), "+" constraint(ca), "+" constraint(cb));        \
            c0 = c0 * x + y, c1 = c1 * x + y, c2 = c2 * x + y, c3 = c3 * x + y;                                        \
            c4 = c4 * x + y, c5 = c5 * x + y, c6 = c6 * x + y, c7 = c7 * x + y;                                        \
            c8 = c8 * x + y, c9 = c9 * x + y, ca = ca * x + y, cb = cb * x + y;                                        \
        }                                                                                                              \
        vec s = c0 + c1 + c2 + c3 + c4 + c5 + c6 + c7 + c8 + c9 + ca + cb;                                             \
        __asm__ volatile("" : "+" constraint(s));                                                                      \
        return (double)n * 12 * 2 * (double)(bytes / sizeof(real)) + 0 * (double)s[0];                                 \
    }

#if defined(__x86_64__)
PEAK(peak_f64_v4, __attribute__((target("avx512f"))), double, 64, "v")
PEAK(peak_f32_v4, __attribute__((target("avx512f"))), float, 64, "v")
PEAK(peak_f64_v3, __attribute__((target("avx2,fma"))), double, 32, "x")
PEAK(peak_f32_v3, __attribute__((target("avx2,fma"))), float, 32, "x")
PEAK(peak_f64_16, , double, 16, "x")
PEAK(peak_f32_16, , float, 16, "x")
#else
PEAK(peak_f64_16, , double, 16, "w")
PEAK(peak_f32_16, , float, 16, "w")
#endif

/* Runs for about a millisecond; returns flops a second of this thread. */
static double peak(enum mha_dtype dtype) {
    double (*loop)(long) = dtype == MHA_F32 ? peak_f32_16 : peak_f64_16;
#if defined(__x86_64__)
    if (strstr(mha_isa_name(), "v3") != NULL) loop = dtype == MHA_F32 ? peak_f32_v3 : peak_f64_v3;
    if (strcmp(mha_isa_name(), "x86-64-v4") == 0) loop = dtype == MHA_F32 ? peak_f32_v4 : peak_f64_v4;
#endif
    double begin = seconds_of(CLOCK_THREAD_CPUTIME_ID), flops = loop(400000);
    return flops / (seconds_of(CLOCK_THREAD_CPUTIME_ID) - begin);
}

/* ---- plain reading ----------------------------------------------------------------------------------------------- */

/* Bytes a second when `bytes` at p are read once by this thread. */
static double read_rate(const void *p, size_t bytes) {
    typedef long long vec __attribute__((vector_size(32), may_alias));
    const vec *x = p;
    const size_t n = bytes / sizeof *x / 4 * 4;
    vec s0 = {0}, s1 = s0, s2 = s0, s3 = s0;
    double begin = seconds_of(CLOCK_THREAD_CPUTIME_ID);
    for (size_t k = 0; k < n; k += 4) s0 ^= x[k], s1 ^= x[k + 1], s2 ^= x[k + 2], s3 ^= x[k + 3];
    s0 ^= s1 ^ s2 ^ s3;
    __asm__ volatile("" : : "m"(s0));
    return (double)bytes / (seconds_of(CLOCK_THREAD_CPUTIME_ID) - begin);
}

/* ---- problems ---------------------------------------------------------------------------------------------------- */

struct row {
    const char *name;
    size_t n, d, h, n_past; /* n queries; new keys as many */
    bool causal, inline_weights, decode;
    double target; /* of peak, or of reading, where all threads work; 0: none */
};

static const struct row rows[] = {
    {"layer 2048,1024,16", 2048, 1024, 16, 0, false, false, false, 0.85},
    {"layer 2048,1024,16 inline", 2048, 1024, 16, 0, false, true, false, 0.83},
    {"causal 2048,1024,16", 2048, 1024, 16, 0, true, false, false, 0.83},
    {"layer 512,512,8", 512, 512, 8, 0, false, false, false, 0.82},
    {"layer 512,512,8 inline", 512, 512, 8, 0, false, true, false, 0},
    {"layer 128,512,8", 128, 512, 8, 0, false, false, false, 0.80},
    {"layer 128,512,8 inline", 128, 512, 8, 0, false, true, false, 0},
    {"few queries 8,512,8", 8, 512, 8, 0, false, false, false, 0},
    {"decode 4096,1024,16", 1, 1024, 16, 4095, false, false, true, 0.85},
    {"decode 4096,512,8", 1, 512, 8, 4095, false, false, true, 0},
    {"sweep 64,512,8", 64, 512, 8, 0, false, false, false, 0},
    {"sweep 256,512,8", 256, 512, 8, 0, false, false, false, 0},
    {"sweep 1024,512,8", 1024, 512, 8, 0, false, false, false, 0},
    {"sweep 2048,512,8", 2048, 512, 8, 0, false, false, false, 0},
    {"sweep 4096,512,8", 4096, 512, 8, 0, false, false, false, 0},
    {"sweep 8192,512,8", 8192, 512, 8, 0, false, false, false, 0},
};

static void *checked(void *p) {
    if (p == NULL) {
        fprintf(stderr, "bench_core: memory is short\n");
        exit(2);
    }
    return p;
}

static void *numbers(enum mha_dtype dtype, size_t n, double amplitude) {
    static uint64_t state = 0x9e3779b97f4a7c15u;
    const size_t bytes = n * mha_dtype_size(dtype);
    void *p = checked(aligned_alloc(MHA_ALIGN, (bytes + MHA_ALIGN - 1) / MHA_ALIGN * MHA_ALIGN + MHA_ALIGN));
    for (size_t k = 0; k < n; k++) {
        state ^= state << 13, state ^= state >> 7, state ^= state << 17;
        const double x = amplitude * ((double)(state >> 11) * 0x1p-52 - 1);
        if (dtype == MHA_F32)
            ((float *)p)[k] = (float)x;
        else
            ((double *)p)[k] = x;
    }
    return p;
}

struct job {
    struct mha_problem p;
    struct mha_result r;
    struct mha_layer *layer;
    void *owned[12];
    size_t n_owned;
    void *workspace;
    struct mha_need need;
    void *yard; /* as many bytes as the row reads at least, for plain reading */
};

static void *own(struct job *j, void *p) { return j->owned[j->n_owned++] = p; }

static struct job *job_new(const struct row *row, enum mha_dtype dtype, size_t threads) {
    struct job *j = checked(calloc(1, sizeof *j));
    const size_t d = row->d, d_h = d / row->h;
    struct mha_problem *p = &j->p;
    *p = (struct mha_problem){.dtype = dtype,
                              .B = 1,
                              .n_q = row->n,
                              .n_k = row->n,
                              .n_past = row->n_past,
                              .h = row->h,
                              .h_kv = row->h,
                              .d_k = d_h,
                              .d_v = d_h,
                              .d_q = d,
                              .d_kin = d,
                              .d_vin = d,
                              .d_out = d,
                              .scale = 1 / __builtin_sqrt((double)d_h),
                              .causal = row->causal};
    p->Q = p->K = p->V = own(j, numbers(dtype, row->n * d, 1));
    const double w = 1.7 / __builtin_sqrt((double)d);
    p->weights = (struct mha_weights){.W_q = own(j, numbers(dtype, d * d, w)),
                                      .W_k = own(j, numbers(dtype, d * d, w)),
                                      .W_v = own(j, numbers(dtype, d * d, w)),
                                      .W_o = own(j, numbers(dtype, d * d, w))};
    if (row->n_past > 0) {
        p->past_K = own(j, numbers(dtype, row->n_past * d, 1));
        p->past_V = own(j, numbers(dtype, row->n_past * d, 1));
    }
    struct mha_detail detail;
    if (!row->inline_weights) {
        const struct mha_layer_shape shape = {dtype, row->h, row->h, d_h, d_h, d, d, d, d};
        p->layer = j->layer = checked(mha_layer_new(&shape, &p->weights, &detail));
    }
    j->r.output = own(j, numbers(dtype, row->n * d, 0));
    if (mha_plan(p, &j->r, threads, &j->need, &detail) != MHA_OK) {
        fprintf(stderr, "bench_core: %s: %s %s\n", row->name, mha_error_text(detail.code), detail.field);
        exit(2);
    }
    j->workspace = checked(aligned_alloc(MHA_ALIGN, (j->need.workspace + MHA_ALIGN - 1) / MHA_ALIGN * MHA_ALIGN));
    memset(j->workspace, 0, j->need.workspace);
    if (row->decode) j->yard = own(j, numbers(MHA_F32, (size_t)j->need.bytes / 4, 1));
    return j;
}

static void job_free(struct job *j) {
    for (size_t x = 0; x < j->n_owned; x++) free(j->owned[x]);
    mha_layer_free(j->layer);
    free(j->workspace);
    free(j);
}

/* ---- one repetition ---------------------------------------------------------------------------------------------- */

struct end {
    pthread_mutex_t lock;
    pthread_cond_t came;
    bool done;
};

static void signal_end(void *arg) {
    struct end *end = arg;
    pthread_mutex_lock(&end->lock);
    end->done = true;
    pthread_cond_signal(&end->came);
    pthread_mutex_unlock(&end->lock);
}

/* Seconds of wall clock; *cpu: CPU seconds per thread. */
static double run_once(struct job *j, struct mha_pool *pool, size_t threads, double *cpu) {
    struct mha_run *run = mha_run_init(j->workspace, &j->p, &j->r, threads);
    const clockid_t cpu_clock = pool == NULL ? CLOCK_THREAD_CPUTIME_ID : CLOCK_PROCESS_CPUTIME_ID;
    const double wall = seconds_of(CLOCK_MONOTONIC), busy = seconds_of(cpu_clock);
    if (pool == NULL) {
        mha_run_here(run);
    } else {
        struct end end = {PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, false};
        mha_pool_submit(pool, run, signal_end, &end);
        pthread_mutex_lock(&end.lock);
        while (!end.done) pthread_cond_wait(&end.came, &end.lock);
        pthread_mutex_unlock(&end.lock);
    }
    *cpu = (seconds_of(cpu_clock) - busy) / (double)threads;
    return seconds_of(CLOCK_MONOTONIC) - wall;
}

/* ---- rows -------------------------------------------------------------------------------------------------------- */

struct options {
    bool json, quick;
    const char *only;
    size_t threads;
};

/* Prints a row; returns whether it meets its target. */
static bool measure(const struct row *row, enum mha_dtype dtype, struct mha_pool *pool, size_t threads,
                    const struct options *options) {
    struct job *j = job_new(row, dtype, threads);
    const double work = row->decode ? j->need.bytes : j->need.flops;
    double wall[MAX_REPETITIONS], ratio[MAX_REPETITIONS], cpu_ratio[MAX_REPETITIONS], cpu;
    run_once(j, pool, threads, &cpu);
    size_t repetitions = options->quick ? 5 : 21;
    if (cpu > 0.5 && repetitions > 5) repetitions = 5;
    if (cpu < 0.02 && !options->quick) repetitions = MAX_REPETITIONS;
    const size_t times = cpu < 1e-3 ? (size_t)(2e-3 / (cpu + 1e-7)) + 1 : 1;
    for (size_t x = 0; x < repetitions; x++) {
        const double before = row->decode ? read_rate(j->yard, (size_t)work) : peak(dtype);
        double sum_wall = 0, sum_cpu = 0;
        for (size_t y = 0; y < times; y++) sum_wall += run_once(j, pool, threads, &cpu), sum_cpu += cpu;
        const double after = row->decode ? read_rate(j->yard, (size_t)work) : peak(dtype);
        const double yard = (before + after) / 2 * (row->decode ? 1 : (double)threads);
        wall[x] = sum_wall / (double)times;
        ratio[x] = work / wall[x] / yard;
        cpu_ratio[x] = work / (sum_cpu / (double)times) / yard;
    }
    const double ms = 1e3 * median(wall, repetitions), cpu_median = median(cpu_ratio, repetitions);
    const double wall_median = median(ratio, repetitions);
    const double best = threads == 1 ? cpu_ratio[repetitions - 1] : ratio[repetitions - 1];
    const double counts = threads == 1 ? cpu_median : wall_median;
    const char *unit = row->decode ? "read" : "peak", *type = dtype == MHA_F32 ? "f32" : "f64";
    if (options->json)
        printf(
            "{\"row\":\"%s\",\"dtype\":\"%s\",\"threads\":%zu,\"isa\":\"%s\",\"ms\":%.4f,\"of\":\"%s\",\"ratio\":%.4f,"
            "\"cpu_ratio\":%.4f,\"best\":%.4f,\"target\":%.2f}\n",
            row->name, type, threads, mha_isa_name(), ms, unit, counts, cpu_median, best, row->target);
    else
        printf("%-28s %s %2zu %10.3f ms %7.1f %% of %s (CPU time %5.1f %%, best %5.1f %%) %s%.0f %%\n", row->name, type,
               threads, ms, 100 * counts, unit, 100 * cpu_median, 100 * best, row->target > 0 ? "target " : "",
               100 * row->target);
    fflush(stdout);
    job_free(j);
    return counts >= row->target;
}

static bool parse(int argc, char **argv, struct options *o) {
    const long online = sysconf(_SC_NPROCESSORS_ONLN);
    *o = (struct options){.threads = online < 1 ? 1 : (size_t)online, .only = ""};
    for (int x = 1; x < argc; x++) {
        if (strcmp(argv[x], "--json") == 0)
            o->json = true;
        else if (strcmp(argv[x], "--quick") == 0)
            o->quick = true;
        else if (strcmp(argv[x], "--only") == 0 && x + 1 < argc)
            o->only = argv[++x];
        else if (strcmp(argv[x], "--threads") == 0 && x + 1 < argc)
            o->threads = (size_t)strtoul(argv[++x], NULL, 10);
        else if (strcmp(argv[x], "--isa") == 0 && x + 1 < argc && mha_isa_force(argv[x + 1]))
            x++;
        else
            return false;
    }
    return o->threads >= 1;
}

int main(int argc, char **argv) {
    struct options o;
    if (!parse(argc, argv, &o)) {
        fprintf(stderr, "usage: bench_core [--json] [--quick] [--only TEXT] [--threads N] [--isa NAME]\n");
        return 2;
    }
    struct mha_pool *pool = o.threads > 1 ? checked(mha_pool_new(o.threads)) : NULL;
    size_t missed = 0;
    if (!o.json)
        printf("core, %s: peak of one core %.1f GFLOP/s float64, %.1f float32\n", mha_isa_name(), peak(MHA_F64) * 1e-9,
               peak(MHA_F32) * 1e-9);
    for (size_t x = 0; x < sizeof rows / sizeof rows[0]; x++) {
        if (strstr(rows[x].name, o.only) == NULL) continue;
        for (int dtype = MHA_F64; dtype <= MHA_F32; dtype++) {
            missed += !measure(&rows[x], (enum mha_dtype)dtype, NULL, 1, &o);
            if (pool != NULL) missed += !measure(&rows[x], (enum mha_dtype)dtype, pool, o.threads, &o);
        }
    }
    mha_pool_free(pool);
    const char *strict = getenv("BENCH_STRICT");
    return missed > 0 && strict != NULL && strcmp(strict, "1") == 0;
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * tests/bench/bench_number.c - numbers in JSON: our tensor reader and writer against std::from_chars and std::to_chars.
 *
 * Model. For each kind of data the contenders run in turn, many short rounds, CPU time of the thread; a row is the median of each
 * and the median of the rounds' ratios. Ours is all of the product's path: chunks of 32 KiB, grammar, shape, ties for a later
 * float32, growing memory (reading); blocks of 32 KiB (writing). The yardstick has the whole text in memory and checks
 * nothing. Exit status 1 if a target is missed (BENCH_STRICT=1) or a result differs (always).
 */
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "../../api/memory.h"
#include "../../api/number.h"
#include "../../api/tensor_text.h"
#include "../../api/tensor_write.h"
#include "number_yardstick.h"

#define COUNT        ((size_t)20000)
#define ROW          ((size_t)250)
#define CHUNK        ((size_t)32768)
#define ROUNDS       151
#define READ_TARGET  0.8
#define WRITE_TARGET 0.9

static uint64_t random_state = 88172645463325252u;

static uint64_t random_bits(void) { /* xorshift64 */
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    return random_state ^= random_state << 17;
}

static double uniform(void) { return (double)(random_bits() >> 11) * 0x1p-53; }

static double normal(void) { return sqrt(-2 * log(1 - uniform())) * cos(6.283185307179586 * uniform()); }

static double digits17(void) { return uniform(); }

static double short_decimal(void) {
    static const double scale[] = {1e2, 1e3, 1e4, 1e5};
    double whole = (double)(random_bits() % 1800000) - 900000;
    return whole / scale[random_bits() % 4];
}

static double byte_integer(void) { return (double)(random_bits() % 256); }

static double wide_integer(void) { return (double)(int64_t)(random_bits() % 2000000000) - 1e9; }

static double any_bits(void) {
    double value;
    do {
        uint64_t bits = random_bits();
        memcpy(&value, &bits, sizeof value);
    } while (!isfinite(value));
    return value;
}

static const struct {
    const char *name;
    double (*draw)(void);
    const char *format; /* of the text that is read: as the usual writers print it */
    bool has_target;
} kinds[] = {
    {"17 digits in [0,1)", digits17, "%.17g", true}, {"normal, 17 digits", normal, "%.17g", true},
    {"short decimals", short_decimal, "%.9g", true}, {"integers 0..255", byte_integer, "%.0f", true},
    {"integers to 1e9", wide_integer, "%.0f", true}, {"random bits", any_bits, "%.17g", false},
};

static double seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static int ascending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *sample, size_t count) {
    qsort(sample, count, sizeof *sample, ascending);
    return sample[count / 2];
}

struct bench {
    double *data, *back;
    float *data32, *back32;
    char *text, *out;
    size_t length, written;
    struct mem_grow grow, ties;
};

/* Ours. The memory has grown in the first round and is warm from then on, like the yardstick's. */
static void read_ours(struct bench *bench, enum tensor_text_reals reals, void *back) {
    struct tensor_text text;
    tensor_text_begin(&text, &bench->grow, &bench->ties, reals, TENSOR_TEXT_NUMBERS);
    size_t used;
    for (size_t at = 0; at < bench->length; at += CHUNK)
        tensor_text_feed(&text, bench->text + at, bench->length - at < CHUNK ? bench->length - at : CHUNK, &used);
    if (text.status != TENSOR_TEXT_DONE || text.count != COUNT) abort();
    if (back != NULL) memcpy(back, bench->grow.data, bench->grow.size);
}

static void write_ours(struct bench *bench, enum tensor_write_type type, const void *data) {
    struct tensor_write writer;
    size_t count = COUNT, length, at = 0;
    tensor_write_begin(&writer, TENSOR_WRITE_NESTED, type, data, 1, &count);
    while ((length = tensor_write(&writer, bench->out + at, CHUNK)) > 0) at += length;
    bench->written = at;
}

static void run_read_f64(struct bench *bench) { read_ours(bench, TENSOR_TEXT_F64_TIES, NULL); }
static void run_read_f32(struct bench *bench) { read_ours(bench, TENSOR_TEXT_F32, NULL); }
static void run_write_f64(struct bench *bench) { write_ours(bench, TENSOR_WRITE_F64, bench->data); }
static void run_write_f32(struct bench *bench) { write_ours(bench, TENSOR_WRITE_F32, bench->data32); }
static void std_read_f64(struct bench *bench) { yardstick_read_f64(bench->text, bench->length, bench->back); }
static void std_read_f32(struct bench *bench) { yardstick_read_f32(bench->text, bench->length, bench->back32); }
static void std_write_f64(struct bench *bench) { bench->written = yardstick_write_f64(bench->data, COUNT, bench->out); }
static void std_write_f32(struct bench *bench) {
    bench->written = yardstick_write_f32(bench->data32, COUNT, bench->out);
}

static const struct {
    const char *name;
    void (*ours)(struct bench *bench), (*yardstick)(struct bench *bench);
    double target;
} tasks[] = {
    {"read float64", run_read_f64, std_read_f64, READ_TARGET},
    {"read float32", run_read_f32, std_read_f32, READ_TARGET},
    {"write float64", run_write_f64, std_write_f64, WRITE_TARGET},
    {"write float32", run_write_f32, std_write_f32, WRITE_TARGET},
};

static void fill(struct bench *bench, size_t kind) {
    char *p = bench->text;
    *p++ = '[';
    for (size_t i = 0; i < COUNT; i++) {
        bench->data[i] = kinds[kind].draw();
        if (i % ROW == 0) *p++ = '[';
        p += sprintf(p, kinds[kind].format, bench->data[i]);
        *p++ = i % ROW == ROW - 1 ? ']' : ',';
        if (i % ROW == ROW - 1) *p++ = i == COUNT - 1 ? ']' : ',';
        bench->data32[i] = (float)bench->data[i];
        if (!isfinite(bench->data32[i])) bench->data32[i] = (float)uniform();
    }
    bench->length = (size_t)(p - bench->text);
}

/* Ours must agree with the yardstick to the bit before its time counts. */
static bool agrees(struct bench *bench) {
    double *ours = malloc(COUNT * sizeof *ours);
    if (ours == NULL) abort();
    read_ours(bench, TENSOR_TEXT_F64_TIES, ours);
    std_read_f64(bench);
    bool same = memcmp(ours, bench->back, COUNT * sizeof *ours) == 0;
    free(ours);
    return same;
}

/* One row. Returns false if a target is missed. */
static bool measure(struct bench *bench, size_t kind, size_t task) {
    double ours[ROUNDS], yardstick[ROUNDS], ratio[ROUNDS];
    for (size_t round = 0; round < ROUNDS; round++) {
        double start = seconds();
        tasks[task].ours(bench);
        double middle = seconds();
        tasks[task].yardstick(bench);
        double end = seconds();
        ours[round] = (middle - start) / (double)COUNT * 1e9;
        yardstick[round] = (end - middle) / (double)COUNT * 1e9;
        ratio[round] = ours[round] / yardstick[round];
    }
    double r = median(ratio, ROUNDS);
    bool met = r <= tasks[task].target || !kinds[kind].has_target;
    printf("%-14s %-19s %8.2f %8.2f %7.2f   %s\n", tasks[task].name, kinds[kind].name, median(ours, ROUNDS),
           median(yardstick, ROUNDS), r,
           !kinds[kind].has_target ? ""
           : met                   ? "met"
                                   : "MISSED");
    fflush(stdout);
    return met;
}

int main(void) {
    struct mem_budget budget = {.limit = SIZE_MAX};
    struct mem_arena *arena = mem_arena_new(&budget);
    struct bench bench = {0};
    if (arena == NULL || !mem_grow_init(&bench.grow, arena) || !mem_grow_init(&bench.ties, arena)) return 2;
    bench.data = malloc(COUNT * sizeof *bench.data);
    bench.back = malloc(COUNT * sizeof *bench.back);
    bench.data32 = malloc(COUNT * sizeof *bench.data32);
    bench.back32 = malloc(COUNT * sizeof *bench.back32);
    bench.text = malloc(COUNT * 32);
    bench.out = malloc(COUNT * 44 + CHUNK);
    if (!bench.data || !bench.back || !bench.data32 || !bench.back32 || !bench.text || !bench.out) return 2;
    bool met = true, same = true;
    printf("numbers, ns each (target: read <= %.1f of std::from_chars, write <= %.1f of std::to_chars)\n", READ_TARGET,
           WRITE_TARGET);
    printf("%-14s %-19s %8s %8s %7s\n", "", "", "ours", "std", "ratio");
    for (size_t task = 0; task < sizeof tasks / sizeof tasks[0]; task++) {
        for (size_t kind = 0; kind < sizeof kinds / sizeof kinds[0]; kind++) {
            if (kinds[kind].draw == any_bits && tasks[task].yardstick == std_read_f32)
                continue; /* mostly out of range */
            fill(&bench, kind);
            same = same && agrees(&bench);
            met = measure(&bench, kind, task) && met;
        }
    }
    if (!same) fprintf(stderr, "bench_number: our numbers differ from std::from_chars\n");
    mem_arena_free(arena);
    free(bench.data);
    free(bench.back);
    free(bench.data32);
    free(bench.back32);
    free(bench.text);
    free(bench.out);
    return !same || (!met && getenv("BENCH_STRICT") != NULL);
}

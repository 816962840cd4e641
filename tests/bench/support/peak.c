/* SPDX-License-Identifier: Apache-2.0
 *
 * tests/bench/support/peak.c - see peak.h.
 */
#include "peak.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "rows.h"

enum { CHAINS = 12, STEPS = 20000, THREADS_MAX = 256 }; /* 12 chains cover a latency of 4 to 6 at two a cycle */

/* One block of STEPS * CHAINS multiply-adds on vectors of `type`. -ffp-contract=fast makes each one instruction. */
#define FMA_BLOCK(name, attributes, element, bytes)                                                                    \
    attributes static double name(void) {                                                                              \
        typedef element vector __attribute__((vector_size(bytes)));                                                    \
        vector chain[CHAINS], factor = {0}, term = {0};                                                                \
        factor += (element)0.999, term += (element)0.001;                                                              \
        _Pragma("GCC unroll 12") for (int i = 0; i < CHAINS; i++) chain[i] = factor + (element)i;                      \
        for (int step = 0; step < STEPS; step++) {                                                                     \
            _Pragma("GCC unroll 12") for (int i = 0; i < CHAINS; i++) chain[i] = chain[i] * factor + term;             \
        }                                                                                                              \
        vector sum = chain[0];                                                                                         \
        _Pragma("GCC unroll 12") for (int i = 1; i < CHAINS; i++) sum += chain[i];                                     \
        return (double)sum[0];                                                                                         \
    }

#define NO_INLINE __attribute__((noinline))

#if defined(__x86_64__)
FMA_BLOCK(fma_f64_avx512, NO_INLINE __attribute__((target("avx512f"))), double, 64)
FMA_BLOCK(fma_f32_avx512, NO_INLINE __attribute__((target("avx512f"))), float, 64)
FMA_BLOCK(fma_f64_avx2, NO_INLINE __attribute__((target("avx2,fma"))), double, 32)
FMA_BLOCK(fma_f32_avx2, NO_INLINE __attribute__((target("avx2,fma"))), float, 32)
#endif
FMA_BLOCK(fma_f64_plain, NO_INLINE, double, 16)
FMA_BLOCK(fma_f32_plain, NO_INLINE, float, 16)

struct loop {
    const char *vectors;
    double (*f64)(void), (*f32)(void);
    double bytes; /* of a vector */
};

static struct loop widest(void) {
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx512f")) return (struct loop){"AVX-512", fma_f64_avx512, fma_f32_avx512, 64};
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
        return (struct loop){"AVX2+FMA", fma_f64_avx2, fma_f32_avx2, 32};
#endif
    return (struct loop){"the compiler's default", fma_f64_plain, fma_f32_plain, 16};
}

const char *peak_vectors(void) { return widest().vectors; }

/* ---- threads that start together --------------------------------------------------------------------------------- */

struct team {
    pthread_barrier_t gate;
    void (*work)(struct team *team, size_t thread);
    size_t threads;
    double (*block)(void);
    double flops_per_block, seconds;
    const char *buffer;
    size_t bytes;
    double rate[THREADS_MAX], begun[THREADS_MAX], ended[THREADS_MAX];
    _Atomic double sink; /* keeps the compiler from dropping the work */
};

struct member {
    struct team *team;
    size_t thread;
};

static void *take_part(void *argument) {
    struct member *member = argument;
    pthread_barrier_wait(&member->team->gate);
    member->team->work(member->team, member->thread);
    return NULL;
}

static void run_team(struct team *team) {
    pthread_t handles[THREADS_MAX] = {0};
    struct member members[THREADS_MAX] = {{team, 0}}; /* the caller is the first */
    pthread_barrier_init(&team->gate, NULL, (unsigned)team->threads);
    for (size_t i = 1; i < team->threads; i++) {
        members[i] = (struct member){team, i};
        if (pthread_create(&handles[i], NULL, take_part, &members[i]) != 0) {
            fprintf(stderr, "cannot start a thread\n");
            exit(2);
        }
    }
    take_part(&members[0]);
    for (size_t i = 1; i < team->threads; i++) pthread_join(handles[i], NULL);
    pthread_barrier_destroy(&team->gate);
}

static double thread_cpu(void) {
    struct timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static void multiply_add(struct team *team, size_t thread) {
    double stop = wall_seconds() + team->seconds, flops = 0, sum = 0, begun = thread_cpu();
    do {
        sum += team->block();
        flops += team->flops_per_block;
    } while (wall_seconds() < stop);
    team->rate[thread] = flops / (thread_cpu() - begun);
    team->sink = sum;
}

double peak_flops(bool f32, size_t threads, double seconds) {
    struct loop loop = widest();
    struct team *team = must_alloc(sizeof *team);
    team->work = multiply_add;
    team->threads = threads < THREADS_MAX ? threads : THREADS_MAX;
    team->block = f32 ? loop.f32 : loop.f64;
    team->flops_per_block = 2.0 * STEPS * CHAINS * loop.bytes / (f32 ? 4 : 8);
    team->seconds = seconds;
    run_team(team);
    double total = 0;
    for (size_t i = 0; i < team->threads; i++) total += team->rate[i];
    free(team);
    return total;
}

/* ---- reading ------------------------------------------------------------------------------------------------------ */

typedef uint64_t lanes __attribute__((vector_size(32)));

#if defined(__x86_64__)
__attribute__((target_clones("avx2", "default")))
#endif
static uint64_t
sum_up(const char *from, size_t bytes) {
    lanes sums[8] = {{0}};
    const lanes *at = (const lanes *)(const void *)from;
    for (size_t i = 0; i + 8 <= bytes / sizeof *at; i += 8) {
        _Pragma("GCC unroll 8") for (size_t j = 0; j < 8; j++) sums[j] += at[i + j];
    }
    lanes sum = sums[0];
    _Pragma("GCC unroll 8") for (size_t j = 1; j < 8; j++) sum += sums[j];
    return sum[0] + sum[1] + sum[2] + sum[3];
}

static void read_part(struct team *team, size_t thread) {
    size_t part = team->bytes / team->threads / 256 * 256;
    team->begun[thread] = wall_seconds();
    team->sink = (double)sum_up(team->buffer + part * thread, part);
    team->ended[thread] = wall_seconds();
}

double peak_read_seconds(const void *buffer, size_t bytes, size_t threads) {
    struct team *team = must_alloc(sizeof *team);
    team->work = read_part;
    team->threads = threads < THREADS_MAX ? threads : THREADS_MAX;
    team->buffer = buffer;
    team->bytes = bytes;
    run_team(team);
    double begun = team->begun[0], ended = team->ended[0];
    for (size_t i = 1; i < team->threads; i++) {
        if (team->begun[i] < begun) begun = team->begun[i];
        if (team->ended[i] > ended) ended = team->ended[i];
    }
    free(team);
    return ended - begun;
}

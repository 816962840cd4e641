/* SPDX-License-Identifier: Apache-2.0
 *
 * tests/bench/support/rows.c - see rows.h.
 */
#include "rows.h"

#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

const char *say(const char *format, ...) {
    static char buffers[32][320];
    static unsigned next;
    char *buffer = buffers[next++ % 32];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(buffer, sizeof buffers[0], format, arguments);
    va_end(arguments);
    return buffer;
}

void row(const char *group, const char *what, const char *ours, const char *yardstick, const char *ratio,
         const char *target, const char *verdict_text, const char *note) {
    printf("row\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", group, what, ours, yardstick, ratio, target, verdict_text, note);
    fflush(stdout);
}

const char *verdict(bool met) { return met ? "met" : "NOT met"; }

void remark(const char *text) {
    printf("remark\t%s\n", text);
    fflush(stdout);
}

static double read_clock(clockid_t clock) {
    struct timespec now;
    clock_gettime(clock, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

double wall_seconds(void) { return read_clock(CLOCK_MONOTONIC); }
double process_cpu_seconds(void) { return read_clock(CLOCK_PROCESS_CPUTIME_ID); }

long preemptions(void) {
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return usage.ru_nivcsw;
}

static int ascending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double quantile(double *sample, size_t count, double q) {
    if (count == 0) return 0;
    qsort(sample, count, sizeof *sample, ascending);
    size_t at = (size_t)(q * (double)count);
    return sample[at < count ? at : count - 1];
}

double median(double *sample, size_t count) { return quantile(sample, count, 0.5); }

void fill_random(void *data, size_t count, bool f32, double scale, unsigned seed) {
    uint64_t state = UINT64_C(0x9E3779B97F4A7C15) * (seed + 1);
    for (size_t i = 0; i < count; i++) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        double value = ((double)(state >> 11) * 0x1p-52 - 1) * scale;
        if (f32)
            ((float *)data)[i] = (float)value;
        else
            ((double *)data)[i] = value;
    }
}

void *must_alloc(size_t bytes) {
    size_t rounded = (bytes + 63) / 64 * 64;
    void *memory = aligned_alloc(64, rounded ? rounded : 64);
    if (!memory) {
        fprintf(stderr, "no memory for %zu bytes\n", bytes);
        exit(2);
    }
    memset(memory, 0, rounded);
    return memory;
}

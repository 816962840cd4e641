/* SPDX-License-Identifier: Apache-2.0
 *
 * tests/bench/support/rows.h - what the benchmark programs share: rows of the table, clocks, medians, random tensors.
 *
 * Model. A program prints one line per row, fields parted by tabs, and tests/tools/bench.sh makes one table of the lines of all
 * programs: row, group, what, ours, yardstick, ratio, target, verdict, note. What a row has no use for is "". A program's exit
 * status says whether it could measure, never whether a target was met: that is the verdict's business.
 */
#ifndef MHA_BENCH_ROWS_H
#define MHA_BENCH_ROWS_H

#include <stdbool.h>
#include <stddef.h>

/* Formats into one of a ring of 32 static buffers: for the arguments of one call of row(). */
const char *say(const char *format, ...) __attribute__((format(printf, 1, 2)));

void row(const char *group, const char *what, const char *ours, const char *yardstick, const char *ratio,
         const char *target, const char *verdict, const char *note);
/* "met" or "NOT met". */
const char *verdict(bool met);

/* A line that explains the rows before it, under the table. */
void remark(const char *text);

double wall_seconds(void);
double process_cpu_seconds(void); /* of all threads of this process */
long preemptions(void);           /* involuntary context switches of this process so far */

/* Sorts the sample. 0 for an empty one. */
double median(double *sample, size_t count);
double quantile(double *sample, size_t count, double q);

/* Uniform in (-scale, scale), the same on every run. f32: float, else double. */
void fill_random(void *data, size_t count, bool f32, double scale, unsigned seed);

void *must_alloc(size_t bytes); /* aligned to 64 and zeroed; ends the program when there is none */

#endif

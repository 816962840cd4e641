/* SPDX-License-Identifier: Apache-2.0
 *
 * tests/bench/support/peak.h - what this machine can do at most: fused multiply-adds a second, bytes read a second.
 *
 * Model. FMA peak: a loop of independent multiply-adds in registers, of the widest vectors that the CPU has, on `threads`
 * threads at once; the rate of a thread is by its own CPU time, so that a neighbour who takes a core away for a moment does not
 * make our percentages look better than they are. Read peak: `threads` threads sum up a buffer from memory, by wall time.
 *
 * What this does not do: find the clock frequency; tell whether the hypervisor took time away.
 */
#ifndef MHA_BENCH_PEAK_H
#define MHA_BENCH_PEAK_H

#include <stdbool.h>
#include <stddef.h>

/* Floating-point operations (a multiply-add is two) a second, of all `threads` together. */
double peak_flops(bool f32, size_t threads, double seconds);
/* The vectors it used: "AVX2+FMA", "AVX-512", "compiler's default". */
const char *peak_vectors(void);
/* Seconds that `threads` threads take to read `bytes` once. The buffer must be aligned to 64. */
double peak_read_seconds(const void *buffer, size_t bytes, size_t threads);

#endif

/* SPDX-License-Identifier: Apache-2.0
 *
 * tests/bench/number_yardstick.h - the C++ library's number conversions behind C functions, as yardsticks for bench_number
 * and as an independent route for its checks.
 */
#ifndef MHA_BENCH_NUMBER_YARDSTICK_H
#define MHA_BENCH_NUMBER_YARDSTICK_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Reads "[[1,2],[3,4]]" with std::from_chars: the least a reader must do, no shapes, no checks of the grammar between
 * numbers, the whole text in memory. Returns the count. */
size_t yardstick_read_f64(const char *text, size_t length, double *out);
size_t yardstick_read_f32(const char *text, size_t length, float *out);

/* "[1,2,...]" with std::to_chars. Returns the length. */
size_t yardstick_write_f64(const double *data, size_t count, char *out);
size_t yardstick_write_f32(const float *data, size_t count, char *out);

#ifdef __cplusplus
}
#endif
#endif

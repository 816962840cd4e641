// SPDX-License-Identifier: Apache-2.0
//
// tests/bench/number_yardstick.cc - see number_yardstick.h. The only C++ of the project: std::from_chars and std::to_chars
// have no C counterpart. Not part of the product.

#include "number_yardstick.h"

#include <charconv>

template <typename T> static size_t read(const char *text, size_t length, T *out) {
    const char *p = text, *end = text + length;
    T *o = out;
    while (p < end) {
        if (*p == '-' || (*p >= '0' && *p <= '9')) {
            p = std::from_chars(p, end, *o++).ptr;
            if (p < end && *p == ',') p++;
        } else {
            p++;
        }
    }
    return static_cast<size_t>(o - out);
}

template <typename T> static size_t write(const T *data, size_t count, char *out) {
    char *p = out;
    *p++ = '[';
    for (size_t i = 0; i < count; i++) {
        p = std::to_chars(p, p + 40, data[i]).ptr;
        *p++ = ',';
    }
    p[-1] = ']';
    return static_cast<size_t>(p - out);
}

size_t yardstick_read_f64(const char *text, size_t length, double *out) { return read(text, length, out); }
size_t yardstick_read_f32(const char *text, size_t length, float *out) { return read(text, length, out); }
size_t yardstick_write_f64(const double *data, size_t count, char *out) { return write(data, count, out); }
size_t yardstick_write_f32(const float *data, size_t count, char *out) { return write(data, count, out); }

/* SPDX-License-Identifier: Apache-2.0
 *
 * api/safetensors_write.c - the writer of the safetensors header (st_write_header of safetensors.h).
 *
 * Model. Measure and write are the same walk over a `struct text` that counts when it has no room, so the length can
 * never disagree with the bytes. The order (descending alignment, then name) and the padding to 8 keep every number of
 * the file aligned to its size when the file is mapped.
 */
#include "safetensors.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Writes while there is room, counts always. */
struct text {
    char *out;
    size_t room, length;
};

static void put(struct text *t, const char *bytes, size_t n) {
    if (n <= t->room - (t->length < t->room ? t->length : t->room)) memcpy(t->out + t->length, bytes, n);
    t->length += n;
}

static void put_text(struct text *t, const char *s) { put(t, s, strlen(s)); }

static void put_number(struct text *t, size_t value) {
    char digits[24];
    put(t, digits, (size_t)snprintf(digits, sizeof digits, "%zu", value));
}

static void put_string(struct text *t, const char *s) {
    put(t, "\"", 1);
    for (; *s; s++) {
        unsigned char c = (unsigned char)*s;
        char escape[8];
        if (c == '"' || c == '\\')
            put(t, (char[]){'\\', (char)c}, 2);
        else if (c < 0x20)
            put(t, escape, (size_t)snprintf(escape, sizeof escape, "\\u%04x", c));
        else
            put(t, s, 1);
    }
    put(t, "\"", 1);
}

static void put_tensor(struct text *t, const struct st_out *tensor) {
    put_string(t, tensor->name);
    put_text(t, ":{\"dtype\":\"");
    put_text(t, st_dtype_name(tensor->dtype));
    put_text(t, "\",\"shape\":[");
    for (size_t i = 0; i < tensor->rank; i++) {
        if (i) put(t, ",", 1);
        put_number(t, tensor->dim[i]);
    }
    put_text(t, "],\"data_offsets\":[");
    put_number(t, tensor->begin);
    put(t, ",", 1);
    put_number(t, tensor->end);
    put_text(t, "]}");
}

static void put_header(struct text *t, const struct st_out *tensors, size_t n_tensors,
                       const struct st_metadata *metadata, size_t n_metadata) {
    put(t, "{", 1);
    for (size_t i = 0; i < n_metadata; i++) {
        put_text(t, i == 0 ? "\"__metadata__\":{" : ",");
        put_string(t, metadata[i].key);
        put(t, ":", 1);
        put_string(t, metadata[i].value);
    }
    if (n_metadata > 0) put(t, "}", 1);
    for (size_t i = 0; i < n_tensors; i++) {
        if (i > 0 || n_metadata > 0) put(t, ",", 1);
        put_tensor(t, &tensors[i]);
    }
    put(t, "}", 1);
    while (t->length % 8 != 0) put(t, " ", 1);
}

static int compare_out(const void *a, const void *b) {
    const struct st_out *x = a, *y = b;
    size_t x_bits = st_dtype_bits(x->dtype), y_bits = st_dtype_bits(y->dtype);
    if (x_bits != y_bits) return x_bits > y_bits ? -1 : 1;
    return strcmp(x->name, y->name);
}

/* Offsets one after the other. False when a size overflows or the bits do not fill bytes. */
static bool lay_out(struct st_out *tensors, size_t n) {
    size_t at = 0;
    for (size_t i = 0; i < n; i++) {
        size_t bits = st_dtype_bits(tensors[i].dtype);
        for (size_t j = 0; j < tensors[i].rank; j++)
            if (__builtin_mul_overflow(bits, tensors[i].dim[j], &bits)) return false;
        tensors[i].begin = at;
        if (bits % 8 != 0 || __builtin_add_overflow(at, bits / 8, &at)) return false;
        tensors[i].end = at;
    }
    return true;
}

char *st_write_header(struct st_out *tensors, size_t n_tensors, const struct st_metadata *metadata, size_t n_metadata,
                      size_t *bytes) {
    struct text text = {NULL, 0, 0};
    if (n_tensors > 1) qsort(tensors, n_tensors, sizeof *tensors, compare_out);
    if (!lay_out(tensors, n_tensors)) return NULL;
    put_header(&text, tensors, n_tensors, metadata, n_metadata);
    uint64_t length = text.length;
    if (length > ST_HEADER_MAX) return NULL;
    char *out = malloc(8 + length);
    if (!out) return NULL;
    memcpy(out, &length, 8);
    text = (struct text){out + 8, length, 0};
    put_header(&text, tensors, n_tensors, metadata, n_metadata);
    *bytes = 8 + length;
    return out;
}

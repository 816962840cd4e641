/* SPDX-License-Identifier: Apache-2.0
 *
 * tests/fuzz/fuzz_safetensors.c - whole files through the safetensors reader.
 *
 * Beyond not crashing: what the reader accepts must be what the format promises (tensors side by side from 0 to the
 * end, every size the product of its shape), and must survive being written again by our writer.
 */
#include <stdlib.h>
#include <string.h>

#include "../../api/safetensors.h"

int LLVMFuzzerTestOneInput(const unsigned char *bytes, size_t size);

static void must(bool ok) {
    if (!ok) abort();
}

static void check_layout(const struct st_header *header) {
    size_t at = 0;
    for (size_t i = 0; i < header->n_tensors; i++) {
        const struct st_tensor *t = &header->tensors[i];
        size_t bits = st_dtype_bits(t->dtype);
        for (size_t j = 0; j < t->rank; j++) bits *= t->dim[j];
        must(t->begin == at && t->end >= at && bits == 8 * (t->end - t->begin));
        must(st_find(header, t->name) == t);
        at = t->end;
    }
    must(at == header->data_bytes);
}

/* Names, shapes and dtypes come back the same from a file of our own making. */
static void check_rewrite(const struct st_header *header) {
    struct st_error error;
    size_t n = header->n_tensors, bytes = 0;
    struct st_out *out = calloc(n + 1, sizeof *out);
    if (!out) return;
    for (size_t i = 0; i < n; i++)
        out[i] = (struct st_out){.name = header->tensors[i].name,
                                 .dtype = header->tensors[i].dtype,
                                 .rank = header->tensors[i].rank,
                                 .dim = header->tensors[i].dim};
    char *text = st_write_header(out, n, header->metadata, header->n_metadata, &bytes);
    must(text != NULL && bytes % 8 == 0);
    struct st_header *again = st_header_parse(text + 8, bytes - 8, &error);
    must(again != NULL && again->n_tensors == n && again->data_bytes == header->data_bytes);
    for (size_t i = 0; i < n; i++) {
        const struct st_tensor *a = &header->tensors[i], *b = st_find(again, a->name);
        must(b && b->dtype == a->dtype && b->rank == a->rank && b->count == a->count);
        for (size_t j = 0; j < a->rank; j++) must(a->dim[j] == b->dim[j]);
    }
    for (size_t i = 0; i < header->n_metadata; i++) {
        const char *value = st_metadata_get(again, header->metadata[i].key);
        must(value && strcmp(value, header->metadata[i].value) == 0);
    }
    st_header_free(again);
    free(text);
    free(out);
}

static void widen_all(const struct st_header *header, const unsigned char *data) {
    for (size_t i = 0; i < header->n_tensors; i++) {
        const struct st_tensor *t = &header->tensors[i];
        if (t->count > 4096) continue;
        double *wide = malloc(t->count * 8 + 1);
        if (wide) must(st_widen(MHA_F64, wide, t->dtype, data + t->begin, t->count) == st_dtype_is_float(t->dtype));
        free(wide);
    }
}

int LLVMFuzzerTestOneInput(const unsigned char *bytes, size_t size) {
    struct st_error error;
    size_t length = 0;
    /* half of the inputs are a bare header, so that the fuzzer need not learn the length first */
    bool bare = size > 0 && (bytes[0] == '{' || bytes[0] == ' ');
    if (bare) {
        length = size;
    } else {
        if (size < 8 || st_header_length(bytes, &length, &error) != ST_OK || length > size - 8) return 0;
        bytes += 8;
        size -= 8;
    }
    struct st_header *header = st_header_parse((const char *)bytes, length, &error);
    must(header ? error.rule == ST_OK : error.rule != ST_OK && error.text[0] && strlen(error.text) < sizeof error.text);
    if (!header) return 0;
    check_layout(header);
    check_rewrite(header);
    if (!bare && st_header_fits(header, size - length, &error) == ST_OK) widen_all(header, bytes + length);
    st_header_free(header);
    return 0;
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * tests/tools/st_copy.c - st_copy IN OUT: reads a safetensors file with our reader and writes it with our writer, so
 * that another implementation can say whether it is still the same (safetensors_python.py). st_copy IN alone only
 * reads. Exit status 3 and the broken rule on stdout when the file is refused.
 */
#include <stdio.h>
#include <stdlib.h>

#include "../../api/safetensors.h"

static bool write_copy(const struct st_file *in, FILE *out) {
    const struct st_header *header = in->header;
    size_t n = header->n_tensors, bytes = 0;
    struct st_out *tensors = calloc(n + 1, sizeof *tensors);
    if (!tensors) return false;
    for (size_t i = 0; i < n; i++) {
        const struct st_tensor *t = &header->tensors[i];
        tensors[i] = (struct st_out){
            .name = t->name, .dtype = t->dtype, .rank = t->rank, .dim = t->dim, .data = in->data + t->begin};
    }
    char *text = st_write_header(tensors, n, header->metadata, header->n_metadata, &bytes);
    bool ok = text && fwrite(text, 1, bytes, out) == bytes;
    for (size_t i = 0; ok && i < n; i++) {
        size_t size = tensors[i].end - tensors[i].begin;
        ok = fwrite(tensors[i].data, 1, size, out) == size;
    }
    free(text);
    free(tensors);
    return ok;
}

int main(int argc, char **argv) {
    struct st_file file;
    struct st_error error;
    if (argc < 2 || argc > 3) return 2;
    if (!st_file_open(&file, argv[1], &error)) {
        printf("%s: %s\n", st_rule_name(error.rule), error.text);
        st_file_close(&file);
        return 3;
    }
    bool ok = true;
    if (argc == 3) {
        FILE *out = fopen(argv[2], "wb");
        ok = out && write_copy(&file, out);
        if (out && fclose(out) != 0) ok = false;
    }
    st_file_close(&file);
    return ok ? 0 : 1;
}

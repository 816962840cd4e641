/* SPDX-License-Identifier: Apache-2.0
 *
 * api/response_safetensors.c - see response_safetensors.h.
 */
#include "response_safetensors.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* "projections.Q". Names are ours and short. */
static void full_name(char out[32], const struct response_tensor *tensor) {
    snprintf(out, 32, "%s%s%s", tensor->name, tensor->member ? "." : "", tensor->member ? tensor->member : "");
}

static void other_fields(char out[160], const struct response *r) {
    if (r->masked_rows)
        snprintf(out, 160, "{\"warnings\":[{\"code\":\"fully_masked_rows\",\"count\":%llu,\"first\":[%zu,%zu,%zu]}]}",
                 (unsigned long long)r->masked_rows, r->masked_first[0], r->masked_first[1], r->masked_first[2]);
    else
        snprintf(out, 160, "{}");
}

bool response_safetensors_begin(struct response_safetensors *writer, const struct response *response) {
    char names[RESPONSE_TENSORS][32], mha[160];
    memset(writer, 0, sizeof *writer);
    writer->count = response->count;
    for (size_t i = 0; i < response->count; i++) {
        const struct response_tensor *t = &response->tensor[i];
        full_name(names[i], t);
        writer->tensors[i] = (struct st_out){.name = names[i],
                                             .dtype = response->dtype == MHA_F32 ? ST_F32 : ST_F64,
                                             .rank = t->rank,
                                             .dim = t->dim,
                                             .data = t->data};
    }
    other_fields(mha, response);
    const struct st_metadata metadata = {"mha", mha};
    writer->header = st_write_header(writer->tensors, writer->count, &metadata, 1, &writer->header_bytes);
    return writer->header != NULL; /* names are not looked at after this */
}

size_t response_safetensors_bytes(const struct response_safetensors *writer) {
    return writer->header_bytes + (writer->count ? writer->tensors[writer->count - 1].end : 0);
}

size_t response_safetensors_read(struct response_safetensors *writer, char *out, size_t max) {
    size_t at = 0;
    while (at < max && writer->next <= writer->count) {
        const struct st_out *t = writer->next ? &writer->tensors[writer->next - 1] : NULL;
        const char *from = t ? t->data : writer->header;
        size_t left = (t ? t->end - t->begin : writer->header_bytes) - writer->offset,
               n = left < max - at ? left : max - at;
        if (n > 0) memcpy(out + at, from + writer->offset, n);
        at += n;
        writer->offset += n;
        if (n == left) {
            writer->next++;
            writer->offset = 0;
        }
    }
    return at;
}

void response_safetensors_end(struct response_safetensors *writer) {
    free(writer->header);
    writer->header = NULL;
}

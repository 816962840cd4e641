/* SPDX-License-Identifier: Apache-2.0
 *
 * api/tensor_write.c - see tensor_write.h.
 *
 * Model. Stages HEAD, BODY, TAIL, END; flat and base64 have a head and a tail around one long row, nested is all body. The
 * body of nested and flat is made of steps: open the brackets of a row, write its elements, close it (and what it
 * completes). A step starts only if the block has room for it, so the bytes do not depend on the block sizes.
 */
#include "tensor_write.h"

#include <stdio.h>
#include <string.h>

#include "base64.h"
#include "number.h"

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "base64 sends memory as it is, and is defined little-endian");

enum stage { STAGE_HEAD = 0, STAGE_OPEN, STAGE_ROW, STAGE_CLOSE, STAGE_BYTES, STAGE_TAIL, STAGE_END };

#define ELEMENT_ROOM (NUMBER_ROOM + 1) /* with its comma */
#define STEP_ROOM    64                /* brackets, commas and constant texts of one step */

struct block {
    char *begin, *p, *end;
};

static size_t room(const struct block *block) { return (size_t)(block->end - block->p); }

static void put(struct block *block, const char *text) {
    size_t length = strlen(text);
    memcpy(block->p, text, length);
    block->p += length;
}

static const struct {
    const char *name;
    size_t size;
} types[] = {
    [TENSOR_WRITE_F64] = {"float64", 8}, [TENSOR_WRITE_F32] = {"float32", 4}, [TENSOR_WRITE_BOOL] = {"bool", 1}};

void tensor_write_begin(struct tensor_write *writer, enum tensor_write_format format, enum tensor_write_type type,
                        const void *data, size_t rank, const size_t *dim) {
    memset(writer, 0, sizeof *writer);
    writer->format = format;
    writer->type = type;
    writer->data = data;
    writer->rank = rank;
    writer->count = 1;
    for (size_t i = 0; i < rank; i++) {
        writer->dim[i] = dim[i];
        writer->count *= dim[i];
    }
    /* Rows as they will be written: nested down to the last dimension or the first of length zero, else all in one. */
    writer->levels = 1;
    if (format == TENSOR_WRITE_NESTED) {
        writer->levels = 0;
        while (writer->levels < rank && (writer->levels == 0 || dim[writer->levels - 1] > 0)) writer->levels++;
    }
    writer->row = writer->count;
    if (format == TENSOR_WRITE_NESTED && writer->levels > 0) writer->row = dim[writer->levels - 1];
}

/* ---- elements ----------------------------------------------------------------------------------------------------- */

static size_t put_f64(char *out, const void *data, size_t i) {
    double value = ((const double *)data)[i];
    if (value - value == 0) return number_write_f64(out, value); /* NaN for NaN and infinities */
    memcpy(out, "null", 4);
    return 4;
}

static size_t put_f32(char *out, const void *data, size_t i) {
    float value = ((const float *)data)[i];
    if (value - value == 0) return number_write_f32(out, value);
    memcpy(out, "null", 4);
    return 4;
}

static size_t put_bool(char *out, const void *data, size_t i) {
    bool value = ((const uint8_t *)data)[i] != 0;
    memcpy(out, value ? "true\0" : "false", 5);
    return value ? 4 : 5;
}

/* Elements from writer->next up to last, as many as there is room for, commas between them. */
static inline __attribute__((always_inline)) void put_elements(struct tensor_write *writer, struct block *block,
                                                               size_t last,
                                                               size_t (*put_one)(char *, const void *, size_t)) {
    char *p = block->p;
    const char *stop = block->end - ELEMENT_ROOM;
    size_t i = writer->next;
    for (; i < last && p <= stop; i++) {
        p += put_one(p, writer->data, i);
        *p = ',';
        p += i + 1 < last;
    }
    writer->next = i;
    block->p = p;
}

/* ---- steps: each returns false when it needs a new block ----------------------------------------------------------- */

static bool put_head(struct tensor_write *writer, struct block *block) {
    writer->stage = STAGE_OPEN;
    if (writer->format == TENSOR_WRITE_NESTED) return true;
    put(block, "{\"shape\":[");
    for (size_t i = 0; i < writer->rank; i++)
        block->p += snprintf(block->p, room(block), "%s%zu", i > 0 ? "," : "", writer->dim[i]);
    put(block, "],");
    if (writer->format == TENSOR_WRITE_FLAT) {
        put(block, "\"data\":");
        return true;
    }
    put(block, "\"dtype\":\"");
    put(block, types[writer->type].name);
    put(block, "\",\"base64\":\"");
    writer->stage = STAGE_BYTES;
    return true;
}

static bool put_open(struct tensor_write *writer, struct block *block) {
    while (writer->depth < writer->levels) {
        writer->child[writer->depth++] = 0;
        *block->p++ = '[';
    }
    writer->row_end = writer->next + writer->row;
    writer->stage = STAGE_ROW;
    return true;
}

static bool put_row(struct tensor_write *writer, struct block *block) {
    switch (writer->type) {
    case TENSOR_WRITE_F64:
        put_elements(writer, block, writer->row_end, put_f64);
        break;
    case TENSOR_WRITE_F32:
        put_elements(writer, block, writer->row_end, put_f32);
        break;
    case TENSOR_WRITE_BOOL:
        put_elements(writer, block, writer->row_end, put_bool);
        break;
    }
    if (writer->next < writer->row_end) return false;
    writer->stage = STAGE_CLOSE;
    return true;
}

static bool put_close(struct tensor_write *writer, struct block *block) {
    writer->stage = STAGE_TAIL;
    while (writer->depth > 0) {
        *block->p++ = ']';
        writer->depth--;
        if (writer->depth > 0 && ++writer->child[writer->depth - 1] < writer->dim[writer->depth - 1]) {
            *block->p++ = ',';
            writer->stage = STAGE_OPEN;
            break;
        }
    }
    return true;
}

/* Pieces of a multiple of three bytes, up to the last one. */
static bool put_bytes(struct tensor_write *writer, struct block *block) {
    size_t left = writer->count * types[writer->type].size - writer->next;
    size_t most = room(block) / 4 * 3;
    size_t bytes = left < most ? left : most;
    if (bytes > 0) block->p += base64_encode(block->p, (const char *)writer->data + writer->next, bytes);
    writer->next += bytes;
    if (bytes < left) return false;
    writer->stage = STAGE_TAIL;
    return true;
}

static bool put_tail(struct tensor_write *writer, struct block *block) {
    static const char *const tail[] = {
        [TENSOR_WRITE_NESTED] = "", [TENSOR_WRITE_FLAT] = "}", [TENSOR_WRITE_BASE64] = "\"}"};
    put(block, tail[writer->format]);
    writer->stage = STAGE_END;
    return false;
}

static bool put_nothing(struct tensor_write *writer, struct block *block) {
    (void)writer;
    (void)block;
    return false;
}

size_t tensor_write(struct tensor_write *writer, char *out, size_t max) {
    static bool (*const step[])(struct tensor_write *, struct block *) = {
        [STAGE_HEAD] = put_head,   [STAGE_OPEN] = put_open, [STAGE_ROW] = put_row,     [STAGE_CLOSE] = put_close,
        [STAGE_BYTES] = put_bytes, [STAGE_TAIL] = put_tail, [STAGE_END] = put_nothing,
    };
    struct block block = {out, out, out + max};
    while (room(&block) >= STEP_ROOM && step[writer->stage](writer, &block)) {
    }
    return (size_t)(block.p - block.begin);
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * tests/fuzz/fuzz_tensor.c - any bytes through the tensor reader, in chunks of any size.
 *
 * The first two bytes choose what is read and the chunks, the rest is the text. Beyond not crashing: chunks (each in memory
 * of its exact size) must give what the whole gives, bytes, shape and errors; what is read must be what cJSON reads; the
 * tensor must survive being written and read again; converted to float32 later it must be what reading float32 gives.
 */
#include <cjson/cJSON.h>
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "../../api/tensor_text.h"
#include "../../api/tensor_write.h"

int LLVMFuzzerTestOneInput(const unsigned char *bytes, size_t size);

static void must(bool ok) {
    if (!ok) abort();
}

struct reading {
    struct mem_budget budget;
    struct mem_arena *arena;
    struct mem_grow data, ties;
    struct tensor_text text;
    enum tensor_text_status status;
    size_t used;
};

static void begin(struct reading *r, enum tensor_text_reals reals, unsigned accept) {
    memset(r, 0, sizeof *r);
    r->budget.limit = SIZE_MAX;
    r->arena = mem_arena_new(&r->budget);
    must(r->arena != NULL && mem_grow_init(&r->data, r->arena) && mem_grow_init(&r->ties, r->arena));
    tensor_text_begin(&r->text, &r->data, reals == TENSOR_TEXT_F64_TIES ? &r->ties : NULL, reals, accept);
}

/* Chunks of pseudo-random size up to `most`; 0: all at once. */
static void feed(struct reading *r, const char *text, size_t size, size_t most) {
    uint32_t seed = (uint32_t)most;
    for (size_t at = 0; at < size && r->status == TENSOR_TEXT_MORE;) {
        seed = seed * 1664525 + 1013904223;
        size_t chunk = most == 0 ? size : seed % most + 1;
        if (chunk > size - at) chunk = size - at;
        char *copy = malloc(chunk);
        must(copy != NULL);
        memcpy(copy, text + at, chunk);
        size_t used = 0;
        r->status = tensor_text_feed(&r->text, copy, chunk, &used);
        must(used <= chunk && (r->status != TENSOR_TEXT_MORE || used == chunk));
        free(copy);
        at += used;
        r->used = at;
    }
}

static void must_be_alike(const struct reading *a, const struct reading *b) {
    must(a->status == b->status);
    if (a->status == TENSOR_TEXT_MORE) return;
    if (a->status != TENSOR_TEXT_DONE) {
        must(a->text.offset == b->text.offset && a->text.index_length == b->text.index_length);
        must(memcmp(a->text.index, b->text.index, a->text.index_length * sizeof(size_t)) == 0);
        must(a->text.expected == b->text.expected && a->text.actual == b->text.actual);
        return;
    }
    must(a->used == b->used && a->text.rank == b->text.rank && a->text.count == b->text.count);
    must(memcmp(a->text.dim, b->text.dim, sizeof a->text.dim) == 0);
    must(a->text.stored == b->text.stored && a->text.seen == b->text.seen && a->data.size == b->data.size);
    must(a->data.size == 0 || memcmp(a->data.data, b->data.data, a->data.size) == 0);
    must(a->ties.size == b->ties.size);
    must(a->ties.size == 0 || memcmp(a->ties.data, b->ties.data, a->ties.size) == 0);
}

/* Element `flat` of a float64 or boolean tensor against a leaf of the tree. */
static bool same_leaf(const struct reading *r, const cJSON *node, size_t flat) {
    if (r->text.stored == TENSOR_TEXT_STORED_U8) {
        bool mine = r->data.data[flat] != 0;
        return cJSON_IsBool(node) ? cJSON_IsTrue(node) == mine
                                  : cJSON_IsNumber(node) && node->valuedouble == (double)mine;
    }
    double mine = ((const double *)(const void *)r->data.data)[flat];
    if (cJSON_IsNull(node)) return isinf(mine) && mine < 0;
    return cJSON_IsNumber(node) && memcmp(&mine, &node->valuedouble, sizeof mine) == 0;
}

static void must_be_tree(const struct reading *r, const cJSON *node, size_t level, size_t *flat) {
    if (level == r->text.rank) {
        must(same_leaf(r, node, (*flat)++));
        return;
    }
    must(cJSON_IsArray(node) && (size_t)cJSON_GetArraySize(node) == r->text.dim[level]);
    for (const cJSON *child = node->child; child != NULL; child = child->next) must_be_tree(r, child, level + 1, flat);
}

/* cJSON cuts numbers off at 63 characters; those texts are left out. */
static bool has_long_token(const char *text, size_t size) {
    size_t run = 0;
    for (size_t i = 0; i < size; i++) {
        run = text[i] != '\0' && strchr("0123456789+-.eE", text[i]) != NULL ? run + 1 : 0;
        if (run > 60) return true;
    }
    return false;
}

static void check_against_cjson(const struct reading *r, const char *text) {
    if (r->text.stored == TENSOR_TEXT_STORED_F32 || has_long_token(text, r->used)) return;
    cJSON *tree = cJSON_ParseWithLength(text, r->used);
    must(tree != NULL);
    size_t flat = 0;
    must_be_tree(r, tree, 0, &flat);
    must(flat == r->text.count);
    cJSON_Delete(tree);
}

static void check_rewriting(const struct reading *r) {
    if (r->text.stored == TENSOR_TEXT_STORED_NONE || (r->text.seen & TENSOR_TEXT_NULLS) != 0) return;
    static const enum tensor_write_type type[] = {[TENSOR_TEXT_STORED_F64] = TENSOR_WRITE_F64,
                                                  [TENSOR_TEXT_STORED_F32] = TENSOR_WRITE_F32,
                                                  [TENSOR_TEXT_STORED_U8] = TENSOR_WRITE_BOOL};
    struct tensor_write writer;
    tensor_write_begin(&writer, TENSOR_WRITE_NESTED, type[r->text.stored], r->data.data, r->text.rank, r->text.dim);
    struct reading again;
    begin(&again, r->text.stored == TENSOR_TEXT_STORED_F32 ? TENSOR_TEXT_F32 : TENSOR_TEXT_F64,
          TENSOR_TEXT_NUMBERS | TENSOR_TEXT_BOOLEANS);
    char block[TENSOR_WRITE_BLOCK_MIN];
    for (size_t length; (length = tensor_write(&writer, block, sizeof block)) > 0;) feed(&again, block, length, 0);
    must(again.status == TENSOR_TEXT_DONE && again.text.rank == r->text.rank && again.data.size == r->data.size);
    must(memcmp(again.text.dim, r->text.dim, sizeof again.text.dim) == 0);
    must(memcmp(again.data.data, r->data.data, r->data.size) == 0);
    mem_arena_free(again.arena);
}

static void check_float32_later(struct reading *r, const char *text, size_t size, unsigned accept) {
    struct reading direct;
    begin(&direct, TENSOR_TEXT_F32, accept);
    feed(&direct, text, size, 0);
    r->status = tensor_text_to_f32(&r->text);
    must(direct.status == r->status);
    if (r->status == TENSOR_TEXT_DONE) {
        must(direct.data.size == r->data.size && direct.text.stored == r->text.stored);
        must(r->data.size == 0 || memcmp(direct.data.data, r->data.data, r->data.size) == 0);
    } else {
        must(r->status == TENSOR_TEXT_OUT_OF_RANGE);
    }
    mem_arena_free(direct.arena);
}

int LLVMFuzzerTestOneInput(const unsigned char *bytes, size_t size) {
    static const unsigned accepts[] = {TENSOR_TEXT_NUMBERS,
                                       TENSOR_TEXT_NUMBERS | TENSOR_TEXT_NULLS | TENSOR_TEXT_BOOLEANS,
                                       TENSOR_TEXT_BOOLEANS | TENSOR_TEXT_ZERO_ONE, TENSOR_TEXT_BOOLEANS};
    if (size < 2) return 0;
    enum tensor_text_reals reals = (enum tensor_text_reals)(bytes[0] % 3);
    unsigned accept = accepts[bytes[0] / 3 % 4];
    const char *text = (const char *)bytes + 2;
    size -= 2;
    struct reading whole, chunks;
    begin(&whole, reals, accept);
    feed(&whole, text, size, 0);
    begin(&chunks, reals, accept);
    feed(&chunks, text, size, (size_t)bytes[1] + 1);
    must_be_alike(&whole, &chunks);
    if (whole.status == TENSOR_TEXT_DONE) {
        check_against_cjson(&whole, text);
        check_rewriting(&whole);
        if (reals == TENSOR_TEXT_F64_TIES) check_float32_later(&whole, text, size, accept);
    }
    mem_arena_free(whole.arena);
    mem_arena_free(chunks.arena);
    return 0;
}

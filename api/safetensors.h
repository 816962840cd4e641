/* SPDX-License-Identifier: Apache-2.0
 *
 * api/safetensors.h - the safetensors file format: reading and writing its header, widening its numbers, mapping files.
 *
 * The format (safetensors, README and reference implementation): 8 bytes little-endian N; N bytes of JSON, an object of
 * tensor name -> {"dtype","shape","data_offsets":[begin,end]} and an optional "__metadata__" of strings; then the data,
 * to the end of the file. Offsets count from the start of the data. Row-major, little-endian, no strides.
 *
 * Model. `st_header_parse` gets the N bytes and enforces every rule of the format that does not need the data's length;
 * that one is `st_header_fits`. So a reader of a stream can refuse a bad header before a single number has come, and
 * allocate what the header says. A file that parses has no holes, no overlaps, no duplicate names, and only sizes that
 * fit size_t.
 *
 * Stricter than the reference reader: duplicate names and unknown members of a tensor's entry are refused (it lets the
 * later one win, or ignores them); so is a NUL in a name. As lenient: white space before and after the JSON; any
 * alignment.
 *
 * What it does not do: decide which tensors are wanted, or refuse a dtype that nobody uses (8-bit floats and such keep
 * their place; `st_widen` says no when they are asked for).
 */
#ifndef MHA_API_SAFETENSORS_H
#define MHA_API_SAFETENSORS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "../core/mha.h"

enum st_dtype {
    ST_BOOL = 0,
    ST_U8,
    ST_I8,
    ST_U16,
    ST_I16,
    ST_F16,
    ST_BF16,
    ST_U32,
    ST_I32,
    ST_F32,
    ST_U64,
    ST_I64,
    ST_F64,
    /* known by size only */
    ST_F4,
    ST_F6_E2M3,
    ST_F6_E3M2,
    ST_F8_E5M2,
    ST_F8_E4M3,
    ST_F8_E8M0,
    ST_F8_E4M3FNUZ,
    ST_F8_E5M2FNUZ,
    ST_C64,
    ST_DTYPE_COUNT
};

const char *st_dtype_name(enum st_dtype dtype); /* "BF16" */
size_t st_dtype_bits(enum st_dtype dtype);
static inline bool st_dtype_is_float(enum st_dtype dtype) {
    return dtype == ST_F64 || dtype == ST_F32 || dtype == ST_F16 || dtype == ST_BF16;
}
static inline bool st_dtype_is_integer(enum st_dtype dtype) {
    return dtype <= ST_I64 && dtype != ST_BOOL && !st_dtype_is_float(dtype);
}

/* The rules, each with an input that breaks it (tests/unit/test_safetensors.c has them all). */
enum st_rule {
    ST_OK = 0,
    ST_FILE_TOO_SMALL,   /* fewer than 8 bytes                                        */
    ST_HEADER_TOO_LARGE, /* N = 100000001                                             */
    ST_HEADER_PAST_END,  /* N = 1000 in a file of 100 bytes                           */
    ST_HEADER_NOT_UTF8,  /* a name of the byte 0xff                                   */
    ST_HEADER_NOT_JSON,  /* {"a":                                                     */
    ST_HEADER_STRUCTURE, /* [] ; {"a":5} ; a member missing, unknown or of a wrong type, "__metadata__" not strings */
    ST_NUMBER,           /* -1, 1.5, 1e2, 01, 9007199254740992                        */
    ST_DUPLICATE,        /* {"a":...,"a":...}                                         */
    ST_DTYPE,            /* "dtype":"F31"                                             */
    ST_OVERFLOW,         /* "shape":[4294967296,4294967296]                           */
    ST_MISALIGNED,       /* F4 with shape [3]: 12 bits                                */
    ST_OFFSETS,          /* a hole, an overlap, end < begin, not starting at 0        */
    ST_SIZE,             /* F32 with shape [2] and offsets [0,4]                      */
    ST_DATA_MISSING,     /* the file ends inside a tensor                             */
    ST_DATA_TRAILING,    /* bytes after the last tensor                               */
    ST_NO_MEMORY,
    ST_FILE_ACCESS, /* open, stat or mmap failed (st_file_open only)             */
    ST_RULE_COUNT
};

struct st_error {
    enum st_rule rule;
    char text[240]; /* one sentence, names the tensor; printable UTF-8 */
};

/* A constant name for logs and tests: "duplicate". */
const char *st_rule_name(enum st_rule rule);

#define ST_HEADER_MAX  100000000        /* bytes, by the format */
#define ST_INTEGER_MAX 9007199254740991 /* 2^53-1, the largest integer that JSON readers agree on */

struct st_tensor {
    const char *name; /* UTF-8, not empty-checked, no NUL */
    enum st_dtype dtype;
    size_t rank;
    const size_t *dim; /* [rank], rank 0 = a scalar */
    size_t count;      /* elements, the product of dim */
    size_t begin, end; /* bytes in the data */
};

struct st_metadata {
    const char *key, *value;
};

struct st_header {
    const struct st_tensor *tensors; /* in the order of the data */
    size_t n_tensors;
    const struct st_tensor *const *by_name; /* the same in the order of their names' bytes */
    const struct st_metadata *metadata;
    size_t n_metadata;
    size_t data_bytes; /* the data must have exactly this length */
    void *doc;         /* private */
};

/* Reads the first 8 bytes. */
enum st_rule st_header_length(const unsigned char prefix[8], size_t *length, struct st_error *error);
/* How many names and values the header has, roughly, and never more: what the time to parse it depends on. */
size_t st_header_marks(const char *json, size_t length);
/* Bytes of memory that parsing a header of this length and so many marks takes at most; charge a budget for it beforehand. */
size_t st_header_need(size_t length, size_t marks);
/* Parses the N bytes (borrowed only for the call). NULL and *error if a rule is broken. Free with st_header_free. */
struct st_header *st_header_parse(const char *json, size_t length, struct st_error *error);
void st_header_free(struct st_header *header); /* NULL is fine */
/* The last rule: the data is `bytes` long. */
enum st_rule st_header_fits(const struct st_header *header, size_t bytes, struct st_error *error);
const struct st_tensor *st_find(const struct st_header *header, const char *name); /* NULL: not there */
/* The first place in by_name whose name is not less than `name`; n_tensors: there is none. */
size_t st_lower_bound(const struct st_header *header, const char *name);
const char *st_metadata_get(const struct st_header *header, const char *key); /* NULL: not there */
/* "[2,3]" into out, always terminated. */
void st_shape_text(const struct st_tensor *tensor, char *out, size_t max);

/* ---- numbers ----------------------------------------------------------------------------------------------------- */

/* `count` elements at src (any alignment) to float64 or float32 at dst. Widening is exact (NaN payloads included); F64
 * to float32 rounds once, to nearest even. False when `from` is not one of F64 F32 F16 BF16. */
bool st_widen(enum mha_dtype to, void *dst, enum st_dtype from, const void *src, size_t count);
float st_half_to_float(uint16_t bits);     /* IEEE 754 binary16 */
float st_bfloat16_to_float(uint16_t bits); /* the upper half of a binary32 */

/* ---- writing ----------------------------------------------------------------------------------------------------- */

struct st_out {
    const char *name;
    enum st_dtype dtype;
    size_t rank;
    const size_t *dim;
    const void *data;
    size_t begin, end; /* set by st_write_header */
};

/* Sorts `tensors` into the order of the file (descending alignment of the dtype, then name by bytes), sets their
 * offsets, and returns the 8+N bytes before the data, padded with spaces so that N is a multiple of 8. NULL: no memory,
 * or a size overflows. Free with free(). */
char *st_write_header(struct st_out *tensors, size_t n_tensors, const struct st_metadata *metadata, size_t n_metadata,
                      size_t *bytes);

/* ---- files ------------------------------------------------------------------------------------------------------- */

/* A file mapped read-only. The mapping stays valid when the file is renamed over or unlinked. It must not be truncated
 * in place meanwhile (replace files by rename): st_file_unchanged asks before use. */
struct st_file {
    struct st_header *header;
    const unsigned char *data; /* header->data_bytes bytes */
    void *map;
    size_t map_bytes;
    int fd;
    int64_t mtime_ns;
};

bool st_file_open(struct st_file *file, const char *path, struct st_error *error);
bool st_file_unchanged(const struct st_file *file);
void st_file_close(struct st_file *file); /* also fine after a failed open */

#endif

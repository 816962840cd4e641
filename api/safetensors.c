/* SPDX-License-Identifier: Apache-2.0
 *
 * api/safetensors.c - the reader of the safetensors header; the rules are listed in safetensors.h.
 *
 * Two passes. `scan_*` walks the bytes once and is strict where cJSON is not: UTF-8, control characters, leading zeros,
 * what follows the document. As a valid header holds no number but lengths, it allows unsigned integers only, up to
 * 2^53-1, so that the doubles cJSON makes of them are exact. Then cJSON builds the tree, and `read_*` checks structure
 * and sizes.
 *
 * Everything that a header owns is the cJSON document (names, metadata) and one block (tensors, dims, metadata pairs).
 */
#include "safetensors.h"

#include "json_tree.h"

#include <cjson/cJSON.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "safetensors numbers are little-endian; this host is not");
_Static_assert(sizeof(size_t) == 8, "offsets are 64-bit");

static const struct {
    const char *name;
    size_t bits;
} dtypes[ST_DTYPE_COUNT] = {
    [ST_BOOL] = {"BOOL", 8},
    [ST_U8] = {"U8", 8},
    [ST_I8] = {"I8", 8},
    [ST_U16] = {"U16", 16},
    [ST_I16] = {"I16", 16},
    [ST_F16] = {"F16", 16},
    [ST_BF16] = {"BF16", 16},
    [ST_U32] = {"U32", 32},
    [ST_I32] = {"I32", 32},
    [ST_F32] = {"F32", 32},
    [ST_U64] = {"U64", 64},
    [ST_I64] = {"I64", 64},
    [ST_F64] = {"F64", 64},
    [ST_F4] = {"F4", 4},
    [ST_F6_E2M3] = {"F6_E2M3", 6},
    [ST_F6_E3M2] = {"F6_E3M2", 6},
    [ST_F8_E5M2] = {"F8_E5M2", 8},
    [ST_F8_E4M3] = {"F8_E4M3", 8},
    [ST_F8_E8M0] = {"F8_E8M0", 8},
    [ST_F8_E4M3FNUZ] = {"F8_E4M3FNUZ", 8},
    [ST_F8_E5M2FNUZ] = {"F8_E5M2FNUZ", 8},
    [ST_C64] = {"C64", 64},
};

static const char *const rule_names[ST_RULE_COUNT] = {
    [ST_OK] = "ok",
    [ST_FILE_TOO_SMALL] = "file_too_small",
    [ST_HEADER_TOO_LARGE] = "header_too_large",
    [ST_HEADER_PAST_END] = "header_past_end",
    [ST_HEADER_NOT_UTF8] = "header_not_utf8",
    [ST_HEADER_NOT_JSON] = "header_not_json",
    [ST_HEADER_STRUCTURE] = "header_structure",
    [ST_NUMBER] = "number",
    [ST_DUPLICATE] = "duplicate",
    [ST_DTYPE] = "dtype",
    [ST_OVERFLOW] = "overflow",
    [ST_MISALIGNED] = "misaligned",
    [ST_OFFSETS] = "offsets",
    [ST_SIZE] = "size",
    [ST_DATA_MISSING] = "data_missing",
    [ST_DATA_TRAILING] = "data_trailing",
    [ST_NO_MEMORY] = "no_memory",
    [ST_FILE_ACCESS] = "file_access",
};

const char *st_dtype_name(enum st_dtype dtype) { return dtypes[dtype].name; }
size_t st_dtype_bits(enum st_dtype dtype) { return dtypes[dtype].bits; }
const char *st_rule_name(enum st_rule rule) { return rule_names[rule]; }

/* Sets the error and returns false. `tensor` (may be NULL) is a client's text: it is cut to 64 bytes at a character's
 * boundary. Control characters become '?', so that the text can go into a log line. */
static bool fail(struct st_error *error, enum st_rule rule, const char *tensor, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

static size_t cut_utf8(const char *text, size_t length, size_t max) {
    if (length <= max) return length;
    size_t n = max;
    while (n > 0 && ((unsigned char)text[n] & 0xc0) == 0x80) n--;
    return n;
}

static bool fail(struct st_error *error, enum st_rule rule, const char *tensor, const char *format, ...) {
    size_t at = 0;
    error->rule = rule;
    if (tensor) {
        size_t n = cut_utf8(tensor, strlen(tensor), 64);
        at = (size_t)snprintf(error->text, sizeof error->text, "tensor \"%.*s%s\": ", (int)n, tensor,
                              tensor[n] ? "..." : "");
    }
    va_list arguments;
    va_start(arguments, format);
    int more = vsnprintf(error->text + at, sizeof error->text - at, format, arguments);
    va_end(arguments);
    size_t length = at + (more > 0 ? (size_t)more : 0), max = sizeof error->text - 1;
    if (length > max) {
        length = max;
        while (length > 0 && ((unsigned char)error->text[length - 1] & 0xc0) == 0x80) length--;
        if (length > 0 && (unsigned char)error->text[length - 1] >= 0xc0) length--; /* the cut character's first byte */
    }
    error->text[length] = '\0';
    for (size_t i = 0; i < length; i++)
        if ((unsigned char)error->text[i] < 0x20 || error->text[i] == 0x7f) error->text[i] = '?';
    return false;
}

/* ---- the strict pass over the bytes ------------------------------------------------------------------------------ */

struct scan {
    const unsigned char *begin, *p, *end;
    struct st_error *error;
};

#define SCAN_DEPTH 4 /* a valid header needs 3 */

static bool not_json(struct scan *s, const char *what) {
    return fail(s->error, ST_HEADER_NOT_JSON, NULL, "the header is not JSON: %s at byte %zu of the header", what,
                (size_t)(s->p - s->begin));
}

static void skip_space(struct scan *s) {
    while (s->p < s->end && (*s->p == ' ' || *s->p == '\t' || *s->p == '\n' || *s->p == '\r')) s->p++;
}

/* Bytes of the UTF-8 character at p, 0 if it is none (RFC 3629: no overlong forms, no surrogates, up to U+10FFFF). */
static size_t utf8_length(const unsigned char *p, const unsigned char *end) {
    size_t left = (size_t)(end - p);
    if (p[0] < 0x80) return 1;
    if (p[0] < 0xc2 || p[0] > 0xf4) return 0;
    size_t n = p[0] < 0xe0 ? 2 : p[0] < 0xf0 ? 3 : 4;
    if (left < n) return 0;
    for (size_t i = 1; i < n; i++)
        if ((p[i] & 0xc0) != 0x80) return 0;
    if (p[0] == 0xe0 && p[1] < 0xa0) return 0;
    if (p[0] == 0xed && p[1] > 0x9f) return 0;
    if (p[0] == 0xf0 && p[1] < 0x90) return 0;
    if (p[0] == 0xf4 && p[1] > 0x8f) return 0;
    return n;
}

static bool check_utf8(struct scan *s) {
    for (const unsigned char *p = s->begin; p < s->end;) {
        size_t n = utf8_length(p, s->end);
        if (n == 0)
            return fail(s->error, ST_HEADER_NOT_UTF8, NULL, "the header is not UTF-8: byte %zu of it is 0x%02x",
                        (size_t)(p - s->begin), *p);
        p += n;
    }
    return true;
}

/* Four hex digits at p to *value. */
static bool hex4(const unsigned char *p, const unsigned char *end, unsigned *value) {
    if (end - p < 4) return false;
    unsigned v = 0;
    for (int i = 0; i < 4; i++) {
        unsigned char c = p[i];
        unsigned digit = c >= '0' && c <= '9'   ? (unsigned)(c - '0')
                         : c >= 'a' && c <= 'f' ? (unsigned)(c - 'a' + 10)
                         : c >= 'A' && c <= 'F' ? (unsigned)(c - 'A' + 10)
                                                : 16u;
        if (digit == 16) return false;
        v = v * 16 + digit;
    }
    *value = v;
    return true;
}

/* After the backslash. Surrogates must come in pairs; a NUL would cut the name short. */
static bool scan_escape(struct scan *s) {
    if (s->p == s->end) return not_json(s, "an escape is cut off");
    unsigned char c = *s->p;
    if (c != 'u') {
        if (c == '\0' || !strchr("\"\\/bfnrt", c)) return not_json(s, "an unknown escape");
        s->p++;
        return true;
    }
    unsigned high, low;
    if (!hex4(s->p + 1, s->end, &high)) return not_json(s, "\\u without four hex digits");
    if (high == 0) return not_json(s, "a NUL in a string");
    if (high >= 0xdc00 && high <= 0xdfff) return not_json(s, "half a surrogate pair");
    s->p += 5;
    if (high < 0xd800 || high > 0xdbff) return true;
    if (s->end - s->p < 6 || s->p[0] != '\\' || s->p[1] != 'u' || !hex4(s->p + 2, s->end, &low) || low < 0xdc00 ||
        low > 0xdfff)
        return not_json(s, "half a surrogate pair");
    s->p += 6;
    return true;
}

static bool scan_string(struct scan *s) {
    if (s->p == s->end || *s->p != '"') return not_json(s, "a string was expected");
    s->p++;
    while (s->p < s->end) {
        unsigned char c = *s->p;
        if (c < 0x20) return not_json(s, "a control character in a string");
        s->p++;
        if (c == '"') return true;
        if (c == '\\' && !scan_escape(s)) return false;
    }
    return not_json(s, "a string without an end");
}

/* What a header allows of numbers: 0, or digits not beginning with 0, up to 2^53-1. */
static bool scan_number(struct scan *s) {
    const unsigned char *first = s->p;
    uint64_t value = 0;
    while (s->p < s->end && *s->p >= '0' && *s->p <= '9') {
        value = value > ST_INTEGER_MAX ? value : value * 10 + (uint64_t)(*s->p - '0');
        s->p++;
    }
    bool more = s->p < s->end && *s->p != '\0' && strchr("+-.eE", *s->p);
    bool zero = s->p - first > 1 && *first == '0';
    if (first == s->p || more || zero || value > ST_INTEGER_MAX) {
        while (s->p < s->end && *s->p != '\0' && strchr("0123456789+-.eE", *s->p)) s->p++;
        int n = s->p - first > 40 ? 40 : (int)(s->p - first);
        return fail(s->error, ST_NUMBER, NULL,
                    "the number %.*s at byte %zu of the header is not an integer from 0 to 2^53-1", n,
                    (const char *)first, (size_t)(first - s->begin));
    }
    return true;
}

static bool scan_word(struct scan *s, const char *word) {
    size_t n = strlen(word);
    if ((size_t)(s->end - s->p) < n || memcmp(s->p, word, n) != 0) return not_json(s, "an unknown word");
    s->p += n;
    return true;
}

static bool scan_value(struct scan *s, int depth);

/* Members or elements up to and including `close`. */
static bool scan_container(struct scan *s, unsigned char close, int depth) {
    if (depth == SCAN_DEPTH)
        return fail(s->error, ST_HEADER_STRUCTURE, NULL, "the header is nested too deep at byte %zu of it",
                    (size_t)(s->p - s->begin));
    s->p++;
    skip_space(s);
    if (s->p < s->end && *s->p == close) {
        s->p++;
        return true;
    }
    for (;;) {
        skip_space(s);
        if (close == '}') {
            if (!scan_string(s)) return false;
            skip_space(s);
            if (s->p == s->end || *s->p != ':') return not_json(s, "a ':' was expected");
            s->p++;
        }
        if (!scan_value(s, depth + 1)) return false;
        skip_space(s);
        if (s->p == s->end) return not_json(s, "it ends too early");
        unsigned char c = *s->p++;
        if (c == close) return true;
        if (c != ',') {
            s->p--;
            return not_json(s, "a ',' or a closing bracket was expected");
        }
    }
}

static bool scan_value(struct scan *s, int depth) {
    skip_space(s);
    if (s->p == s->end) return not_json(s, "it ends too early");
    switch (*s->p) {
    case '{':
        return scan_container(s, '}', depth);
    case '[':
        return scan_container(s, ']', depth);
    case '"':
        return scan_string(s);
    case 't':
        return scan_word(s, "true");
    case 'f':
        return scan_word(s, "false");
    case 'n':
        return scan_word(s, "null");
    default:
        break;
    }
    if (*s->p == '-' || *s->p == '+' || *s->p == '.' || (*s->p >= '0' && *s->p <= '9')) return scan_number(s);
    return not_json(s, "a value was expected");
}

static bool scan_header(const char *json, size_t length, struct st_error *error) {
    const unsigned char *begin = (const unsigned char *)json;
    struct scan s = {begin, begin, begin + length, error};
    if (!check_utf8(&s) || !scan_value(&s, 0)) return false;
    skip_space(&s);
    return s.p == s.end || not_json(&s, "something follows the object");
}

/* ---- from cJSON's tree to tensors -------------------------------------------------------------------------------- */

/* Private layout behind st_header.doc: everything to give back, and an index by name. */
struct document {
    cJSON *json;
    struct st_tensor **by_name; /* [n_tensors] */
};

struct room {
    size_t tensors, dims, metadata;
};

static bool is_metadata(const cJSON *item) { return strcmp(item->string, "__metadata__") == 0; }

/* How much there is of everything, so that one block can hold it. */
static struct room count_room(const cJSON *root) {
    struct room room = {0, 0, 0};
    for (const cJSON *item = root->child; item; item = item->next) {
        if (is_metadata(item)) {
            room.metadata += (size_t)cJSON_GetArraySize(item);
        } else {
            room.tensors++;
            room.dims += (size_t)cJSON_GetArraySize(cJSON_GetObjectItemCaseSensitive(item, "shape"));
        }
    }
    return room;
}

static int compare_text(const void *a, const void *b) {
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* The names in one object: all different. `scratch` has room for them. */
static bool names_differ(const cJSON *object, const char **scratch, const char *what, struct st_error *error) {
    size_t n = 0;
    for (const cJSON *item = object->child; item; item = item->next) scratch[n++] = item->string;
    qsort(scratch, n, sizeof *scratch, compare_text);
    for (size_t i = 1; i < n; i++)
        if (strcmp(scratch[i - 1], scratch[i]) == 0)
            return fail(error, ST_DUPLICATE, NULL, "the %s \"%.*s\" is there twice", what,
                        (int)cut_utf8(scratch[i], strlen(scratch[i]), 64), scratch[i]);
    return true;
}

static bool read_metadata(const cJSON *object, struct st_metadata *out, struct st_error *error) {
    if (!cJSON_IsObject(object)) return fail(error, ST_HEADER_STRUCTURE, NULL, "__metadata__ is not an object");
    for (const cJSON *item = object->child; item; item = item->next) {
        if (!cJSON_IsString(item))
            return fail(error, ST_HEADER_STRUCTURE, NULL, "__metadata__ holds something that is not a string: \"%.*s\"",
                        (int)cut_utf8(item->string, strlen(item->string), 64), item->string);
        *out++ = (struct st_metadata){item->string, item->valuestring};
    }
    return true;
}

static bool read_dtype(const char *name, const cJSON *item, enum st_dtype *out, struct st_error *error) {
    if (!cJSON_IsString(item)) return fail(error, ST_HEADER_STRUCTURE, name, "\"dtype\" is not a string");
    for (int i = 0; i < ST_DTYPE_COUNT; i++)
        if (strcmp(item->valuestring, dtypes[i].name) == 0) {
            *out = (enum st_dtype)i;
            return true;
        }
    return fail(error, ST_DTYPE, name, "unknown dtype \"%.*s\"",
                (int)cut_utf8(item->valuestring, strlen(item->valuestring), 24), item->valuestring);
}

/* An array of non-negative integers (the scan saw to that, if they are numbers at all) to out. */
static bool read_sizes(const char *name, const cJSON *array, const char *member, size_t *out, struct st_error *error) {
    if (!cJSON_IsArray(array)) return fail(error, ST_HEADER_STRUCTURE, name, "\"%s\" is not an array", member);
    for (const cJSON *item = array->child; item; item = item->next) {
        if (!cJSON_IsNumber(item))
            return fail(error, ST_HEADER_STRUCTURE, name, "\"%s\" holds something that is not a number", member);
        *out++ = (size_t)item->valuedouble;
    }
    return true;
}

/* The product of the dims, times the width of the dtype, against the offsets. */
static bool check_size(struct st_tensor *t, struct st_error *error) {
    size_t count = 1, bits;
    for (size_t i = 0; i < t->rank; i++)
        if (__builtin_mul_overflow(count, t->dim[i], &count))
            return fail(error, ST_OVERFLOW, t->name, "the product of its shape overflows");
    if (__builtin_mul_overflow(count, dtypes[t->dtype].bits, &bits))
        return fail(error, ST_OVERFLOW, t->name, "its size in bits overflows");
    if (bits % 8 != 0)
        return fail(error, ST_MISALIGNED, t->name, "%zu elements of %s do not fill whole bytes", count,
                    dtypes[t->dtype].name);
    if (t->end < t->begin)
        return fail(error, ST_OFFSETS, t->name, "its data_offsets [%zu,%zu] run backwards", t->begin, t->end);
    if (t->end - t->begin != bits / 8)
        return fail(error, ST_SIZE, t->name, "its shape takes %zu bytes of %s, but data_offsets [%zu,%zu] hold %zu",
                    bits / 8, dtypes[t->dtype].name, t->begin, t->end, t->end - t->begin);
    t->count = count;
    return true;
}

/* One entry; its dims go to `dims`. Members: dtype, shape, data_offsets, each once, nothing else. */
static bool read_tensor(const cJSON *entry, struct st_tensor *t, size_t *dims, struct st_error *error) {
    const char *name = entry->string;
    const cJSON *dtype = NULL, *shape = NULL, *offsets = NULL;
    if (!cJSON_IsObject(entry)) return fail(error, ST_HEADER_STRUCTURE, name, "its entry is not an object");
    for (const cJSON *m = entry->child; m; m = m->next) {
        const cJSON **slot = strcmp(m->string, "dtype") == 0          ? &dtype
                             : strcmp(m->string, "shape") == 0        ? &shape
                             : strcmp(m->string, "data_offsets") == 0 ? &offsets
                                                                      : NULL;
        if (!slot) return fail(error, ST_HEADER_STRUCTURE, name, "unknown member \"%.32s\"", m->string);
        if (*slot) return fail(error, ST_DUPLICATE, name, "\"%s\" is there twice", m->string);
        *slot = m;
    }
    if (!dtype || !shape || !offsets)
        return fail(error, ST_HEADER_STRUCTURE, name, "\"%s\" is missing",
                    !dtype   ? "dtype"
                    : !shape ? "shape"
                             : "data_offsets");
    size_t span[2];
    if (!read_dtype(name, dtype, &t->dtype, error) || !read_sizes(name, shape, "shape", dims, error)) return false;
    if (!cJSON_IsArray(offsets) || cJSON_GetArraySize(offsets) != 2)
        return fail(error, ST_HEADER_STRUCTURE, name, "\"data_offsets\" is not an array of two");
    if (!read_sizes(name, offsets, "data_offsets", span, error)) return false;
    t->name = name;
    t->rank = (size_t)cJSON_GetArraySize(shape);
    t->dim = dims;
    t->begin = span[0];
    t->end = span[1];
    return check_size(t, error);
}

static int compare_span(const void *a, const void *b) {
    const struct st_tensor *x = a, *y = b;
    if (x->begin != y->begin) return x->begin < y->begin ? -1 : 1;
    if (x->end != y->end) return x->end < y->end ? -1 : 1;
    return strcmp(x->name, y->name);
}

/* Sorted by offset, each tensor begins where the one before it ended, the first at 0. */
static bool check_offsets(const struct st_tensor *t, size_t n, size_t *data_bytes, struct st_error *error) {
    size_t at = 0;
    for (size_t i = 0; i < n; at = t[i++].end)
        if (t[i].begin != at)
            return fail(error, ST_OFFSETS, t[i].name, "it begins at byte %zu of the data, but %zu is where %s (%s)",
                        t[i].begin, at, i == 0 ? "the data begins" : "the tensor before it ends",
                        t[i].begin > at ? "a hole" : "an overlap");
    *data_bytes = at;
    return true;
}

static int compare_name(const void *a, const void *b) {
    return strcmp((*(const struct st_tensor *const *)a)->name, (*(const struct st_tensor *const *)b)->name);
}

/* Fills `header`, whose block has the room that count_room said. */
static bool read_root(const cJSON *root, struct st_header *header, struct st_tensor *tensors, size_t *dims,
                      struct st_metadata *metadata, const char **scratch, struct st_error *error) {
    struct document *doc = header->doc;
    size_t n = 0;
    if (!names_differ(root, scratch, "name", error)) return false;
    for (const cJSON *item = root->child; item; item = item->next) {
        if (is_metadata(item)) {
            if (!read_metadata(item, metadata, error) || !names_differ(item, scratch, "metadata key", error))
                return false;
            header->n_metadata = (size_t)cJSON_GetArraySize(item);
            continue;
        }
        if (!read_tensor(item, &tensors[n], dims, error)) return false;
        dims += tensors[n++].rank;
    }
    qsort(tensors, n, sizeof *tensors, compare_span);
    if (!check_offsets(tensors, n, &header->data_bytes, error)) return false;
    for (size_t i = 0; i < n; i++) doc->by_name[i] = &tensors[i];
    qsort(doc->by_name, n, sizeof *doc->by_name, compare_name);
    header->tensors = tensors;
    header->n_tensors = n;
    header->by_name = (const struct st_tensor *const *)doc->by_name;
    header->metadata = metadata;
    return true;
}

/* One block: header, document, tensors, metadata, index, scratch names, dims. */
static struct st_header *build(cJSON *root, struct st_error *error) {
    struct room room = count_room(root);
    size_t n_names =
        room.tensors + room.metadata + 1; /* + "__metadata__" itself; duplicates of it are counted as well */
    for (const cJSON *item = root->child; item; item = item->next) n_names += is_metadata(item) ? 1 : 0;
    size_t bytes = sizeof(struct st_header) + sizeof(struct document) + room.tensors * sizeof(struct st_tensor) +
                   room.metadata * sizeof(struct st_metadata) + room.tensors * sizeof(struct st_tensor *) +
                   n_names * sizeof(char *) + room.dims * sizeof(size_t);
    struct st_header *header = calloc(1, bytes);
    if (!header) {
        fail(error, ST_NO_MEMORY, NULL, "out of memory");
        return NULL;
    }
    struct document *doc = (struct document *)(header + 1);
    struct st_tensor *tensors = (struct st_tensor *)(doc + 1);
    struct st_metadata *metadata = (struct st_metadata *)(tensors + room.tensors);
    doc->by_name = (struct st_tensor **)(metadata + room.metadata);
    const char **scratch = (const char **)(doc->by_name + room.tensors);
    size_t *dims = (size_t *)(scratch + n_names);
    header->doc = doc;
    if (!read_root(root, header, tensors, dims, metadata, scratch, error)) {
        free(header);
        return NULL;
    }
    doc->json = root;
    return header;
}

size_t st_header_marks(const char *json, size_t length) {
    size_t marks = 1;
    bool in_string = false;
    for (size_t i = 0; i < length; i++) {
        char c = json[i];
        if (c == '"')
            in_string = !in_string;
        else if (in_string)
            i += c == '\\';
        else
            marks += c == ',' || c == ':' || c == '{' || c == '[';
    }
    return marks;
}

size_t st_header_need(size_t length, size_t marks) {
    /* a cJSON node with malloc's overhead and its key, and our share of a tensor; strings twice */
    return 4096 + 2 * length + 224 * marks;
}

enum st_rule st_header_length(const unsigned char prefix[8], size_t *length, struct st_error *error) {
    uint64_t n;
    memcpy(&n, prefix, 8);
    if (n > ST_HEADER_MAX) {
        fail(error, ST_HEADER_TOO_LARGE, NULL,
             "the first 8 bytes say that the header has %llu bytes; at most %d are allowed (is this a safetensors "
             "file?)",
             (unsigned long long)n, ST_HEADER_MAX);
        return error->rule;
    }
    *length = (size_t)n;
    return ST_OK;
}

struct st_header *st_header_parse(const char *json, size_t length, struct st_error *error) {
    struct st_header *header = NULL;
    cJSON *root = NULL;
    error->rule = ST_OK;
    error->text[0] = '\0';
    if (!scan_header(json, length, error)) return NULL;
    root = json_tree(json, length);
    if (!root) {
        fail(error, ST_NO_MEMORY, NULL, "out of memory"); /* the scan has seen that it is JSON */
        return NULL;
    }
    if (!cJSON_IsObject(root))
        fail(error, ST_HEADER_STRUCTURE, NULL, "the header is not an object");
    else
        header = build(root, error);
    if (!header) cJSON_Delete(root);
    return header;
}

void st_header_free(struct st_header *header) {
    if (!header) return;
    cJSON_Delete(((struct document *)header->doc)->json);
    free(header);
}

enum st_rule st_header_fits(const struct st_header *header, size_t bytes, struct st_error *error) {
    if (bytes < header->data_bytes)
        fail(error, ST_DATA_MISSING, NULL, "the tensors take %zu bytes, but only %zu follow the header",
             header->data_bytes, bytes);
    else if (bytes > header->data_bytes)
        fail(error, ST_DATA_TRAILING, NULL, "%zu bytes follow the last tensor", bytes - header->data_bytes);
    else
        return ST_OK;
    return error->rule;
}

size_t st_lower_bound(const struct st_header *header, const char *name) {
    size_t low = 0, high = header->n_tensors;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (strcmp(header->by_name[middle]->name, name) < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

const struct st_tensor *st_find(const struct st_header *header, const char *name) {
    size_t i = st_lower_bound(header, name);
    return i < header->n_tensors && strcmp(header->by_name[i]->name, name) == 0 ? header->by_name[i] : NULL;
}

const char *st_metadata_get(const struct st_header *header, const char *key) {
    for (size_t i = 0; i < header->n_metadata; i++)
        if (strcmp(header->metadata[i].key, key) == 0) return header->metadata[i].value;
    return NULL;
}

void st_shape_text(const struct st_tensor *tensor, char *out, size_t max) {
    size_t at = (size_t)snprintf(out, max, "[");
    for (size_t i = 0; i < tensor->rank && at < max; i++)
        at += (size_t)snprintf(out + at, max - at, i ? ",%zu" : "%zu", tensor->dim[i]);
    if (at < max) snprintf(out + at, max - at, "]");
}

/* ---- numbers ----------------------------------------------------------------------------------------------------- */

float st_bfloat16_to_float(uint16_t bits) {
    uint32_t word = (uint32_t)bits << 16;
    float value;
    memcpy(&value, &word, 4);
    return value;
}

float st_half_to_float(uint16_t bits) {
    uint32_t sign = (uint32_t)(bits & 0x8000) << 16, exponent = (bits >> 10) & 31, fraction = bits & 1023, word;
    if (exponent == 31) {
        word = sign | 0x7f800000u | fraction << 13;
    } else if (exponent != 0) {
        word = sign | (exponent + 112) << 23 | fraction << 13;
    } else { /* zero or subnormal: fraction * 2^-24, exact in binary32 */
        float value = (float)fraction * 0x1p-24f;
        memcpy(&word, &value, 4);
        word |= sign;
    }
    float value;
    memcpy(&value, &word, 4);
    return value;
}

/* One loop per pair of types; loads by memcpy, because a file's data may lie at any address. */
#define WIDEN_LOOP(name, to_type, from_type, expression)                                                               \
    static void name(void *dst, const void *src, size_t count) {                                                       \
        to_type *out = dst;                                                                                            \
        const unsigned char *in = src;                                                                                 \
        for (size_t i = 0; i < count; i++) {                                                                           \
            from_type x;                                                                                               \
            memcpy(&x, in + i * sizeof x, sizeof x);                                                                   \
            out[i] = expression;                                                                                       \
        }                                                                                                              \
    }

WIDEN_LOOP(f32_to_f64, double, float, (double)x)
WIDEN_LOOP(f16_to_f64, double, uint16_t, (double)st_half_to_float(x))
WIDEN_LOOP(bf16_to_f64, double, uint16_t, (double)st_bfloat16_to_float(x))
WIDEN_LOOP(f64_to_f32, float, double, (float)x)
WIDEN_LOOP(f16_to_f32, float, uint16_t, st_half_to_float(x))
WIDEN_LOOP(bf16_to_f32, float, uint16_t, st_bfloat16_to_float(x))
static void copy_f64(void *dst, const void *src, size_t count) { memcpy(dst, src, count * 8); }
static void copy_f32(void *dst, const void *src, size_t count) { memcpy(dst, src, count * 4); }

typedef void widen_function(void *dst, const void *src, size_t count);

static widen_function *const widen_table[ST_DTYPE_COUNT][2] = {
    [ST_F64] = {copy_f64, f64_to_f32},
    [ST_F32] = {f32_to_f64, copy_f32},
    [ST_F16] = {f16_to_f64, f16_to_f32},
    [ST_BF16] = {bf16_to_f64, bf16_to_f32},
};

bool st_widen(enum mha_dtype to, void *dst, enum st_dtype from, const void *src, size_t count) {
    widen_function *widen = widen_table[from][to];
    if (!widen) return false;
    if (count > 0) widen(dst, src, count);
    return true;
}

/* ---- files ------------------------------------------------------------------------------------------------------- */

static int64_t mtime_of(const struct stat *status) {
    return (int64_t)status->st_mtim.tv_sec * 1000000000 + status->st_mtim.tv_nsec;
}

static bool file_fail(struct st_error *error, const char *what) {
    int code = errno;
    char reason[96] = "";
    return fail(error, ST_FILE_ACCESS, NULL, "%s: %s", what, strerror_r(code, reason, sizeof reason));
}

/* The mapped bytes to header and data. */
static bool file_parse(struct st_file *file, struct st_error *error) {
    const unsigned char *bytes = file->map;
    size_t length = 0;
    if (file->map_bytes < 8)
        return fail(error, ST_FILE_TOO_SMALL, NULL, "the file has %zu bytes; the length of the header alone takes 8",
                    file->map_bytes);
    if (st_header_length(bytes, &length, error) != ST_OK) return false;
    if (length > file->map_bytes - 8)
        return fail(error, ST_HEADER_PAST_END, NULL, "the header has %zu bytes, but only %zu follow", length,
                    file->map_bytes - 8);
    file->header = st_header_parse((const char *)bytes + 8, length, error);
    if (!file->header) return false;
    file->data = bytes + 8 + length;
    return st_header_fits(file->header, file->map_bytes - 8 - length, error) == ST_OK;
}

bool st_file_open(struct st_file *file, const char *path, struct st_error *error) {
    struct stat status;
    *file = (struct st_file){.fd = -1};
    error->rule = ST_OK;
    error->text[0] = '\0';
    file->fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* O_NONBLOCK: a FIFO must not hang the start */
    if (file->fd < 0) return file_fail(error, "cannot open");
    if (fstat(file->fd, &status) != 0) return file_fail(error, "cannot stat");
    if (!S_ISREG(status.st_mode)) return fail(error, ST_FILE_ACCESS, NULL, "not a regular file");
    file->map_bytes = (size_t)status.st_size;
    file->mtime_ns = mtime_of(&status);
    if (file->map_bytes > 0) {
        void *map = mmap(NULL, file->map_bytes, PROT_READ, MAP_PRIVATE, file->fd, 0);
        if (map == MAP_FAILED) return file_fail(error, "cannot map");
        file->map = map;
    }
    return file_parse(file, error);
}

bool st_file_unchanged(const struct st_file *file) {
    struct stat status;
    return fstat(file->fd, &status) == 0 && (size_t)status.st_size == file->map_bytes &&
           mtime_of(&status) == file->mtime_ns;
}

void st_file_close(struct st_file *file) {
    st_header_free(file->header);
    if (file->map) munmap(file->map, file->map_bytes);
    if (file->fd >= 0) close(file->fd);
    *file = (struct st_file){.fd = -1};
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * api/tensor_text.c - the automaton behind tensor_text.h.
 *
 * Model. Input is walked in slices. A slice is cut behind its last byte that belongs to no token (a number or a word), so
 * that inside it every token is followed by a delimiter and the number reader needs no check per digit. The cut-off tail
 * goes to the carry buffer; the next bytes complete it up to and with the next delimiter, and the carry is then walked like
 * a slice of its own. All decisions are made from at most TENSOR_TEXT_NUMBER_MAX + 1 bytes of look-ahead, so they do not
 * depend on how the text was split.
 *
 * Room for the elements is taken per slice, before it is walked: a slice of n bytes has at most n / 2 + 1 elements. The
 * walk itself therefore cannot run out of memory.
 */
#include "tensor_text.h"

#include <math.h>
#include <string.h>

#include "number_scan.h"

#define SLICE     ((size_t)16384)
#define SLACK_MAX ((size_t)512 << 10) /* reserved ahead at most, bytes */

enum byte_class {
    CLASS_NUMBER = 1, /* [0-9+-.eE], what a number is made of */
    CLASS_FIRST = 2,  /* [0-9-], what it begins with */
    CLASS_WORD = 4,   /* [A-Za-z] */
    CLASS_SPACE = 8,
};
#define CLASS_TOKEN (CLASS_NUMBER | CLASS_WORD)

static const unsigned char class_of[256] = {
    ['0' ... '9'] = CLASS_NUMBER | CLASS_FIRST,
    ['-'] = CLASS_NUMBER | CLASS_FIRST,
    ['+'] = CLASS_NUMBER,
    ['.'] = CLASS_NUMBER,
    ['A' ... 'D'] = CLASS_WORD,
    ['F' ... 'Z'] = CLASS_WORD,
    ['a' ... 'd'] = CLASS_WORD,
    ['f' ... 'z'] = CLASS_WORD,
    ['e'] = CLASS_WORD | CLASS_NUMBER,
    ['E'] = CLASS_WORD | CLASS_NUMBER,
    [' '] = CLASS_SPACE,
    ['\t'] = CLASS_SPACE,
    ['\n'] = CLASS_SPACE,
    ['\r'] = CLASS_SPACE,
};

static unsigned class_at(const char *p) { return class_of[(unsigned char)*p]; }

/* A piece of text being walked: [p, limit), limit[-1] is a delimiter; bytes up to end may be read. */
struct walk {
    const char *begin, *p, *limit, *end;
};

static size_t element_size(enum tensor_text_stored stored) {
    static const size_t size[] = {[TENSOR_TEXT_STORED_NONE] = 8,
                                  [TENSOR_TEXT_STORED_F64] = 8,
                                  [TENSOR_TEXT_STORED_F32] = 4,
                                  [TENSOR_TEXT_STORED_U8] = 1};
    return size[stored];
}

void tensor_text_begin(struct tensor_text *text, struct mem_grow *data, struct mem_grow *ties,
                       enum tensor_text_reals reals, unsigned accept) {
    memset(text, 0, offsetof(struct tensor_text, carry));
    text->data = data;
    text->ties = ties;
    text->reals = reals;
    text->accept = accept;
    data->size = 0;
    if (ties != NULL) ties->size = 0;
}

/* ---- errors ------------------------------------------------------------------------------------------------------- */

static bool in_leaf_row(const struct tensor_text *text) { return text->leaf_depth == text->depth && text->depth > 0; }

/* Latches an error at byte p, its path being the element that would come next. */
static __attribute__((cold)) bool fail(struct tensor_text *text, const struct walk *walk, const char *p,
                                       enum tensor_text_status status) {
    if (in_leaf_row(text)) text->child[text->depth - 1] = text->count - text->row_start;
    text->status = status;
    text->offset = text->consumed + (uint64_t)(p - walk->begin);
    text->index_length = text->depth;
    memcpy(text->index, text->child, text->depth * sizeof text->index[0]);
    return false;
}

/* ---- brackets ----------------------------------------------------------------------------------------------------- */

static bool open_array(struct tensor_text *text, struct walk *walk) {
    if (text->leaf_depth > 0 && text->depth == text->leaf_depth) return fail(text, walk, walk->p, TENSOR_TEXT_RAGGED);
    if (text->depth == TENSOR_TEXT_RANK_MAX) return fail(text, walk, walk->p, TENSOR_TEXT_TOO_DEEP);
    text->child[text->depth++] = 0;
    text->row_start = text->count;
    text->expect = TENSOR_TEXT_EXPECT_VALUE_OR_CLOSE;
    walk->p++;
    return true;
}

/* The first ']' of a level fixes its dimension, later ones must agree. False also when the value is complete. */
static bool close_array(struct tensor_text *text, struct walk *walk) {
    size_t level = text->depth - 1;
    if (text->leaf_depth == 0) text->leaf_depth = text->depth; /* an empty array is a row, too */
    size_t children = in_leaf_row(text) ? text->count - text->row_start : text->child[level];
    if ((text->fixed & 1u << level) == 0) {
        text->fixed |= 1u << level;
        text->dim[level] = children;
    } else if (text->dim[level] != children) {
        fail(text, walk, walk->p, TENSOR_TEXT_RAGGED);
        text->index_length = level; /* the row, not an element of it */
        text->expected = text->dim[level];
        text->actual = children;
        return false;
    }
    walk->p++;
    text->depth--;
    text->expect = TENSOR_TEXT_EXPECT_SEPARATOR;
    if (text->depth > 0) {
        text->child[text->depth - 1]++;
        return true;
    }
    text->rank = text->leaf_depth;
    text->status = TENSOR_TEXT_DONE;
    return false;
}

/* ---- elements ----------------------------------------------------------------------------------------------------- */

/* Before an element of the kind `stored` at p: is its depth that of the others, is its kind? */
static bool admit(struct tensor_text *text, struct walk *walk, enum tensor_text_stored stored) {
    if (text->leaf_depth == 0) text->leaf_depth = text->depth;
    if (text->leaf_depth != text->depth) return fail(text, walk, walk->p, TENSOR_TEXT_RAGGED);
    if (text->stored == TENSOR_TEXT_STORED_NONE) text->stored = stored;
    if (text->stored != stored) return fail(text, walk, walk->p, TENSOR_TEXT_MIXED);
    return true;
}

static enum tensor_text_stored stored_reals(const struct tensor_text *text) {
    return text->reals == TENSOR_TEXT_F32 ? TENSOR_TEXT_STORED_F32 : TENSOR_TEXT_STORED_F64;
}

static void store_real(struct tensor_text *text, double value) {
    if (text->stored == TENSOR_TEXT_STORED_F32)
        ((float *)(void *)text->data->data)[text->count++] = (float)value;
    else
        ((double *)(void *)text->data->data)[text->count++] = value;
}

static void store_boolean(struct tensor_text *text, bool value) { text->data->data[text->count++] = (char)value; }

/* Words that other writers use where JSON has no number. */
static bool is_non_finite_word(const char *p, size_t length) {
    static const char *const words[] = {"nan", "inf", "infinity"};
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++) {
        size_t k = 0;
        while (k < length && (p[k] | 0x20) == words[i][k]) k++; /* stops at the NUL at the latest */
        if (k == length && words[i][k] == '\0') return true;
    }
    return false;
}

static size_t token_length(const char *p, unsigned class, size_t most) {
    size_t length = 0;
    while (length < most && (class_at(p + length) & class) != 0) length++;
    return length;
}

/* Why the number at walk->p is none, or none that fits. */
static __attribute__((cold)) bool fail_number(struct tensor_text *text, struct walk *walk, enum number_status status) {
    const char *p = walk->p;
    enum tensor_text_status why = TENSOR_TEXT_SYNTAX;
    if (token_length(p, CLASS_NUMBER, TENSOR_TEXT_NUMBER_MAX + 1) > TENSOR_TEXT_NUMBER_MAX) {
        why = TENSOR_TEXT_NUMBER_TOO_LONG;
    } else if (status == NUMBER_OVERFLOW) {
        struct number_parts parts;
        double wide;
        bool fits = number_scan(p, walk->end, &parts) != NULL && number_finish_f64(&parts, &wide) == NUMBER_OK;
        why = fits ? TENSOR_TEXT_OUT_OF_RANGE : TENSOR_TEXT_NON_FINITE;
    } else if (*p == '-' && is_non_finite_word(p + 1, token_length(p + 1, CLASS_TOKEN, 16))) {
        why = TENSOR_TEXT_NON_FINITE;
    }
    return fail(text, walk, p, why);
}

/* Notes that the element about to be stored, exactly between two float32, came from a text above or below. */
static bool note_tie(struct tensor_text *text, struct walk *walk, struct number_parts parts, double value) {
    int tie = number_tie(&parts, value);
    if (tie == 0) return true;
    struct mem_grow *ties = text->ties;
    size_t note = text->count << 1 | (tie > 0);
    if (ties->size + sizeof note > ties->capacity) {
        text->memory = mem_grow_reserve(ties, ties->size + ties->size / 4 + 64 * sizeof note);
        if (text->memory != MEM_OK) return fail(text, walk, walk->p, TENSOR_TEXT_MEMORY);
    }
    memcpy(ties->data + ties->size, &note, sizeof note);
    ties->size += sizeof note;
    return true;
}

/* 7 or 0.5: what small examples are made of: one digit, perhaps a point and another, and a delimiter. Sets *tenths; NULL if it is
 * something else. One division by ten then rounds it right, because both are exact. */
NUMBER_INLINE const char *short_number(const char *p, unsigned *tenths) {
    unsigned whole = (unsigned)(unsigned char)*p - '0', fraction = 0;
    if (whole > 9) return NULL;
    if (p[1] == '.') {
        fraction = (unsigned)(unsigned char)p[2] - '0';
        if (fraction > 9) return NULL;
        p += 2;
    }
    *tenths = whole * 10 + fraction;
    return (class_at(p + 1) & CLASS_TOKEN) != 0 ? NULL : p + 1;
}

/* Reads numbers from walk->p (at the first byte of one) as long as the row goes on plainly: a comma, perhaps one space, the
 * next number. One copy per element type. */
NUMBER_INLINE bool row_of_reals(struct tensor_text *text, struct walk *walk, enum tensor_text_reals reals) {
    struct number_parts parts;
    double *const data64 = (double *)(void *)text->data->data;
    float *const data32 = (float *)(void *)text->data->data;
    const char *p = walk->p, *const limit = walk->limit, *const end = walk->end;
    size_t count = text->count;
    for (;;) {
        double wide = 0;
        float narrow = 0;
        unsigned tenths;
        const char *after = short_number(p, &tenths);
        if (after != NULL) {
            wide = (double)tenths / 10; /* not near the middle of two float32 */
            narrow = (float)tenths / 10;
        } else {
            enum number_status status = NUMBER_SYNTAX;
            after = number_scan(p, end, &parts);
            if (after != NULL)
                status =
                    reals == TENSOR_TEXT_F32 ? number_finish_f32(&parts, &narrow) : number_finish_f64(&parts, &wide);
            if (__builtin_expect(status != NUMBER_OK || after - p > TENSOR_TEXT_NUMBER_MAX, 0)) {
                text->count = count;
                walk->p = p;
                return fail_number(text, walk, status);
            }
            if (reals == TENSOR_TEXT_F64_TIES && __builtin_expect(number_beside_f32(wide), 0)) {
                text->count = count;
                walk->p = p;
                if (!note_tie(text, walk, parts, wide)) return false;
            }
        }
        if (reals == TENSOR_TEXT_F32)
            data32[count++] = narrow;
        else
            data64[count++] = wide;
        p = after;
        if (*p != ',') {
            text->expect = TENSOR_TEXT_EXPECT_SEPARATOR;
            break;
        }
        p++;
        if (p < limit && *p == ' ') p++;
        if (p >= limit || (class_at(p) & CLASS_FIRST) == 0) {
            text->expect = TENSOR_TEXT_EXPECT_VALUE;
            break;
        }
    }
    text->count = count;
    walk->p = p;
    return true;
}

static bool row_of_f64(struct tensor_text *text, struct walk *walk) {
    return row_of_reals(text, walk, TENSOR_TEXT_F64);
}
static bool row_of_f32(struct tensor_text *text, struct walk *walk) {
    return row_of_reals(text, walk, TENSOR_TEXT_F32);
}
static bool row_of_f64_ties(struct tensor_text *text, struct walk *walk) {
    return row_of_reals(text, walk, TENSOR_TEXT_F64_TIES);
}

static bool zero_or_one(struct tensor_text *text, struct walk *walk) {
    struct number_parts parts;
    double value = 0;
    const char *after = number_scan(walk->p, walk->end, &parts);
    enum number_status status = after == NULL ? NUMBER_SYNTAX : number_finish_f64(&parts, &value);
    if (status != NUMBER_OK || after - walk->p > TENSOR_TEXT_NUMBER_MAX) return fail_number(text, walk, status);
    if (value != 0 && value != 1) return fail(text, walk, walk->p, TENSOR_TEXT_NOT_ZERO_ONE);
    store_boolean(text, value != 0);
    walk->p = after;
    text->expect = TENSOR_TEXT_EXPECT_SEPARATOR;
    return true;
}

static bool number(struct tensor_text *text, struct walk *walk) {
    static bool (*const row[])(struct tensor_text *, struct walk *) = {
        [TENSOR_TEXT_F64] = row_of_f64, [TENSOR_TEXT_F32] = row_of_f32, [TENSOR_TEXT_F64_TIES] = row_of_f64_ties};
    if ((text->accept & TENSOR_TEXT_NUMBERS) != 0) {
        if (!admit(text, walk, stored_reals(text))) return false;
        text->seen |= TENSOR_TEXT_NUMBERS;
        return row[text->reals](text, walk);
    }
    if ((text->accept & TENSOR_TEXT_ZERO_ONE) == 0) return fail(text, walk, walk->p, TENSOR_TEXT_WRONG_TYPE);
    if (!admit(text, walk, TENSOR_TEXT_STORED_U8)) return false;
    text->seen |= TENSOR_TEXT_NUMBERS;
    return zero_or_one(text, walk);
}

/* true, false, null, or what only looks like a word */
static bool word(struct tensor_text *text, struct walk *walk) {
    static const struct {
        const char *name;
        size_t length;
        unsigned kind;
    } words[] = {{"true", 4, TENSOR_TEXT_BOOLEANS}, {"false", 5, TENSOR_TEXT_BOOLEANS}, {"null", 4, TENSOR_TEXT_NULLS}};
    const char *p = walk->p;
    size_t length = token_length(p, CLASS_TOKEN, 16);
    if (is_non_finite_word(p, length)) return fail(text, walk, p, TENSOR_TEXT_NON_FINITE);
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++) {
        if (length != words[i].length || memcmp(p, words[i].name, length) != 0) continue;
        unsigned kind = words[i].kind;
        if ((text->accept & kind) == 0) return fail(text, walk, p, TENSOR_TEXT_WRONG_TYPE);
        bool boolean = kind == TENSOR_TEXT_BOOLEANS;
        if (!admit(text, walk, boolean ? TENSOR_TEXT_STORED_U8 : stored_reals(text))) return false;
        text->seen |= kind;
        if (boolean)
            store_boolean(text, *p == 't');
        else
            store_real(text, -(double)INFINITY);
        walk->p = p + length;
        text->expect = TENSOR_TEXT_EXPECT_SEPARATOR;
        return true;
    }
    return fail(text, walk, p, TENSOR_TEXT_SYNTAX);
}

/* ---- the walk ----------------------------------------------------------------------------------------------------- */

static bool value(struct tensor_text *text, struct walk *walk) {
    char c = *walk->p;
    unsigned class = class_at(walk->p);
    if (c == '[') return open_array(text, walk);
    if (c == ']' && text->expect == TENSOR_TEXT_EXPECT_VALUE_OR_CLOSE) return close_array(text, walk);
    if (text->expect == TENSOR_TEXT_EXPECT_START) return fail(text, walk, walk->p, TENSOR_TEXT_WRONG_TYPE);
    if ((class & CLASS_FIRST) != 0) return number(text, walk);
    if ((class & CLASS_WORD) != 0) return word(text, walk);
    return fail(text, walk, walk->p, c == '"' || c == '{' ? TENSOR_TEXT_WRONG_TYPE : TENSOR_TEXT_SYNTAX);
}

static bool separator(struct tensor_text *text, struct walk *walk) {
    char c = *walk->p;
    if (c == ']') return close_array(text, walk);
    if (c != ',') return fail(text, walk, walk->p, TENSOR_TEXT_SYNTAX);
    text->expect = TENSOR_TEXT_EXPECT_VALUE;
    walk->p++;
    return true;
}

/* To the limit, to the end of the value, or to an error. */
static void walk_all(struct tensor_text *text, struct walk *walk) {
    bool on = true;
    while (on && walk->p < walk->limit) {
        if ((class_at(walk->p) & CLASS_SPACE) != 0)
            walk->p++;
        else
            on = text->expect == TENSOR_TEXT_EXPECT_SEPARATOR ? separator(text, walk) : value(text, walk);
    }
    text->consumed += (uint64_t)(walk->p - walk->begin);
    text->data->size = text->count * element_size(text->stored);
}

/* Room for whatever `bytes` more of text can hold. */
static bool reserve(struct tensor_text *text, size_t bytes) {
    size_t have = text->count * element_size(text->stored);
    size_t need = have + (bytes / 2 + 1) * 8;
    if (need <= text->data->capacity) return true;
    size_t slack = have / 4 < SLACK_MAX ? have / 4 : SLACK_MAX;
    if (mem_grow_reserve(text->data, need + slack) == MEM_OK) return true;
    text->memory = mem_grow_reserve(text->data, need);
    if (text->memory == MEM_OK) return true;
    struct walk here = {.begin = text->carry};
    return fail(text, &here, text->carry, TENSOR_TEXT_MEMORY);
}

/* Completes the carried token with the bytes up to and with the next delimiter, and walks it. Returns the bytes taken. */
static size_t finish_carry(struct tensor_text *text, const char *bytes, size_t size) {
    const size_t most = TENSOR_TEXT_NUMBER_MAX + 1;
    size_t taken = 0;
    while (taken < size && text->carried < most && (class_at(bytes + taken) & CLASS_TOKEN) != 0)
        text->carry[text->carried++] = bytes[taken++];
    if (text->carried < most) {
        if (taken == size) return taken;
        text->carry[text->carried++] = bytes[taken++];
    } else {
        text->carry[text->carried++] = '\0'; /* too long for anything: the walk will find out for what */
    }
    struct walk walk = {text->carry, text->carry, text->carry + text->carried, text->carry + text->carried};
    text->carried = 0;
    if (reserve(text, 16)) walk_all(text, &walk);
    return taken;
}

/* One slice, nothing being carried: walks up to the last delimiter, keeps the tail. */
static size_t walk_slice(struct tensor_text *text, const char *bytes, size_t size, size_t readable) {
    const size_t most = TENSOR_TEXT_NUMBER_MAX + 1;
    size_t whole = size;
    while (whole > 0 && (class_at(bytes + whole - 1) & CLASS_TOKEN) != 0) whole--;
    struct walk walk = {bytes, bytes, bytes + whole, bytes + readable};
    if (!reserve(text, whole)) return 0;
    walk_all(text, &walk);
    if (text->status != TENSOR_TEXT_MORE) return (size_t)(walk.p - bytes);
    text->carried = size - whole < most ? size - whole : most;
    memcpy(text->carry, bytes + whole, text->carried);
    return whole + text->carried;
}

enum tensor_text_status tensor_text_feed(struct tensor_text *text, const char *bytes, size_t size, size_t *used) {
    size_t taken = 0;
    while (text->status == TENSOR_TEXT_MORE && taken < size) {
        size_t left = size - taken;
        if (text->carried > 0)
            taken += finish_carry(text, bytes + taken, left);
        else
            taken += walk_slice(text, bytes + taken, left < SLICE ? left : SLICE, left);
    }
    *used = taken;
    return text->status;
}

/* ---- afterwards --------------------------------------------------------------------------------------------------- */

bool tensor_text_only_zero_one(const struct tensor_text *text) {
    if (text->stored != TENSOR_TEXT_STORED_F64 && text->stored != TENSOR_TEXT_STORED_F32) return false;
    for (size_t i = 0; i < text->count; i++) {
        const void *data = text->data->data;
        double value =
            text->stored == TENSOR_TEXT_STORED_F64 ? ((const double *)data)[i] : (double)((const float *)data)[i];
        if (value != 0 && value != 1) return false;
    }
    return text->count > 0;
}

void tensor_text_path(const struct tensor_text *text, size_t flat, size_t index[TENSOR_TEXT_RANK_MAX]) {
    for (size_t level = text->rank; level-- > 0;) {
        size_t dim = text->dim[level] > 0 ? text->dim[level] : 1;
        index[level] = flat % dim;
        flat /= dim;
    }
}

float tensor_text_round_tie(double value, bool above) {
    float rounded = (float)value;
    if (above && (double)rounded < value) return nextafterf(rounded, INFINITY);
    if (!above && (double)rounded > value) return nextafterf(rounded, -INFINITY);
    return rounded;
}

enum tensor_text_status tensor_text_to_f32(struct tensor_text *text) {
    if (text->stored != TENSOR_TEXT_STORED_F64) return TENSOR_TEXT_DONE;
    char *data = text->data->data;
    const char *tie = text->ties != NULL ? text->ties->data : NULL;
    const char *ties_end = tie != NULL ? tie + text->ties->size : NULL;
    size_t tied = SIZE_MAX;
    if (tie != ties_end) memcpy(&tied, tie, sizeof tied);
    for (size_t i = 0; i < text->count; i++) { /* element i goes where element i / 2 was: already read */
        double wide;
        memcpy(&wide, data + i * sizeof wide, sizeof wide);
        float narrow = (float)wide;
        if (tied >> 1 == i) {
            narrow = tensor_text_round_tie(wide, (tied & 1) != 0);
            tie += sizeof tied;
            tied = SIZE_MAX;
            if (tie != ties_end) memcpy(&tied, tie, sizeof tied);
        }
        if (isinf(narrow) && !isinf(wide)) {
            text->index_length = text->rank;
            tensor_text_path(text, i, text->index);
            return text->status = TENSOR_TEXT_OUT_OF_RANGE;
        }
        memcpy(data + i * sizeof narrow, &narrow, sizeof narrow);
    }
    text->stored = TENSOR_TEXT_STORED_F32;
    text->data->size = text->count * sizeof(float);
    return TENSOR_TEXT_DONE;
}

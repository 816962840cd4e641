/* SPDX-License-Identifier: Apache-2.0
 *
 * tests/fuzz/fuzz_document.c - whole requests through the document reader, the builder, the reference and the writer.
 *
 * Beyond not crashing, with the body whole and in pieces chosen by the input:
 *   - both ways of feeding give the same answer, byte for byte;
 *   - what the reader takes is JSON, and what it calls no JSON is not, by a second validator written differently (recursive,
 *     over the whole text) and, one way, by cJSON (which takes more than the grammar);
 *   - every answer is JSON itself, its status is that of its code, and nothing stays charged.
 */
#include <cjson/cJSON.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../api/call.h"

int LLVMFuzzerTestOneInput(const unsigned char *bytes, size_t size);

static void must(bool ok, const char *what) {
    if (ok) return;
    fprintf(stderr, "%s\n", what);
    abort();
}

/* ---- the second validator: returns where the value ends, NULL if it is none ---- */

struct text {
    const char *p, *end;
};

static bool value(struct text *t, int depth);

static void space(struct text *t) {
    while (t->p < t->end && *t->p && strchr(" \t\r\n", *t->p)) t->p++;
}

static bool take(struct text *t, char c) { return t->p < t->end && *t->p == c ? (t->p++, true) : false; }

static bool digits(struct text *t) {
    const char *from = t->p;
    while (t->p < t->end && *t->p >= '0' && *t->p <= '9') t->p++;
    return t->p > from;
}

static bool number(struct text *t) {
    take(t, '-');
    if (!take(t, '0') && !digits(t)) return false;
    if (take(t, '.') && !digits(t)) return false;
    if (take(t, 'e') || take(t, 'E')) {
        if (!take(t, '+')) take(t, '-');
        return digits(t);
    }
    return true;
}

static bool hex4(struct text *t, unsigned *unit) {
    *unit = 0;
    for (int i = 0; i < 4; i++, t->p++) {
        if (t->p >= t->end || !*t->p || !strchr("0123456789abcdefABCDEF", *t->p)) return false;
        *unit = *unit * 16 + (unsigned)strtoul((char[]){*t->p, 0}, NULL, 16);
    }
    return true;
}

static bool escape(struct text *t) {
    unsigned unit, low;
    if (t->p >= t->end || !*t->p) return false;
    char c = *t->p++;
    if (c != 'u') return strchr("\"\\/bfnrt", c) != NULL;
    if (!hex4(t, &unit)) return false;
    if (unit >= 0xDC00 && unit <= 0xDFFF) return false;
    if (unit < 0xD800 || unit > 0xDBFF) return true;
    return take(t, '\\') && take(t, 'u') && hex4(t, &low) && low >= 0xDC00 && low <= 0xDFFF;
}

/* One character that is not ASCII, decoded and checked as a number. */
static bool wide(struct text *t) {
    static const unsigned least[] = {0, 0, 0x80, 0x800, 0x10000};
    unsigned char c = (unsigned char)*t->p;
    size_t n = c >= 0xF0 ? 4 : c >= 0xE0 ? 3 : c >= 0xC0 ? 2 : 0;
    if (n == 0 || c >= 0xF8 || (size_t)(t->end - t->p) < n) return false;
    unsigned code = c & (0xFFu >> (n + 1));
    for (size_t i = 1; i < n; i++) {
        unsigned char next = (unsigned char)t->p[i];
        if ((next & 0xC0) != 0x80) return false;
        code = code << 6 | (next & 0x3F);
    }
    t->p += n;
    return code >= least[n] && code <= 0x10FFFF && !(code >= 0xD800 && code <= 0xDFFF);
}

static bool string(struct text *t) {
    if (!take(t, '"')) return false;
    while (t->p < t->end) {
        unsigned char c = (unsigned char)*t->p;
        if (c == '"') return take(t, '"');
        if (c < 0x20) return false;
        if (c >= 0x80) {
            if (!wide(t)) return false;
        } else {
            t->p++;
            if (c == '\\' && !escape(t)) return false;
        }
    }
    return false;
}

static bool word(struct text *t, const char *name) {
    size_t n = strlen(name);
    if ((size_t)(t->end - t->p) < n || memcmp(t->p, name, n) != 0) return false;
    t->p += n;
    return true;
}

static bool members(struct text *t, char close, bool named, int depth) {
    space(t);
    if (take(t, close)) return true;
    do {
        space(t);
        if (named) {
            if (!string(t)) return false;
            space(t);
            if (!take(t, ':')) return false;
        }
        if (!value(t, depth)) return false;
        space(t);
    } while (take(t, ','));
    return take(t, close);
}

static bool value(struct text *t, int depth) {
    if (depth > 4000) return false;
    space(t);
    if (t->p >= t->end) return false;
    if (take(t, '{')) return members(t, '}', true, depth + 1);
    if (take(t, '[')) return members(t, ']', false, depth + 1);
    if (*t->p == '"') return string(t);
    if (*t->p == '-' || (*t->p >= '0' && *t->p <= '9')) return number(t);
    return word(t, "true") || word(t, "false") || word(t, "null");
}

static bool is_json(const char *bytes, size_t size) {
    struct text t = {bytes, bytes + size};
    if (!value(&t, 0)) return false;
    space(&t);
    return t.p == t.end;
}

static bool cjson_takes(const char *bytes, size_t size) {
    cJSON *json = cJSON_ParseWithLength(bytes, size);
    cJSON_Delete(json);
    return json != NULL;
}

/* ---- the product ---- */

struct answer {
    int status;
    enum problem_code code;
    char *text;
    size_t length;
};

static struct answer post(const struct api_env *env, const char *bytes, size_t size, unsigned seed) {
    struct api_call *call = api_call_open(env, API_MHA, API_JSON, API_JSON, SIZE_MAX);
    must(call != NULL, "open");
    for (size_t at = 0; at < size;) {
        seed = seed * 1664525u + 1013904223u;
        size_t piece = seed >> 8 & 1 ? 1 + (seed >> 16) % 7 : 1 + (seed >> 16) % 200;
        if (seed == 0 || piece > size - at) piece = size - at;
        char *copy = malloc(piece);
        memcpy(copy, bytes + at, piece);
        api_call_feed(call, copy, piece);
        free(copy);
        at += piece;
    }
    api_call_end(call);
    if (api_call_run(call) && api_call_flops(call) > 1e6)
        problem_set(api_call_problem(call), PROBLEM_DEADLINE, "", "too much");
    if (api_call_run(call)) {
        mha_run_here(api_call_run(call));
        api_call_computed(call);
    }
    struct answer a = {.status = api_call_status(call), .code = api_call_problem(call)->code, .text = malloc(1)};
    char block[4096];
    for (size_t n; (n = api_call_read(call, block, sizeof block)) > 0; a.length += n) {
        a.text = realloc(a.text, a.length + n);
        memcpy(a.text + a.length, block, n);
    }
    api_call_close(call);
    return a;
}

int LLVMFuzzerTestOneInput(const unsigned char *bytes, size_t size) {
    static struct mem_budget budget = {.limit = (size_t)1 << 20};
    static const struct api_env env = {.budget = &budget, .max_body = (size_t)1 << 20, .threads = 1};
    if (size < 1) return 0;
    const char *body = (const char *)bytes + 1;
    size--;
    struct answer whole = post(&env, body, size, 0), pieces = post(&env, body, size, 1 + bytes[0]);
    bool same = whole.length == pieces.length && memcmp(whole.text, pieces.text, whole.length) == 0;
    if (!same)
        fprintf(stderr, "whole: %.*s\npieces: %.*s\n", (int)whole.length, whole.text, (int)pieces.length, pieces.text);
    must(same && whole.status == pieces.status, "the answer depends on how the body was cut");
    must(whole.status == problem_status(whole.code), "status");
    must(is_json(whole.text, whole.length) && cjson_takes(whole.text, whole.length), "the answer is not JSON");
    bool json = is_json(body, size);
    if (whole.code == PROBLEM_NONE) must(json && cjson_takes(body, size), "took what is not JSON");
    if (whole.code == PROBLEM_JSON_SYNTAX || whole.code == PROBLEM_JSON_EMPTY) must(!json, "called JSON what is none");
    must(whole.code != PROBLEM_INTERNAL, "internal error");
    must(atomic_load(&budget.used) == 0, "memory stayed charged");
    free(whole.text);
    free(pieces.text);
    return 0;
}

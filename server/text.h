/* SPDX-License-Identifier: Apache-2.0
 *
 * server/text.h - building short texts (log lines, metrics, headers, raw answers) in a buffer of fixed size.
 *
 * Model. A `struct text` borrows a buffer. What does not fit is cut and `cut` is set; nothing ever overruns, and the text is
 * always NUL-terminated. Durations are printed from integer nanoseconds, so no locale and no floating point is involved.
 *
 * What it does not do: grow, or own memory.
 */
#ifndef MHA_SERVER_TEXT_H
#define MHA_SERVER_TEXT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

struct text {
    char *at;        /* the buffer */
    size_t size;     /* bytes written, without the NUL */
    size_t capacity; /* bytes that may be written, with the NUL; >= 1 */
    bool cut;
};

/* An empty text in buffer[capacity]. */
struct text text_in(char *buffer, size_t capacity);
/* What did not fit: the part that still does, and cut. */
void text_cut(struct text *text, const char *bytes);

/* Inline, so that the length of a literal is a constant: a log line is mostly literals. */
static inline void text_bytes(struct text *text, const char *bytes, size_t size) {
    if (__builtin_expect(size > text->capacity - 1 - text->size, 0)) {
        text_cut(text, bytes);
        return;
    }
    char *end = text->at + text->size;
    memcpy(end, bytes, size);
    end[size] = '\0';
    text->size += size;
}

static inline void text_add(struct text *text, const char *string) { text_bytes(text, string, strlen(string)); }
void text_decimal(struct text *text, uint64_t value);
void text_hex(struct text *text, uint64_t value); /* 16 digits */
void text_format(struct text *text, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* A JSON string with its quotes; control characters, quote and backslash escaped, bytes that are not UTF-8 as U+FFFD. */
void text_json(struct text *text, const char *string);
/* Nanoseconds as "12.345" milliseconds, as "0.012345678" seconds. */
void text_ms(struct text *text, uint64_t ns);
void text_seconds(struct text *text, uint64_t ns);
/* "2026-11-30T00:55:30" for seconds since 1970. */
void text_second(struct text *text, int64_t unix_seconds);
/* `digits` digits of `value`, with leading zeros. */
void text_padded(struct text *text, uint64_t value, unsigned digits);

#endif

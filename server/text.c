/* SPDX-License-Identifier: Apache-2.0
 *
 * server/text.c - see text.h.
 */
#include "text.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

struct text text_in(char *buffer, size_t capacity) {
    buffer[0] = '\0';
    return (struct text){.at = buffer, .size = 0, .capacity = capacity, .cut = false};
}

void text_cut(struct text *text, const char *bytes) {
    size_t room = text->capacity - 1 - text->size;
    text->cut = true;
    memcpy(text->at + text->size, bytes, room);
    text->size += room;
    text->at[text->size] = '\0';
}

void text_format(struct text *text, const char *format, ...) {
    size_t room = text->capacity - text->size;
    va_list arguments;
    va_start(arguments, format);
    int length = vsnprintf(text->at + text->size, room, format, arguments);
    va_end(arguments);
    if (length < 0) return;
    if ((size_t)length >= room) {
        text->cut = true;
        length = (int)(room - 1);
    }
    text->size += (size_t)length;
}

/* Bytes of the UTF-8 sequence that begins at s (RFC 3629: no overlong forms, no surrogates), 0 if it is none. */
static size_t utf8_length(const unsigned char *s) {
    if (s[0] < 0x80) return 1;
    if (s[0] >= 0xC2 && s[0] <= 0xDF) return (s[1] & 0xC0) == 0x80 ? 2 : 0;
    if (s[0] >= 0xE0 && s[0] <= 0xEF) {
        if ((s[1] & 0xC0) != 0x80 || (s[2] & 0xC0) != 0x80) return 0;
        if (s[0] == 0xE0 && s[1] < 0xA0) return 0;
        if (s[0] == 0xED && s[1] > 0x9F) return 0;
        return 3;
    }
    if (s[0] >= 0xF0 && s[0] <= 0xF4) {
        if ((s[1] & 0xC0) != 0x80 || (s[2] & 0xC0) != 0x80 || (s[3] & 0xC0) != 0x80) return 0;
        if (s[0] == 0xF0 && s[1] < 0x90) return 0;
        if (s[0] == 0xF4 && s[1] > 0x8F) return 0;
        return 4;
    }
    return 0;
}

void text_json(struct text *text, const char *string) {
    const unsigned char *s = (const unsigned char *)string;
    text_add(text, "\"");
    while (*s) {
        size_t length = utf8_length(s);
        if (length == 0) {
            text_add(text, "\\ufffd");
            s++;
        } else if (*s == '"' || *s == '\\') {
            text_format(text, "\\%c", *s++);
        } else if (*s < 0x20 || *s == 0x7F) {
            text_format(text, "\\u%04x", *s++);
        } else {
            text_bytes(text, (const char *)s, length);
            s += length;
        }
    }
    text_add(text, "\"");
}

void text_padded(struct text *text, uint64_t value, unsigned digits) {
    char buffer[20];
    for (unsigned i = digits; i--; value /= 10) buffer[i] = (char)('0' + value % 10);
    text_bytes(text, buffer, digits);
}

void text_decimal(struct text *text, uint64_t value) {
    char buffer[20], *first = buffer + sizeof buffer;
    do *--first = (char)('0' + value % 10);
    while (value /= 10);
    text_bytes(text, first, (size_t)(buffer + sizeof buffer - first));
}

void text_hex(struct text *text, uint64_t value) {
    char buffer[16];
    for (unsigned i = 16; i--; value >>= 4) buffer[i] = "0123456789abcdef"[value & 15];
    text_bytes(text, buffer, sizeof buffer);
}

void text_ms(struct text *text, uint64_t ns) {
    uint64_t us = ns / 1000, ms = us / 1000;
    unsigned rest = (unsigned)(us - ms * 1000);
    char fraction[] = {'.', (char)('0' + rest / 100), (char)('0' + rest / 10 % 10), (char)('0' + rest % 10)};
    text_decimal(text, ms);
    text_bytes(text, fraction, sizeof fraction);
}

void text_seconds(struct text *text, uint64_t ns) {
    text_decimal(text, ns / 1000000000);
    text_bytes(text, ".", 1);
    text_padded(text, ns % 1000000000, 9);
}

void text_second(struct text *text, int64_t unix_seconds) {
    time_t seconds = (time_t)unix_seconds;
    struct tm utc;
    gmtime_r(&seconds, &utc);
    text_format(text, "%04d-%02d-%02dT%02d:%02d:%02d", utc.tm_year + 1900, utc.tm_mon + 1, utc.tm_mday, utc.tm_hour,
                utc.tm_min, utc.tm_sec);
}

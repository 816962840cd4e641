/* SPDX-License-Identifier: Apache-2.0
 *
 * server/log.c - see log.h.
 */
#include "log.h"

#include <errno.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "clock.h"

#define BUFFER_BYTES  65536
#define LINE_MAX_ROOM 4096 /* a line is begun only where this much is free */

static const char *const level_names[] = {"debug", "info", "warn", "error"};

void log_open(struct log *log, enum log_format format, enum log_level level, int fd) {
    struct stat status;
    *log = (struct log){.format = format, .level = level, .fd = fd};
    log->is_file = fstat(fd, &status) == 0 && S_ISREG(status.st_mode);
    char *memory = malloc(BUFFER_BYTES);
    if (memory)
        log->buffer = text_in(memory, BUFFER_BYTES);
    else
        log->format = LOG_OFF;
}

void log_close(struct log *log) {
    log_flush(log);
    free(log->buffer.at);
    log->buffer = (struct text){0};
    log->format = LOG_OFF;
}

/* "2026-11-30T00:55:30.123456Z"; the part up to the second is made once a second. */
static void write_time(struct log *log, uint64_t unix_ns) {
    int64_t second = (int64_t)(unix_ns / NS_PER_SECOND);
    if (second != log->second) {
        struct text out = text_in(log->second_text, sizeof log->second_text);
        text_second(&out, second);
        log->second = second;
    }
    text_add(&log->buffer, log->second_text);
    text_add(&log->buffer, ".");
    text_padded(&log->buffer, unix_ns / 1000 % 1000000, 6);
    text_add(&log->buffer, "Z");
}

bool log_begin(struct log *log, enum log_level level, const char *event) {
    if (log->format == LOG_OFF || level < log->level) return false;
    if (log->buffer.capacity - log->buffer.size < LINE_MAX_ROOM) log_flush(log);
    log->line_start = log->buffer.size;
    log->line_open = true;
    log->buffer.cut = false;
    bool json = log->format == LOG_JSON;
    if (json) text_add(&log->buffer, "{\"time\":\"");
    write_time(log, clock_wall());
    text_add(&log->buffer, json ? "\",\"level\":\"" : " ");
    text_add(&log->buffer, level_names[level]);
    text_add(&log->buffer, json ? "\",\"event\":\"" : " ");
    text_add(&log->buffer, event);
    if (json) text_add(&log->buffer, "\"");
    return true;
}

#define EACH(byte) (UINT64_C(0x0101010101010101) * (byte))

/* Nonzero if one of the eight bytes is 0. */
static uint64_t any_zero(uint64_t bytes) { return (bytes - EACH(1)) & ~bytes & EACH(0x80); }

/* Whether all is printable ASCII but for quote and backslash: eight bytes at a time, the last ones filled up with
 * spaces. */
static bool is_plain(const char *s, size_t size) {
    uint64_t odd = 0, bytes;
    for (; size; s += 8, size -= 8) {
        bytes = EACH(' ');
        if (size < 8) {
            memcpy(&bytes, s, size);
            size = 8;
        } else {
            memcpy(&bytes, s, 8);
        }
        odd |= bytes & EACH(0x80);
        odd |= (bytes - EACH(0x20)) & ~bytes & EACH(0x80);
        odd |= any_zero(bytes ^ EACH(0x7F)) | any_zero(bytes ^ EACH('"')) | any_zero(bytes ^ EACH('\\'));
    }
    return odd == 0;
}

void log_plain_value(struct log *log, const char *value) {
    size_t size = strlen(value);
    bool quotes = log->format == LOG_JSON || memchr(value, ' ', size);
    if (quotes) text_add(&log->buffer, "\"");
    text_bytes(&log->buffer, value, size);
    if (quotes) text_add(&log->buffer, "\"");
}

void log_value(struct log *log, const char *value) {
    if (is_plain(value, strlen(value)))
        log_plain_value(log, value);
    else
        text_json(&log->buffer, value);
}

void log_end(struct log *log) {
    text_add(&log->buffer, log->format == LOG_JSON ? "}\n" : "\n");
    log->line_open = false;
    if (!log->buffer.cut) return;
    log->buffer.size = log->line_start; /* half a line helps nobody */
    log->buffer.cut = false;
    log->dropped++;
}

void log_message(struct log *log, enum log_level level, const char *event, const char *format, ...) {
    char message[1024];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(message, sizeof message, format, arguments);
    va_end(arguments);
    if (!log_begin(log, level, event)) return;
    log_string(log, "message", message);
    log_end(log);
    if (level >= LOG_WARN) log_flush(log);
}

/* A pipe that polls writable takes PIPE_BUF (4096) bytes without blocking, no more than that is sure. */
static bool write_slice(const struct log *log, const char *bytes, size_t size) {
    struct pollfd poller = {.fd = log->fd, .events = POLLOUT};
    while (size) {
        if (!log->is_file && (poll(&poller, 1, 0) != 1 || !(poller.revents & POLLOUT))) return false;
        ssize_t written = write(log->fd, bytes, size < 4096 ? size : 4096);
        if (written < 0 && errno == EINTR) continue;
        if (written <= 0) return false;
        bytes += written;
        size -= (size_t)written;
    }
    return true;
}

void log_flush(struct log *log) {
    if (log->format == LOG_OFF || log->buffer.size == 0) return;
    const char *line = log->buffer.at, *end = line + log->buffer.size;
    /* Whole lines at a time, so that what is dropped is whole lines. */
    while (line < end) {
        const char *stop = line;
        while (stop < end && (stop == line || stop - line < 2048)) {
            const char *newline = memchr(stop, '\n', (size_t)(end - stop));
            const char *next = newline ? newline + 1 : end;
            if (stop > line && next - line > 4096) break;
            stop = next;
        }
        if (!write_slice(log, line, (size_t)(stop - line)))
            for (const char *s = line; s < stop; s++) log->dropped += *s == '\n';
        line = stop;
    }
    log->buffer.size = 0;
    log->buffer.at[0] = '\0';
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * server/log.h - lines on stderr, JSON or text, gathered during one turn of the I/O loop and written at its end.
 *
 * Model. A line is a time, a level, an event name and fields. Lines go into a buffer; log_flush writes it. A reader of stderr
 * that does not read (a full pipe) must not stop the service: then lines are dropped and counted. Used by the I/O thread alone
 * once the loop runs.
 *
 * What it does not do: see tensors or tokens. A field is what the caller hands over; nothing else of a request is in reach.
 */
#ifndef MHA_SERVER_LOG_H
#define MHA_SERVER_LOG_H

#include "config.h"
#include "text.h"

struct log {
    enum log_format format;
    enum log_level level;
    int fd;
    uint64_t dropped; /* lines */
    int64_t second;   /* that second_text stands for */
    char second_text[24];
    struct text buffer;
    bool line_open; /* between log_begin and log_end */
    size_t line_start;
};

void log_open(struct log *log, enum log_format format, enum log_level level, int fd);
void log_close(struct log *log);
/* False: this level is not wanted, skip the rest. */
bool log_begin(struct log *log, enum log_level level, const char *event);
/* ,"name": or  name= */
void log_name(struct log *log, const char *name, size_t length);
void log_value(struct log *log, const char *value);

/* Nothing where the value is "". Inline, so that the length of the name is a constant. */
static inline void log_string(struct log *log, const char *name, const char *value) {
    if (!value[0]) return;
    log_name(log, name, strlen(name));
    log_value(log, value);
}

static inline void log_count(struct log *log, const char *name, uint64_t value) {
    log_name(log, name, strlen(name));
    text_decimal(&log->buffer, value);
}

static inline void log_ms(struct log *log, const char *name, uint64_t ns) {
    log_name(log, name, strlen(name));
    text_ms(&log->buffer, ns);
}

void log_end(struct log *log);
/* A line with one message: log_message(&log, LOG_WARN, "drain", "3 requests were cut"). */
void log_message(struct log *log, enum log_level level, const char *event, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
void log_flush(struct log *log);

#endif

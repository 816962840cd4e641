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
    bool is_file;     /* writing never waits for a reader */
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
/* The name of a field in both formats: LOG_FIELD("id") is the text ,"id": and the text  id= . */
struct log_field {
    const char *json, *text;
};
#define LOG_FIELD(name) ((struct log_field){",\"" name "\":", " " name "="})

/* Inline, so that the lengths of names are constants: a line is mostly names. */
static inline void log_name(struct log *log, struct log_field field) {
    if (log->format == LOG_JSON)
        text_add(&log->buffer, field.json);
    else
        text_add(&log->buffer, field.text);
}

/* What a client may have had a hand in; anything goes. */
void log_value(struct log *log, const char *value);
/* What is known to be printable ASCII without quote and backslash, because we made it or have checked it. */
void log_plain_value(struct log *log, const char *value);

/* These four take the name as a literal. Strings: nothing where the value is "". */
#define log_string(log, name, value) log_string_as(log, LOG_FIELD(name), value)
#define log_plain(log, name, value)  log_plain_as(log, LOG_FIELD(name), value)
#define log_count(log, name, value)  log_count_as(log, LOG_FIELD(name), value)
#define log_ms(log, name, ns)        log_ms_as(log, LOG_FIELD(name), ns)

static inline void log_string_as(struct log *log, struct log_field field, const char *value) {
    if (!value[0]) return;
    log_name(log, field);
    log_value(log, value);
}

static inline void log_plain_as(struct log *log, struct log_field field, const char *value) {
    if (!value[0]) return;
    log_name(log, field);
    log_plain_value(log, value);
}

static inline void log_count_as(struct log *log, struct log_field field, uint64_t value) {
    log_name(log, field);
    text_decimal(&log->buffer, value);
}

static inline void log_ms_as(struct log *log, struct log_field field, uint64_t ns) {
    log_name(log, field);
    text_ms(&log->buffer, ns);
}

void log_end(struct log *log);
/* A line with one message: log_message(&log, LOG_WARN, "drain", "3 requests were cut"). */
void log_message(struct log *log, enum log_level level, const char *event, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
void log_flush(struct log *log);

#endif

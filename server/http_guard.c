/* SPDX-License-Identifier: Apache-2.0
 *
 * server/http_guard.c - see http_guard.h.
 */
#include "http_guard.h"

#include <string.h>
#include <strings.h>

/* RFC 9110, section 5.6.2: token = 1*tchar. */
static bool is_token(const char *s, size_t size) {
    static const bool tchar[256] = {
        ['0' ... '9'] = true, ['A' ... 'Z'] = true, ['a' ... 'z'] = true, ['!'] = true, ['#'] = true, ['$'] = true,
        ['%'] = true,         ['&'] = true,         ['\''] = true,        ['*'] = true, ['+'] = true, ['-'] = true,
        ['.'] = true,         ['^'] = true,         ['_'] = true,         ['`'] = true, ['|'] = true, ['~'] = true,
    };
    for (size_t i = 0; i < size; i++)
        if (!tchar[(unsigned char)s[i]]) return false;
    return size > 0;
}

/* libmicrohttpd 0.9 leaves name and value where they came in: "name" NUL white space "value" NUL NUL, the two last where CR
 * and LF were. A folded line is glued to the *name* (which then lives elsewhere), a bare LF leaves one NUL, a NUL byte inside
 * the value ends it early. None of this can be asked for, but the places tell. Later versions check by themselves. */
static const char *line_flaw(const char *name, size_t name_size, const char *value, size_t value_size) {
#if MHD_VERSION < 0x00097701
    const char *s = name + name_size;
    if (value <= s || value - s > 65536) return "a header line is folded";
    for (s++; s < value; s++)
        if (*s != ' ' && *s != '\t') return "a header line is folded";
    if (value[value_size + 1] != '\0') return "a header line ends without CR LF, or holds a NUL byte";
#else
#endif
    if (memchr(value, '\r', value_size)) return "a header line holds a CR without LF";
    return is_token(name, name_size) ? NULL
                                     : "a header name holds white space or another character that names may not have";
}

/* In the same way: "METHOD" NUL "URI" NUL "VERSION" NUL NUL, with nothing between them. */
static const char *request_line_flaw(const struct request_line *line) {
    if (strcspn(line->uri, " \t\r") < strlen(line->uri)) return "the path holds white space; write %20";
#if MHD_VERSION < 0x00097701
    if (line->method + strlen(line->method) + 1 != line->uri || line->uri + line->uri_size + 1 != line->version)
        return "the first line holds a NUL byte or too much white space";
    if (line->version[strlen(line->version) + 1] != '\0') return "the first line ends without CR LF";
#endif
    return NULL;
}

struct wanted {
    const char *name;
    size_t size;
    size_t field;
};

#define WANTED(name, field)                                                                                            \
    { name, sizeof name - 1, offsetof(struct headers, field) }

static const struct wanted wanted[] = {
    WANTED("Content-Type", content_type),
    WANTED("Content-Length", content_length),
    WANTED("Transfer-Encoding", transfer_encoding),
    WANTED("Host", host),
    WANTED("Accept", accept),
    WANTED("Expect", expect),
    WANTED("Authorization", authorization),
    WANTED("Origin", origin),
    WANTED("X-Request-Id", request_id),
    WANTED("X-Request-Timeout", request_timeout),
    WANTED("traceparent", traceparent),
    WANTED("Access-Control-Request-Method", preflight_method),
};

static enum MHD_Result take_line(void *context, enum MHD_ValueKind kind, const char *name, size_t name_size,
                                 const char *value, size_t value_size) {
    struct headers *headers = context;
    (void)kind;
    if (!value) value = "";
    if (!headers->malformed) headers->malformed = line_flaw(name, name_size, value, value_size);
    for (size_t i = 0; i < sizeof wanted / sizeof wanted[0]; i++) {
        if (wanted[i].size != name_size || strcasecmp(name, wanted[i].name) != 0) continue;
        const char **field = (const char **)((char *)headers + wanted[i].field);
        if (!*field) *field = value;
        headers->hosts += field == &headers->host;
        headers->content_lengths += field == &headers->content_length;
        headers->transfer_encodings += field == &headers->transfer_encoding;
        break;
    }
    return MHD_YES;
}

void headers_read(struct headers *headers, struct MHD_Connection *connection) {
    *headers = (struct headers){0};
    MHD_get_connection_values_n(connection, MHD_HEADER_KIND, take_line, headers);
}

bool guard_check(const struct headers *headers, const struct request_line *line, struct problem *problem) {
    const char *version = line->version, *flaw = line->uri ? request_line_flaw(line) : NULL;
    bool http11 = strcmp(version, "HTTP/1.1") == 0;
    if (!http11 && strcmp(version, "HTTP/1.0") != 0)
        return problem_set(problem, PROBLEM_HTTP, "", "The protocol is %.20s; send HTTP/1.1 (or 1.0)", version);
    if (flaw) return problem_set(problem, PROBLEM_HTTP, "", "In the request header, %s", flaw);
    if (headers->malformed)
        return problem_set(problem, PROBLEM_HTTP, "", "In the request header, %s", headers->malformed);
    if (headers->content_lengths > 1)
        return problem_set(problem, PROBLEM_HTTP, "", "There are %u Content-Length headers; send one",
                           headers->content_lengths);
    if (headers->transfer_encodings && headers->content_lengths)
        return problem_set(problem, PROBLEM_HTTP, "",
                           "There are both Content-Length and Transfer-Encoding; send only one of them");
    if (headers->transfer_encodings > 1)
        return problem_set(problem, PROBLEM_HTTP, "", "There are %u Transfer-Encoding headers; send one",
                           headers->transfer_encodings);
    if (headers->transfer_encodings && !http11)
        return problem_set(problem, PROBLEM_HTTP, "", "Transfer-Encoding belongs to HTTP/1.1 and the protocol is %.20s",
                           version);
    if (headers->transfer_encodings && strcasecmp(headers->transfer_encoding, "chunked") != 0)
        return problem_set(problem, PROBLEM_NOT_IMPLEMENTED, "",
                           "Transfer-Encoding is \"%.40s\"; only \"chunked\" is read here: send the body as it is",
                           headers->transfer_encoding);
    if (headers->hosts > 1)
        return problem_set(problem, PROBLEM_HTTP, "", "There are %u Host headers; send one", headers->hosts);
    if (headers->hosts == 0 && http11)
        return problem_set(problem, PROBLEM_HTTP, "", "There is no Host header; HTTP/1.1 asks for exactly one");
    return true;
}

bool headers_body(const struct headers *headers, size_t *length) {
    *length = SIZE_MAX;
    if (headers->transfer_encodings) return true;
    *length = 0;
    if (!headers->content_lengths) return false;
    /* libmicrohttpd has let only digits below 2^64 through */
    for (const char *s = headers->content_length; *s >= '0' && *s <= '9'; s++) {
        size_t digit = (size_t)(*s - '0');
        if (*length > (SIZE_MAX - 1 - digit) / 10) {
            *length = SIZE_MAX - 1;
            break;
        }
        *length = *length * 10 + digit;
    }
    return *length > 0;
}

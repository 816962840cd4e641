/* SPDX-License-Identifier: Apache-2.0
 *
 * server/routes.h - the route table: method, path, what answers, which bodies and answers, and whether a token is needed.
 *
 * Model. A route is either a *call* (a body streams into api/call.h and an answer streams out) or an *answer* (a function
 * fills a struct api_answer at once). A path may hold one `{name}` segment. HEAD comes with every GET. Adding a route is one
 * line in routes.c and, for an answer, one function.
 */
#ifndef MHA_SERVER_ROUTES_H
#define MHA_SERVER_ROUTES_H

#include "../api/answer.h"

struct service;

enum route_kind {
    ROUTE_CALL,   /* `endpoint` of api/call.h */
    ROUTE_API,    /* `api`: needs only the environment that all calls share */
    ROUTE_SERVER, /* `server`: about the process itself */
};

typedef void server_answer_function(struct service *service, struct api_answer *answer);

struct route {
    const char *method;
    const char *path; /* "/v1/layers/{name}" */
    enum route_kind kind;
    enum api_endpoint endpoint;
    api_answer_function *api;
    server_answer_function *server;
    unsigned takes;  /* MEDIA() set of bodies */
    unsigned offers; /* MEDIA() set of answers; 0: its own text type, whatever Accept says */
    bool keeps;      /* changes files: not on the I/O thread when layers have a directory */
    bool open;       /* answered without a token */
    bool quiet;      /* a success is logged at level debug only */
};

#define ROUTE_NAME_MAX 256

struct route_match {
    const struct route *route; /* NULL: none */
    const struct route *path;  /* the first route of this path, whatever its method, for labels; NULL: 404 */
    char name[ROUTE_NAME_MAX]; /* what stood for {name} */
    bool head;                 /* HEAD of a GET route */
};

/* The table, for metrics, openapi and tests. NULL past the end. */
const struct route *route_at(size_t index);
size_t route_index(const struct route *route);

/* Finds method and path (already unescaped; absolute-form http://host/path is fine). */
void route_find(struct route_match *match, const char *method, const char *path);
/* "GET, HEAD, POST, OPTIONS": what the path of this route takes. */
void route_methods(const struct route *path, char *out, size_t size);

#endif

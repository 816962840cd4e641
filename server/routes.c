/* SPDX-License-Identifier: Apache-2.0
 *
 * server/routes.c - the route table and the search in it; see routes.h.
 */
#include "routes.h"

#include <string.h>
#include <strings.h>

#include "../api/layer_answers.h"
#include "health.h"
#include "media.h"
#include "metrics.h"
#include "openapi.h"
#include "text.h"

#define JSON        MEDIA(API_JSON)
#define SAFETENSORS MEDIA(API_SAFETENSORS)

static const struct route routes[] = {
    {.method = "POST",
     .path = "/v1/mha",
     .kind = ROUTE_CALL,
     .endpoint = API_MHA,
     .takes = JSON | SAFETENSORS,
     .offers = JSON | SAFETENSORS},
    {.method = "PUT",
     .path = "/v1/layers/{name}",
     .kind = ROUTE_CALL,
     .endpoint = API_LAYER_PUT,
     .takes = JSON | SAFETENSORS,
     .offers = JSON},
    {.method = "GET", .path = "/v1/layers", .kind = ROUTE_API, .api = layers_list_answer, .offers = JSON},
    {.method = "GET", .path = "/v1/layers/{name}", .kind = ROUTE_API, .api = layers_get_answer, .offers = JSON},
    {.method = "DELETE",
     .path = "/v1/layers/{name}",
     .kind = ROUTE_API,
     .api = layers_delete_answer,
     .offers = JSON,
     .keeps = true},
    {.method = "GET", .path = "/healthz", .kind = ROUTE_SERVER, .server = health_alive, .open = true, .quiet = true},
    {.method = "GET", .path = "/readyz", .kind = ROUTE_SERVER, .server = health_ready, .open = true, .quiet = true},
    {.method = "GET", .path = "/metrics", .kind = ROUTE_SERVER, .server = metrics_answer, .quiet = true},
    {.method = "GET", .path = "/openapi.json", .kind = ROUTE_SERVER, .server = openapi_answer},
    {.method = "GET", .path = "/", .kind = ROUTE_SERVER, .server = health_pointer},
};

#define ROUTE_COUNT (sizeof routes / sizeof routes[0])

const struct route *route_at(size_t index) { return index < ROUTE_COUNT ? &routes[index] : NULL; }
size_t route_index(const struct route *route) { return (size_t)(route - routes); }

/* Whether `path` is of the form `pattern`; `name` gets what stands for {name}. */
static bool fits(const char *pattern, const char *path, char name[ROUTE_NAME_MAX]) {
    const char *brace = strchr(pattern, '{');
    if (!brace) return strcmp(pattern, path) == 0;
    size_t before = (size_t)(brace - pattern);
    if (strncmp(pattern, path, before) != 0) return false;
    size_t length = strcspn(path + before, "/");
    if (length == 0 || length >= ROUTE_NAME_MAX) return false;
    if (strcmp(strchr(brace, '}') + 1, path + before + length) != 0) return false;
    memcpy(name, path + before, length);
    name[length] = '\0';
    return true;
}

/* RFC 9112, section 3.2.2: a server accepts the absolute form too. */
static const char *origin_form(const char *path) {
    size_t scheme = strncasecmp(path, "http://", 7) == 0 ? 7 : strncasecmp(path, "https://", 8) == 0 ? 8 : 0;
    if (!scheme) return path;
    const char *slash = strchr(path + scheme, '/');
    return slash ? slash : "/";
}

void route_find(struct route_match *match, const char *method, const char *path) {
    *match = (struct route_match){.head = strcmp(method, "HEAD") == 0};
    if (match->head) method = "GET";
    path = origin_form(path);
    for (size_t i = 0; i < ROUTE_COUNT; i++) {
        if (!fits(routes[i].path, path, match->name)) continue;
        if (!match->path) match->path = &routes[i];
        if (strcmp(routes[i].method, method) != 0) continue;
        match->route = &routes[i];
        return;
    }
}

void route_methods(const struct route *path, char *out, size_t size) {
    struct text text = text_in(out, size);
    for (size_t i = 0; i < ROUTE_COUNT; i++) {
        if (strcmp(routes[i].path, path->path) != 0) continue;
        text_format(&text, "%s, ", routes[i].method);
        if (strcmp(routes[i].method, "GET") == 0) text_add(&text, "HEAD, ");
    }
    text_add(&text, "OPTIONS");
}

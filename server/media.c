/* SPDX-License-Identifier: Apache-2.0
 *
 * server/media.c - see media.h.
 */
#include "media.h"

#include <string.h>
#include <strings.h>

static const char *const names[API_MEDIA_COUNT] = {
    [API_JSON] = "application/json",
    [API_SAFETENSORS] = "application/vnd.safetensors",
};

const char *media_name(enum api_media media) { return names[media]; }

static const char *skip_space(const char *s) {
    while (*s == ' ' || *s == '\t') s++;
    return s;
}

/* Length of the type/subtype at s. */
static size_t type_length(const char *s) { return strcspn(s, ";, \t"); }

bool media_of_body(const char *content_type, unsigned allowed, enum api_media *media) {
    if (!content_type) return false;
    content_type = skip_space(content_type);
    size_t length = type_length(content_type);
    for (unsigned i = 0; i < API_MEDIA_COUNT; i++) {
        if (!(allowed & MEDIA(i)) || strlen(names[i]) != length) continue;
        if (strncasecmp(content_type, names[i], length) != 0) continue;
        *media = (enum api_media)i;
        return true;
    }
    return false;
}

/* Thousandths of the q parameter among the parameters at s; 1000 without one. Stops at the comma. */
static unsigned quality(const char *s) {
    unsigned q = 1000;
    while (*s == ' ' || *s == '\t') s++;
    while (*s == ';') {
        s = skip_space(s + 1);
        if ((s[0] == 'q' || s[0] == 'Q') && s[1] == '=') {
            q = s[2] == '1' ? 1000 : 0;
            unsigned digit = 100;
            for (const char *d = s[2] && s[3] == '.' ? s + 4 : ""; *d >= '0' && *d <= '9' && digit; d++, digit /= 10)
                if (q < 1000) q += (unsigned)(*d - '0') * digit;
        }
        while (*s && *s != ';' && *s != ',') s++;
    }
    return q;
}

/* How exactly the range at s (of `length` bytes) names `name`: 3 type/subtype, 2 type/asterisk, 1 any, 0 not at all. */
static unsigned match(const char *s, size_t length, const char *name) {
    size_t type = strcspn(name, "/") + 1;
    if (length == strlen(name) && strncasecmp(s, name, length) == 0) return 3;
    if (length == type + 1 && s[type] == '*' && strncasecmp(s, name, type) == 0) return 2;
    return length == 3 && memcmp(s, "*/*", 3) == 0;
}

/* The quality that the most exact range gives to `name`. */
static unsigned quality_of(const char *accept, const char *name) {
    unsigned best = 0, q = 0;
    for (const char *s = accept; *s;) {
        s = skip_space(s);
        size_t length = type_length(s);
        unsigned exact = match(s, length, name);
        if (exact > best) {
            best = exact;
            q = quality(s + length);
        }
        s += strcspn(s, ",");
        if (*s == ',') s++;
    }
    return q;
}

bool media_accepted(const char *accept, unsigned offered, enum api_media *media) {
    unsigned best = 0;
    if (!accept || !*accept || strcmp(accept, "*/*") == 0) { /* most clients: the first that there is */
        *media = (enum api_media)__builtin_ctz(offered);
        return true;
    }
    for (unsigned i = 0; i < API_MEDIA_COUNT; i++) {
        unsigned q = offered & MEDIA(i) ? quality_of(accept, names[i]) : 0;
        if (q <= best) continue;
        best = q;
        *media = (enum api_media)i;
    }
    return best > 0;
}

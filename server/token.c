/* SPDX-License-Identifier: Apache-2.0
 *
 * server/token.c - see token.h.
 */
#include "token.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

static const char *trim(char *line) {
    line += strspn(line, " \t");
    size_t length = strlen(line);
    while (length && strchr(" \t\r\n", line[length - 1])) line[--length] = '\0';
    return line;
}

/* Fills token[TOKENS_MAX]; returns how many, or 0 with the reason in `why`. */
static size_t read_lines(FILE *file, char (*token)[TOKEN_ROOM], char *why, size_t why_size) {
    char line[TOKEN_ROOM + 64];
    size_t count = 0;
    why[0] = '\0';
    while (!why[0] && fgets(line, sizeof line, file)) {
        const char *text = trim(line);
        if (!*text || *text == '#') continue;
        if (count == TOKENS_MAX)
            snprintf(why, why_size, "more than %d tokens", TOKENS_MAX);
        else if (strlen(text) >= TOKEN_ROOM)
            snprintf(why, why_size, "a token is longer than %d characters", TOKEN_ROOM - 1);
        else
            memcpy(token[count++], text, strlen(text));
    }
    if (!why[0] && ferror(file)) snprintf(why, why_size, "%s", strerror(errno));
    if (!why[0] && count == 0) snprintf(why, why_size, "there is no token in it");
    explicit_bzero(line, sizeof line);
    return why[0] ? 0 : count;
}

bool tokens_read(struct token_list *list, const char *path, char *why, size_t why_size) {
    if (!*path) return true;
    FILE *file = fopen(path, "re");
    if (!file) {
        snprintf(why, why_size, "%s", strerror(errno));
        return false;
    }
    char(*token)[TOKEN_ROOM] = calloc(TOKENS_MAX, sizeof *token);
    size_t count = 0;
    if (token)
        count = read_lines(file, token, why, why_size);
    else
        snprintf(why, why_size, "no memory");
    fclose(file);
    if (!count) {
        free(token);
        return false;
    }
    tokens_free(list);
    *list = (struct token_list){.required = true, .count = count, .token = token};
    return true;
}

bool tokens_allow(const struct token_list *list, const char *authorization) {
    if (!list->required) return true;
    if (!authorization || strncasecmp(authorization, "Bearer ", 7) != 0) return false;
    const char *presented = authorization + 7 + strspn(authorization + 7, " ");
    char padded[TOKEN_ROOM] = {0};
    size_t length = strlen(presented);
    if (length == 0 || length >= TOKEN_ROOM) return false;
    memcpy(padded, presented, length);
    unsigned allowed = 0;
    for (size_t t = 0; t < list->count; t++) {
        volatile unsigned char differs = 0;
        for (size_t i = 0; i < TOKEN_ROOM; i++) differs |= (unsigned char)(padded[i] ^ list->token[t][i]);
        allowed |= differs == 0;
    }
    explicit_bzero(padded, sizeof padded);
    return allowed;
}

void tokens_free(struct token_list *list) {
    if (list->token) explicit_bzero(list->token, TOKENS_MAX * sizeof *list->token);
    free(list->token);
    *list = (struct token_list){.required = list->required};
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * server/openapi.c - see openapi.h. .incbin reads the file from where the compiler runs, the top of the source tree; the
 * Makefile knows that this object depends on it.
 */
#include "openapi.h"

__asm__(".section .rodata\n"
        ".balign 16\n"
        "openapi_begin: .incbin \"api/openapi.json\"\n"
        "openapi_end: .byte 0\n"
        ".previous\n");

extern const char openapi_begin[], openapi_end[];

void openapi_answer(struct service *service, struct api_answer *answer) {
    (void)service;
    answer->content_type = "application/json";
    answer->body = (char *)(uintptr_t)openapi_begin; /* borrowed: never written to */
    answer->size = (size_t)((uintptr_t)openapi_end - (uintptr_t)openapi_begin);
    answer->borrowed = true;
}

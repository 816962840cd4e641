/* SPDX-License-Identifier: Apache-2.0
 *
 * core/isa.c - which instruction set the kernels use. Only the portable one exists yet.
 */
#include "mha.h"

#include <string.h>

const char *mha_isa_name(void) { return "generic"; }

bool mha_isa_force(const char *name) { return strcmp(name, "generic") == 0; }

/* SPDX-License-Identifier: Apache-2.0
 *
 * core/version.c - which libmha this is. The number comes from the Makefile.
 */
#include "mha.h"

const char *mha_version(void) { return MHA_VERSION; }

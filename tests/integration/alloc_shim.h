/* SPDX-License-Identifier: Apache-2.0
 *
 * tests/integration/alloc_shim.h - what the preloaded allocator and the test that steers it share: one page of a file.
 */
#ifndef MHA_TESTS_ALLOC_SHIM_H
#define MHA_TESTS_ALLOC_SHIM_H

#include <stdatomic.h>

#define ALLOC_SHIM_FILE "ALLOC_SHIM_FILE" /* environment: path of the file */

struct alloc_shim {
    atomic_long countdown;  /* > 0: this many allocations from now, one fails; 0 and below: none (it stops counting) */
    atomic_long persistent; /* nonzero: that one and all after it, until cleared */
    atomic_long failed;     /* allocations refused so far */
    atomic_long live;       /* blocks and mappings now held */
};

#endif

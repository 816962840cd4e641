/* SPDX-License-Identifier: Apache-2.0
 *
 * tests/unit/isa/vmath_probe_64.c - vmath on vectors of 64 bytes, whatever the target has.
 */
#define VM_BYTES 64
#include "vmath_probe.inc"

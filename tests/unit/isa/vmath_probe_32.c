/* SPDX-License-Identifier: Apache-2.0
 *
 * tests/unit/isa/vmath_probe_32.c - vmath on vectors of 32 bytes, whatever the target has.
 */
#define VM_BYTES 32
#include "vmath_probe.inc"

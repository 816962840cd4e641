/* SPDX-License-Identifier: Apache-2.0
 *
 * tests/unit/isa/vmath_probe_16.c - vmath on vectors of 16 bytes, whatever the target has.
 */
#define VM_BYTES 16
#include "vmath_probe.inc"

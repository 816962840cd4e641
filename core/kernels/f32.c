/* SPDX-License-Identifier: Apache-2.0
 *
 * core/kernels/f32.c - the kernels in single precision, compiled once per instruction set (KERNEL_ISA).
 */
#define REAL_BITS 32
#include "table.h"

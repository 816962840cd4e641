/* SPDX-License-Identifier: Apache-2.0
 *
 * core/kernels/f64.c - the kernels in double precision, compiled once per instruction set (KERNEL_ISA).
 */
#define REAL_BITS 64
#include "table.h"
